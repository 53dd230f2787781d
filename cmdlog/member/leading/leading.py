"""What a member does to lead, while it leads, and to give that away: built once, in the order in which it is needed."""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.cluster_code_log import ClusterCodeLog
from cmdlog.member.leading.commit_checks import CommitChecks
from cmdlog.member.leading.directory_lineage import DirectoryLineage
from cmdlog.member.leading.fitness_checks import FitnessChecks, Progress
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.leadership import Leadership
from cmdlog.member.leading.leadership_events import LeadershipEvents
from cmdlog.member.leading.leadership_transfer import LeadershipTransfer
from cmdlog.member.leading.takeover import Takeover
from cmdlog.member.member_code import MemberCode
from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.deploying.code_change import CodeChanges
from cmdlog.raft.configuration import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """Any thread."""

    consensus: Consensus
    leadership: Leadership
    transfer: LeadershipTransfer
    takeover: Takeover
    steps: LeaderSteps
    code_log: ClusterCodeLog
    lineage: DirectoryLineage
    checks: FitnessChecks
    commits: CommitChecks

    def start(self) -> None:
        """Take-overs that have begun take their steps."""
        self.takeover.start(self.steps)

    def note_ticks(self, ticks: int) -> None:
        """So many ticks have passed."""
        with self.consensus.driver.lock:
            self.leadership.note_ticks(ticks)
        for _ in range(ticks):
            self.transfer.note_tick()
        if self.checks.has_other_divergences():  # a partition that diverged is a reason at once
            self.look_at_fitness()

    def meet_peer(self, peer: NodeId) -> None:
        """A connection to the peer begins."""
        with self.consensus.driver.lock:
            self.consensus.fitness.meet_peer(peer)

    def look_at_lineage(self) -> None:
        """Whether a peer has met a later start of this directory than this one."""
        if self.lineage.look_at_peers():
            self.look_at_fitness()

    def look_at_fitness(self) -> None:
        """Whether this node should lead, as it is now."""
        self.transfer.set_reasons(self.checks.find_reasons())


def make_leading(ground: NodeGround, parts: NodeParts, consensus: Consensus, code: MemberCode) -> Leading:
    """Nothing runs yet; the driver's changes of leaders are acted on from now on."""
    driver, roll, sequencer, wal = consensus.driver, consensus.roll, parts.sequencer, ground.wal

    def executed() -> int:
        return sum(sequencer.replicated.run_up_to().values()) + len(parts.keys)

    def is_full() -> bool:
        """The log, or its volume, has no room for a call."""
        return wal.room_bytes < ground.settings.call_bytes_max or wal.disk_full is not None

    def other_nodes() -> list[NodeId]:
        return [NodeId(member.node) for member in roll.members if member.node != consensus.node]

    def takeover_progress() -> Progress:
        return takeover.step, executed()

    transfer = LeadershipTransfer(
        driver, consensus.fitness, drained=lambda: sequencer.replicated.idle, send=consensus.network.send, peers=other_nodes
    )
    takeover = Takeover(parts.desk.broken, ground.work, executed)
    events = LeadershipEvents(
        consensus.node, roll.url_of, consensus.machine, sequencer, consensus.marks, take_over=takeover.begin_takeover,
        transfer=transfer,
    )  # fmt: skip
    leadership = Leadership(consensus.node, consensus.fitness, events)
    driver.watch(leadership)
    lineage = DirectoryLineage(consensus.node, driver, consensus.peers)
    code_log = ClusterCodeLog(ground, parts, CodeChanges(ground, parts), consensus, code, leadership)
    return Leading(
        consensus=consensus,
        leadership=leadership,
        transfer=transfer,
        takeover=takeover,
        steps=LeaderSteps(
            driver, consensus.machine, leadership, sequencer, parts.keys, code_log=code_log, missing=consensus.missing_members
        ),
        code_log=code_log,
        lineage=lineage,
        checks=FitnessChecks(
            parts.desk.troubles, lineage, leadership, stalls=parts.sites.stalls, is_full=is_full, progress=takeover_progress
        ),
        commits=CommitChecks(driver, leadership, consensus.fitness, sequencer.replicated),
    )  # fmt: skip
