"""A running node that is one of several: `Node`, with consensus between its sequencer and its log.

One rule: a call is logged by the leader alone, is run when a majority has it, and is answered by the node that proposed it. A
node that does not lead refuses calls and says who leads.

    BOOTSTRAPPING   states are brought to what was executed here before; consensus does not run
    CONFIGURING     consensus runs; no leader takes calls yet
    RUNNING         this node takes calls, or knows who does
"""

from __future__ import annotations

import os
import random
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.entry_records import describe_batch
from cmdlog.cluster.executed_marks import ExecutedMarks, digest_of
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.membership.operator_desk import OperatorDesk
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import restore_groups
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import TransportSettings
from cmdlog.member.cluster_view import ClusterView, MemberParts
from cmdlog.member.entry_reader import EntryReader
from cmdlog.member.leadership import Leadership, Standing
from cmdlog.member.leading.cluster_deployer import ClusterDeployer
from cmdlog.member.leading.leader_parts import LeaderGround, LeaderParts
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.partition_divergence import Divergences
from cmdlog.member.lost_majority.forced_epoch import name_of
from cmdlog.member.lost_majority.unsafe_recovery import UnsafeRecovery
from cmdlog.member.member_calls import MemberCalls, call_decoded, place_apart
from cmdlog.member.member_code import MemberCode, Program
from cmdlog.member.member_copies import CopiedMember, MemberCopies
from cmdlog.member.member_ground import TICK_S, MemberGround, MemberState
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.member_start import has_begun, open_member, read_places, terms_of_states
from cmdlog.member.membership.membership_parts import MembershipGround, MembershipParts
from cmdlog.member.peer_events import EventParts, PeerEvents
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.rejoin.life_end import LifeEnd
from cmdlog.member.rejoin.member_opening import after_copy, rejoin_ground
from cmdlog.member.rejoin.rejoin_record import RejoinReason
from cmdlog.member.replica_reads import ReplicaProgress, ReplicaReads
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.assembly import MACHINE, Outside, closed_on_failure
from cmdlog.node.boot import tell_recovery
from cmdlog.node.deploying.code_trial import CodeTrial
from cmdlog.node.failure_sets import Failures
from cmdlog.node.forwarding.forwarded_calls import Placing
from cmdlog.node.node import SWITCH_INTERVAL_S, Node
from cmdlog.node.outcome import Done, Durability, NoLeader
from cmdlog.node.placing.router import Encoded, Placed
from cmdlog.node.queries.query import RunQuery
from cmdlog.node.scrub.cluster_peers import peers_of
from cmdlog.node.scrub.log_comparison import ScrubPeers
from cmdlog.node.settings import Settings
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.node.slot_map import Route
from cmdlog.procedure_calls import QueryParameters
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.divergence_file import DivergenceFile
from cmdlog.wal.fault_log import FaultLog, FaultRecord
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn
from procedures import Database
from replay.log.source import source_of
from snapshot.errors import PointRefused

HAND_OVER_S: Final = 3.0  # for another node to take the leadership that an orderly stop offers
ANCHOR: Final = "consensus"

T = TypeVar("T")

log = structlog.get_logger("cmdlog.cluster")


