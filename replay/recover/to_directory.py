"""Recovery into another directory: a complete node that can be served, with the original untouched.

One rule: the new directory is a node only from the last step on, when `instance.json` is written; what a crash leaves before that
says `creating.json`, and no program starts it.

    states     replayed in a folder of the new directory
    snapshots  one per partition, of the recovered state, sealed and verified
    faults     the fault log of the directories, continued
    log        fresh, under a new incarnation; it begins with a CHECKPOINT of every group that states where the streams are,
               and with the catalogs, configuration and environment as they were
    instance   the directory is a node

The new node's transaction ids continue above all that the old log knew, also above those after `--until`: clients may know them.

Its log says that the node is a cluster of its own, which others can join: every group has it as the only voter, and the shape has
its own place, apart from who votes. The lives of all disks of before are over, so none of the old directories counts beside this
one (`replay.plan.directory_lineage`); their nodes may be added again. This node's own life is a new one, which it states when it
leads, with the address that it has then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

from cmdlog.wal.directory.instance import Identity, Instance
from cmdlog.wal.directory.lock import DirectoryLock
from cmdlog.wal.fault_log import FaultRecord, make_record, read_faults
from cmdlog.wal.files import Files
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.group_state import GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures.code.procedure_versions import stated_after
from procedures.storage.state import PartitionState
from replay.errors import Divergence, Interrupted, PlanOutdated, Poison, WorkerFailed
from replay.log.known_failures import carried_fault, continue_faults, known_faults
from replay.log.scan import scan
from replay.log.source import LogSource
from replay.plan.node_plan import Plan, Planned
from replay.recover.execute import RecoveryReport, ReplayTerms, Target, execute
from replay.recover.new_directory import CreationMarker, NewNodeDirectory
from replay.repartition.repartition import check_shape, reshape
from replay.results import PartitionResult, WorkPace
from replay.state.trust import Trust, state_path
from snapshot.capture.image import ImageCapture
from snapshot.capture.seal import seal
from snapshot.catalog import free_path, temporary_path
from snapshot.errors import SnapshotFailed
from snapshot.manifest import IMAGE_NAME

RESUMABLE: Final = (KeyboardInterrupt, SystemExit, Interrupted, Divergence, Poison, WorkerFailed)  # what is left is of use
FIRST_RECORDS_BLOCK: Final = 2  # of a fresh log: where the checkpoint records are; every later entry comes after
OF_VOTERS: Final = frozenset({"voters", "outgoing", "learners", "learners_next", "auto_leave", "epoch", "forced"})


@dataclass(frozen=True, slots=True)
class UnfinishedNode:
    """A node directory in the making, which this process owns. Its states are replayed first, then it is completed."""

    place: NewNodeDirectory
    owner: DirectoryLock
    instance: Instance
    groups: GroupStates  # as the old logs state, then as its log begins
    target: Target  # of the replay
    partitions: int | None  # of the new shape
    resumes: bool  # an earlier run of the same request left states here

    def end_groups(self, results: Iterable[PartitionResult], until: int | None) -> None:
        """Every group ends where its state is, and every version of the code up to then is stated where the new log begins."""
        cluster = self.groups.state(CLUSTER_GROUP)
        if until is not None:  # code of later would be served, and its tables are not there
            cluster.catalogs = {v: known for v, known in cluster.catalogs.items() if not stated_after(known.value, until)}
        for catalog in cluster.catalogs.values():
            catalog.stated_block = FIRST_RECORDS_BLOCK
            catalog.used_block = min(catalog.used_block, FIRST_RECORDS_BLOCK)
        for result in results:
            end_at(self.groups, result)

    def complete(self, report: RecoveryReport, moved: Callable[[WorkPace], None]) -> None:
        """Makes it a node, of the new shape if there is one. Durable on return. Raises: what `reshape` raises."""
        files, out, groups, results = self.target.files, self.target.directory, self.groups, report.results
        if self.partitions is not None:
            replacing = self.place.forbid_resuming
            results = reshape(files, out, groups, partitions=self.partitions, progress=moved, replacing=replacing)
        self.place.note_replayed(report.kept())
        complete(files, out, self.owner, self.instance, groups=groups, results=results, begun_by=self.place.by)


def rebuild(
    planned: Planned,
    files: Files,
    out: str,
    *,
    partitions: int | None = None,
    moved: Callable[[WorkPace], None] = lambda _moved: None,
    **terms: Unpack[ReplayTerms],
) -> RecoveryReport:
    """Makes the node directory `out` from the plan, of another number of `partitions` if one is given. Durable on return.

    The report is about the old partitions; `moved` reports rows on their way to the new ones. A run that is interrupted, or in
    which partitions stop, is resumed by the same plan: each partition from where its state is.

    Raises: WrongDirectory when `out` exists and holds anything but this plan's unfinished recovery; Interrupted; what `execute`
    and `reshape` raise; DiskFull, WriteFailed.
    """
    plan, source = planned.plan, planned.source
    if planned.made_from is not None:
        groups = planned.made_from.groups
    else:
        groups = _fold(plan, source)
        _check_end(plan, groups)
    lineage = known_faults(files, plan.directory, source.instance.identity)
    place = NewNodeDirectory(files, out, CreationMarker.of(plan.to_json(), plan.directory, plan.until, partitions))
    if (noted := place.finished()) is not None:
        return RecoveryReport.of_kept(noted)
    with unfinished_node(
        place, [plan.directory], reborn(source.instance), groups=groups, lineage=lineage, partitions=partitions
    ) as node:
        report = execute(planned, node.target, go_on=node.resumes, **terms)
        node.end_groups(report.results, plan.until)
        node.complete(report, moved)
    return report


@contextlib.contextmanager
def unfinished_node(
    place: NewNodeDirectory,
    sources: Sequence[str],
    instance: Instance,
    *,
    groups: GroupStates,
    lineage: Sequence[FaultRecord],
    partitions: int | None,
) -> Iterator[UnfinishedNode]:
    """Begins the node `instance` there, or resumes it. What an error leaves is kept if the same request can resume from it.

    `sources` are read, never written; `groups` as their logs state; its fault log continues the `lineage`.

    Raises: WrongDirectory, NotEmpty; Interrupted; ReshapeRefused.
    """
    if not (resumes := place.can_resume()):
        place.create(sources)
    with place.owned(RESUMABLE) as owner:
        place.begin_request()
        instance = instance if partitions is None else check_shape(groups, partitions, instance)
        continue_faults(place.files, place.path, instance.identity, lineage)
        yield UnfinishedNode(place, owner, instance, groups, Target(place.files, place.path), partitions, resumes)


def _check_end(plan: Plan, groups: GroupStates) -> None:
    """A plan that was made before the log's last calls would lose them. Raises: PlanOutdated."""
    for part in plan.partitions if plan.until is None else ():
        last = groups.state(part.partition).last_index
        if last > part.to_index:
            raise PlanOutdated(f"the plan ends partition {part.partition} at index {part.to_index}, the log at {last}")


