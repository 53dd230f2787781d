"""How fast a node's data is copied to another one: over loopback, without a rate limit and with one, beside the bare disk.

Source and recipient are processes of their own with the product's source and client; between them is the peers' port. The source
has one snapshot, a file of `--mb` megabytes. The recipient writes what it gets into a file and makes that durable at the end; so
does the variant *file copy*, which reads the same file in the same pieces without a network. Heartbeat: how late the network's
thread of the source is beside a copy at full speed.

Run: `python bench/copying.py [--quick]`. What the figures mean: bench/README.md.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from cmdlog.cluster.copying.copied_groups import GroupReach
from cmdlog.cluster.copying.copy_client import CopyClient
from cmdlog.cluster.copying.copy_desk import CopyGround, CopyLimits
from cmdlog.cluster.copying.copy_frames import CHUNK_BYTES_MAX, copy_credentials
from cmdlog.cluster.copying.copy_source import CopyServer
from cmdlog.cluster.copying.copy_values import CopyEnding, CopyManifest, CopyRequest, CopyStanding, LogShape
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address, PeerNotice
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import Addressed
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import FOLDER, Snapshot
from snapshot.manifest import FileEntry, Manifest, encode_manifest, size_and_crc, snapshot_name

SECRET: Final = Secret(bytes(range(32)))
CLUSTER: Final = bytes(16)
SOURCE, RECIPIENT, LIFE = 1, 2, b"new life"
RATE: Final = 64 << 20  # the default of copy_rate_bytes_per_s
INDEX: Final = 10  # of the snapshot


class Quiet:
    """The source's consensus: there is none; it notes how late its ticks are."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._before = 0.0

    def on_tick(self, ticks: int) -> None:
        now = time.monotonic()
        if self._before:
            self.late_s.append(now - self._before)
        self._before = now

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None: ...

    def on_notice(self, notice: PeerNotice) -> None: ...


