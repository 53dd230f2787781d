"""The merge of several streams into TxnId order, beside `heapq.merge` of decoded calls and beside sort(1) of the same data.

Run: `python bench/merge.py [--quick]`. What the ratios mean: bench/README.md.

Every stream writes a batch at the same moments, so the calls of all streams alternate one by one: the worst order for a merge
call by call. Several logs are copies of each other, as in a cluster; each partition is taken from one of them, so several logs
cost the reading of all.
"""

from __future__ import annotations

import argparse
import heapq  # noqa: TID251 - the obvious way, which the merge is measured against; nothing of the product uses it
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from bench._feed import Feed
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import decode_batch, encode_batch
from cmdlog.wal.format.record import Record, RecordKind, encode_commit_mark
from cmdlog.wal.ids import make_txn_id
from cmdlog.wal.log import Log
from replay.history.merge import Merge, streams_of
from replay.history.merge_stream import MergeStream
from replay.log.source import LogSource, open_source

FILES = RealFiles()
CALLS = 64  # of a batch
BLOCK_RECORDS = 8
MARK_EVERY = 64  # batches of a stream
SEGMENT_BYTES = 16 << 20
TICK = 1 << 10
FIRST_MILLIS = 1_700_000_000_000


def main() -> None:
    parser = make_parser("merge", __doc__.split("\n", 1)[0])
    parser.add_argument("--peak", default="", help=argparse.SUPPRESS)  # a child that merges these directories: its peak memory
    options = parser.parse_args()
    if options.peak:
        print(peak_of(options.peak.split(",")))
        return
    bench = Bench("merge", options.seed, options.quick)
    bench.head()
    calls = 60_000 if options.quick else 400_000
    for streams in (1, 2, 4, 16):
        with work_directory(options.dir) as folder:
            measure(bench, folder, streams=streams, logs=1, calls=calls)
    for logs in (3, 5):
        with work_directory(options.dir) as folder:
            measure(bench, folder, streams=16, logs=logs, calls=calls)
    for late in ("streams that go side by side", "one stream far behind the others"):
        measure_memory(bench, options, late)
    bench.write()


# -- the logs ------------------------------------------------------------------------------------------------------------