def complete(
    files: Files,
    out: str,
    owner: DirectoryLock,
    instance: Instance,
    *,
    groups: GroupStates,
    results: Iterable[PartitionResult],
    begun_by: str,
) -> None:
    """Makes the node `instance` of the states in `out`: snapshots, a fresh log that begins with `groups`, the instance file.

    Durable on return.
    """
    identity, results, trust = instance.identity, list(results), Trust(files, out)
    begin_alone(groups, identity)
    trust.unseal()
    for result in results:
        groups.state(result.partition).snapshots = [_take_snapshot(files, out, result, identity, groups)]
    trust.seal(result.partition for result in results)
    Log.create(
        files,
        out,
        identity,
        segment_bytes=instance.segment_bytes,
        segments=instance.segments,
        reserve_bytes=instance.log_reserve_bytes,
        initial=groups.checkpoints(oldest_block=1),
        owner=owner,
        forked_from=instance.forked_from,
        begun_by=begun_by,
    )


def reborn(instance: Instance) -> Instance:
    """The same node of the same cluster in a new incarnation: its disk holds another log."""
    identity = instance.identity
    return replace(instance, identity=Identity(identity.cluster_id, identity.node_id, os.urandom(8)))


def end_at(groups: GroupStates, result: PartitionResult) -> None:
    """The partition's group ends where its state is."""
    state = groups.state(result.partition)
    state.configurations = [s for s in state.configurations if s.index <= result.index] or state.configurations[:1]
    if state.schema is not None and state.schema.index > result.index:
        state.schema = None  # the image holds the tables; the record that made them is no longer at hand
    state.last_index, state.last_term, state.last_checksum = result.index, result.term, result.checksum
    state.term = max(state.term, result.term)
    state.commit = result.index


