"""Carries out a recovery from several directories: the legs of a cluster plan, one after the other, into a new node.

One rule: the given directories are read and never written, and the new one is a node only from the last step on
(`replay.recover.to_directory`).

The new node is the only voter of its groups: the operator states that these directories are what is left. Its transaction ids
continue above all that any of the logs knew, and its fault log continues the cluster's sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import Divergence, PlanOutdated, Poison
from replay.log.collect_evidence import gather
from replay.log.known_failures import known_to_all
from replay.log.source import fold_end
from replay.plan.authority import ClusterVerdict, decide
from replay.plan.cluster_plan import JointPlan, check_complete, check_moment
from replay.plan.cluster_planner import open_or_salvage
from replay.plan.node_plan import Planned
from replay.recover.execute import RecoveryProgress, RecoveryReport, ReplayTerms, Target, execute
from replay.recover.new_directory import CreationMarker, NewNodeDirectory
from replay.recover.quarantine import Aside, QuarantineFile, joined
from replay.recover.to_directory import reborn, unfinished_node, with_stated_set
from replay.results import PartitionResult, WorkPace

Tell = Callable[[RecoveryProgress], None]


def rebuild_jointly(
    plan: JointPlan,
    files: Files,
    out: str,
    *,
    partitions: int | None = None,
    moved: Callable[[WorkPace], None] = lambda _moved: None,
    accept_data_loss: bool = False,
    **terms: Unpack[ReplayTerms],
) -> RecoveryReport:
    """Makes the node directory `out` from the plan, of another number of `partitions` if one is given. Durable on return.

    Raises: Incomplete when something is missing and the loss is not accepted; UntilUnreachable when nothing of the moment is
    left; PlanOutdated when the directories have changed since the plan was made; what `replay.recover.to_directory` raises.
    """
    if not accept_data_loss:
        check_complete(plan)
    check_moment(plan)
    verdict = _still_as_planned(files, plan)
    home = next(choice.chosen for choice in plan.choices if choice.group == CLUSTER_GROUP)
    instance = reborn(open_or_salvage(files, home).instance)
    groups = _groups(files, plan)
    lineage = known_to_all(files, plan.directories, verdict.lineage)
    lineage = with_stated_set(lineage, groups.state(CLUSTER_GROUP).faults, instance.identity.cluster_id)
    marker = CreationMarker.of(plan.to_json(), ", ".join(plan.directories), plan.until, partitions)
    place = NewNodeDirectory(files, out, marker)
    if (noted := place.finished()) is not None:
        return RecoveryReport.of_kept(noted)
    with unfinished_node(place, plan.directories, instance, groups=groups, lineage=lineage, partitions=partitions) as node:
        report = run_legs(plan, node.target, go_on=node.resumes, **terms)
        node.end_groups(report.results, plan.until)
        _vote_alone(groups, instance.identity.node_id)
        node.complete(report, moved)
    return report


def run_legs(plan: JointPlan, target: Target, *, go_on: bool = False, **terms: Unpack[ReplayTerms]) -> RecoveryReport:
    """Brings the states in `target` to the plan's end. With `go_on` it resumes from those that an earlier run left there."""
    began, done, progress = time.monotonic(), 0, terms.get("progress", lambda _progress: None)
    results: dict[int, PartitionResult] = {}
    aside: list[Aside] = []
    used = 0
    begun: set[int] = set()
    stops: list[Divergence | Poison] = []
    passed = _passed(plan, target) if go_on else {}
    for leg in plan.legs:
        stopped = {stop.place.partition for stop in stops}
        parts = tuple(
            part for part in leg.partitions if part.to_index > passed.get(part.partition, -1) and part.partition not in stopped
        )
        first = go_on and not any(part.partition in begun for part in parts)
        begun |= {part.partition for part in parts}
        if parts:
            terms["progress"] = _shifted(progress, done, plan.calls, began)
            try:
                report = execute(Planned.of(target.files, replace(leg, partitions=parts)), target, go_on=first, **terms)
            except (Divergence, Poison) as stop:  # the other partitions are replayed to their ends, also in other logs
                stops += [stop, *(other for other in stop.also if isinstance(other, Divergence | Poison))]
                done += leg.calls
                continue
            used = max(used, report.workers)
            aside += report.aside
            for result in report.results:
                before = results.get(result.partition)
                results[result.partition] = result if before is None else _added(before, result)
        done += leg.calls
    if stops:
        first_stop, *others = sorted(stops, key=lambda stop: stop.place.partition)
        raise type(first_stop)(first_stop.place, others)
    ordered = [results[partition] for partition in sorted(results)]
    return RecoveryReport(ordered, used, time.monotonic() - began, (*plan.incomplete, *plan.notes), joined(aside))


