"""Multi-partition calls that not every partition's line of entries treats alike: run on all partitions or on none.

One rule: the verdict follows from the places that the call's entry names, and from the terms that the lines hold there
(`cmdlog.wal.format.call_places`): live nodes judge by the same function, so a replay runs what they ran.

    void      a line can never have held it, or ends before it: no node has run it, and it was answered nowhere. The others note
              the entry and run nothing. It leaves no outcome: under the same key it runs again.
    skipped   every line holds it, some skip it (SKIP): the others do, too. A SKIP is decided before any partition has run it.
    lost      a line lacks it, and another has its digest, or a later one while this line ends before the place: then it was
              committed everywhere, and the line that lacks it has lost entries. That is not repaired but reported.

That a call was executed is known from its digest, which states its outcome; a state that is younger has passed the place, and may
have found it void.

Dropping is chosen over completing: a completed call would be an entry that no log holds, so every other reader of the same logs
would have to invent it too; all of them omit a dropped one by the same argument.

Calls of nodes that vote alone name no places: there, a line lacks a call if it does not hold it and does not begin after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cmdlog.wal.format.batch import decode_batch, multi_txn
from cmdlog.wal.format.call_places import CallPlaces, CallVerdict, TermTable
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.bundle import bundle_of
from replay.errors import Incomplete
from replay.log.log_fold import MultiCall
from replay.log.source import LogSource, fold_end

_BATCH: Final = RecordKind.BATCH


@dataclass(slots=True)
class PartitionSpan:
    """One partition's entries between where it starts and where it ends, as far as multi-partition calls are concerned."""

    start_txn: int = 0  # the start holds every call up to here
    calls: dict[int, MultiCall] = field(default_factory=dict)  # by TxnId, ascending
    skipped: set[int] = field(default_factory=set)  # indexes of those that a SKIP skips
    ran: set[int] = field(default_factory=set)  # TxnIds of those that have a digest
    passed: int = 0  # entries up to here were run, or found void: by the start, or by the live run
    terms: TermTable = field(default_factory=TermTable)  # of the whole line


@dataclass(frozen=True, slots=True)
class PartedCall:
    """A call that not all lines treat alike."""

    txn_id: int
    held: Mapping[int, int]  # partition -> index
    lacking: tuple[int, ...]  # partitions whose lines should hold it and do not
    skipped: tuple[int, ...]  # partitions whose lines take it out
    executed: tuple[int, ...]  # partitions that are known to have executed it
    final: bool = False  # whatever comes after these lines, the one that lacks it can never hold it

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
        entries = {p: line.calls[txn_id] for p, line in lines.items() if txn_id in line.calls}
        held = {p: entry.index for p, entry in entries.items()}
        skipped = tuple(p for p, index in sorted(held.items()) if index in lines[p].skipped)
        ran = {p for p, line in lines.items() if txn_id in line.ran and p not in skipped}
        places = next(iter(entries.values())).places
        lacking, executed, final = _judge(txn_id, places, lines, held, ran)
        if lacking or (skipped and len(skipped) < len(held) and not ran):
            found.append(PartedCall(txn_id, held, lacking, skipped, tuple(sorted(executed)), final))
    return found


def _judge(
    txn_id: int, places: CallPlaces, lines: Mapping[int, PartitionSpan], held: Mapping[int, int], ran: set[int]
) -> tuple[tuple[int, ...], set[int], bool]:
    """Partitions that lack the call, those that show that it was committed on all, and whether it is out for good."""
    if not places:
        return tuple(p for p, line in sorted(lines.items()) if p not in held and txn_id > line.start_txn), ran, False
    verdicts = {p: lines[p].terms.judge(place) for p, place in enumerate(places) if p in lines}
    lacking = tuple(
        p for p, verdict in verdicts.items() if verdict is not CallVerdict.IN and not (verdict is CallVerdict.UNKNOWN and ran)
    )
    if not lacking or CallVerdict.OUT in verdicts.values():
        return lacking, ran - set(lacking), bool(lacking)
    passed = {p for p in verdicts if lines[p].passed >= places[p].index}
    return lacking, (ran | passed) - set(lacking), False


def check_whole(found: Iterable[PartedCall], names: Mapping[int, str]) -> None:
    """Raises: Incomplete when a partition lacks a call that was committed on all."""
    if lost := [call.describe(names.get(call.txn_id, "")) for call in found if call.is_loss]:
        raise Incomplete("; ".join(lost))


def left_out(found: Iterable[PartedCall], partition: int) -> list[int]:
    """Indexes of the partition's entries that are not run, for a reader that only lists calls."""
    return [call.held[partition] for call in found if partition in call.held and not call.is_loss]


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
