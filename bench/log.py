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
from collections.abc import Sequence
from typing import Any

from cmdlog.wal import Identity, Log
from cmdlog.wal.block import HEADER, aligned, encode_block, padded
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import Lsn
from cmdlog.wal.record import Kind, encode_record
from cmdlog.wal.ring import Sync

RECORD_BYTES = 200
CALLERS = 256  # records in flight in the throughput runs
SEGMENT_BYTES = 16 << 20


class Feed:
    """A source that refills itself: every acknowledged record is followed by the next, `callers` in flight."""

    def __init__(self, callers: int) -> None:
        self.record = encode_record(Kind.DIGEST, bytes(RECORD_BYTES), partition=0, term=1, index=1)
        self.waiting = callers
        self.taken: deque[tuple[int, float]] = deque()
        self.lock = threading.Lock()
        self.done = 0
        self.latencies_s: list[float] = []
        self.refill = True
        self.kick = lambda: None

    @property
    def pending_bytes(self) -> int:
        return self.waiting * len(self.record)

    def take(self, bytes_max: int) -> Sequence[bytes]:
        with self.lock:
            count = min(self.waiting, (bytes_max - HEADER.bytes) // aligned(len(self.record)))
            self.waiting -= count
            if count:
                self.taken.append((count, time.perf_counter()))
            return [self.record] * count

    def written(self, block: int) -> None: ...

    def durable(self, block: int) -> None:
        with self.lock:
            count, begin = self.taken.popleft()
            self.latencies_s.append(time.perf_counter() - begin)
            self.done += count
            if self.refill:
                self.waiting += count
        if self.refill:
            self.kick()

    def failed(self, error: WalError) -> None:
        raise SystemExit(f"the log failed: {error}")


def raw_latency(folder: str, seconds: float) -> list[float]:
    """Seconds per pwrite + fdatasync of the block that one record makes, into a zeroed file."""
    block, _ = encode_block([Feed(1).record], flags=0, generation=1, number=1, durable_upto=0, chain=0, open_count=1)  # type: ignore[arg-type]
    path = os.path.join(folder, "raw")
    with open(path, "wb") as file:
        for _ in range(SEGMENT_BYTES >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    fd, offset, times = os.open(path, os.O_RDWR), 0, []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        os.pwrite(fd, block, offset)
        os.fdatasync(fd)
        times.append(time.perf_counter() - begin)
        offset = (offset + len(block)) % SEGMENT_BYTES
    os.close(fd)
    return times


def fresh_log(folder: str) -> Log:
    directory = os.path.join(folder, "node")
    shutil.rmtree(directory, ignore_errors=True)
    files = RealFiles()
    Log.create(files, directory, Identity.fresh(), segment_bytes=SEGMENT_BYTES, segments=8)
    return Log.open(files, directory)


def let_go(log: Log) -> None:
    """Moves the anchor along, so that the log never fills."""
    log.anchors.set("bench", Lsn(log.durable_block, 0))


def inline_latency(folder: str, seconds: float) -> list[float]:
    """Seconds per record, one at a time, in the caller's thread."""
    log, feed, times = fresh_log(folder), Feed(0), []
    feed.refill = False
    log.start(feed)
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        done = feed.done
        feed.waiting += 1
        while not log.run_turn() and feed.done == done:
            log.kick()
        times.append(time.perf_counter() - begin)
        if len(times) % 1000 == 0:
            let_go(log)
    log.close()
    return times


def pool_latency(folder: str, seconds: float) -> list[float]:
    """Seconds per record, one at a time, through a pool thread and back."""
    log, feed, times = fresh_log(folder), Feed(0), []
    feed.refill, arrived = False, threading.Semaphore(0)
    durable = feed.durable
    feed.durable = lambda block: (durable(block), arrived.release())  # type: ignore[method-assign,assign,return-value]
    log.start(feed)
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        feed.waiting += 1
        log.kick()
        arrived.acquire()
        times.append(time.perf_counter() - begin)
        if len(times) % 1000 == 0:
            let_go(log)
    log.close()
    return times


def throughput(folder: str, seconds: float, *, threads: int, sync: Sync) -> dict[str, Any]:
    """Records per second with CALLERS in flight."""
    log, feed = fresh_log(folder), Feed(CALLERS)
    feed.kick = log.kick  # type: ignore[method-assign]
    log.start(feed, threads=threads, sync=sync)
    log.kick()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        time.sleep(0.02)
        let_go(log)
    done, elapsed, blocks = feed.done, time.perf_counter() - begin, len(feed.latencies_s)
    feed.refill = False
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
    raw, inline, pool = raw_latency(folder, seconds), inline_latency(folder, seconds), pool_latency(folder, seconds)
    runs = {
        f"{sync}_{threads}": throughput(folder, seconds, threads=threads, sync=sync)
        for sync, threads in (("sync", 1), ("sync", 2), ("sync", 4), ("async", 4), ("off", 4))
    }
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