def write_log(directory: Path, records: Iterator[bytes], *, log_bytes: int) -> LogSource:
    """A node's log of these records, without a sync: nobody cuts the power here."""
    segments = max(4, log_bytes * 5 // 4 // SEGMENT_BYTES + 3)
    Log.create(FILES, str(directory), Identity.fresh(), segment_bytes=SEGMENT_BYTES, segments=segments)
    log, feed = Log.open(FILES, str(directory)), Feed()
    log.start(feed, threads=1, seal_after_s=60, sync="off")
    while block := list(itertools.islice(records, BLOCK_RECORDS)):
        feed.arrived.clear()
        feed.blocks.append(block)
        if not log.run_turn():  # the segment is full: a thread of the log goes on to the next
            log.kick()
        if not feed.arrived.wait(30):
            raise RuntimeError("the log does not take the block")
    log.close()
    return open_source(FILES, str(directory))


PARAMS = [b'[%d,"account-%d",%d,"12.50"]' % (n, n * 7919 % 100_000, n * 104_729 % 100_000) for n in range(CALLS)]


def batch_of(partition: int, index: int) -> bytes:
    """Batch `index` of every stream begins in the same millisecond."""
    first = make_txn_id(millis=FIRST_MILLIS + index, counter=0, partition=partition)
    ids = range(first, first + CALLS * TICK, TICK)
    return encode_batch(
        partition=partition, term=1, index=index, catalog=1, txn_ids=ids, procedures=[index % 5] * CALLS, params=PARAMS
    )


def side_by_side(streams: int, batches: int) -> Iterator[bytes]:
    for index in range(1, batches + 1):
        for partition in range(streams):
            yield batch_of(partition, index)
            if index % MARK_EVERY == 0:
                closed = make_txn_id(millis=FIRST_MILLIS + index, counter=CALLS, partition=0)
                yield encode_commit_mark(partition=partition, term=1, commit=index, closed_txn=closed)


def far_behind(streams: int, batches: int) -> Iterator[bytes]:
    """The log of a follower to which partition 0 came only when it had the rest."""
    for partition in [*range(1, streams), 0]:
        for index in range(1, batches + 1):
            yield batch_of(partition, index)


# -- the ways ------------------------------------------------------------------------------------------------------------


def measure(bench: Bench, folder: Path, *, streams: int, logs: int, calls: int) -> None:
    batches = calls // streams // CALLS
    calls = batches * streams * CALLS
    bench.section(f"{streams} streams, {logs} log{'s' * (logs > 1)}: {calls:,} invocations in batches of {CALLS}, CPU time")
    size = calls * 60
    made = [write_log(folder / f"node-{n}", side_by_side(streams, batches), log_bytes=size) for n in range(logs)]
    wanted = {partition: (partition % logs, 0, batches) for partition in range(streams)}
    looked = look(made, wanted)
    text = folder / "calls.txt"
    write_text(text, made[0])
    ways = {
        "read": partial(run_read, made, calls),
        "merge": partial(run_merge, made, looked, calls),
        "look": partial(run_look, made, wanted, calls),
        "heapq": partial(run_heapq, made, wanted, calls),
        "sort": partial(run_sort, text, calls),
    }
    found = in_turns(ways, 3 if bench.quick else 7)
    bench.rates("reading the logs alone, every checksum", found["read"])
    merged = bench.rates("merge, with reading and decoding", found["merge"])
    bench.rates("merge behind a first look for what is void or skipped", found["look"])
    bench.rates("decode, then heapq.merge call by call", found["heapq"])
    bench.rates("sort(1) of the same calls as lines of text", found["sort"])
    main_case = streams == 4 and logs == 1
    bench.ratio("million invocations/s", merged / 1e6, Bar(0.5, 2.0) if main_case else None)
    bench.ratio("merge / heapq.merge", paired(found["merge"], found["heapq"]), Bar(3.0) if main_case else None)
    bench.ratio("merge / sort(1)", paired(found["merge"], found["sort"]))


def run_read(logs: Sequence[LogSource], calls: int, _round: int) -> float:
    began = time.process_time()
    for log in logs:
        for _ in log.read(from_block=log.first_blocks[0]):
            pass
    return calls / (time.process_time() - began)


def look(logs: Sequence[LogSource], wanted: dict[int, tuple[int, int, int]]) -> list[list[MergeStream]]:
    """The streams of each log."""
    of_log = [{p: at[1:] for p, at in wanted.items() if at[0] == number} for number in range(len(logs))]
    return [streams_of(log, log.first_blocks[0], of) for log, of in zip(logs, of_log, strict=True)]


def run_merge(logs: Sequence[LogSource], streams: Sequence[Sequence[MergeStream]], calls: int, _round: int) -> float:
    began = time.process_time()
    count = consume(logs, streams)
    elapsed = time.process_time() - began
    if count != calls:
        raise RuntimeError(f"{count} of {calls} invocations were merged")
    return calls / elapsed


def run_look(logs: Sequence[LogSource], wanted: dict[int, tuple[int, int, int]], calls: int, number: int) -> float:
    began = time.process_time()
    streams = look(logs, wanted)
    looked = time.process_time() - began
    return calls / (looked + calls / run_merge(logs, streams, calls, number))


def consume(logs: Sequence[LogSource], streams: Sequence[Sequence[MergeStream]]) -> int:
    """Merges the logs, and looks at the order of the calls; how many there were."""
    count, last = 0, 0
    merges = [Merge(log, of, from_block=log.first_blocks[0]) for log, of in zip(logs, streams, strict=True)]
    for call in heapq.merge(*(merge.invocations() for merge in merges)):
        if call.txn_id <= last:
            raise RuntimeError("the merge is out of order")
        last = call.txn_id
        count += 1
    return count


def run_heapq(logs: Sequence[LogSource], wanted: dict[int, tuple[int, int, int]], calls: int, _round: int) -> float:
    """The obvious way, and with all records in memory, so that it may read each log only once."""
    began = time.process_time()
    records: dict[int, list[Record]] = {partition: [] for partition in wanted}
    for number, log in enumerate(logs):
        for _, record in log.read(from_block=log.first_blocks[0]):
            if record.kind is RecordKind.BATCH and wanted[record.partition][0] == number:
                records[record.partition].append(record)
    count, last = 0, 0
    for txn_id, *_ in heapq.merge(*(calls_of(of) for of in records.values())):
        if txn_id <= last:
            raise RuntimeError("the merge is out of order")
        last = txn_id
        count += 1
    if count != calls:
        raise RuntimeError(f"{count} of {calls} invocations were merged")
    return calls / (time.process_time() - began)


def calls_of(records: Sequence[Record]) -> Iterator[tuple[int, int, int, int, int, list[Any]]]:
    """(TxnId, partition, index, position, procedure, parameters) of each call."""
    for record in records:
        batch = decode_batch(record)
        columns = zip(batch.txn_ids, batch.procedures, batch.params(), strict=True)
        for position, (txn_id, procedure, params) in enumerate(columns):
            yield txn_id, record.partition, record.index, position, procedure, params


def write_text(path: Path, log: LogSource) -> None:
    """One line per call, in the order of the log."""
    with path.open("w", encoding="ascii") as file:
        for _, record in log.read(from_block=log.first_blocks[0]):
            if record.kind is RecordKind.BATCH:
                file.writelines(f"{call[0]} {call[1]} {call[2]} {call[3]} {call[4]}\n" for call in calls_of([record]))


def run_sort(text: Path, calls: int, _round: int) -> float:
    """Of text that is decoded already; one thread, as the merge."""
    sort = shutil.which("sort")
    if sort is None:
        raise SystemExit("sort(1) is not installed")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sort, "--parallel=1", "-S", "64M", "-T", str(text.parent), "-o", str(text.with_suffix(".sorted")), str(text)]
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return calls / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