def make_snapshot(directory: Path, size: int, seed: int) -> Snapshot:
    """A snapshot whose image is that large."""
    name = snapshot_name(0, INDEX)
    folder = directory / FOLDER / name
    folder.mkdir(parents=True)
    piece = random.Random(seed).randbytes(CHUNK_BYTES_MAX)
    with (folder / "image.sqlite").open("wb") as image:
        for _ in range(size // len(piece)):
            image.write(piece)
        os.fsync(image.fileno())
    found, crc32c = size_and_crc(str(folder / "image.sqlite"))
    manifest = Manifest(
        cluster_id=CLUSTER.hex(), node_id=SOURCE, incarnation=LIFE.hex(), partition=0, index=INDEX, term=1, checksum=1, txn_id=1,
        log_block=1, epoch=1, configuration=None, catalogs={}, environment=None, key_policy=None, schema=(), tables=(),
        files=(FileEntry("image.sqlite", found, crc32c, ""),), created="",
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return Snapshot(str(folder), 0, INDEX, 1, manifest, name=name)


def ground_of(directory: Path, snapshot: Snapshot) -> CopyGround:
    """A node that has this snapshot, and has admitted the recipient."""
    reach = GroupReach(1, 1, INDEX, 1, ((1, {"voters": [SOURCE]}),))
    member = ClusterMember(RECIPIENT, LIFE, "", "", MemberStage.ADMITTED)
    return CopyGround(
        node=SOURCE, directory=str(directory), shape=LogShape(1 << 20, 8, 1 << 16), partitions=(0,),
        reaches=lambda: {0: reach, CLUSTER_GROUP: reach}, cluster_state=lambda _: GroupState(), newest=lambda _: snapshot,
        request_snapshots=lambda _: Future(), faults=tuple, hold_log=lambda *_: None, let_log_go=lambda _: None,
        member_of=lambda _: member, take_wish=lambda _: CopyStanding(SOURCE, True, True, None, None, None, ()),
        problem=lambda: "", is_short=lambda: False,
    )  # fmt: skip


def source_main(pipe: Connection, directory: Path, size: int, seed: int) -> None:
    """The source's process: one port without a limit, one with."""
    ground = ground_of(directory, make_snapshot(directory, size, seed))
    served = []
    for rate in (0, RATE):
        book = PeerBook.open(RealFiles(), str(directory), Identity(CLUSTER, SOURCE, b"source 1"))
        handler = Quiet()
        network = PeerNetwork(book, SECRET, handler, Endpoint())
        source = CopyServer(copy_credentials(CLUSTER, SOURCE, b"source 1", SECRET), ground, CopyLimits(2, rate))
        source.start(network)
        network.start()
        served.append((handler, network, source))
    pipe.send([network.address for _, network, _ in served])
    while pipe.recv() == "late":
        handler = served[0][0]
        pipe.send((time.process_time(), list(handler.late_s)))
        handler.late_s.clear()
    for _, network, source in served:
        network.stop()
        source.stop()


@contextmanager
def source_process(folder: Path, size: int, seed: int) -> Iterator[tuple[list[Address], Connection]]:
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=source_main, args=(theirs, folder, size, seed), daemon=True)
    process.start()
    yield pipe.recv(), pipe
    pipe.send("end")
    process.join()


def copy_node(address: Address, folder: Path, _round: int) -> float:
    """Bytes per second of a whole copy, durable at the end."""
    began = time.perf_counter()
    with CopyClient(copy_credentials(CLUSTER, RECIPIENT, LIFE, SECRET), SOURCE, address) as client:
        manifest = client.begin_copy(CopyRequest(RECIPIENT, LIFE))
        assert isinstance(manifest, CopyManifest)
        for file in manifest.files:
            write_durably(folder / "copied", client.read_chunks(manifest.copy, file))
        client.end(manifest.copy, CopyEnding.DONE)
    return manifest.size / (time.perf_counter() - began)


def fetch_alone(address: Address, _round: int) -> float:
    """Bytes per second of what arrives, checked, and is written nowhere."""
    with CopyClient(copy_credentials(CLUSTER, RECIPIENT, LIFE, SECRET), SOURCE, address) as client:
        manifest = client.begin_copy(CopyRequest(RECIPIENT, LIFE))
        assert isinstance(manifest, CopyManifest)
        began = time.perf_counter()
        for file in manifest.files:
            for _ in client.read_chunks(manifest.copy, file):
                pass
        took = time.perf_counter() - began
        client.end(manifest.copy, CopyEnding.DONE)
    return manifest.size / took


def copy_file(image: Path, folder: Path, _round: int) -> float:
    """The same on one machine."""

    def pieces() -> Iterator[bytes]:
        with image.open("rb", buffering=0) as source:
            while piece := source.read(CHUNK_BYTES_MAX):
                yield piece

    began = time.perf_counter()
    write_durably(folder / "copied", pieces())
    return image.stat().st_size / (time.perf_counter() - began)


def write_durably(path: Path, pieces: Iterator[bytes]) -> None:
    with path.open("wb", buffering=0) as target:
        for piece in pieces:
            target.write(piece)
        os.fsync(target.fileno())


def main() -> None:
    parser = make_parser("copying", "A node's data, copied to another one.")
    parser.add_argument("--mb", type=int, default=0, help="size of the snapshot [default: 512, 128 with --quick]")
    options = parser.parse_args()
    size = (options.mb or (128 if options.quick else 512)) << 20
    bench = Bench("copying", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder, source_process(folder / "source", size, options.seed) as (addresses, pipe):
        free, limited = addresses
        image = folder / "source" / FOLDER / snapshot_name(0, INDEX) / "image.sqlite"
        lanes: dict[str, Callable[[int], float]] = {
            "copy, no limit": functools.partial(copy_node, free, folder),
            "fetch, no limit, written nowhere": functools.partial(fetch_alone, free),
            "file copy": functools.partial(copy_file, image, folder),
        }
        pipe.send("late")
        cpu, _ = pipe.recv()
        began = time.process_time()
        found = in_turns(lanes, 3 if options.quick else 9)
        bench.section("Megabytes per second")
        for name, rates in found.items():
            bench.rates(name, [rate / 1e6 for rate in rates], "MB/s")
        bench.ratio(
            "copy, no limit / 100 MB/s", sorted(found["copy, no limit"])[len(found["copy, no limit"]) // 2] / 1e8, Bar(1, 2)
        )
        bench.ratio("copy, no limit / file copy", paired(found["copy, no limit"], found["file copy"]))
        pipe.send("late")
        after, late = pipe.recv()
        copied = 2 * len(found["file copy"]) * size / 1e9
        bench.section("CPU time of a gigabyte, and ticks of the source meanwhile, which are due every 100 ms")
        bench.value("source", (after - cpu) / copied, "s/GB")
        bench.value("recipient, with the file copies", (time.process_time() - began) / copied, "s/GB")
        bench.times("between two ticks", late)
        bench.section(f"With a limit of {RATE / 1e6:.0f} MB/s")
        rates = [copy_node(limited, folder, 0) for _ in range(1 if options.quick else 3)]
        bench.rates("copy, with a limit", [rate / 1e6 for rate in rates], "MB/s")
        bench.ratio("copy, with a limit / the limit", max(rates) / RATE, Bar(1.05, at_most=True))
    bench.write()


if __name__ == "__main__":
    main()