def _fold(plan: Plan, source: LogSource) -> GroupStates:
    indexes = {part.partition: part.from_index for part in plan.partitions}
    return scan(source, indexes, {}, accept_data_loss=True).groups


def _take_snapshot(files: Files, out: str, result: PartitionResult, identity: Identity, groups: GroupStates) -> dict[str, Any]:
    """Seals a copy of the recovered state; returns the mark for the log."""
    temporary = temporary_path(out, result.partition)
    final = free_path(files, out, partition=result.partition, index=result.index)
    files.mkdir(temporary)
    state = PartitionState.open(state_path(out, result.partition), partition=result.partition)
    capture = ImageCapture(state, os.path.join(temporary, IMAGE_NAME))
    while not capture.step():
        pass
    state.close()
    if "error" in capture.report():
        raise SnapshotFailed(f"the image of partition {result.partition} could not be written: {capture.report()['error']}")
    stands = {"index": result.index, "term": result.term, "checksum": result.checksum, "txn_id": result.txn_id}
    seal(files, temporary, final, {**stands, **_facts(files, out, result.partition, identity, groups)})
    return {"name": os.path.basename(final), **stands, "log_block": FIRST_RECORDS_BLOCK}


def _facts(files: Files, out: str, partition: int, identity: Identity, groups: GroupStates) -> Mapping[str, Any]:
    cluster = groups.state(CLUSTER_GROUP)
    faults = read_faults(files, out, identity)
    return {
        "partition": partition,
        "log_block": FIRST_RECORDS_BLOCK,
        **identity.as_text(),
        "epoch": groups.cluster.epoch,
        "configuration": cluster.configuration,
        "catalogs": {str(version): catalog.value for version, catalog in sorted(cluster.catalogs.items())},
        "environment": cluster.environment.value if cluster.environment else None,
        "key_policy": groups.cluster.key_policy,
        "fault_record": carried_fault(identity.cluster_id, faults[-1] if faults else None),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


"""Of a configuration's members: who votes. The others are the shape."""


def begin_alone(groups: GroupStates, identity: Identity) -> None:
    """Every group as the new log begins. The newest configurations already name this node alone."""
    cluster = groups.state(CLUSTER_GROUP)
    newest = cluster.configurations[-1] if cluster.configurations else None
    shape = {name: value for name, value in (cluster.configuration or {}).items() if name not in OF_VOTERS}
    if newest is not None and shape:
        cluster.shape = Stated(newest.index, newest.term, shape)
    for state in groups.by_partition.values():
        state.configurations = [_voters_alone(stated) for stated in state.configurations[-1:]]
    ended = {group: (state.last_term, state.last_index) for group, state in groups.by_partition.items()}
    cluster.members.pop(identity.node_id, None)
    members = {node: ClusterMember.from_json(stated.value) for node, stated in cluster.members.items()}
    for node, member in members.items():
        former = tuple(dict.fromkeys((*member.former, *([member.incarnation] if member.incarnation else []))))
        after = replace(member, stage=MemberStage.REMOVED, incarnation=b"", former=former, admitted={}, ended=ended)
        cluster.members[node] = Stated(cluster.last_index, cluster.last_term, after.to_json())


def with_stated_set(records: Sequence[FaultRecord], stated: Stated | None, cluster_id: bytes) -> tuple[FaultRecord, ...]:
    """The records of fault logs, and the set that the cluster group states, where a crash came before its record."""
    records = tuple(records)
    last = records[-1] if records else None
    said = FaultSet.from_json(stated.value) if stated is not None else None
    if said is None or said.sequence != (last.sequence if last is not None else 0) + 1:
        return records
    record = make_record(
        cluster_id, last, failed=said.failed, epoch=said.epoch, term=said.term, author=said.author, demotions=said.demotions,
        reason=said.reason,
    )  # fmt: skip
    return (*records, record)


def _voters_alone(stated: Stated) -> Stated:
    """A node alone counts its generations as `epoch`, which is something else where nodes agree on configurations."""
    value = stated.value
    forced = value.get("forced") is True
    said = {"voters": value.get("voters", []), "outgoing": [], "learners": [], "learners_next": [], "auto_leave": False}
    return Stated(stated.index, stated.term, {**said, "forced": forced, "epoch": int(value.get("epoch", 0)) if forced else 0})