# -- memory --------------------------------------------------------------------------------------------------------------


def measure_memory(bench: Bench, options: argparse.Namespace, how: str) -> None:
    """Peak memory of a process that merges 4 streams of a log, and of a longer one; both are larger than the window."""
    write = far_behind if "behind" in how else side_by_side
    sizes = (80 << 20, 160 << 20) if bench.quick else (100 << 20, 1000 << 20)
    record_bytes = len(batch_of(1, 1))
    bench.section(f"Peak memory of a process, 4 streams in one log; {how}")
    peaks = []
    for size in sizes:
        batches = size // record_bytes // 4
        with work_directory(options.dir) as folder:
            write_log(folder / "node", write(4, batches), log_bytes=size)
            peaks.append(statistics.median(spawn_peak(folder / "node", batches) for _ in range(1 if bench.quick else 2)))
        bench.value(f"log of {size >> 20:,} MB", peaks[-1] / 2**20, "MB")
    bench.ratio("the longer log / the shorter", peaks[1] / peaks[0], Bar(1.1, at_most=True))


def spawn_peak(directory: Path, batches: int) -> int:
    command = [sys.executable, __file__, "--peak", f"{directory},{batches}"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_of(arguments: Sequence[str]) -> int:
    """Bytes. Merges 4 streams of a log, its first look included."""
    directory, batches = arguments
    logs = [open_source(FILES, directory)]
    streams = look(logs, {partition: (0, 0, int(batches)) for partition in range(4)})
    if consume(logs, streams) != 4 * int(batches) * CALLS:
        raise RuntimeError("not all invocations were merged")
    # Not getrusage: its peak is at least that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
