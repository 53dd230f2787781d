"""The log alone: one record at a time beside the same bytes written and synced bare, many at a time, and a ring that goes round.

Run: `python bench/log.py [--quick]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder

from bench._common import Bench, in_turns, make_parser, paired, work_directory
from bench._feed import Feed
from bench._nodes import TARGET
from bench.engine import RAW_BYTES, raw_file
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, aligned, padded
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_json, encode_record
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.writing.watermarks import Sync
from procedures.code.bundle import capture_bundle
from procedures.samples import bank

FILES = RealFiles()
RECORD = encode_record(RecordKind.DIGEST, bytes(200), partition=0, term=1, index=1)  # its block has RAW_BYTES
CALLERS = 256  # records in flight
SEGMENT_BYTES = 16 << 20
RING_SEGMENTS = 6
IDLE_GROUPS = 3
KINDS: tuple[tuple[Sync, int], ...] = (("sync", 1), ("sync", 2), ("sync", 4), ("async", 4), ("off", 4))  # and log threads


def main() -> None:
    options = make_parser("log", "The log alone.").parse_args()
    bench = Bench("log", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        measure_idle(bench, options, folder)
        measure_throughput(bench, options, folder)
        measure_ring(bench, folder)
    bench.write()


@contextmanager
def fresh_log(folder: Path, *, segment_bytes: int = SEGMENT_BYTES, segments: int = 8) -> Iterator[Log]:
    Log.create(FILES, str(folder), Identity.fresh(), segment_bytes=segment_bytes, segments=segments, reserve_bytes=16 << 10)
    log = Log.open(FILES, str(folder))
    try:
        yield log
    finally:
        log.close()


def let_go(log: Log) -> None:
    """Moves the anchor along, so that the log never fills."""
    log.anchors.set("bench", Lsn(log.durable_block, 0))


def put(log: Log, feed: Feed, records: list[bytes], *, inline: bool = True) -> None:
    """Returns when the block is durable: written by this thread where it may be, or by one of the pool."""
    feed.arrived.clear()
    feed.blocks.append(records)
    if not inline or not log.run_turn():  # a rotation is the pool's
        log.kick()
    feed.arrived.wait()


def measure_idle(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """Each way in turns, so that all meet the same disk."""
    bench.section(f"One record at a time, a block of {RAW_BYTES} bytes")
    with raw_file(folder / "raw") as write_raw, fresh_log(folder / "inline") as inline, fresh_log(folder / "pool") as pool:
        ways: dict[str, Callable[[], None]] = {"raw: pwrite + fdatasync": write_raw}
        for name, log in (("by this thread", inline), ("by a thread of the pool", pool)):
            feed = Feed()
            log.start(feed)
            ways[name] = partial(put, log, feed, [RECORD], inline=log is inline)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(300 if options.quick else 5000):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                found[name].append(time.perf_counter() - began)
            if number % 1000 == 0:
                let_go(inline)
                let_go(pool)
    raw, *others = (bench.times(name, times[20:]) for name, times in found.items())
    for name, median in zip(list(ways)[1:], others, strict=True):
        bench.ratio(f"{name} / raw", median / raw)


class Window:
    """A source that refills itself: each record that is acknowledged is followed by the next, CALLERS in flight."""

    def __init__(self, log: Log, *, lax: bool) -> None:
        self._log, self.lax, self.waits = log, lax, not lax  # lax: acknowledged when written
        self._waiting, self._taken, self._lock = CALLERS, deque[int](), threading.Lock()
        self.done, self.ended = 0, False

    @property
    def pending_bytes(self) -> int:
        return self._waiting * len(RECORD)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        with self._lock:
            count = min(self._waiting, (bytes_max - HEADER.bytes) // aligned(len(RECORD)))
            self._waiting -= count
            if count:
                self._taken.append(count)
        return [RECORD] * count

    def written(self, _block: int) -> None:
        if self.lax:
            self._refill()

    def durable(self, _block: int) -> None:
        if not self.lax:
            self._refill()

    def _refill(self) -> None:
        with self._lock:
            count = self._taken.popleft()
            self.done += count
            if self.ended:
                return
            self._waiting += count
        self._log.kick()

    def failed(self, error: WalError) -> None:
        raise SystemExit(f"the log failed: {error}")


def measure_throughput(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    bench.section(f"{CALLERS} records in flight")
    number = itertools.count()

    def run(sync: Sync, threads: int, _round: int) -> float:
        with fresh_log(folder / f"{next(number)}") as log:
            feed = Window(log, lax=sync == "async")
            log.start(feed, threads=threads, sync=sync)
            log.kick()
            began = time.perf_counter()
            while time.perf_counter() - began < (0.4 if options.quick else 2.0):
                time.sleep(0.02)
                let_go(log)
            rate = feed.done / (time.perf_counter() - began)
            feed.ended = True
        return rate

    found = in_turns({kind: partial(run, *kind) for kind in KINDS}, 2 if options.quick else 5)
    for (sync, threads), rates in found.items():
        bench.rates(f"{sync}, threads: {threads}", rates, "records/s")
    bench.ratio("4 threads / 1", paired(found["sync", 4], found["sync", 1]))
    bench.ratio("sync / off, 4 threads", paired(found["sync", 4], found["off", 4]))


def measure_ring(bench: Bench, folder: Path) -> None:
    """A ring that has gone round: what idle groups and the catalog take of each segment, in its head."""
    bench.section(f"Checkpoints of a ring of {RING_SEGMENTS} segments, with {IDLE_GROUPS} idle groups")
    for segment_bytes in (256 << 10, 1 << 20, 16 << 20):
        directory = folder / f"ring-{segment_bytes}"
        block = [encode_record(RecordKind.DIGEST, bytes(segment_bytes // 8), partition=0, term=1, index=1)]
        with fresh_log(directory, segment_bytes=segment_bytes, segments=RING_SEGMENTS) as log:
            feed = Feed()
            log.start(feed, sync="off")
            for records in (_words(), *[block] * 8 * (RING_SEGMENTS + 1)):
                put(log, feed, records)
                let_go(log)
        newest = max((directory / "log").glob("seg-*.wal")).read_bytes()
        body_bytes = HEADER.unpack_from(newest[SECTOR_BYTES:])[[field.name for field in HEADER.fields].index("body_bytes")]
        share = (SECTOR_BYTES + padded(HEADER.bytes + body_bytes)) / segment_bytes
        bench.ratio(f"segments of {segment_bytes >> 10:,} KiB: per cent of the bytes", share * 100)


def _words() -> list[bytes]:
    """What idle groups and the cluster group say once."""
    bundle = capture_bundle(bank.db, TARGET)
    catalog = {"version": 1, "hash": bundle.hash, "bundle": bundle.to_bytes().decode()}
    configuration = {"voters": [1, 2, 3], "learners": [], "epoch": 1}
    schema = {"statements": ["CREATE TABLE t (id)"], "txn_id": 5}
    said = [encode_json(RecordKind.CATALOG, catalog, partition=CLUSTER_GROUP, term=3, index=1)]
    for partition in range(1, IDLE_GROUPS + 1):
        said += [
            encode_json(RecordKind.HARD_STATE, {"vote": 3}, partition=partition, term=7, index=0),
            encode_json(RecordKind.CONFIGURATION, configuration, partition=partition, term=7, index=1),
            encode_json(RecordKind.SCHEMA, schema, partition=partition, term=7, index=2),
            encode_commit_mark(partition=partition, term=7, commit=2, closed_txn=9),
        ]
    return said


if __name__ == "__main__":
    main()
