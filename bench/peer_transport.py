"""The transport between two processes on loopback: messages and bytes per second, and how long a heartbeat takes there and back.

The near process sends appends and keeps a window of them under way; the far one acknowledges each, as a follower with a disk that
is done at once would. Heartbeats are timed alone, beside a thread of the near process that only computes, and beside appends of
1 MiB. Payloads have their digests (no TLS). A bare socket carries the same bytes for comparison.

Run: `python bench/peer_transport.py [--quick]`. What the figures mean: bench/README.md.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser, paired
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import PeerNotice
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Entries, HeartbeatBundle, HeartbeatReplyBundle
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.layout import Addressed
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import Index, PartitionId, Term

NEAR, FAR = NodeId(1), NodeId(2)
GROUP: Final = PartitionId(0)
SIZES: Final = {"200 B": (200, 4000), "16 KiB": (16 << 10, 2000), "1 MiB": (1 << 20, 100)}  # payload, messages of a round
WINDOW_BYTES: Final = 8 << 20
WINDOW_MESSAGES: Final = 256
BEATS: Final = 200


class Echo:
    """The far node: acknowledges appends, answers heartbeats."""

    def __init__(self) -> None:
        self.network: PeerNetwork | None = None

    def on_tick(self, ticks: int) -> None: ...

    def on_notice(self, notice: PeerNotice) -> None: ...

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        assert self.network is not None
        parcel = Parcel(peer)
        for group, message in messages:
            if isinstance(message, Append):
                parcel.messages.append((group, AppendReply(FAR, NEAR, Term(1), message.entries.last)))
            elif isinstance(message, HeartbeatBundle):
                parcel.bundles.append(HeartbeatReplyBundle(FAR, NEAR, message.groups, message.terms, message.rounds))
        self.network.send([parcel])


class Near:
    """The near node: counts what comes back."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.acknowledged = 0
        self.round = 0

    def on_tick(self, ticks: int) -> None: ...

    def on_notice(self, notice: PeerNotice) -> None: ...

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        with self.changed:
            for _, message in messages:
                if isinstance(message, AppendReply):
                    self.acknowledged = message.index
                elif isinstance(message, HeartbeatReplyBundle):
                    self.round = message.rounds[0]
            self.changed.notify()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, 60):
                raise TimeoutError("the far node does not answer")


def open_network(folder: str, node: int, handler: Any) -> PeerNetwork:
    book = PeerBook.open(RealFiles(), folder, Identity(bytes(16), node, b"life-of%d" % node))
    network = PeerNetwork(book, Secret(bytes(range(32))), Endpoint())
    network.start(handler)
    return network


