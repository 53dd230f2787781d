"""One partition's entries where no single log can be read completely: in legs, from several logs.

One rule: a leg returns exactly what its plan lists, entry after entry. A log that no longer holds that is an error,
which names the damage, if that is the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.wal.files import Files
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT, BlockNumber, Lsn
from cmdlog.wal.skips import VOID, SkipSet
from replay.errors import EntryMissing, PlanOutdated, UntilBeyond
from replay.log.archive_reach import describe_strays
from replay.log.log_fold import is_void
from replay.log.scan import ScannedStream
from replay.log.source import fold_end, open_source
from replay.log.spans import Mark
from replay.plan.cluster_plan import check_complete
from replay.plan.cluster_planner import make_joint_plan, open_or_salvage
from replay.plan.node_plan import PartitionPlan, Plan, source_of_plan
from replay.spark.jobs.as_of import catalogs_at_end

_MILLIS: Final = (1 << MILLIS_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Stitched:
    """The legs after some entries, from any of the logs."""

    legs: tuple[Plan, ...]
    groups: GroupStates  # as the log that counts for the cluster group ends
    catalogs: Mapping[int, Mapping[str, Any]]  # version -> value of its record

    def of(self, partition: int) -> list[Plan]:
        """The legs of one partition, in order."""
        return [leg for leg in self.legs if leg.partitions[0].partition == partition]


def stitch(files: Files, paths: Sequence[str], starts: Mapping[int, Mark], until: int | None) -> Stitched:
    """The legs after these entries (partition -> entry). Raises: Incomplete, UntilBeyond; what `make_joint_plan` raises."""
    plan = make_joint_plan(files, paths, until=until, starts=starts)
    check_complete(plan)
    catalogs: dict[int, Mapping[str, Any]] = {}
    for node in plan.nodes:
        catalogs |= catalogs_at_end(files, node.directory) if not node.refused else {}
    for leg in plan.legs:
        catalogs |= {int(value["version"]): value for value in leg.catalogs}
    chosen = next(choice.chosen for choice in plan.choices if choice.group == CLUSTER_GROUP)
    groups = fold_end(open_or_salvage(files, chosen))
    if until is not None and until > groups.txn_id_max | _MILLIS:
        raise UntilBeyond(f"transaction {until} was not reached: the newest one is {groups.txn_id_max}")
    return Stitched(plan.legs, groups, catalogs)


def start_of(legs: Sequence[Plan]) -> Mark:
    """The entry after which these legs begin."""
    part = legs[0].partitions[0]
    return Mark(part.from_index, part.from_term, part.from_checksum)


def stream_of(legs: Sequence[Plan]) -> ScannedStream:
    """The stream that `read_legs` returns: nothing of it is void."""
    last = legs[-1].partitions[0]
    parts = [leg.partitions[0] for leg in legs]
    skips = {(index, at) for part in parts for index, positions in part.skips.items() for at in positions}
    skips |= {(index, VOID) for part in parts for index in part.dropped}
    return ScannedStream(
        to_index=last.to_index,
        to_calls=last.to_calls,
        to_term=last.to_term,
        to_checksum=last.to_checksum,
        skipped=SkipSet(Skip(0, index, at) for index, at in sorted(skips)),
        calls=sum(leg.calls for leg in legs),
        bytes=sum(leg.log_bytes for leg in legs),
    )


def read_legs(files: Files, legs: Sequence[Plan]) -> Iterator[tuple[Lsn, Record]]:
    """The partition's entries and digests, and the cluster group's records, each leg from its own log.

    Raises: PlanOutdated when a leg does not hold what its plan lists; what the log raises.
    """
    if policy := legs[0].key_policy:  # in force where the log begins, which may no longer state it
        value = {"key_policy": policy}
        yield (
            Lsn(BlockNumber(0), 0),
            decode_record(encode_json(RecordKind.CONFIGURATION, value, partition=CLUSTER_GROUP, term=0, index=0)),
        )
    for leg in legs:
        with naming_damage(files, leg.directory, leg.from_block, leg):
            yield from _read(files, leg, leg.partitions[0])


def _read(files: Files, leg: Plan, part: PartitionPlan) -> Iterator[tuple[Lsn, Record]]:
    reached = (part.from_index, part.from_term, part.from_checksum)
    for lsn, record in source_of_plan(files, leg).read(from_block=leg.from_block, upto_block=leg.last_block):
        if record.partition == part.partition and record.is_entry:
            if not part.from_index < record.index <= part.to_index or is_void(part.voids, lsn, record.index):
                continue
            if record.index != reached[0] + 1:
                raise PlanOutdated(
                    f"{leg.directory} holds entry {record.index} of partition {part.partition} after entry {reached[0]}"
                )
            reached = (record.index, record.term, record.checksum)
            yield lsn, record
        elif record.partition == CLUSTER_GROUP or (record.partition == part.partition and record.kind is RecordKind.DIGEST):
            yield lsn, record
    if reached[0] != part.to_index or (part.to_term and reached != (part.to_index, part.to_term, part.to_checksum)):
        raise PlanOutdated(f"{leg.directory} ends partition {part.partition} at entry {reached[0]}, not at {part.to_index}")


@contextlib.contextmanager
def naming_damage(files: Files, directory: str, from_block: int, leg: Plan | None = None) -> Iterator[None]:
    """A log that no longer holds what a plan lists may have been damaged since: then the damage is the error, with its place."""
    try:
        yield
    except (EntryMissing, PlanOutdated) as outdated:
        around = leg is not None and (leg.salvaged or leg.gaps)
        source = source_of_plan(files, leg) if leg is not None and around else open_source(files, directory)
        upto = leg.last_block if leg is not None and leg.salvaged else None
        for _ in source.read(from_block=max(from_block, source.first_blocks[0]), upto_block=upto):
            pass
        for damage in source.patchwork.damages if source.patchwork is not None and upto is not None else ():
            raise damage from outdated
        told = "" if around else describe_strays(files, directory)
        outdated.args = (f"{outdated.args[0]}, in {directory}{told and f': {told}'}",)
        raise
