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
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from cmdlog.cluster.divergence_file import DivergenceFile
from cmdlog.cluster.entry_records import describe_batch
from cmdlog.cluster.executed_marks import ExecutedMarks, digest_of
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import restore_groups
from cmdlog.cluster.transport.peer_book import CLUSTER_FOLDER, PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import PeerNotice, TransportSettings
from cmdlog.node.assembly import MACHINE, NodeGround, Outside
from cmdlog.node.background.page_checks import unsealed_states
from cmdlog.node.boot import adopt_fixed, live_code, reporter, tell_recovery
from cmdlog.node.member.cluster_view import ClusterView, MemberParts
from cmdlog.node.member.entry_reader import EntryReader, EntryRequest
from cmdlog.node.member.forwarding.forwarded_calls import Placing
from cmdlog.node.member.forwarding.member_calls import MemberCalls
from cmdlog.node.member.leader_reads import LeaderReads, place_apart
from cmdlog.node.member.leadership import Leadership, Standing
from cmdlog.node.member.leading.leader_parts import LeaderGround, LeaderParts
from cmdlog.node.member.leading.leader_steps import LeaderSteps
from cmdlog.node.member.leading.partition_divergence import Divergences
from cmdlog.node.member.member_code import MemberCode, Program
from cmdlog.node.member.member_ground import MemberGround, MemberState, NoLeader
from cmdlog.node.member.member_roll import MemberRoll
from cmdlog.node.member.member_start import check_program, ensure_member, member_boot, read_places
from cmdlog.node.member.replica_reads import ReplicaProgress, ReplicaReads
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.node.node import SWITCH_INTERVAL_S, Node
from cmdlog.node.outcome import Done, Durability
from cmdlog.node.placing.router import Encoded, Placed
from cmdlog.node.queries.query import RunQuery
from cmdlog.node.settings import Settings
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.node.slot_map import Route
from cmdlog.raft import CopyOutcome, RaftError, SnapshotDescriptor
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Entries
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.format.control_record import ClusterMember
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.bundle import capture_bundle
from replay.log.source import source_of
from replay.recover.in_place import bring_up
from replay.state.trust import Trust
from snapshot.errors import SnapshotError

TICK_S: Final = 0.1
LOOK_TICKS: Final = 10  # between two looks at what the log must keep, consensus may forget, and whether this node should lead
HAND_OVER_S: Final = 3.0  # for another node to take the leadership that an orderly stop offers
ANCHOR: Final = "consensus"

T = TypeVar("T")

log = structlog.get_logger("cmdlog.cluster")


