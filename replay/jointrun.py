"""Carries out a recovery from several directories: the legs of `replay.joint`, one after the other, into a new node.

One rule: the given directories are read and never written, and the new one is a node only from the last step on
(`replay.rebuild`).

The new node is the only voter of its groups: whoever recovers says that these directories are what is left. Its transaction ids
go on above all that any of the logs knew, and its fault log goes on with the cluster's sequence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cmdlog.wal.faultlog import FAULTS_FOLDER, FaultLog, FaultRecord
from cmdlog.wal.files import Files
from cmdlog.wal.groups import Groups, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.instance import CREATING_NAME, Identity
from cmdlog.wal.owner import take_ownership
from replay.apply import Result
from replay.authority import Verdict, decide
from replay.errors import PlanOutdated
from replay.gather import gather
from replay.joint import JointPlan, open_or_salvage
from replay.rebuild import begin, complete, end_at, give_up, keep_catalogs, reborn
from replay.recover import Progress, Report, Target, execute
from replay.source import LogSource
from replay.trust import STATE_FOLDER
from snapshot.catalog import FOLDER as SNAPSHOTS

Tell = Callable[[Progress], None]


def rebuild_jointly(
    plan: JointPlan,
    files: Files,
    out: str,
    *,
    workers: int | None = None,
    progress: Tell = lambda _progress: None,
) -> Report:
    """Makes the node directory `out` from the plan. Durable on return.

    Raises: WrongDirectory when `out` lies in one of the directories or is not empty; PlanOutdated when these are not any more
    what the plan was made from; what `replay.recover.execute` raises; DiskFull, WriteFailed.
    """
    verdict = _still_as_planned(files, plan)
    for directory in plan.directories:
        begin(files, directory, out)
    owner = take_ownership(files, out)
    try:
        files.write_file_atomic(os.path.join(out, CREATING_NAME), b"{}\n")
        for folder in (STATE_FOLDER, SNAPSHOTS):
            files.mkdir(os.path.join(out, folder))
        report = run_legs(plan, Target(files, out), workers=workers, progress=progress)
        home = _choice(plan, CLUSTER_GROUP)
        instance = reborn(open_or_salvage(files, home).instance)
        groups = _final_groups(files, plan, instance.identity.node_id, report.results)
        _continue_fault_log(files, out, instance.identity, verdict.lineage)
        complete(files, out, owner, instance, groups=groups, results=report.results)
    except BaseException:
        owner.close()
        give_up(out)
        raise
    owner.close()
    return report


def run_legs(plan: JointPlan, target: Target, *, workers: int | None, progress: Tell) -> Report:
    """Brings the states in `target` to the plan's end."""
    began, done = time.monotonic(), 0
    results: dict[int, Result] = {}
    used = 0
    for leg in plan.legs:
        tell = _shifted(progress, done, plan.calls, began)
        report = execute(leg, target, workers=workers, progress=tell)
        used = max(used, report.workers)
        for result in report.results:
            before = results.get(result.partition)
            results[result.partition] = result if before is None else _added(before, result)
        done += leg.calls
    ordered = [results[partition] for partition in sorted(results)]
    return Report(ordered, used, time.monotonic() - began, plan.notes)


def _shifted(tell: Tell, done: int, total: int, began: float) -> Tell:
    return lambda progress: tell(Progress(done + progress.calls, total, time.monotonic() - began))


def _added(before: Result, after: Result) -> Result:
    return replace(
        after,
        entries=before.entries + after.entries,
        calls=before.calls + after.calls,
        digests=before.digests + after.digests,
    )


def _choice(plan: JointPlan, group: int) -> str:
    return next(choice.chosen for choice in plan.choices if choice.group == group)


def _still_as_planned(files: Files, plan: JointPlan) -> Verdict:
    """What follows from the directories now. Raises: PlanOutdated when it is not what they said."""
    verdict = decide([gather(files, directory) for directory in plan.directories], accept_data_loss=True)
    for choice in plan.choices:
        now = verdict.groups.get(choice.group)
        if now is None or (now.chosen, now.last_index, now.last_checksum) != (
            choice.chosen,
            choice.last_index,
            choice.last_checksum,
        ):
            raise PlanOutdated(f"the logs of group {choice.group} are not any more what the plan was made from")
    return verdict


def _final_groups(files: Files, plan: JointPlan, node_id: int, results: Sequence[Result]) -> Groups:
    """Every group as the new log begins, with the new node as its only voter."""
    folds: dict[str, Groups] = {}
    for node in plan.nodes:
        if not node.refused:
            folds[node.directory] = _fold_end(open_or_salvage(files, node.directory))
    groups = Groups()
    cluster = groups.by_partition[CLUSTER_GROUP] = folds[_choice(plan, CLUSTER_GROUP)].state(CLUSTER_GROUP)
    for fold in folds.values():
        for version, catalog in fold.state(CLUSTER_GROUP).catalogs.items():
            cluster.catalogs.setdefault(version, catalog)
    keep_catalogs(groups)
    cluster.commit = cluster.last_index
    cluster.last_txn = max([cluster.last_txn, *(fold.txn_id_max for fold in folds.values())])
    _vote_alone(groups, CLUSTER_GROUP, node_id, cluster.last_index)
    for result in results:
        groups.by_partition[result.partition] = folds[_choice(plan, result.partition)].state(result.partition)
        end_at(groups, result)
        _vote_alone(groups, result.partition, node_id, result.index)
    return groups


def _vote_alone(groups: Groups, group: int, node_id: int, index: int) -> None:
    """The configuration in force from here on."""
    state = groups.state(group)
    before: Mapping[str, Any] = state.configuration or {}
    value = {
        **before,
        "voters": [node_id],
        "outgoing": [],
        "learners": [],
        "epoch": int(before.get("epoch", 0)) + 1,
        "forced": True,
    }
    state.configurations = [Stated(index, state.last_term, value)]
    state.vote = None


def _fold_end(source: LogSource) -> Groups:
    groups = Groups()
    for lsn, record in source.read(from_block=source.first_blocks[-1]) if source.first_blocks else ():
        groups.observe(lsn, record)
    return groups


def _continue_fault_log(files: Files, out: str, identity: Identity, lineage: Sequence[FaultRecord]) -> None:
    """The new node's fault log begins with what the cluster's said last."""
    if lineage:
        files.mkdir(os.path.join(out, FAULTS_FOLDER))
        log = FaultLog.open(files, out, identity)
        log.adopt(lineage)
        if identity.node_id in log.failed:
            log.append(failed=log.failed - {identity.node_id}, term=lineage[-1].term, reason="recovered from what was left")
