"""A simulated cluster: real driver, real log and real consensus over a simulated disk, clock and network, in one thread.

One rule: everything that happens is chosen by one seeded generator, so a seed repeats a failure. What the checks know they know
from outside: what a machine was told to run, and what it was told is committed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cmdlog.cluster.entry_records import place_of, records_of
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.genesis import Genesis
from cmdlog.cluster.replicated_machine import GroupRequest, GroupStanding
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import restore_groups
from cmdlog.member.entry_reader import EntryRequest, read_entries
from cmdlog.member.member_ground import MEMBER_RAFT
from cmdlog.raft import InvariantBroken, RaftCore, SnapshotDescriptor
from cmdlog.raft.messages import Bundle, Entries, Fitness, Message
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.ready import EntriesWanted, ReadResult, SoftState
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import decode_record
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn, PartitionId, make_txn_id
from cmdlog.wal.log import Log
from replay.log.source import source_of
from tests.wal.logkit import generations
from tests.wal.sim.simfiles import SimFiles

DIRECTORY = "/node"
CLUSTER_ID = b"simulated-clustr"
PARTITIONS = 2
SHAPE = {"partitions": PARTITIONS, "slots": [], "key_policy": {}}
GENESIS = Genesis(range(1), SHAPE, {"version": 1, "hash": ""}, {}, {"statements": []})
BLOCKS_KEPT = 40


@dataclass
class ListMachine:
    """A state machine that is a list of what it ran, per partition; it proposes numbered batches while it leads."""

    world: World
    node: int
    ran: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)  # group -> (index, term, record)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # group -> (term, next index), while this node leads it
    waiting: dict[int, deque[int]] = field(default_factory=dict)  # group -> numbers to be proposed
    blocks: list[tuple[str, int]] = field(default_factory=list)
    failure: BaseException | None = None
    later: list[tuple[int, Callable[[RaftCore], None]]] = field(default_factory=list)  # answers to the driver's questions

    @property
    def pending_bytes(self) -> int:
        return sum(100 * len(numbers) for group, numbers in self.waiting.items() if group in self.places)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        records = []
        for group, (term, first) in list(self.places.items()):
            index, numbers = first, self.waiting.get(group)
            while numbers and bytes_max > 400:
                number = numbers.popleft()
                txn = make_txn_id(millis=1000 + number, counter=0, partition=group)
                records.append(
                    encode_batch(
                        partition=group, term=term, index=index, catalog=1, txn_ids=range(txn, txn + 1024, 1024),
                        procedures=[0], params=[b"[%d]" % number],
                    )
                )  # fmt: skip
                bytes_max -= 200
                index += 1
            self.places[group] = term, index
        return records

    def skip_places(self, ends: Mapping[int, int]) -> None:
        self.places |= {group: (self.places[group][0], end) for group, end in ends.items() if group in self.places}

    def written(self, block: int) -> None:
        self.blocks.append(("written", block))

    def durable(self, block: int) -> None:
        self.blocks.append(("durable", block))

    def committed(self, group: int, entries: Entries) -> None:
        ran = self.ran.setdefault(group, [])
        for index, (term, record) in enumerate(zip(entries.terms, records_of(group, entries), strict=True), entries.first):
            if ran and index <= ran[-1][0]:
                assert self.world.agreed[group, index] == (term, record), "another entry is handed out at a place that was run"
                continue
            assert not ran or index == ran[-1][0] + 1, f"node {self.node}, group {group}: {index} after {ran[-1][0]}"
            ran.append((index, term, record))
            self.world.agree(group, index, term, record)

    def run_marked(self, partitions: Iterable[int]) -> None:
        pass

    def read(self, group: int, result: ReadResult) -> None:
        pass

    def fetch(self, group: int, wanted: EntriesWanted, terms: Sequence[int], block: int | None) -> None:
        node = self.world.nodes[self.node]
        entries = read_entries(node.log, EntryRequest(group, wanted, terms, block))
        self.later.append((group, lambda core: core.report_entries(wanted, entries)))

    def copy_offered(self, group: int, descriptor: SnapshotDescriptor) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self.failure = error

    # the watcher: leads a group as soon as the group is led here and confirmed

    def changed(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        core_of = self.world.nodes[self.node].groups.cores
        for group, view in views.items():
            if not view.confirmed:
                self.places.pop(group, None)
            elif group not in self.places or self.places[group][0] != view.term:
                self.places[group] = view.term, core_of[PartitionId(group)].log.last + 1
        return []

    def roles_changed(self, roles: Sequence[tuple[int, SoftState, int]]) -> None:
        pass

    def ticked(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        return []

    def take_fitness(self, message: Fitness) -> None:
        pass


class SimNode:
    """One member: disk, log, driver."""

    def __init__(self, world: World, node: int, files: SimFiles, life: int) -> None:
        self.world, self.node, self.files, self.life = world, node, files, life
        self.machine = ListMachine(world, node)
        self.kicked = False
        self.log = Log.open(files, DIRECTORY, generation=generations(10_000 * node + 100 * life))
        states = self.log.recovered.groups
        self.groups, blocks = restore_groups(
            node, source_of(self.log), states, {}, settings=MEMBER_RAFT, rng=random.Random(world.rng.random())
        )
        self.driver = Replication(
            self.groups, self.machine, send=self._send, kick=self._kick, states=states,
            marks=ExecutedMarks(range(PARTITIONS), diverged=lambda *_: None), entry_blocks=blocks,
        )  # fmt: skip
        self.driver.watch(self.machine)

    def start(self) -> None:
        self.log.start(self.driver, threads=0)

    def _kick(self) -> None:
        self.kicked = True

    def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            messages: list[tuple[int, Message | Bundle]] = [*parcel.messages]
            messages += [(CLUSTER_GROUP, bundle) for bundle in parcel.bundles]
            self.world.post(self.node, int(parcel.receiver), messages)

    def anchor(self) -> None:
        """What no durable mark calls committed, and the last blocks, are kept."""
        kept = max(1, int(self.log.durable_block) - BLOCKS_KEPT)
        needed = self.driver.first_needed_block({})
        self.log.anchors.set("test", Lsn(BlockNumber(kept if needed is None else min(kept, needed)), 0))

    def turn(self) -> None:
        """The log takes a block, if there is one."""
        self.kicked = False
        try:
            self.log.run_turn()
            self.anchor()
            self.log.run_background_work()
        except WalError:
            return
        self.kicked = self.kicked or self.driver.pending_bytes > 0


class World:
    """The network, the clock and what was agreed."""

    def __init__(self, seed: int, *, nodes: int = 3) -> None:
        self.rng = random.Random(seed)
        self.agreed: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.mail: list[tuple[int, int, list[tuple[int, Message | Bundle]]]] = []
        self.cut: set[tuple[int, int]] = set()  # (sender, receiver)
        self.nodes: dict[int, SimNode] = {}
        self.disks: dict[int, SimFiles] = {}
        self.lives = dict.fromkeys(range(1, nodes + 1), 0)
        self.proposed = 0
        for node in range(1, nodes + 1):
            files = SimFiles(seed * 10 + node)
            Log.create(
                files, DIRECTORY, Identity(CLUSTER_ID, node, b"life%04d" % node), segment_bytes=64 << 10, segments=8,
                reserve_bytes=4096, initial=replace(GENESIS, voters=range(1, nodes + 1)).records(),
                generation=generations(1000 * node),
            )  # fmt: skip
            self.disks[node] = files
            self.boot(node)

    def boot(self, node: int) -> None:
        self.lives[node] += 1
        self.nodes[node] = SimNode(self, node, self.disks[node], self.lives[node])
        self.nodes[node].start()

    def crash(self, node: int, *, power: bool) -> None:
        """The node's process dies; with `power`, what was not synced may be lost."""
        gone = self.nodes.pop(node)
        files = gone.files
        self.disks[node] = files.power_cut(self.rng) if power else files.kill()

    def post(self, sender: int, receiver: int, messages: list[tuple[int, Message | Bundle]]) -> None:
        if messages:
            self.mail.append((sender, receiver, messages))

    def agree(self, group: int, index: int, term: int, record: bytes) -> None:
        """Some node was told that this entry is committed: every node must be told the same."""
        kind, partition, said_term, said_index = place_of(record)
        decode_record(record)
        assert (partition, said_term, said_index) == (group, term, index), (kind, partition, said_term, said_index)
        known = self.agreed.setdefault((group, index), (term, record))
        assert known == (term, record), f"group {group}, index {index}: two entries are committed"

    # -- what may happen -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing happens."""
        choice = self.rng.random()
        if choice < 0.06:
            self.tick()
        elif choice < 0.7:
            self.deliver()
        else:
            self.run_log()

    def tick(self) -> None:
        for node in self.nodes.values():
            answers, node.machine.later = node.machine.later, []
            for group, answer in answers:
                node.driver.ask(group, answer)
            node.driver.tick()

    def deliver(self) -> None:
        """A message arrives: late ones after newer ones, some not at all, some twice."""
        if not self.mail:
            return
        at = 0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.mail))
        sender, receiver, messages = self.mail[at] if self.rng.random() < 0.02 else self.mail.pop(at)
        node = self.nodes.get(receiver)
        if node is not None and (sender, receiver) not in self.cut and self.rng.random() > 0.01:
            node.driver.receive(messages)

    def run_log(self) -> None:
        waiting = [node for node in self.nodes.values() if node.kicked]
        if waiting:
            self.rng.choice(waiting).turn()

    def propose(self) -> None:
        """A client asks somebody."""
        if not self.nodes:
            return
        node = self.rng.choice(list(self.nodes.values()))
        if node.machine.places:
            group = self.rng.choice(list(node.machine.places))
            if group != CLUSTER_GROUP:
                self.proposed += 1
                node.machine.waiting.setdefault(group, deque()).append(self.proposed)
                node.driver.wake()

    def settle(self, rounds: int = 4000) -> None:
        """No faults any more: everything that is under way comes to its end."""
        self.cut.clear()
        for node in set(self.lives) - set(self.nodes):
            self.boot(node)
        for _ in range(rounds):
            self.tick()
            for _ in range(1000):
                if not self.mail and not any(node.kicked for node in self.nodes.values()):
                    break
                self.deliver()
                self.run_log()
            if self.converged():
                return
        raise AssertionError(f"the cluster did not converge: {self.ends()}")

    def converged(self) -> bool:
        ends = {tuple(sorted(of.items())) for of in self.ends().values()}
        leaders = {group: {view.leader for node in self.nodes.values() for g, view in node.driver.views().items() if g == group}
                   for group in (CLUSTER_GROUP, *range(PARTITIONS))}  # fmt: skip
        return (
            len(ends) == 1
            and all(len(of) == 1 and None not in of for of in leaders.values())
            and all(any(node.driver.views()[group].confirmed for node in self.nodes.values()) for group in leaders)
        )

    def ends(self) -> dict[int, dict[int, int]]:
        return {
            number: {group: node.groups.cores[group].log.handed for group in node.groups.cores}
            for number, node in self.nodes.items()
        }

    def check(self) -> None:
        """Nobody failed but by what was done to it."""
        for node in self.nodes.values():
            if node.driver.failure is not None and not isinstance(node.driver.failure, WalError):
                raise node.driver.failure
            assert not isinstance(node.machine.failure, InvariantBroken), node.machine.failure
            if node.driver.failure is None and (views := node.driver.views()):
                assert views == {group: GroupStanding.of(core) for group, core in node.groups.cores.items()}