def far_main(pipe: Connection) -> None:
    """The far process: a node, and a socket that swallows what comes."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        handler = Echo()
        handler.network = open_network(folder, FAR, handler)
        pipe.send((handler.network.address, listener.getsockname()))
        handler.network.set_peers({NEAR: pipe.recv()})
        threading.Thread(target=swallow, args=(listener,), daemon=True).start()
        while pipe.recv() == "cpu":
            pipe.send(time.process_time())
        handler.network.stop()


def swallow(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    buffer = bytearray(1 << 20)
    while True:
        if not (head := sock.recv(8, socket.MSG_WAITALL)):
            return
        left = int.from_bytes(head, "little")
        while left:
            left -= sock.recv_into(buffer, min(left, len(buffer)))
        sock.sendall(b"x")


@contextmanager
def far_process() -> Iterator[tuple[PeerNetwork, Near, socket.socket, Connection]]:
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=far_main, args=(theirs,), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder:
        near = Near()
        network = open_network(folder, NEAR, near)
        address, raw = pipe.recv()
        pipe.send(network.address)
        network.set_peers({FAR: address})
        near.wait(
            lambda: any(peer.connected_since_s and peer.calls_since_s for peer in network.status().peers) or beat(network, 0)
        )
        with socket.create_connection(raw) as bare:
            yield network, near, bare, pipe
        network.stop()
    pipe.send("end")
    process.join()


def beat(network: PeerNetwork, round_: int) -> bool:
    """Sends a heartbeat."""
    network.send([Parcel(FAR, bundles=[HeartbeatBundle(NEAR, FAR, [GROUP], [Term(1)], [Index(0)], [round_])])])
    return False


def run_appends(network: PeerNetwork, near: Near, size: int, count: int) -> float:
    """Messages per second."""
    payload, first = bytes(size), near.acknowledged + 1
    window = max(1, min(WINDOW_MESSAGES, WINDOW_BYTES // size))
    began = time.perf_counter()
    for index in range(first, first + count):
        entries = Entries(Index(index), [Term(1)], bytes(1), [payload])
        message = Append(NEAR, FAR, Term(1), Term(1), Index(0), entries)
        if index - near.acknowledged > window:
            near.wait(lambda index=index: index - near.acknowledged <= window)  # type: ignore[misc]
        network.send([Parcel(FAR, [(GROUP, message)])])
    near.wait(lambda: near.acknowledged == first + count - 1)
    return count / (time.perf_counter() - began)


def run_bare(bare: socket.socket, size: int, count: int) -> float:
    """The same bytes over a socket, with one answer at the end."""
    payload = bytes(size)
    began = time.perf_counter()
    bare.sendall((size * count).to_bytes(8, "little"))
    for _ in range(count):
        bare.sendall(payload)
    bare.recv(1)
    return count / (time.perf_counter() - began)


def time_beats(network: PeerNetwork, near: Near, count: int) -> list[float]:
    """There and back, in seconds."""
    found = []
    for _ in range(count):
        round_, began = near.round + 1, time.perf_counter()
        beat(network, round_)
        near.wait(lambda round_=round_: near.round == round_)  # type: ignore[misc]
        found.append(time.perf_counter() - began)
    return found


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Another thread repeats this meanwhile."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()


def main() -> None:
    options = make_parser("peer_transport", "The transport between two processes.").parse_args()
    bench = Bench("peer_transport", options.seed, options.quick)
    bench.head()
    rounds, share = (3, 4) if options.quick else (9, 1)
    with far_process() as (network, near, bare, pipe):
        lanes: dict[str, Callable[[int], float]] = {}
        for name, (size, count) in SIZES.items():
            lanes[f"appends of {name}"] = lambda _, size=size, count=count: run_appends(network, near, size, count // share)  # type: ignore[misc]
            lanes[f"bare socket, {name}"] = lambda _, size=size, count=count: run_bare(bare, size, count // share)  # type: ignore[misc]
        found = in_turns(lanes, rounds)
        bench.section("Messages and bytes per second, one way, each acknowledged")
        for name, (size, _) in SIZES.items():
            rates = found[f"appends of {name}"]
            bench.rates(f"appends of {name}", rates, "messages/s")
            bench.value(f"appends of {name}", sorted(rates)[len(rates) // 2] * size / 1e6, "MB/s")
        bench.section("Beside a bare socket, medians of the rounds' own quotients")
        for name in SIZES:
            bench.ratio(f"appends of {name} / bare socket", paired(found[f"appends of {name}"], found[f"bare socket, {name}"]))
        tell_cpu(bench, network, near, pipe, 4000 // share)
        bench.section("A heartbeat, there and back")
        alone = bench.times("alone", time_beats(network, near, BEATS))
        with beside(partial(sum, range(100_000))):
            burning = bench.times("beside a thread that computes", time_beats(network, near, BEATS))
        with beside(lambda: run_appends(network, near, 1 << 20, 20)):
            bench.times("beside appends of 1 MiB", time_beats(network, near, BEATS))
        bench.value("beside a thread that computes, minus alone", (burning - alone) * 1e3, "ms")
        bench.ratio("beside a thread that computes / a tick of 100 ms", burning / 0.1, Bar(0.5, 0.2, at_most=True))
    bench.write()


def tell_cpu(bench: Bench, network: PeerNetwork, near: Near, pipe: Connection, count: int) -> None:
    """What a message of 200 B costs each process."""

    def cpu() -> tuple[float, float]:
        pipe.send("cpu")
        return time.process_time(), pipe.recv()

    before = cpu()
    run_appends(network, near, 200, count)
    after = cpu()
    bench.section("CPU time of an append of 200 B and its acknowledgement")
    for name, began, ended in zip(("near", "far"), before, after, strict=True):
        bench.value(f"{name} process", (ended - began) / count * 1e6, "us")


if __name__ == "__main__":
    main()
