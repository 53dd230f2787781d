"""The log against the raw disk: the same bytes by pwrite + fdatasync alone, and through `Log`.

Prints JSON: latency of one record at a time (raw, and inline through `run_turn`), and records per second with many callers in
flight for 1, 2 and 4 log threads, for `sync`, `async` and `off`. Ratios are taken in one run, since disks and neighbours change.

    python bench/log.py [--dir DIR] [--seconds S] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import HEADER, BlockFlag, aligned, encode_block, padded
from cmdlog.wal.format.record import RecordKind, encode_record
from cmdlog.wal.format.segment import write_zeros
from cmdlog.wal.ids import Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.writing.watermarks import Sync

RECORD_BYTES = 200
CALLERS = 256  # records in flight in the throughput runs
SEGMENT_BYTES = 16 << 20


def _nothing() -> None: ...


class Feed:
    """A source that refills itself: every acknowledged record is followed by the next, `callers` in flight."""

    def __init__(self, callers: int) -> None:
        self.record = encode_record(RecordKind.DIGEST, bytes(RECORD_BYTES), partition=0, term=1, index=1)
        self.waiting = callers
        self.taken: deque[tuple[int, float]] = deque()
        self.lock = threading.Lock()
        self.done = 0
        self.latencies_s: list[float] = []
        self.refill = True
        self.refill_when_written = False
        self.unwritten: deque[int] = deque()
        self.kick: Callable[[], None] = _nothing
        self.arrived = threading.Semaphore(0)

    @property
    def pending_bytes(self) -> int:
        return self.waiting * len(self.record)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        with self.lock:
            count = min(self.waiting, (bytes_max - HEADER.bytes) // aligned(len(self.record)))
            self.waiting -= count
            if count:
                self.taken.append((count, time.perf_counter()))
                self.unwritten.append(count)
            return [self.record] * count

    def written(self, block: int) -> None:
        """With `async` the callers go on as soon as their block is written."""
        if self.refill_when_written:
            with self.lock:
                self.waiting += self.unwritten.popleft()
            self.kick()

    def durable(self, block: int) -> None:
        with self.lock:
            count, begin = self.taken.popleft()
            self.latencies_s.append(time.perf_counter() - begin)
            self.done += count
        self.arrived.release()
        with self.lock:
            if self.refill and not self.refill_when_written:
                self.waiting += count
        if self.refill and not self.refill_when_written:
            self.kick()

    def failed(self, error: WalError) -> None:
        raise SystemExit(f"the log failed: {error}")


class Raw:
    """pwrite + fdatasync of the block that one record makes, into a zeroed file: what the disk itself costs."""

    def __init__(self, folder: str) -> None:
        self.block, _ = encode_block(
            [Feed(1).record], flags=BlockFlag.NONE, generation=1, number=1, durable_upto=0, chain=0, open_count=1
        )
        path = os.path.join(folder, "raw")
        write_zeros(RealFiles(), path, SEGMENT_BYTES)
        self.fd, self.offset = os.open(path, os.O_RDWR), 0

    def once(self) -> float:
        """Seconds of one write and sync."""
        begin = time.perf_counter()
        os.pwrite(self.fd, self.block, self.offset)
        os.fdatasync(self.fd)
        self.offset = (self.offset + len(self.block)) % SEGMENT_BYTES
        return time.perf_counter() - begin


def fresh_log(folder: str) -> Log:
    directory = os.path.join(folder, "node")
    shutil.rmtree(directory, ignore_errors=True)
    files = RealFiles()
    Log.create(files, directory, Identity.fresh(), segment_bytes=SEGMENT_BYTES, segments=8)
    return Log.open(files, directory)


def let_go(log: Log) -> None:
    """Moves the anchor along, so that the log never fills."""
    log.anchors.set("bench", Lsn(log.durable_block, 0))


def inline_latency(folder: str, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds per record, one at a time: raw and in the caller's thread in turns, so that both meet the same disk."""
    log, feed, raw, raws, times = fresh_log(folder), Feed(0), Raw(folder), [], []
    feed.refill = False
    log.start(feed)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        raws.append(raw.once())
        begin, done = time.perf_counter(), feed.done
        feed.waiting += 1
        while not log.run_turn() and feed.done == done:
            log.kick()
        times.append(time.perf_counter() - begin)
        if len(times) % 1000 == 0:
            let_go(log)
    log.close()
    os.close(raw.fd)
    return raws, times


def pool_latency(folder: str, seconds: float) -> list[float]:
    """Seconds per record, one at a time, through a pool thread and back."""
    log, feed, times = fresh_log(folder), Feed(0), []
    feed.refill = False
    log.start(feed)
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        feed.waiting += 1
        log.kick()
        feed.arrived.acquire()
        times.append(time.perf_counter() - begin)
        if len(times) % 1000 == 0:
            let_go(log)
    log.close()
    return times


def throughput(folder: str, seconds: float, *, threads: int, sync: Sync) -> dict[str, Any]:
    """Records per second with CALLERS in flight."""
    log, feed = fresh_log(folder), Feed(CALLERS)
    feed.refill_when_written = sync == "async"
    feed.kick = log.kick
    log.start(feed, threads=threads, sync=sync)
    log.kick()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        time.sleep(0.02)
        let_go(log)
    done, elapsed, blocks = feed.done, time.perf_counter() - begin, len(feed.latencies_s)
    feed.refill = feed.refill_when_written = False
    status = log.status()
    log.close()
    return {
        "records_per_s": round(done / elapsed),
        "blocks_per_s": round(blocks / elapsed),
        "records_per_block": round(done / max(1, blocks), 1),
        **summary(feed.latencies_s),
        "syncs": status["syncs"],
    }


def summary(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s) or [0.0]
    return {
        "median_us": round(statistics.median(ordered) * 1e6, 1),
        "p99_us": round(ordered[int(0.99 * (len(ordered) - 1))] * 1e6, 1),
    }


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=None, help="folder on the disk to measure (default: a temporary one)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each run")
    parser.add_argument("--out", default=None, help="write the JSON there too")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="cmdlog-bench-", dir=options.dir)
    try:
        report = measure(folder, options.seconds)
    finally:
        shutil.rmtree(folder)
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


def measure(folder: str, seconds: float) -> dict[str, Any]:
    raw, inline = inline_latency(folder, 2 * seconds)
    pool = pool_latency(folder, seconds)
    kinds: list[tuple[Sync, int]] = [("sync", 1), ("sync", 2), ("sync", 4), ("async", 4), ("off", 4)]
    runs = {f"{sync}_{threads}": throughput(folder, seconds, threads=threads, sync=sync) for sync, threads in kinds}
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": os.uname().release},
        "commit": commit(),
        "block_bytes": padded(HEADER.bytes + aligned(RECORD_BYTES + 32)),
        "raw": summary(raw),
        "inline": summary(inline),
        "pool": summary(pool),
        "throughput": runs,
        "ratios": {
            "inline_to_raw": round(statistics.median(inline) / statistics.median(raw), 2),
            "pool_to_raw": round(statistics.median(pool) / statistics.median(raw), 2),
            "threads_4_to_1": round(runs["sync_4"]["records_per_s"] / runs["sync_1"]["records_per_s"], 2),
            "sync_to_off": round(runs["sync_4"]["records_per_s"] / runs["off_4"]["records_per_s"], 2),
        },
    }


if __name__ == "__main__":
    main()
