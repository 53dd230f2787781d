"""Multi-partition calls that recovery would execute on some partitions and not on others.

One rule: such a call is executed on all partitions or on none, and never parted silently. It enters every partition's stream
under one TxnId, and a live node executes and answers it only once it is committed in all of them. So a call that some partition's
line of entries lacks was answered nowhere, unless that line itself lacks something acknowledged:

    lacking   a line does not hold it: it is dropped from the others, which note the entry and run nothing. The call was never
              answered, so the client knows its outcome as unknown, and under the same key it runs again.
    skipped   every line holds it, some skip it (SKIP): the others do, too. A SKIP is decided before any partition has run it.
    executed  a line lacks it, and another is known to have executed it (a later digest, or a state that holds it): then it
              was committed everywhere, so the line that lacks it has lost an entry. That is not repaired but reported.

Dropping is chosen over completing: a completed call would be an entry that no log holds, so every other
reader of the same logs would have to invent it too; all of them omit a dropped one by the same argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cmdlog.wal.format.batch import decode_batch, multi_txn
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.bundle import bundle_of
from replay.errors import Incomplete
from replay.log.source import LogSource, fold_end

if TYPE_CHECKING:
    from replay.plan.node_plan import PartitionPlan

_BATCH: Final = RecordKind.BATCH


@dataclass(slots=True)
class PartitionSpan:
    """One partition's entries between where it starts and where it ends, as far as multi-partition calls are concerned."""

    start_txn: int = 0  # the start holds every call up to here
    calls: dict[int, int] = field(default_factory=dict)  # TxnId -> index, ascending
    skipped: set[int] = field(default_factory=set)  # indexes of those that a SKIP skips
    executed: int = 0  # the live run is known to have executed the entries up to here

    def has_run(self, txn_id: int) -> bool:
        """Whether the call is known to have been executed here."""
        return txn_id <= self.start_txn or self.calls.get(txn_id, self.executed + 1) <= self.executed


@dataclass(frozen=True, slots=True)
class PartedCall:
    """A call that not all lines treat alike."""

    txn_id: int
    held: Mapping[int, int]  # partition -> index
    lacking: tuple[int, ...]  # partitions whose lines should hold it and do not
    skipped: tuple[int, ...]  # partitions whose lines take it out
    executed: tuple[int, ...]  # partitions that are known to have executed it

    @property
    def is_loss(self) -> bool:
        """Whether what lacks it has lost an entry that was committed."""
        return bool(self.lacking and self.executed)

    def describe(self, procedure: str = "") -> str:
        """Describes it for a plan or an error."""
        where = " and ".join(f"partition {p} at index {index}" for p, index in sorted(self.held.items()))
        name = f"{procedure}, " if procedure else ""
        lacking = ", ".join(map(str, self.lacking))
        if self.is_loss:
            ran = ", ".join(map(str, self.executed))
            return (
                f"partition {lacking}: multi-partition call {name}transaction {self.txn_id} is missing, and partition {ran} has "
                f"executed it, so it was committed on all"
            )
        if self.lacking:
            return (
                f"dropped on all partitions: multi-partition call {name}transaction {self.txn_id} ({where}); partition {lacking} "
                "does not hold it, so it was never executed or acknowledged"
            )
        taken = ", ".join(map(str, self.skipped))
        call = f"multi-partition call {name}transaction {self.txn_id} ({where})"
        return f"skipped on all partitions: {call}; partition {taken} skips it"


def find_parted(lines: Mapping[int, PartitionSpan]) -> list[PartedCall]:
    """Ascending by TxnId. `lines` are those of all partitions."""
    if len(lines) < 2:
        return []
    found = []
    for txn_id in sorted({txn for line in lines.values() for txn in line.calls}):
        held = {p: line.calls[txn_id] for p, line in lines.items() if txn_id in line.calls}
        lacking = tuple(p for p, line in sorted(lines.items()) if p not in held and txn_id > line.start_txn)
        skipped = tuple(p for p, index in sorted(held.items()) if index in lines[p].skipped)
        if not lacking and len(skipped) in (0, len(held)):
            continue
        executed = tuple(p for p, line in sorted(lines.items()) if p not in skipped and line.has_run(txn_id))
        if lacking or not executed:
            found.append(PartedCall(txn_id, held, lacking, skipped, executed))
    return found


def check_whole(found: Iterable[PartedCall], names: Mapping[int, str]) -> None:
    """Raises: Incomplete when a partition lacks a call that was committed on all."""
    if lost := [call.describe(names.get(call.txn_id, "")) for call in found if call.is_loss]:
        raise Incomplete("; ".join(lost))


def left_out(found: Iterable[PartedCall], partition: int) -> list[int]:
    """Indexes of the partition's entries that are not run, for a reader that only lists calls."""
    return [call.held[partition] for call in found if partition in call.held and not call.is_loss]


def settled(part: PartitionPlan, found: Iterable[PartedCall]) -> PartitionPlan:
    """The partition's plan, or a piece of it, with each of these calls dropped or skipped where it holds it."""
    held = [(call, index) for call in found if (index := call.held.get(part.partition)) is not None]
    inside = [(call, index) for call, index in held if part.from_index < index <= part.to_index and not call.is_loss]
    dropped = sorted(index for call, index in inside if call.lacking)
    skips = {index: (0,) for call, index in held if not call.lacking}
    if not dropped and not skips:
        return part
    return replace(part, dropped=tuple(dropped), skips={**part.skips, **skips}, calls=part.calls - len(dropped))


def names_of(found: Iterable[PartedCall], source: LogSource, from_block: int) -> dict[int, str]:
    """TxnId -> procedure, for as many of the calls as this log holds. Reads it once more, only if there are any."""
    wanted, catalogs = {call.txn_id for call in found}, {}
    numbers: dict[int, tuple[int, int]] = {}
    for _, record in source.read(from_block=from_block) if wanted else ():
        if record.kind is _BATCH and (txn := multi_txn(record)) in wanted:
            batch = decode_batch(record)
            numbers[txn] = batch.catalog, batch.procedures[0]
    if numbers:
        catalogs = fold_end(source).state(CLUSTER_GROUP).catalogs
    names = {}
    for txn, (version, number) in numbers.items():
        stated = bundle_of(version, catalogs[version].value).procedures if version in catalogs else ()
        if number < len(stated):
            names[txn] = str(stated[number]["name"])
    return names
