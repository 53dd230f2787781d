"""A running node that is one of several: `Node`, with consensus between its sequencer and its log.

One rule: a call is logged by the leader alone, is run when a majority has it, and is answered by the node that proposed it. A
node that does not lead refuses calls and says who leads.

    BOOTSTRAPPING   states are brought to what was executed here before; consensus does not run
    CONFIGURING     consensus runs; no leader takes calls yet
    RUNNING         this node takes calls, or knows who does
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from cmdlog.cluster.executed_marks import ExecutedMarks, digest_of
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import Place, restore_groups
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import PeerNotice, TransportSettings
from cmdlog.node.assembly import MACHINE, NodeGround, Outside
from cmdlog.node.background.page_checks import unsealed_states
from cmdlog.node.boot import adopt_fixed, live_code, reporter, tell_recovery
from cmdlog.node.member.cluster_view import ClusterView
from cmdlog.node.member.entry_reader import EntryReader, EntryRequest
from cmdlog.node.member.forwarded_calls import Placing
from cmdlog.node.member.leader_reads import LeaderReads
from cmdlog.node.member.leader_steps import LeaderSteps
from cmdlog.node.member.leadership import Leadership, Standing
from cmdlog.node.member.member_calls import MemberCalls
from cmdlog.node.member.member_ground import MemberGround, MemberState, NoLeader, NotLeading
from cmdlog.node.member.member_roll import MemberRoll
from cmdlog.node.member.member_start import ensure_member, member_boot
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.node.member.takeover import Takeover
from cmdlog.node.node import SWITCH_INTERVAL_S, Node
from cmdlog.node.outcome import Done, Durability, NotReady
from cmdlog.node.placing.router import Encoded, Placed
from cmdlog.node.queries.query import RunQuery
from cmdlog.node.settings import Settings
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.slot_map import Route
from cmdlog.raft import CopyOutcome, RaftError, SnapshotDescriptor
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Entries
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.format.control_record import ClusterMember
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.bundle import capture_bundle
from replay.log.source import source_of
from replay.recover.in_place import bring_up
from replay.state.trust import Trust, read_position, state_path
from snapshot.errors import SnapshotError

TICK_S: Final = 0.1
HOLD_LOG_TICKS: Final = 10  # between two looks at what the log must keep, and what consensus may forget
HAND_OVER_S: Final = 1.0  # for a follower to take the leadership that an orderly stop offers
ANCHOR: Final = "consensus"

T = TypeVar("T")

log = structlog.get_logger("cmdlog.cluster")


class MemberNode(Node):
    """See the module. `join` makes one."""

    _ground: MemberGround
    _network: PeerNetwork
    _driver: Replication
    _machine: SequencedMachine
    _leadership: Leadership
    _takeover: Takeover

    @classmethod
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
        files, directory = outside.files, os.path.abspath(directory)
        bundle = ensure_member(files, directory, settings, db, target=target, cluster=member.cluster, node=member.node)
        wal = Log.open(files, directory)
        try:
            check_file_size(directory, wal.instance.segment_bytes)
            groups = wal.recovered.groups.by_partition
            settings = replace(adopt_fixed(settings, groups, wal.instance), durability="sync")
            if progress is not None:
                progress({"step": "opened"})
            boot = member_boot(groups, db, wal.instance.identity, member.cluster, bundle or capture_bundle(db, target))
            unsealed = unsealed_states(files, directory, range(settings.partitions))
            plan, report = bring_up(
                files, wal, live=live_code(db, boot), progress=reporter(progress), leave="unexecuted", voters="any"
            )
            Trust(files, directory).unseal()
            run_upto = {part.partition: part.to_index for part in plan.partitions}
            node = cls(NodeGround(directory, db, settings, wal, boot, inline=False, outside=outside, run_upto=run_upto))
            node.recovery = tell_recovery(plan, report, node._snapshots.newest, node.meter.speeds)
            node._page_checks.wish(unsealed, plan)
            node._become_member(member)
            node._start_member()
        except BaseException:
            with contextlib.suppress(Exception):
                wal.close()
            raise
        return node

    def _become_member(self, ground: MemberGround) -> None:
        """Consensus between sequencer and log."""
        self._ground = ground
        node, partitions = NodeId(ground.node), range(self.settings.partitions)
        places, txns = dict[int, Place](), dict[int, int]()
        for partition in partitions:
            position = read_position(state_path(self.directory, partition), partition)
            if not isinstance(position, str):
                places[partition], txns[partition] = Place(position.index, position.term), position.txn_id
        states = self._wal.recovered.groups
        groups, blocks = restore_groups(
            ground.node, source_of(self._wal), states, places, settings=ground.raft, rng=random.SystemRandom()
        )
        self._roll = MemberRoll(states, ground.cluster)
        self._reader = EntryReader(self._wal, self._report_entries)
        self._marks = ExecutedMarks(partitions, diverged=self._diverged)
        self._machine = SequencedMachine(
            self.sequencer, {p: txns.get(p, 0) for p in partitions}, blocks, marks=self._marks, leave_out=self._desk.leave_out,
            stated=self._roll.observe, asked=self._reader.ask, copy_offered=self._refuse_copy,
        )  # fmt: skip
        book = PeerBook.open(self._files, self.directory, self._wal.instance.identity)
        listen = ground.listen or ground.cluster.member(ground.node).peer
        self._network = PeerNetwork(book, ground.secret, self, Endpoint(*listen), TransportSettings(tick_s=TICK_S))
        self._network.set_peers({NodeId(m.node): m.peer for m in ground.cluster.members if m.node != ground.node})
        self._acquainted = len(ground.cluster.members) == 1
        self._leadership = Leadership(node, self._ask_driver, began=self._began, ended=self._lost)
        self._driver = Replication(
            groups, self._machine, self._leadership, send=self._network.send, kick=self._wal.kick,
            marks=self._marks, states=states,
            entry_blocks=blocks,
        )  # fmt: skip
        states_at = {partition: state_path(self.directory, partition) for partition in partitions}
        steps = LeaderSteps(
            self._driver, self._machine, self._leadership, self.sequencer, self._keys, catalog=self._boot.catalog,
            states=states_at, missing=self._missing_members,
        )  # fmt: skip
        self._takeover = Takeover(steps, self._desk.broken)
        self._reads = LeaderReads(self._driver, self._machine)
        placing = Placing(self._place_forwarded, self._reads.confirm, self.clock.observe, self.trace_of)
        self._calls = MemberCalls(
            ground, self.settings, placing, routes=self.routes, slots=self.slots, admission=self.sequencer.admission
        )
        self._ticks = 0  # since the log was held last
        self._handed_over = threading.Event()
        self._too_far_back: set[int] = set()  # groups
        self._named: NodeId | None = None  # the leader that refusals name
        self._view = ClusterView(
            ground, self._driver, self._leadership, self._marks, too_far_back=self._too_far_back,
            peers=lambda: self._network.status().peers if self._ready else (),
        )  # fmt: skip
        self._parts.facts.note_logged()
        self._desk.serve_replica(self)
        self._hold_log()  # before the log is started, and may let anything go
        self.sequencer.refuse(NoLeader("the cluster has no leader yet"))

    def _start_member(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._wal.start(
            self._driver,
            threads=self.settings.log_threads,
            timed=self.meter.syncs.add,
            whole_ring=self.settings.preallocate == "ring",
        )
        self._positions = self._sites.start(self._desk)
        try:
            self._parts.archiver.start()
        except BaseException:
            self._sites.close()
            raise

    def attach(self, loop: AbstractEventLoop | None = None) -> None:
        """Begins to speak with the other nodes; calls are accepted once a leader has taken over."""
        super().attach(loop)
        self._takeover.start()
        self._reader.start()
        self._calls.start(self._network, loop)
        self._network.start()

    def close(self, *, drain_s: float | None = None, hurried: Callable[[], bool] = lambda: False) -> None:
        """As `Node.close`; a leader hands over first."""
        if not self._closed:
            self._hand_over()
            self._network.stop()
            self._takeover.stop()
            self._reader.stop()
        try:
            super().close(drain_s=drain_s, hurried=hurried)
        finally:
            self._calls.stop()  # sends the answers that others wait for

    def _hand_over(self) -> None:
        """Offers every group to the follower that has most of the log; calls are refused meanwhile."""
        with contextlib.suppress(Exception):
            with self._driver.lock:
                leads = self._leadership.standing is not Standing.FOLLOWING
            if not leads:
                return
            self.sequencer.refuse(NotLeading("the node is stopping, another one takes over"))
            self._drain(self.settings.drain_timeout_s)
            self._handed_over.clear()
            with self._driver.lock:
                for group in list(self._driver.views()):
                    with contextlib.suppress(RaftError, KeyError):
                        self._driver.ask(
                            group, lambda core: core.transfer(max(core.progress, key=lambda n: core.progress[n].match))
                        )
            self._handed_over.wait(HAND_OVER_S)

    # -- cmdlog.cluster.transport.peer_transport.PeerHandler -----------------------------------------------------------------

    def on_tick(self, ticks: int) -> None:
        if not self._acquainted:
            self._acquainted = len(self._network.book.confirmed) + 1 >= len(self._ground.cluster.members)
            if not self._acquainted:
                return
        for _ in range(ticks):
            self._driver.tick()
        self._name_leader()
        self._ticks += ticks
        if self._ticks >= HOLD_LOG_TICKS:
            self._ticks = 0
            self._hold_log()

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        if self._acquainted:
            self._driver.receive(messages)

    def on_notice(self, notice: PeerNotice) -> None:
        log.info("peer", kind=notice.kind.value, node=notice.peer, detail=notice.detail)

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

    def may_skip(self, partition: int, index: int) -> bool:
        """Whether this node proposed the call, and still leads: nobody else has executed it."""
        return self._leadership.standing is Standing.LEADING and self.sequencer.replicated.proposed(partition, index)

    # -- leadership, under the driver's lock ---------------------------------------------------------------------------------

    def _ask_driver(self, group: int, request: Callable[[Any], Any]) -> Any:
        return self._driver.ask(group, request)

    def _began(self, terms: tuple[int, ...]) -> None:
        self._marks.lead()
        self._machine.run_marked(range(self.settings.partitions))
        self._takeover.begin_takeover(terms)

    def _lost(self, leader: NodeId | None) -> None:
        self._marks.follow()
        self._named = leader
        unknown = self._machine.follow()
        told = self.sequencer.replicated.step_down(self._refusal(leader), "the node led no more before a majority had the call")
        for done in unknown:
            done(NotReady("this node leads no more"))
        log.warning("leadership_lost", leader=leader, outcome_unknown=told)
        self._handed_over.set()

    def _refusal(self, leader: NodeId | None) -> NotReady:
        if leader is None or leader == self._ground.node:
            return NoLeader("the cluster has no leader at present")
        where = self._ground.cluster.member(leader).client
        return NotLeading(f"node {leader} leads the cluster: send calls to {where}", where, leader)

    def _name_leader(self) -> None:
        """A refusal that says where calls are taken says where they are taken now."""
        with self._driver.lock:
            leader, follows = self._leadership.leader, self._leadership.standing is Standing.FOLLOWING
            if follows and leader != self._named and isinstance(self.sequencer.admission.refusal, NoLeader | NotLeading):
                self._named = leader
                self.sequencer.refuse(self._refusal(leader))

    def _diverged(self, partition: int, index: int) -> None:
        """The leader's batch did something else than ours: this partition is not applied any further here."""
        why = "the batch changed other rows, or had other results, than on the node that leads"
        log.error("replica_diverged", partition=partition, index=index, reason=why)

    def _report_entries(self, request: EntryRequest, entries: Entries | None) -> None:
        """What was read for a follower that is far back."""
        with contextlib.suppress(RaftError, KeyError):
            self._driver.ask(request.group, lambda core: core.report_entries(request.wanted, entries))

    def _refuse_copy(self, group: int, descriptor: SnapshotDescriptor) -> None:
        """This node lacks entries that no log holds any more; it takes part, but cannot be brought level."""
        if group not in self._too_far_back:
            self._too_far_back.add(group)
            log.error("too_far_back", group=group, index=descriptor.index, remedy="the node needs a copy of another one's data")
        self._driver.ask(group, lambda core: core.report_snapshot(descriptor, CopyOutcome.FAILED))

    def _missing_members(self) -> list[ClusterMember]:
        """What the log does not state of the members that were met."""
        book = self._network.book
        met = {int(node): record.incarnation for node, record in book.records.items()}
        return self._roll.missing_members({**met, self._ground.node: book.me.incarnation})

    # -- calls -----------------------------------------------------------------------------------------------------------

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        """As `Node.call`, here or on the node that leads. A read is placed once a majority has confirmed that one still leads."""
        self._check_ready()
        if (where := self._calls.elsewhere()) is not None:
            return self._calls.send(where, [(route, params, key, done, durability)], txn=txn)[0]
        if not route.read_only:
            return super().call(route, params, key=key, done=done, txn=txn, durability="sync")
        self.sequencer.admission.raise_refusal()
        place = super().call

        def confirmed(leads: bool) -> None:
            try:
                if not leads:
                    raise NoLeader("another node may lead by now; the read is safe to repeat")
                place(route, params, key=key, done=done, txn=txn)
            except NotReady as refusal:
                done(refusal)

        self._reads.confirm(confirmed)
        return None if route.everywhere else self.slots.partition_of(route.procedure, params)

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """As `Node.call_many`; see `call`."""
        self._check_ready()
        if (where := self._calls.elsewhere()) is not None:
            return self._calls.send(where, calls)
        return self._calls.place_many(calls, super().call_many)

    def _place_forwarded(self, calls: Sequence[Encoded]) -> None:
        """Places calls that another node has sent. Raises: CallRefused, and then none of them is placed."""
        self._check_ready()
        self.sequencer.admission.raise_refusal()
        self._placing.place_encoded([(*call[:5], "sync") for call in calls])
        self._waker.wake()

    def query_by(self, run: RunQuery[T], sql: str, params: Sequence[Any], partition: int | None) -> T:
        """As `Node.query_by`, by the leader alone: what it reads includes every call that was answered before."""
        self.sequencer.admission.raise_refusal()
        self._reads.wait_until_confirmed()
        return super().query_by(run, sql, params, partition)

    def take_point(self) -> dict[str, Any]:
        """Raises: SnapshotError: a point is a moment of all partitions, and the log of a cluster states none yet."""
        raise SnapshotError(
            "recovery points are taken on a node alone; `cmdlog recover DIR... --until` reaches any moment of a cluster's log"
        )

    # -- what others see -------------------------------------------------------------------------------------------------

    @property
    def member_state(self) -> MemberState:
        return self._view.member_state(speaks=self._speaks)

    def status(self) -> dict[str, Any]:
        return {**super().status(), "cluster": self.cluster_status()}

    def cluster_status(self) -> dict[str, Any]:
        """This node's view of the cluster: state, who leads, the members, each group's term and leader, the peers."""
        return {**self._view.status(speaks=self._speaks), "forwarding": self._calls.status()}

    @property
    def _speaks(self) -> bool:
        return self._ready and self._acquainted