class MemberNode(Node):
    """See the module. `join` makes one."""

    _ground: MemberGround
    _network: PeerNetwork
    call_encoded, durabilities_offered = call_decoded, ("sync",)  # a majority has an entry before it is executed

    @classmethod
    @after_copy
    def join(
        cls,
        directory: str,
        db: Database,
        settings: Settings,
        member: MemberGround,
        *,
        target: str | None = None,
        progress: Callable[[Any], None] | None = None,
        outside: Outside = MACHINE,
    ) -> MemberNode:
        """Creates this node's part of a new cluster if the directory is empty or missing, else recovers what it executed.

        Returns when the sites run; `attach` then begins to speak with the others.
        Raises: BadClusterFile, WalError, and the errors of procedures and replay.
        """
        with CodeTrial(inline=False) as trial:
            folder = os.path.abspath(directory)
            opened = open_member(folder, db, settings, member, trial, target=target, progress=progress, outside=outside)
            with closed_on_failure(opened.ground.wal):
                node = cls(opened.ground)
                node.recovery = tell_recovery(opened.plan, opened.report, node._snapshots.newest, node.meter.speeds)
                node._checks.pages.wish(opened.unsealed, opened.plan)
                node._become_member(member, opened.program)
                node._start_member()
        return node

    def _become_member(self, ground: MemberGround, program: Program) -> None:
        """Consensus between sequencer and log."""
        self._ground = ground
        node, partitions = NodeId(ground.node), range(self.settings.partitions)
        places, states = read_places(self.directory, partitions), self._wal.recovered.groups
        groups, blocks = restore_groups(
            ground.node, source_of(self._wal), states, places, settings=ground.consensus(self.settings), rng=random.SystemRandom()
        )
        self._roll = MemberRoll(states, ground.cluster)
        self._reader = EntryReader(self._wal, lambda: self._driver)
        self._bind_code(program)
        self._meet_peers(ground)
        divergences = Divergences(
            DivergenceFile(self._files, self.directory), self._desk, describe=self._describe_entry, leading=lambda: self._leading
        )
        self._marks = ExecutedMarks(
            partitions, diverged=divergences.begin_divergence, agreed=divergences.end_divergence,
            contradicted=divergences.begin_contradiction, voters=len(self._roll.members),
        )  # fmt: skip
        self._machine = SequencedMachine(
            self.sequencer, terms_of_states(states, places, partitions), blocks, marks=self._marks,
            leave_out=self._desk.leave_out, stated=self._observe, asked=self._reader.ask,
            copy_offered=self._life.end_too_far_back,
        )  # fmt: skip
        self._machine.learn_code(self._boot.catalog)
        fitness = LeaderFitness(node)
        self._leadership = Leadership(
            node, fitness, lambda ask: self._driver.ask_groups(request=ask), lambda: self._leading.events
        )
        self._driver = Replication(
            groups, self._machine, self._leadership, send=self._network.send, kick=self._wal.kick,
            marks=self._marks, states=states, entry_blocks=blocks,
        )  # fmt: skip
        steps = LeaderSteps(
            self._driver, self._machine, self._leadership, self.sequencer, self._keys, code=self._code,
            directory=self.directory, missing=lambda: self.membership.missing_members(),  # noqa: PLW0108 -- it is made later
        )  # fmt: skip
        self.deployer = ClusterDeployer(self.deployer.ground, self._driver, self._machine, self._code)
        self._leading = LeaderParts(LeaderGround(
            ground, self._roll, self._driver, self._leadership, fitness, self._machine, self._marks, self.sequencer, self._keys,
            self._desk, self._sites, steps, self._network, self._is_full, self.overview.work,
        ))  # fmt: skip
        self.membership = self._follow_roll(fitness, groups)
        self._unsafe = UnsafeRecovery(ground.node, self._driver, self._network)
        self._place_reads_and_calls(ground)
        self._events.serve(EventParts(
            self._driver, self._reads, self._progress, self._leading, self.membership, self._hold_log, self._wal,
            groups.cores, self._life.note_ticks,
        ))  # fmt: skip
        self._serve_others(ground, groups, fitness)
        self._parts.facts.note_logged()
        self._desk.serve_replica(self)
        divergences.restore_divergences(self._marks)
        self._hold_log()  # before the log is started, and may let anything go
        self.sequencer.intake.refuse(NoLeader("the cluster has no leader yet"))

    def _serve_others(self, ground: MemberGround, groups: RaftGroups, fitness: LeaderFitness) -> None:
        """What copies, operators and the scrub are given of this node, and what it shows."""
        self._copies = MemberCopies(CopiedMember(
            ground, self.settings, self._files, self._wal, self._roll, self._driver, self._machine.terms, self._leadership,
            self._marks, self._snapshots, self._life.too_far_back, self.membership.take_wish, self._checks.scrub.known_sums,
        ))  # fmt: skip
        operators = OperatorDesk(self.membership, self._copies, self._unsafe)
        self._view = ClusterView(MemberParts(
            ground, self._roll, groups, self._driver, self._leadership, self._marks, self.sequencer.replicated.run_up_to,
            lambda: self._network.status().peers if self._ready else (), self._life.too_far_back,
            lambda: self._ready and self._events.speaks, fitness, self._reads, self._calls.status,
            self._copies.status, operators.describe_members, self.sequencer.admission, TICK_S,
        ))  # fmt: skip
        self.overview = replace(self.overview, cluster=self._view, operator_desk=operators)

    def _bind_code(self, program: Program) -> None:
        """Calls run the newest code that the log names."""
        stated = self._wal.recovered.groups.state(CLUSTER_GROUP).environment
        self._code = MemberCode(
            program, self._boot.code, {} if stated is None else stated.value,
            partitions=self.settings.partitions, known=self._add_code, bound=self._serve_code,
        )  # fmt: skip
        self._code.run_newest()
        self._code.look_at_tables(self.directory)

    def _meet_peers(self, ground: MemberGround) -> None:
        book = PeerBook.open(self._files, self.directory, self._wal.instance.identity)
        listen, begun = ground.listen or self._roll.member(ground.node).peer, has_begun(self._wal.recovered.groups)
        self._life = LifeEnd(
            rejoin_ground(self._files, self.directory, ground), book.me.incarnation, self._roll, self._failed,
            is_led=lambda: self._leadership.leader is not None, can_write=lambda: self._wal.disk_full is None,
            stuck_at=lambda: self._events.lacks_room and self._marks.waits and self.sequencer.replicated.run_up_to(),
            connected=lambda: [of.node for of in self._network.status().peers if of.connected_since_s is not None],
        )  # fmt: skip
        self._events = PeerEvents(lambda: not begun and len(book.confirmed) + 1 < len(ground.cluster.members))
        name, settings = name_of(self._wal.recovered.groups, ground.cluster), TransportSettings(tick_s=TICK_S)
        self._network = PeerNetwork(book, ground.secret, self._events, Endpoint(*listen, tls=ground.tls), settings, name=name)

    def _follow_roll(self, fitness: LeaderFitness, groups: RaftGroups) -> MembershipParts:
        """Peers, pins and failure sets by what the cluster group states; the node that leads changes it."""
        me, ground = self._wal.instance.identity, self._ground
        self._peers_of_scrub = peers_of(
            copy_credentials(me.cluster_id, ground.node, me.incarnation, ground.secret), self._driver, self._network,
            lambda: self._roll.members, want_copy=lambda why: self._life.want_copy(RejoinReason.DAMAGED, why), tls=ground.tls,
        )  # fmt: skip
        faults = FaultLog.open(self._files, self.directory, self._wal.instance.identity)
        return MembershipParts(MembershipGround(
            self._roll, self._network, groups, self._driver, self._machine, self._leadership, fitness, self._marks,
            self._leading.transfer, faults, self._show_faults, self._failed, self.settings.failure_after_s, TICK_S,
        ))  # fmt: skip

    def _show_faults(self, record: FaultRecord) -> None:
        """A new failure set is durable: status and images say it."""
        failures = Failures.with_newest(self._wal.instance.identity.cluster_id, record)
        self.overview = replace(self.overview, failures=failures)
        self._parts.facts.set_fault_record(failures.carried)

    def _scrub_peers(self) -> ScrubPeers | None:
        return self._peers_of_scrub

    def _place_reads_and_calls(self, ground: MemberGround) -> None:
        """Reads by rounds or of this replica, calls here or where they are taken."""
        self._reads = ReadRounds(self._driver, self._machine, reads_max=self.settings.inflight_calls_max)
        self._progress = ReplicaProgress(self._driver, self._machine, self.sequencer.replicated.run_up_to)
        self.stale = ReplicaReads(
            self.stale, self._progress, self._driver.lock, diverged=self._marks.divergences,
            current=lambda route: self._code.is_bound and self.routes.get(route.name) is route,
            leader=lambda: self._roll.url_of(self._leadership.leader),
        )  # fmt: skip
        self.watch_failure(lambda _error: self._lose_reads())
        placing = Placing(self._place_forwarded, self._reads.add, self.clock.observe, self.trace_of)
        self._calls = MemberCalls(
            ground, self._roll, self.settings, placing, routes=lambda: self.routes, slots=self.slots,
            admission=self.sequencer.admission, name=self._network.name,
        )  # fmt: skip

    def _start_member(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._wal.start(
            self._driver, threads=self.settings.log_threads, timed=self.meter.syncs.add,
            whole_ring=self.settings.preallocate == "ring",
        )  # fmt: skip
        self._positions = self._parts.start_sites()

    def attach(self, loop: AbstractEventLoop | None = None) -> None:
        """Begins to speak with the other nodes; calls are accepted once a leader has taken over."""
        super().attach(loop)
        self._leading.takeover.start()
        self.membership.start()
        self._reader.start()
        self._calls.start(self._network, loop)
        self._copies.start(self._network)
        self._unsafe.resume()
        self._network.start()

    def close(self, *, drain_s: float | None = None, hurried: Callable[[], bool] = lambda: False) -> None:
        """As `Node.close`; a leader hands over first."""
        if not self._closed:
            self.hand_over()
            self.sequencer.replicated.leave(hurried, self._network.stop)
            self._copies.stop()
            self._lose_reads()
            self._leading.takeover.stop()
            self.membership.stop()
            self._reader.stop()
        try:
            super().close(drain_s=drain_s, hurried=hurried)
        finally:
            self._calls.stop()  # sends the answers that others wait for

    def hand_over(self) -> bool:
        """As `Node.hand_over`: another node gets what this one leads. Blocking, for `HAND_OVER_S` at most."""
        return self._leading.transfer.hand_over(HAND_OVER_S)

    # -- the log -------------------------------------------------------------------------------------------------------------

    def _hold_log(self) -> None:
        """The log keeps what a restart needs from it, and consensus lets go of what every live follower has."""
        with self._driver.lock:
            oldest = self._driver.first_needed_block(self.sequencer.replicated.run_up_to())
            self._driver.forget_run()
        self._wal.anchors.set(ANCHOR, Lsn(BlockNumber(self._wal.durable_block if oldest is None else oldest), 0))

    # -- cmdlog.node.site_events.Replica ---------------------------------------------------------------------------------------

    def executed(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """A site has applied an entry."""
        self._driver.executed(partition, index, 0 if answer is None else digest_of(answer.rows_digest, answer.result_hashes))
        self._progress.executed(partition, index)

    def may_skip(self, partition: int, index: int) -> bool:
        """Whether this node proposed the call, and still leads: nobody else has executed it."""
        return self._leadership.standing is Standing.LEADING and self.sequencer.replicated.proposed(partition, index)

    # -- leadership, under the driver's lock ---------------------------------------------------------------------------------

    def _lose_reads(self) -> None:
        """Those that wait are refused."""
        self._reads.lose_all()
        self._progress.lose_all()

    def _describe_entry(self, partition: int, index: int) -> str:
        return str(self._driver.ask(partition, lambda core: describe_batch(core.log, index, self.meter.names)))

    def _is_full(self) -> bool:
        return self._wal.room_bytes < self.settings.call_bytes_max or self._wal.disk_full is not None

    def _observe(self, index: int, record: bytes) -> None:
        """An entry of the cluster group is committed."""
        self.membership.observe(record)
        self._roll.observe(index, record)
        self._code.observe(record)

    def _serve_code(self, db: Database, catalog: int = 0) -> None:
        bind = super()._serve_code
        self.sequencer.intake.switch_code(catalog, lambda: bind(db, catalog))

    def _add_code(self, version: int, bundle: str, partitions: int | None) -> None:
        """One more version of the code is committed."""
        assert isinstance(self._sites, ProcessSites)
        self._sites.add_code(version, bundle, partitions=partitions)
        self._machine.learn_code(version)

    # -- calls -----------------------------------------------------------------------------------------------------------

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        """As `Node.call`, here or on the node that leads. A read is placed once a majority has confirmed that one still leads."""
        self._check_ready()
        if (where := self._calls.elsewhere((route,))) is not None:
            return self._calls.send(where, [(route, params, key, done, durability)], txn=txn)[0]
        if not route.read_only:
            return super().call(route, params, key=key, done=done, txn=txn, durability="sync")
        self.sequencer.admission.raise_refusal()
        if txn is not None:
            self.clock.observe(txn)
        self._reads.place_confirmed(partial(super().call, route, params, key=key, done=done), done)
        return None if route.everywhere else self.slots.partition_of(route.procedure, params)

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """As `Node.call_many`; see `call`."""
        self._check_ready()
        if (where := self._calls.elsewhere(call[0] for call in calls)) is not None:
            return self._calls.send(where, calls)
        return place_apart(calls, self.call, super().call_many)

    def _place_forwarded(self, calls: Sequence[Encoded]) -> None:
        """Places calls that another node has sent. Raises: CallRefused, and then none of them is placed."""
        self._check_ready()
        self.sequencer.admission.raise_refusal()
        self._placing.place_encoded([(*call[:5], "sync") for call in calls])
        self._waker.wake()

    def query_by(self, run: RunQuery[T], sql: str, params: QueryParameters, partition: int | None) -> T:
        """As `Node.query_by`, by the leader alone: what it reads includes every call that was answered before."""
        self.sequencer.admission.raise_refusal()
        self._reads.wait_until_confirmed()
        self.sequencer.admission.raise_refusal()  # it may have led, followed and begun to lead again since
        return super().query_by(run, sql, params, partition)

    def take_point(self) -> dict[str, Any]:
        """Raises: PointRefused: a point is a moment of all partitions, and the log of a cluster states none yet."""
        raise PointRefused(
            "recovery points are taken on a node alone; `cmdlog recover DIR... --until` reaches any moment of a cluster's log"
        )

    # -- what others see -------------------------------------------------------------------------------------------------

    @property
    def member_state(self) -> MemberState:
        return self._view.member_state()

    def cluster_status(self) -> dict[str, Any]:
        """This node's view of the cluster: state, who leads, the members, each group's term and leader, the peers."""
        return self._view.status()
