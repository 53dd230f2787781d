"""The parts of a member that lead: built once, in the order in which they need each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_transport import PeerTransport
from cmdlog.member.leadership import Leadership
from cmdlog.member.leading.commit_checks import CommitChecks
from cmdlog.member.leading.directory_lineage import DirectoryLineage
from cmdlog.member.leading.fitness_checks import FitnessChecks, Progress
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.leadership_events import LeadershipEvents
from cmdlog.member.leading.leadership_transfer import LeadershipTransfer
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.member.takeover import Takeover
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.placing.key_owners import KeyOwners
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.site_events import SiteEvents
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.raft.configuration import NodeId


@dataclass(frozen=True, slots=True)
class LeaderGround:
    """What they are built on."""

    member: MemberGround
    roll: MemberRoll
    driver: Replication
    leadership: Leadership
    fitness: LeaderFitness
    machine: SequencedMachine
    marks: ExecutedMarks
    sequencer: Sequencer
    keys: KeyOwners
    desk: SiteEvents
    sites: InlineSites | ProcessSites
    steps: LeaderSteps
    network: PeerTransport
    is_full: Callable[[], bool]  # the log, or its volume, has no room for a call
    work: RunningWork


class LeaderParts:
    """See the module."""

    def __init__(self, of: LeaderGround) -> None:
        self._driver, self._sequencer, self._keys, self._fitness = of.driver, of.sequencer, of.keys, of.fitness
        self.takeover = Takeover(of.steps, of.desk.broken, of.work, self._executed)
        self.lineage = DirectoryLineage(of.member.node, of.driver, lambda: of.network.status().peers)
        self.transfer = LeadershipTransfer(
            of.driver, of.fitness, drained=lambda: of.sequencer.replicated.idle, send=of.network.send,
            peers=lambda: [NodeId(member.node) for member in of.roll.members if member.node != of.member.node],
        )  # fmt: skip
        self.events = LeadershipEvents(
            of.roll.url_of, of.leadership, of.machine, of.sequencer, of.marks, take_over=self.takeover.begin_takeover,
            end_offer=self.transfer.end_offer, offered_to=lambda: self.transfer.target,
        )  # fmt: skip
        self.checks = FitnessChecks(
            of.desk.troubles, stalls=lambda: of.sites.stalls(time.monotonic()), is_full=of.is_full,
            standing=lambda: of.leadership.standing, progress=self._takeover_progress,
            went_back=lambda: bool(self.lineage.met_later),
        )  # fmt: skip
        self.commits = CommitChecks(of.driver, of.leadership, of.fitness, of.sequencer.replicated)

    def note_ticks(self, ticks: int) -> None:
        """So many ticks have passed."""
        with self._driver.lock:
            self.events.name_leader(ticks=ticks)
        for _ in range(ticks):
            self.transfer.note_tick()

    def meet_peer(self, peer: NodeId) -> None:
        """A connection to the peer begins."""
        with self._driver.lock:
            self._fitness.meet_peer(peer)

    def look_at_lineage(self) -> None:
        """Whether a peer has met a later start of this directory than this one."""
        if self.lineage.look_at_peers():
            self.look_at_fitness()

    def look_at_commits(self) -> None:
        """Whether a majority takes what this node proposes."""
        self.commits.check_commits()

    def look_at_fitness(self) -> None:
        """Whether this node should lead, as it is now."""
        self.transfer.set_reasons(self.checks.find_reasons())

    def _takeover_progress(self) -> Progress:
        return self.takeover.step, self._executed()

    def _executed(self) -> int:
        return sum(self._sequencer.replicated.run_up_to().values()) + len(self._keys)