class MemberNode(Node):
    """See the module. `join` makes one."""

    _ground: MemberGround
    _network: PeerNetwork

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
            program = Program(db, boot.bundle)
            unsealed = unsealed_states(files, directory, range(settings.partitions))
            plan, report = bring_up(
                files, wal, live=live_code(db, boot), progress=reporter(progress), leave="unexecuted", voters="any"
            )
            Trust(files, directory).unseal()
            check_program(directory, settings, db, boot, wal)
            run_upto = {part.partition: part.to_index for part in plan.partitions}
            node = cls(NodeGround(directory, db, settings, wal, boot, inline=False, outside=outside, run_upto=run_upto))
            node.recovery = tell_recovery(plan, report, node._snapshots.newest, node.meter.speeds)
            node._page_checks.wish(unsealed, plan)
            node._become_member(member, program)
            node._start_member()
        except BaseException:
            with contextlib.suppress(Exception):
                wal.close()
            raise
        return node

    def _become_member(self, ground: MemberGround, program: Program) -> None:
        """Consensus between sequencer and log."""
        self._ground = ground
        node, partitions = NodeId(ground.node), range(self.settings.partitions)
        places, txns = read_places(self.directory, partitions)
        states = self._wal.recovered.groups
        groups, blocks = restore_groups(
            ground.node, source_of(self._wal), states, places, settings=ground.raft, rng=random.SystemRandom()
        )
        self._roll = MemberRoll(states, ground.cluster)
        self._reader = EntryReader(self._wal, self._report_entries)
        self._bind_code(program)
        self._meet_peers(ground)
        divergences = Divergences(
            DivergenceFile(self._files, os.path.join(self.directory, CLUSTER_FOLDER)), self._desk,
            describe=self._describe_entry, leading=lambda: self._leading,
        )  # fmt: skip
        self._marks = ExecutedMarks(
            partitions, diverged=divergences.begin_divergence, agreed=divergences.end_divergence,
            voters=len(ground.cluster.members),
        )  # fmt: skip
        self._machine = SequencedMachine(
            self.sequencer, {p: txns.get(p, 0) for p in partitions}, blocks, marks=self._marks, leave_out=self._desk.leave_out,
            stated=self._observe, asked=self._reader.ask, copy_offered=self._refuse_copy,
        )  # fmt: skip
        self._machine.learn_code(self._boot.catalog)
        fitness = LeaderFitness(node)
        self._leadership = Leadership(
            node, fitness, lambda g, ask: self._driver.ask(g, request=ask), lambda: self._leading.events
        )
        self._driver = Replication(
            groups, self._machine, self._leadership, send=self._network.send, kick=self._wal.kick,
            marks=self._marks, states=states, entry_blocks=blocks,
        )  # fmt: skip
        steps = LeaderSteps(
            self._driver, self._machine, self._leadership, self.sequencer, self._keys, code=self._code,
            directory=self.directory, missing=self._missing_members,
        )  # fmt: skip
        self._leading = LeaderParts(LeaderGround(
            ground, self._driver, self._leadership, fitness, self._machine, self._marks, self.sequencer, self._keys, self._desk,
            self._sites, steps, self._network.send, self._is_full,
        ))  # fmt: skip
        self._place_reads_and_calls(ground)
        self._ticks = 0  # since the log was held last
        self._too_far_back: set[int] = set()  # groups
        self._view = ClusterView(MemberParts(
            ground, groups, self._driver, self._leadership, self._marks, self.sequencer.replicated.run_up_to,
            lambda: self._network.status().peers if self._ready else (), self._too_far_back,
            lambda: self._ready and self._acquainted, fitness, self._reads.rounds, self._calls.status, TICK_S,
        ))  # fmt: skip
        self.overview = replace(self.overview, cluster=self._view)
        self._parts.facts.note_logged()
        self._desk.serve_replica(self)
        divergences.restore_divergences(self._marks)
        self._hold_log()  # before the log is started, and may let anything go
        self.sequencer.refuse(NoLeader("the cluster has no leader yet"))

    def _bind_code(self, program: Program) -> None:
        """Calls run the newest code that the log names."""
        stated = self._wal.recovered.groups.state(CLUSTER_GROUP).environment
        self._code = MemberCode(
            program, self._boot.code, {} if stated is None else stated.value,
            partitions=self.settings.partitions, known=self._add_code, bound=self._serve_code,
        )  # fmt: skip
        self._code.run_newest()
        self._code.missing_tables(self.directory)  # no site runs yet: a take-over need not look

    def _meet_peers(self, ground: MemberGround) -> None:
        book = PeerBook.open(self._files, self.directory, self._wal.instance.identity)
        listen = ground.listen or ground.cluster.member(ground.node).peer
        self._network = PeerNetwork(book, ground.secret, self, Endpoint(*listen), TransportSettings(tick_s=TICK_S))
        self._network.set_peers({NodeId(m.node): m.peer for m in ground.cluster.members if m.node != ground.node})
        self._acquainted = len(ground.cluster.members) == 1

    def _place_reads_and_calls(self, ground: MemberGround) -> None:
        """Reads by rounds or of this replica, calls here or where they are taken."""
        self._reads = LeaderReads(self._driver, self._machine, reads_max=self.settings.inflight_calls_max)
        self._progress = ReplicaProgress(self._driver, self._machine, self.sequencer.replicated.run_up_to)
        self.stale = ReplicaReads(
            self.stale, self._progress, self._driver.lock, diverged=self._marks.divergences,
            current=lambda route: self._code.is_bound and self.routes.get(route.name) is route,
            leader=lambda: self._url_of(self._leadership.leader),
        )  # fmt: skip
        self.watch_failure(lambda _error: self._lose_reads())
        placing = Placing(self._place_forwarded, self._reads.rounds.add, self.clock.observe, self.trace_of)
        self._calls = MemberCalls(
            ground, self.settings, placing, routes=lambda: self.routes, slots=self.slots, admission=self.sequencer.admission
        )

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
        self._reader.start()
        self._calls.start(self._network, loop)
        self._network.start()

    def close(self, *, drain_s: float | None = None, hurried: Callable[[], bool] = lambda: False) -> None:
        """As `Node.close`; a leader hands over first."""
        if not self._closed:
            self.hand_over()
            self._network.stop()
            self._lose_reads()
            self._leading.takeover.stop()
            self._reader.stop()
        try:
            super().close(drain_s=drain_s, hurried=hurried)
        finally:
            self._calls.stop()  # sends the answers that others wait for

    def hand_over(self) -> bool:
        """As `Node.hand_over`: another node gets what this one leads. Blocking, for `HAND_OVER_S` at most."""
        return self._leading.transfer.hand_over(HAND_OVER_S)

    # -- cmdlog.cluster.transport.peer_transport.PeerHandler -----------------------------------------------------------------

    def on_tick(self, ticks: int) -> None:
        if not self._acquainted:
            self._acquainted = len(self._network.book.confirmed) + 1 >= len(self._ground.cluster.members)
            if not self._acquainted:
                return
        for _ in range(ticks):
            self._driver.tick()
        self._reads.rounds.tick(ticks)
        self._progress.tick(ticks)
        self._leading.note_ticks(ticks)
        self._ticks += ticks
        if self._ticks >= LOOK_TICKS:
            self._ticks = 0
            self._hold_log()
            self._leading.look_at_fitness()

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        if self._acquainted:
            self._driver.receive(messages)
            self._reads.rounds.begin_waiting()

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
        self._progress.executed(partition, index)

    def may_skip(self, partition: int, index: int) -> bool:
        """Whether this node proposed the call, and still leads: nobody else has executed it."""
        return self._leadership.standing is Standing.LEADING and self.sequencer.replicated.proposed(partition, index)

    # -- leadership, under the driver's lock ---------------------------------------------------------------------------------

    def _url_of(self, node: NodeId | None) -> str:
        return "" if node is None else self._ground.cluster.member(node).client

    def _lose_reads(self) -> None:
        """Those that wait are refused."""
        self._reads.rounds.lose_all()
        self._progress.lose_all()

    def _describe_entry(self, partition: int, index: int) -> str:
        return str(self._driver.ask(partition, lambda core: describe_batch(core.log, index, self.meter.names)))

    def _is_full(self) -> bool:
        return self._wal.room_bytes < self.settings.call_bytes_max or self._wal.disk_full is not None

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

    def _observe(self, index: int, record: bytes) -> None:
        """An entry of the cluster group is committed."""
        self._roll.observe(index, record)
        self._code.observe(record)

    def _add_code(self, version: int, bundle: str, partitions: int | None) -> None:
        """One more version of the code is committed."""
        assert isinstance(self._sites, ProcessSites)
        self._sites.add_code(version, bundle, partitions=partitions)
        self._machine.learn_code(version)

    def _missing_members(self) -> list[ClusterMember]:
        """What the log does not state of the members that were met."""
        met = {int(node): record.incarnation for node, record in self._network.book.records.items()}
        return self._roll.missing_members({**met, self._ground.node: self._network.book.me.incarnation})

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

    def query_by(self, run: RunQuery[T], sql: str, params: Sequence[Any], partition: int | None) -> T:
        """As `Node.query_by`, by the leader alone: what it reads includes every call that was answered before."""
        self.sequencer.admission.raise_refusal()
        self._reads.wait_until_confirmed()
        self.sequencer.admission.raise_refusal()  # it may have led, followed and begun to lead again since
        return super().query_by(run, sql, params, partition)

    def take_point(self) -> dict[str, Any]:
        """Raises: SnapshotError: a point is a moment of all partitions, and the log of a cluster states none yet."""
        raise SnapshotError(
            "recovery points are taken on a node alone; `cmdlog recover DIR... --until` reaches any moment of a cluster's log"
        )

    # -- what others see -------------------------------------------------------------------------------------------------

    @property
    def member_state(self) -> MemberState:
        return self._view.member_state()

    def cluster_status(self) -> dict[str, Any]:
        """This node's view of the cluster: state, who leads, the members, each group's term and leader, the peers."""
        return self._view.status()
