"""Whether a majority takes what this node proposes, and what callers hear while none does.

One rule: it only looks, once a second, while this node leads. What is logged stays in the log: it commits once, when a majority
takes entries again, whatever its caller was answered.

A leader that hears no majority steps down within seconds. One whose followers answer, but take no entries (their logs or volumes
are full), leads on: nobody could do better. Calls that it has logged would wait without end, so they have a limit of time. New
calls are refused before that where the followers say why, and in any case after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog

from cmdlog.cluster.leader_fitness import LeaderFitness, Unfitness
from cmdlog.cluster.replication import Replication
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.node.outcome import NoMajority
from cmdlog.node.sequencing.replicated_pipelines import ReplicatedPipelines
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.quorum import has_quorum
from cmdlog.wal.ids import CLUSTER_GROUP

LATE_S: Final = 1.0  # without a commit, until followers are asked why, and calls are refused where they are known to be full
GIVE_UP_S: Final = 10.0  # without a commit, until callers are answered; as for a site that cannot run

log = structlog.get_logger("cmdlog.cluster")


class CommitChecks:
    """One thread, the one that brings time."""

    def __init__(
        self, driver: Replication, leadership: Leadership, fitness: LeaderFitness, replicated: ReplicatedPipelines
    ) -> None:
        self._driver, self._leadership, self._fitness, self._replicated = driver, leadership, fitness, replicated

    def check_commits(self) -> None:
        """Another look."""
        with self._driver.lock:  # leadership must not end in between: calls are refused for another reason then
            waited_s = self._replicated.uncommitted_s if self._leads else 0.0
            if waited_s < LATE_S:
                self._accept_calls()
                return
            can_commit, reasons = self._driver.ask_groups(self._find_reasons)
            if not self._leads:  # since this moment
                return
            if self._replicated.suspended or not can_commit or waited_s >= GIVE_UP_S:
                self._refuse_calls(reasons)
            unknown = self._replicated.give_up_uncommitted(GIVE_UP_S, f"logged, and not committed yet: {reasons}")
        if unknown:
            log.warning("outcome_unknown", calls=unknown, reason=reasons)

    @property
    def _leads(self) -> bool:
        return self._leadership.standing is Standing.LEADING and self._driver.failure is None

    def _accept_calls(self) -> None:
        if self._replicated.suspended:
            self._replicated.suspend_calls(None)
            log.warning("accepting_calls", kind=NoMajority.code)

    def _refuse_calls(self, reasons: str) -> None:
        if not self._replicated.suspended:
            log.error("refusing_calls", kind=NoMajority.code, reason=reasons)
        self._replicated.suspend_calls(NoMajority(f"no majority of the cluster takes calls into its log: {reasons}"))

    def _find_reasons(self, groups: RaftGroups) -> tuple[bool, str]:
        """Whether a majority should be able to commit, and why those voters do not that have not confirmed everything."""
        core = groups.cores[CLUSTER_GROUP]
        voters = {*core.configuration.voters, *core.configuration.outgoing} - {core.id}
        full = {node for node in voters if Unfitness.LOG_FULL in self._fitness.of_peer(node)}
        silent = voters - core.live()
        can_commit = has_quorum(core.configuration, {core.id, *voters} - full - silent)
        return can_commit, "; ".join(_describe(voters & _lagging(groups), full, silent))


def _lagging(groups: RaftGroups) -> set[NodeId]:
    """Nodes that have not confirmed all entries of some group that is led here."""
    led = [core for core in groups.cores.values() if core.leader == core.id]
    return {node for core in led for node, progress in core.progress.items() if progress.match < core.log.last}


def _describe(nodes: set[NodeId], full: set[NodeId], silent: set[NodeId]) -> Iterator[str]:
    """Why they do not confirm, and what to do."""
    if gone := nodes & silent:
        yield f"no answer from {_names(gone)}: start it, or look at its network"
    if short := (nodes & full) - silent:
        yield f"no room in the log or on the volume of {_names(short)}: make room there (`cmdlog status` of that node says where)"
    if slow := nodes - full - silent:
        yield f"no confirmation from {_names(slow)}, which answers: look at its disk and its log"


def _names(nodes: set[NodeId]) -> str:
    return " and ".join(f"node {node}" for node in sorted(nodes))
