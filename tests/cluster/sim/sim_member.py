"""One member of a simulated cluster: everything between the log and the sites is the product's own.

One rule: it is wired as `cmdlog.member.member` wires it; disk, clock, network and sites are the world's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from cmdlog.cluster.executed_marks import ExecutedMarks, digest_of
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.log_reserve import LogReserve
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import Place, restore_groups
from cmdlog.member.consensus import terms_of_states
from cmdlog.member.entry_reader import EntryRequest, read_entries
from cmdlog.member.leading.cluster_code_log import ClusterCodeLog
from cmdlog.member.leading.commit_checks import CommitChecks
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.member.leading.leadership_events import LeadershipEvents
from cmdlog.member.leading.leadership_transfer import LeadershipTransfer
from cmdlog.member.leading.takeover import take_over
from cmdlog.member.member_start import make_genesis
from cmdlog.member.peer_events import LOOK_TICKS
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.boot import Boot
from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallOutcome, Done, NoLeader, Reply
from cmdlog.node.placing.key_owners import make_owners
from cmdlog.node.placing.router import BoundCode, Router
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.sequencing.log_feed import SequencerStart
from cmdlog.node.sequencing.partition_pipeline import Limits, LogControls, PartitionPipeline
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.site_events import SiteEvents
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.slot_map import Route
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.raft import RaftCore, RaftSettings
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Bundle, Entries, Fitness, Message, SnapshotDescriptor
from cmdlog.raft.multi_raft import Parcel
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn, txn_tick
from cmdlog.wal.log import Log
from cmdlog.wal.writing.segment_pool import RETRY_S
from procedures.code.bundle import capture_bundle
from procedures.idempotency.session_calls import NAME_BYTES
from replay.log.source import source_of
from tests.cluster.lists_app import db
from tests.cluster.sim.list_sites import ROUTES, ListSites, ListState
from tests.wal.logkit import generations
from tests.wal.sim.simfiles import SimFiles

if TYPE_CHECKING:
    from tests.cluster.sim.sim_cluster import SimCluster

PARTITIONS: Final = 2
TICK_S: Final = 0.1
RETRY_TICKS: Final = round(RETRY_S / TICK_S)  # between looks at a disk that was full
RAFT: Final = RaftSettings(election_ticks=10, heartbeat_ticks=2)
SETTINGS: Final = Settings(partitions=PARTITIONS, sites=1)
LIMITS: Final = Limits(batch_calls_max=3)
BLOCKS_KEPT: Final = 120
LEAD_MAX_MS: Final = 60_000
NO_FLOOR: Final = bytes(8)
ONE_CODE: Final = SimpleNamespace(versions=SimpleNamespace(newest=1), run_newest=lambda: None)


def directory_of(node: int) -> str:
    """Of a node on its own disk."""
    return f"/n{node}"


@cache
def genesis(nodes: int) -> tuple[bytes, ...]:
    """What every log of the cluster begins with."""
    return tuple(make_genesis(db, capture_bundle(db, None), SETTINGS, tuple(range(1, nodes + 1))).records())


@cache
def genesis_checksum(nodes: int, partition: int) -> int:
    """Of the last entry of a partition that the cluster begins with."""
    records = (decode_record(record) for record in genesis(nodes))
    return [record.checksum for record in records if record.partition == partition and record.is_entry][-1]


@dataclass
class Machine:
    """What survives a process: the disk, and the states of the sites."""

    files: SimFiles
    states: dict[int, ListState]  # as the files of the sites are
    captured: dict[int, ListState]  # as the newest snapshots are
    life: int = 0

    def kill(self) -> None:
        """The process ends."""
        self.files = self.files.kill()

    def cut_power(self, rng: random.Random) -> None:
        """The machine ends: states are made from their snapshots again."""
        self.files = self.files.power_cut(rng)
        self.states = {partition: state.captured() for partition, state in self.captured.items()}


class WatchedMachine(SequencedMachine):
    """Reports to the world what consensus hands out."""

    agree: Callable[[int, Entries], None]
    let_go_free: set[tuple[int, int]]  # (partition, index) that may be run since this node led

    def committed(self, group: int, entries: Entries) -> None:
        self.agree(group, entries)
        super().committed(group, entries)

    def _run(self, partition: int, entries: Sequence[tuple[int, bytes]]) -> None:
        if self._marks.free:
            self.let_go_free |= {(partition, index) for index, _ in entries}
        super()._run(partition, entries)


class StepsOfLists(LeaderSteps):
    """Keys come from the states of the simulated sites, and there is one version of the code."""

    listed: Mapping[int, ListState]

    def change_code(self, terms: tuple[int, ...]) -> Generator[str, None, bool]:
        return self.still(terms)
        yield

    def load_keys(self) -> None:
        self._keys.clear()
        for _, state in sorted(self.listed.items()):
            for key, owner in state.owners.items():
                if len(key) == NAME_BYTES:
                    self._keys.claim(key + NO_FLOOR, owner)
                else:
                    self._keys.claim(key, owner)
                    self._keys.release_key(key, stored=True)


class SimMember:
    """From its start to its end. Everything is called by the world, one thing after the other."""

    def __init__(self, world: SimCluster, node: int, machine: Machine) -> None:
        self.world, self.node, self.machine = world, node, machine
        machine.life += 1
        self.kicked = self.paused = False
        self.stops_at: int | None = None  # tick at which an orderly stop ends, whether another node leads or not
        self.missed_ticks = 0
        self.began_s = world.now_s
        self.later: list[tuple[int, Callable[[RaftCore], None]]] = []  # answers to the driver's questions
        self.takeovers: list[Generator[str, None, bool]] = []
        self.failure: BaseException | None = None
        self.log = Log.open(machine.files, directory_of(node), generation=generations(100_000 * node + 1000 * machine.life))
        recovered = self.log.recovered.groups
        self.open_beside(recovered)
        world.promises.check(world.life_of(node), recovered)
        self.sites = ListSites(machine.states, applied=self._applied, read_done=self._read_done)
        self.sequencer = self._make_sequencer()
        boot = cast(Boot, SimpleNamespace(code=SimpleNamespace(newest=1)))
        self.desk = SiteEvents(
            directory_of(node), db, SETTINGS, boot, sequencer=self.sequencer, snapshots=cast(Snapshotter, None),
            leave_out=self._leave_out,
        )  # fmt: skip
        self.keys = make_owners(SETTINGS, self._boot_clock)
        self.router = Router(SETTINGS, self.sequencer, self.keys, self.sequencer.meter, cast(BoundCode, None))
        places = {partition: Place(state.index, state.term) for partition, state in machine.states.items()}
        groups, blocks = restore_groups(
            node, source_of(self.log), recovered, places, settings=RAFT, rng=random.Random(world.rng.random())
        )
        self.groups = groups
        self.marks = ExecutedMarks(
            range(PARTITIONS), diverged=self._diverged, agreed=self._diverged, voters=len(world.peers_of(node)) + 1
        )
        terms = terms_of_states(recovered, places, range(PARTITIONS))
        self.sequenced = WatchedMachine(
            self.sequencer, terms, blocks, marks=self.marks, leave_out=self.desk.leave_out, stated=self.observe,
            asked=self._read_entries, copy_offered=self.refuse_copy,
        )  # fmt: skip
        self.sequenced.agree, self.sequenced.let_go_free = partial(world.agree, node), set()
        self.sequenced.learn_code(1)
        self.fitness = LeaderFitness(NodeId(node))
        self.driver = Replication(
            groups, self.sequenced, send=self._send, kick=self._kick, marks=self.marks, states=recovered,
            entry_blocks=blocks,
        )  # fmt: skip
        self.reserve = LogReserve(self.driver, self.log)
        self.transfer = LeadershipTransfer(
            self.driver, self.fitness, drained=lambda: self.sequencer.replicated.idle, send=self._send,
            peers=lambda: [NodeId(other) for other in world.peers_of(node)],
        )  # fmt: skip
        self.leadership = Leadership(NodeId(node), self.fitness, LeadershipEvents(
            NodeId(node), lambda number: f"node {number}", self.sequenced, self.sequencer, self.marks,
            take_over=lambda terms: self.takeovers.append(take_over(self.steps, terms)), transfer=self.transfer,
        ))  # fmt: skip
        self.driver.watch(self.leadership)
        self.steps = StepsOfLists(
            self.driver, self.sequenced, self.leadership, self.sequencer, self.keys,
            code_log=cast(ClusterCodeLog, SimpleNamespace(code=ONE_CODE)), missing=self.missing_members,
        )  # fmt: skip
        self.steps.listed = machine.states
        self.reads = ReadRounds(self.driver, self.sequenced, reads_max=10_000)
        self.commits = CommitChecks(self.driver, self.leadership, self.fitness, self.sequencer.replicated)
        self.look_ticks = 0
        self.join_cluster()
        self.desk.serve_replica(self)
        self.hold_log()
        self.sequencer.intake.refuse(Closed.LEADER, NoLeader("the cluster has no leader yet"))
        self.log.start(self.driver, threads=0)
        for partition, state in machine.states.items():
            self.sequencer.site_feed.site_up(partition, state.index)

    def _make_sequencer(self) -> Sequencer:
        log = self.log
        clock = HybridClock(
            lead_max_ms=LEAD_MAX_MS, last=txn_tick(log.recovered.txn_id_max), wall=self._wall_clock, boot=self._boot_clock
        )
        pipelines = [
            PartitionPipeline(
                partition, 1, state.index + 1, state.index, marked_index=state.index, applied_block=log.durable_block
            )
            for partition, state in self.machine.states.items()
        ]
        return Sequencer(
            clock, pipelines, self.sites,
            LogControls(kick=self._kick, hasten=self._kick, room_bytes=lambda: log.room_bytes),
            limits=LIMITS, start=SequencerStart(1, log.durable_block, (), votes_alone=False),
            meter=StageTimings(list(ROUTES), partitions=PARTITIONS, now=self._boot_clock), on_failure=self._failed,
        )  # fmt: skip

    # -- what a cluster whose members change does otherwise -----------------------------------------------------------------

    stamp: Any = None  # of this process, on its messages

    def open_beside(self, recovered: GroupStates) -> None:
        """What the directory has beside the log."""

    def join_cluster(self) -> None:
        """What keeps the cluster's members."""

    def observe(self, index: int, record: bytes) -> int:
        """An entry of the cluster group is committed; the version of the code."""
        return 1

    def missing_members(self) -> list[ClusterMember]:
        """What a new leader states of the first members."""
        return []

    def believes(self, _sender: int, _stamp: Any) -> bool:
        """Whether a message of that process is taken."""
        return True

    # -- the world's doing -----------------------------------------------------------------------------------------------

    def tick(self, ticks: int = 1) -> None:
        """Time has passed here, too."""
        if self.log.disk_full is not None and self.world.ticks % RETRY_TICKS == 0:
            self.kicked = True  # as the log's own thread looks; nothing else may: a follower takes no entries before it has room
        answers, self.later = self.later, []
        for group, answer in answers:
            self.driver.ask(group, answer)
        for _ in range(ticks):
            self.driver.tick()
        self.reads.tick(ticks)
        self.leadership.note_ticks(ticks)
        for _ in range(ticks):
            self.transfer.note_tick()
        self.look_ticks += ticks
        if self.look_ticks >= LOOK_TICKS:
            self.look_ticks = 0
            self.hold_log()
            self.commits.check_commits()

    def receive(self, messages: list[tuple[int, Message | Bundle]]) -> None:
        """From a peer."""
        self.driver.receive(self.reserve.take_fitting(cast(Any, messages)))
        self.reads.begin_waiting()

    def turn(self) -> None:
        """The log takes a block, if there is one. Raises: SimCrash."""
        self.kicked = False
        try:
            self.log.run_turn()
            self.hold_log()
            self.log.run_background_work()
        except WalError:
            return
        self.kicked = self.kicked or self.driver.pending_bytes > 0

    def hold_log(self) -> None:
        """The log keeps what a restart needs from it, also one that begins with the snapshots."""
        run = self.sequencer.replicated.run_up_to()
        run = {partition: min(index, self.machine.captured[partition].index) for partition, index in run.items()}
        with self.driver.lock:
            oldest = self.driver.first_needed_block(run)
            self.driver.forget_run()
        if self.world.keeps_all:
            oldest = 1
        kept = max(1, int(self.log.durable_block) - BLOCKS_KEPT)  # for followers that are back
        self.log.anchors.set("test", Lsn(BlockNumber(kept if oldest is None else min(kept, oldest)), 0))

    def capture(self, partition: int) -> None:
        """A snapshot of what is applied."""
        self.machine.captured[partition] = self.machine.states[partition].captured()

    def step_takeover(self) -> None:
        """The thread of the take-over runs until it has to wait."""
        while self.takeovers:
            try:
                next(self.takeovers[0])
            except StopIteration:
                del self.takeovers[0]
            else:
                return

    def skip(self, partition: int) -> None:
        """The next call of the partition's site cannot be run: it is skipped, if this node may decide so (`SiteEvents.skip`)."""
        index = self.sites.stop(partition)
        places = self.sequencer.site_feed.places_of(partition, index)
        if not places or not self.may_skip(partition, index):
            self.sites.go_on(partition)
            return
        everywhere = [place for _, place in places] if len(places) > 1 else []

        def skipped(reply: Reply) -> None:
            if not isinstance(reply, CallOutcome):  # a process that ran it now could be the only one; it ends instead
                self.world.condemn(self)
                return
            for at, place in places:
                self.desk.leave_out(at, place, 0)
            self.sites.go_on(partition)

        entries = [(at, RecordKind.SKIP, skip_value(place, 0, "it cannot be run", everywhere)) for at, place in places]
        self.sequencer.intake.add_entries(entries, skipped)

    @property
    def leads(self) -> bool:
        """It takes calls."""
        return self.leadership.standing is Standing.LEADING

    # -- calls, as `Node.call` -------------------------------------------------------------------------------------

    def call(self, route: Route, params: list[Any], key: bytes, done: Done) -> None:
        """Raises: CallRefused."""
        if not route.read_only:
            self.router.place(route, params, key, done, "sync")
            self._kick()
            return
        self.sequencer.admission.raise_refusal()

        self.reads.place_confirmed(partial(self.router.place, route, params, key, done, "sync"), done)

    # -- clocks ----------------------------------------------------------------------------------------------------------

    def _wall_clock(self) -> float:
        return 1_700_000_000.0 + self.world.now_s + self.world.clock_offsets[self.node]

    def _boot_clock(self) -> float:
        return self.world.now_s - self.began_s + 1.0

    # -- what the parts ask for, as `Node` answers it --------------------------------------------------------------

    def _kick(self) -> None:
        self.kicked = True

    def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            hints = not parcel.bundles and all(isinstance(message, Fitness) for _, message in parcel.messages)
            assert hints or self.failure is None, f"node {self.node} speaks after its log has failed: {parcel}"
            messages: list[tuple[int, Message | Bundle]] = [*parcel.messages]
            messages += [(CLUSTER_GROUP, bundle) for bundle in parcel.bundles]
            self.world.post(self.node, int(parcel.receiver), messages)

    def executed(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """`cmdlog.node.site_events.Replica`."""
        self.world.executed(self, partition, index, answer)
        self.driver.executed(partition, index, 0 if answer is None else digest_of(answer.rows_digest, answer.result_hashes))

    def may_skip(self, partition: int, index: int) -> bool:
        """`cmdlog.node.site_events.Replica`."""
        return self.leadership.standing is Standing.LEADING and self.sequencer.replicated.proposed(partition, index)

    def _applied(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        self.desk.applied(partition, index, answer)

    def _leave_out(self, partition: int, index: int, position: int) -> None:
        self.world.left_out.add((partition, index, position))
        self.sites.leave_out(partition, index, position)

    def _read_done(self, partition: int, ident: int, as_of: int, body: bytes) -> None:
        self.desk.read_done(partition, ident, as_of=as_of, status=0, body=body, traces=())

    def _read_entries(self, request: EntryRequest) -> None:
        entries = read_entries(self.log, request)
        self.later.append((request.group, lambda core: core.report_entries(request.wanted, entries)))

    def refuse_copy(self, group: int, descriptor: SnapshotDescriptor) -> None:
        """Too far back for its leader's log: this simulation keeps all of it, so another leader brings what is missing."""

    def _diverged(self, partition: int, index: int) -> None:
        raise AssertionError(f"node {self.node}: batch {index} of partition {partition} did something else than on the leader")

    def _failed(self, error: BaseException) -> None:
        self.failure = error
