"""Plans for several moments of one history, as the driver hands them out by partition, and the entries of such a plan.

One rule: the replay engine decides. A plan comes from `make_plan`, or over several nodes from `make_joint_plan`, and tasks get
that plan cut down to one partition, in legs. A leg returns exactly what its plan lists, entry after entry. A log that no longer
holds that is an error, which names the damage, if that is the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT, BlockNumber, Lsn
from cmdlog.wal.skips import VOID, SkipSet
from replay.errors import BadUntil, EntryMissing, Incomplete, PlanOutdated, ReplayError, UntilBeyond, UntilUnreachable, first_of
from replay.log.archive_reach import describe_strays, time_of
from replay.log.collect_evidence import gather
from replay.log.log_fold import is_void
from replay.log.scan import ScannedStream
from replay.log.source import fold_end, open_source
from replay.log.spans import Mark
from replay.plan.cluster_plan import JointPlan, check_complete
from replay.plan.cluster_planner import make_joint_plan, open_or_salvage
from replay.plan.newest_restorable import describe_moment, newest_before_damage
from replay.plan.node_plan import PartitionPlan, Plan, source_of_plan
from replay.plan.planner import PAST, make_plan
from replay.plan.sole_voter import votes_alone
from replay.plan.until import parse_until

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
        with naming_damage(files, leg):
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
def naming_damage(files: Files, leg: Plan) -> Iterator[None]:
    """A log that no longer holds what a plan lists may have been damaged since: then the damage is the error, with its place."""
    try:
        yield
    except (EntryMissing, PlanOutdated) as outdated:
        around = leg.salvaged or leg.gaps
        source = source_of_plan(files, leg) if around else open_source(files, leg.directory)
        upto = leg.last_block if leg.salvaged else None
        for _ in source.read(from_block=max(leg.from_block, source.first_blocks[0]), upto_block=upto):
            pass
        for damage in source.patchwork.damages if source.patchwork is not None and upto is not None else ():
            raise damage from outdated
        strays = "" if around else describe_strays(files, leg.directory)
        outdated.args = (f"{outdated.args[0]}, in {leg.directory}{strays and f': {strays}'}",)
        raise


Moment = int | str | datetime | None


@dataclass(frozen=True, slots=True)
class MomentReplay:
    """The replay up to one moment."""

    until: int | None
    legs: tuple[Plan, ...]
    notes: tuple[str, ...]
    catalogs: Mapping[int, Mapping[str, Any]]  # version -> value of its record, of all that are known where the log ends

    @property
    def partitions(self) -> list[int]:
        return sorted({part.partition for leg in self.legs for part in leg.partitions})

    @property
    def cluster_id(self) -> str:
        return self.legs[0].cluster_id

    def txn_id(self) -> int:
        """The newest transaction of any partition."""
        return max((part.to_txn for leg in self.legs for part in leg.partitions), default=0)

    def of(self, partition: int) -> list[Plan]:
        """The legs of one partition, in order."""
        found = []
        for leg in self.legs:
            parts = tuple(part for part in leg.partitions if part.partition == partition)
            if parts:
                found.append(replace(leg, partitions=parts))
        return found


def parse_moment(moment: Moment) -> int | None:
    """A transaction id, a time (RFC 3339 or datetime with its zone), or None: the end. Raises: BadUntil."""
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadUntil(f"{moment} has no time zone")
        moment = moment.isoformat()
    return parse_until(moment)


def find_history(files: Files, paths: Sequence[str], until: int | None, *, accept_data_loss: bool) -> MomentReplay:
    """The plan for one moment. Raises: Incomplete; what `make_plan` and `make_joint_plan` raise.

    With `accept_data_loss` it is still complete where snapshots and the rest of the log suffice. Else every partition stops at
    the last entry before the damage, and a warning reports it.
    """
    if accept_data_loss:
        with contextlib.suppress(WalError, ReplayError):
            return find_history(files, paths, until, accept_data_loss=False)
        found = _find_history(files, paths, until, accept_data_loss=True)
        _warn(found)
        return found
    return _find_history(files, paths, until, accept_data_loss=False)


def _find_history(files: Files, paths: Sequence[str], until: int | None, *, accept_data_loss: bool) -> MomentReplay:
    if len(paths) > 1 or not votes_alone(gather(files, paths[0])):
        joint = make_joint_plan(files, paths, until=until, accept_data_loss=accept_data_loss)
        if not accept_data_loss:
            check_complete(joint)
        return _jointly(files, joint)
    try:
        planned = make_plan(files, paths[0], PAST, until=until, accept_data_loss=accept_data_loss)
    except (Incomplete, UntilUnreachable) as error:
        if strays := describe_strays(files, paths[0]):
            error.args = (f"{error.args[0]}; {strays}",)
        raise
    except Corrupt as damage:
        return _around_damage(files, paths[0], until, damage)
    known = {**planned.scan.catalogs, **planned.scan.groups.state(CLUSTER_GROUP).catalogs}
    return MomentReplay(until, (planned.plan,), planned.plan.notes, {version: of.value for version, of in known.items()})


def _warn(history: MomentReplay) -> None:
    """On the driver's stderr: a table of a state does not show what it lacks."""
    import logging  # noqa: PLC0415 - no task needs it

    ends: dict[int, int] = {}
    for part in (part for leg in history.legs for part in leg.partitions):
        ends[part.partition] = max(ends.get(part.partition, 0), part.to_txn)
    stand = ", ".join(f"partition {p} at transaction {txn} ({time_of(txn)})" for p, txn in sorted(ends.items()))
    what = "; ".join(history.notes)
    logging.getLogger("replay.spark").warning("the state lacks what was lost; where it stops: %s; %s", stand, what)


def _jointly(files: Files, joint: JointPlan) -> MomentReplay:
    catalogs: dict[int, Mapping[str, Any]] = {}
    for node in joint.nodes:
        catalogs |= catalogs_at_end(files, node.directory) if not node.refused else {}
    return MomentReplay(joint.until, joint.legs, (*joint.incomplete, *joint.notes), catalogs)


def _around_damage(files: Files, directory: str, until: int | None, damage: Corrupt) -> MomentReplay:
    """Snapshots and the rest of the log may suffice. Raises: `damage`, with what else is missing."""
    try:
        joint = make_joint_plan(files, [directory], until=until)
    except ReplayError:
        raise damage from None
    if joint.incomplete:
        why = f"the log after the damage is not proved complete: {first_of(joint.incomplete)}"
        damage.args = (f"{damage.args[0]}; {why}; {describe_moment(newest_before_damage(files, directory))}",)
        raise damage
    return _jointly(files, joint)


def plan_json(plan: Plan) -> Any:
    """A plan as part of an order."""
    return orjson.loads(plan.to_json())


def catalogs_at_end(files: Files, directory: str) -> dict[int, Mapping[str, Any]]:
    """Version -> value of its record, of all code that the log knows at its end."""
    groups = fold_end(open_or_salvage(files, directory))
    return {version: catalog.value for version, catalog in groups.state(CLUSTER_GROUP).catalogs.items()}
