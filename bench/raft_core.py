"""Consensus alone: nodes in one thread, messages encoded as on the wire, disks that are done at once.

Counts what a core, the codec and the multi-group driver cost, without network and fdatasync: entries per second in batches of 1,
64 and 512 and as one entry of 512 calls, with messages encoded alone and in sealed frames, and what a tick of many groups costs.
The clock is the CPU time of the process: on an idle core that is the time on the wall. A plain loop is timed first, since the CPU
of a shared machine is not always equally fast.

Run: `python bench/raft_core.py [--quick] [--profile LANE]`. What the figures mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser
from cmdlog.raft import Configuration, HardState, NodeId, RaftCore, Restored, Role, SnapshotDescriptor
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import HeartbeatBundle, HeartbeatReplyBundle, Message
from cmdlog.raft.multi_raft import Parcel, RaftGroups
from cmdlog.raft.wire.decoding import Decoder
from cmdlog.raft.wire.encoding import Encoder
from cmdlog.raft.wire.layout import NO_GROUP, Addressed
from cmdlog.raft.wire.secure_frames import LENGTH, FrameSealer, Link, Opener, Peer, Seal, Secret
from cmdlog.wal.ids import PartitionId

PAYLOAD_BYTES: Final = 200
CALLS: Final = 512  # of the entry that holds many
GROUP: Final = PartitionId(0)
T = TypeVar("T")
SECRET: Final = Secret(bytes(range(32)))
ENTRIES_MAX: Final = 60_000  # of one round
KEPT_ENTRIES: Final = 4_096  # of a log: then it is cut, as after a snapshot, and its memory is used again
GROUP_COUNTS: Final = (1, 64, 1000)
BARS: Final = {1: Bar(15, 30), 64: Bar(500, 1000), 512: Bar(900, 1900)}  # thousand entries/s; aim: the prototype


def main() -> None:
    parser = make_parser("raft_core", "Consensus alone, in one thread.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON at the end")
    parser.add_argument(
        "--profile", choices=sorted(ALL_LANES), metavar="LANE", help=f"where one of these spends its time: {'; '.join(ALL_LANES)}"
    )
    options = parser.parse_args()
    if options.profile is not None:
        show_profile(ALL_LANES[options.profile], options.seed)
        return
    bench = Bench("raft_core", options.seed, options.quick)
    bench.head()
    bench.rates("a loop of additions, millions", [_additions() for _ in range(9)], "M/s")
    measure_entries(bench, options)
    measure_ticks(bench, options)
    path = bench.write()
    if options.json:
        print(path.read_text(encoding="utf-8"))


def _additions() -> float:
    """What the CPU is worth just now: about 20 on an idle core of this kind."""
    total, began = 0, time.process_time()
    for number in range(1_000_000):
        total += number
    return 1 / (time.process_time() - began)


# -- entries -------------------------------------------------------------------------------------------------------------


class Bare:
    """One direction between two nodes: messages encoded, each with the checksum of its payloads, but in no frame."""

    def __init__(self, sender: NodeId, receiver: NodeId, encoder: Encoder) -> None:
        self.receiver = receiver
        self._encode = encoder.encode
        self._decode = Decoder(sender=sender, receiver=receiver, digest_key=None).decode

    def pack(self, message: Message) -> bytes:
        meta, bulk = self._encode(GROUP, message)
        return meta + bulk

    def open(self, data: bytes) -> list[Addressed]:
        """A message says itself how long its meta is."""
        (meta_bytes,) = LENGTH.unpack_from(data)
        return self._decode(data, at=0, end=meta_bytes, bulk_at=meta_bytes)


class Sealed:
    """One direction between two nodes: messages in frames with sequence, checksum and MAC, as on a connection."""

    def __init__(self, sender: NodeId, receiver: NodeId, encoder: Encoder, seal: Seal) -> None:
        self.receiver = receiver
        here, there = (Peer(node, node.to_bytes(8, "little")) for node in (sender, receiver))
        link = Link(bytes(16), here, there, b"session!", seal)
        self.seal = FrameSealer(link, SECRET, encoder).seal
        self.open = Opener(link, SECRET).open

    def pack(self, message: Message) -> bytes:
        (frame,) = self.seal(((GROUP, message),))
        return frame


Ways = dict[NodeId, dict[NodeId, T]]  # by sender and receiver


def make_ways(members: Sequence[NodeId], make: Callable[[NodeId, NodeId, Encoder], T], encoder: Callable[[], Encoder]) -> Ways[T]:
    """All pairs; one encoder serves all ways of a node."""
    ways: Ways[T] = {}
    for sender in members:
        shared = encoder()
        ways[sender] = {receiver: make(sender, receiver, shared) for receiver in members if receiver != sender}
    return ways


def sealed_ways(members: Sequence[NodeId], seal: Seal) -> Ways[Sealed]:
    return make_ways(members, partial(Sealed, seal=seal), lambda: SECRET.encoder(seal))


class Ring:
    """One group on nodes in this thread."""

    def __init__(self, count: int, *, seed: int, seal: Seal | None) -> None:
        members = nodes(range(1, count + 1))
        first = Restored(HardState(), SnapshotDescriptor(configuration=Configuration(voters=members)))
        self.cores = {node: RaftCore(node, rng=random.Random(f"{seed}/{node}"), restored=first) for node in members}
        self._ways: Ways[Bare] | Ways[Sealed] = (
            make_ways(members, Bare, lambda: Encoder(None)) if seal is None else sealed_ways(members, seal)
        )
        self._under_way: list[tuple[Bare | Sealed, bytes]] = []
        self.leader = self.cores[members[0]]
        while self.leader.role is not Role.LEADER:
            self.leader.tick()
            self.settle()

    def propose(self, payloads: list[bytes]) -> None:
        """Proposes a batch and runs until nobody has anything to do or to say."""
        self.leader.propose(payloads)
        self.settle()
        if self.leader.log.handed - self.leader.log.base > KEPT_ENTRIES:
            for core in self.cores.values():
                core.compact(core.manifest_at(core.log.handed), core.log.handed)

    def settle(self) -> None:
        """The leader first, then whoever was sent something."""
        self._take_block(self.leader)
        while self._under_way:
            under_way, self._under_way = self._under_way, []
            for way, data in under_way:
                step = self.cores[way.receiver].step
                for _, message in way.open(data):
                    step(message)  # type: ignore[arg-type]  # no bundles here
            for receiver in dict.fromkeys([way.receiver for way, _ in under_way]):
                self._take_block(self.cores[receiver])

    def _take_block(self, core: RaftCore) -> None:
        """The loop in the head of `cmdlog.raft`, for a disk that is done at once."""
        ways, send = self._ways[core.id], self._under_way.append
        while (ready := core.ready()) is not None:
            for message in (*ready.send_now, *ready.send_after_fsync):
                way = ways[message.receiver]
                send((way, way.pack(message)))
            core.advance(ready.completion)


def run_entries(*, count: int, batch: int, calls: int, entries: int, seed: int, seal: Seal | None) -> float:
    """Proposes batches one after the other, each until it is committed; calls per second of CPU."""
    chance = random.Random(seed)
    ring = Ring(count, seed=seed, seal=seal)
    pool = [chance.randbytes(PAYLOAD_BYTES * calls) for _ in range(max(batch, 8))]
    leader, rounds = ring.leader, max(1, entries // batch)
    began = time.process_time()
    for _ in range(rounds):
        ring.propose(pool[:batch])
    elapsed = time.process_time() - began
    if leader.log.commit != rounds * batch + 1:
        raise RuntimeError(f"{leader.log.commit} entries committed of {rounds * batch + 1}")
    return rounds * batch * calls / elapsed


Lane = Callable[[int, int], float]  # (seed, entries) -> calls/s


WIRES: Final[dict[str, Seal | None]] = {
    "encoded": None,  # what the bars are for: the codec with the checksums of payloads, but no frames
    "encoded and sealed": Seal.HEADS,  # frames with sequence, checksum and MAC, as on a link with TLS
    "encoded, sealed, payload digests": Seal.WHOLE,  # as on a link without
}


def _lanes(wire: str) -> dict[str, Lane]:
    seal = WIRES[wire]

    def lane(count: int, batch: int, calls: int) -> Lane:
        return lambda seed, entries: run_entries(count=count, batch=batch, calls=calls, entries=entries, seed=seed, seal=seal)

    shapes = [(count, batch, 1) for count in (3, 5) for batch in (1, 64, 512)] + [(count, 1, CALLS) for count in (3, 5)]
    return {f"{_name(*shape)}, {wire}": lane(*shape) for shape in shapes}


def _name(count: int, batch: int, calls: int) -> str:
    return f"{count} nodes, " + (f"batches of {batch}" if calls == 1 else f"one entry of {calls} calls")


ALL_LANES: Final = {name: lane for wire in WIRES for name, lane in _lanes(wire).items()}


def _entries_of(name: str, *, quick: bool) -> int:
    small = 800 if quick else 6_000
    if "one entry" in name:
        return small // 10
    return small if "batches of 1," in name else ENTRIES_MAX // (6 if quick else 1)


def measure_entries(bench: Bench, options: argparse.Namespace) -> None:
    """All shapes in turns. The bars are for three nodes and messages encoded; with seals, they show what sealing costs."""
    rounds = 3 if options.quick else 9
    for wire in WIRES:
        bench.section(f"Calls per second of CPU, {PAYLOAD_BYTES} B each, all nodes in one thread, messages {wire}")
        lanes = {
            name: (lambda number, run=run, name=name: run(options.seed + number, _entries_of(name, quick=options.quick)))
            for name, run in _lanes(wire).items()
        }
        found = in_turns(lanes, rounds)
        for name, rates in found.items():
            bench.rates(name, rates)
        for batch, bar in BARS.items():
            rate = statistics.median(found[f"{_name(3, batch, 1)}, {wire}"]) / 1e3
            bench.ratio(f"thousand entries/s, {_name(3, batch, 1)}, {wire}", rate, bar)


# -- ticks ---------------------------------------------------------------------------------------------------------------


class Trio:
    """Three nodes with many groups, all led by node 1, over sealed links."""

    def __init__(self, groups: int, *, seed: int) -> None:
        members = nodes([1, 2, 3])
        first = Restored(HardState(), SnapshotDescriptor(configuration=Configuration(voters=members)))
        self.nodes = {node: RaftGroups(node) for node in members}
        self._ways = sealed_ways(members, Seal.HEADS)
        self._under_way: list[tuple[Sealed, bytes]] = []
        for node, owner in self.nodes.items():
            for group in map(PartitionId, range(groups)):
                owner.add(group, RaftCore(node, rng=random.Random(f"{seed}/{node}/{group}"), restored=first))
        leading = self.nodes[members[0]]
        while any(core.role is not Role.LEADER for core in leading.cores.values()):
            leading.tick()
            self.settle()

    def tick(self) -> None:
        """One tick of the whole: heartbeats to everybody, and their answers."""
        for owner in self.nodes.values():
            owner.tick()
        self.settle()

    def settle(self) -> None:
        while True:
            for owner in self.nodes.values():
                while (made := owner.collect()) is not None:
                    self._send(owner, made.send_now)
                    self._send(owner, owner.durable(made.number))
            if not self._under_way:
                return
            under_way, self._under_way = self._under_way, []
            for way, data in under_way:
                self._give(self.nodes[way.receiver], way.open(data))

    def _send(self, owner: RaftGroups, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            bundles: list[Addressed] = [(NO_GROUP, bundle) for bundle in parcel.bundles]
            way = self._ways[owner.node][parcel.receiver]
            for frame in way.seal([*parcel.messages, *bundles]):
                self._under_way.append((way, frame))

    def _give(self, owner: RaftGroups, messages: list[Addressed]) -> None:
        for group, message in messages:
            if isinstance(message, HeartbeatBundle | HeartbeatReplyBundle):
                owner.take_heartbeats(message)
            else:
                owner.step(group, message)


def measure_ticks(bench: Bench, options: argparse.Namespace) -> None:
    """What a tick costs a node's thread by group: alone, and with the heartbeats of all groups to two followers and back."""
    bench.section("Ticks per second of CPU; microseconds a group")
    rounds = 3 if options.quick else 9
    for groups in GROUP_COUNTS:
        trio = Trio(groups, seed=options.seed)
        count = max(3, (2_000 if options.quick else 20_000) // groups)
        whole = [_per_second(trio.tick, count) for _ in range(rounds)]
        alone = [_ticks_alone(trio, count) for _ in range(rounds)]
        bench.rates(f"{groups} groups, one follower's tick", alone, "ticks/s")
        bench.rates(f"{groups} groups, three nodes, heartbeats and answers encoded", whole, "ticks/s")
        bench.ratio(
            f"us a group, follower's tick, {groups} groups", 1e6 / statistics.median(alone) / groups, Bar(3, 1.5, at_most=True)
        )
        bench.value(f"us a group, three nodes with heartbeats, {groups} groups", 1e6 / statistics.median(whole) / groups, "us")


def _ticks_alone(trio: Trio, count: int) -> float:
    """Ticks of a follower that hears from its leaders in between, which is not counted."""
    follower = trio.nodes[NodeId(2)]
    elapsed = 0.0
    for _ in range(count):
        trio.tick()
        began = time.process_time()
        follower.tick()
        elapsed += time.process_time() - began
    return count / elapsed


def _per_second(work: Callable[[], None], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        work()
    return count / (time.process_time() - began)


def show_profile(lane: Lane, seed: int) -> None:
    """By own time. The profiler slows small functions most: read it for where, not for how much."""
    profile = cProfile.Profile()
    profile.enable()
    rate = lane(seed, 20_000)
    profile.disable()
    print(f"{rate:,.0f} calls/s under the profiler")
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