def _passed(plan: JointPlan, target: Target) -> dict[int, int]:
    """Partition -> end of the last of its legs that an earlier run has finished; nothing where a call was set aside."""
    anew = {call.partition for call in QuarantineFile(target.directory).read()}
    passed: dict[int, int] = {}
    last = {part.partition: part.to_index for leg in plan.legs for part in leg.partitions}
    for leg in plan.legs:
        for part in leg.partitions:
            partition = part.partition
            if partition in anew or part.to_index == last[partition]:
                continue
            position = target.trust.position(partition)
            if not isinstance(position, str) and position.index >= part.to_index:
                passed[partition] = part.to_index
    return passed


def _shifted(tell: Tell, done: int, total: int, began: float) -> Tell:
    return lambda found: tell(replace(found, done=done + found.done, total=total, elapsed_s=time.monotonic() - began))


def _added(before: PartitionResult, after: PartitionResult) -> PartitionResult:
    return replace(
        after,
        entries=before.entries + after.entries,
        calls=before.calls + after.calls,
        batches=before.batches + after.batches,
        digests=before.digests + after.digests,
        distrusted=before.distrusted + after.distrusted,
        distrust="; ".join(why for why in dict.fromkeys((before.distrust, after.distrust)) if why),
    )


def _still_as_planned(files: Files, plan: JointPlan) -> ClusterVerdict:
    """Decides again over the directories. Raises: PlanOutdated when the decision has changed."""
    verdict = decide([gather(files, directory) for directory in plan.directories], accept_data_loss=True)
    for choice in plan.choices:
        now = verdict.groups.get(choice.group)
        if now is None or (now.chosen, now.last_index, now.last_checksum) != (
            choice.chosen,
            choice.last_index,
            choice.last_checksum,
        ):
            raise PlanOutdated(f"the logs of group {choice.group} have changed since the plan was made")
    return verdict


def _groups(files: Files, plan: JointPlan) -> GroupStates:
    """Every group as the log that was chosen for it ends; code and the highest TxnId are what any of the logs knows."""
    folds = {node.directory: fold_end(open_or_salvage(files, node.directory)) for node in plan.nodes if not node.refused}
    groups = GroupStates()
    for choice in plan.choices:
        groups.by_partition[choice.group] = folds[choice.chosen].state(choice.group)
    cluster = groups.state(CLUSTER_GROUP)
    for fold in folds.values():
        for version, catalog in fold.state(CLUSTER_GROUP).catalogs.items():
            cluster.catalogs.setdefault(version, catalog)
    cluster.commit = cluster.last_index
    cluster.last_txn = max([cluster.last_txn, *(fold.txn_id_max for fold in folds.values())])
    return groups


def _vote_alone(groups: GroupStates, node_id: int) -> None:
    """The configurations in force from here on: of one epoch, which no group had before."""
    epoch = 1 + max(int((state.configuration or {}).get("epoch", 0)) for state in groups.by_partition.values())
    for state in groups.by_partition.values():
        value = {
            **(state.configuration or {}),
            "voters": [node_id],
            "outgoing": [],
            "learners": [],
            "epoch": epoch,
            "forced": True,
        }
        state.configurations = [Stated(state.last_index, state.last_term, value)]
        state.vote = None
