"""The engine alone, in this process: idle latency, batches on one SQLite, durable throughput, bytes in the log.

Run: `python bench/engine.py [--quick] [--soak]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser, paired, rss_bytes, work_directory
from bench._nodes import open_node, run_window, transfers
from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.embedded.embedded import Embedded
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import Record, decode_record
from cmdlog.wal.ids import PARTITION_BITS, make_txn_id
from procedures.idempotency.known_outcome import KeyPolicy, key_fingerprint
from procedures.migration.stated_change import StatedChange
from procedures.samples import bank
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine

RAW_BYTES = 4096
RAW_FILE_BYTES = 16 << 20
CUSTOMERS = 5_000
BRANCHES = 4
LOOK = "SELECT checking FROM accounts WHERE branch = ? AND customer = ?"
ADD = "UPDATE accounts SET checking = checking + ? WHERE branch = ? AND customer = ?"
NUMBERS = {procedure.name: number for number, procedure in enumerate(bank.db.procedure_list)}
TICK = 1 << PARTITION_BITS
BARS = {64: (Bar(0.5, 0.7), Bar(0.4, 0.6)), 256: (Bar(0.5, 0.7), Bar(0.6, 0.8))}  # calls in a batch -> digest off, on


def main() -> None:
    parser = make_parser("engine", "Latency, throughput and log size without HTTP.")
    parser.add_argument("--soak", action="store_true", help="memory over 2 million calls instead of 100,000")
    options = parser.parse_args()
    bench = Bench("engine", options.seed, options.quick)
    bench.head()
    settle_garbage_collection()  # as every process that serves does
    with work_directory(options.dir) as folder:
        measure_idle(bench, folder, options)
        measure_batches(bench, folder, options)
        measure_durable(bench, folder, options, sites=None)
        measure_durable(bench, folder, options, sites=1)
        measure_bytes(bench, options.seed)
        measure_memory(bench, folder, options)
    bench.write()


# -- idle latency --------------------------------------------------------------------------------------------------------


def measure_idle(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """One call at a time, beside a raw write and fdatasync of as many bytes: in turns, one of each."""
    bench.section("Idle: one durable call at a time, embedded")
    count = 300 if options.quick else 3000
    raw: list[float] = []
    durable: list[float] = []
    work = itertools.cycle(transfers(options.seed, 1000))
    with open_node(folder / "idle") as node, raw_file(folder / "raw") as write_raw:
        embedded = Embedded(node)
        for name, params in itertools.islice(work, count + 50):
            began = time.perf_counter()
            write_raw()
            written = time.perf_counter()
            embedded.call(name, **params)
            raw.append(written - began)
            durable.append(time.perf_counter() - written)
    del raw[:50], durable[:50]
    below = bench.times("raw: pwrite of 4096 bytes + fdatasync, preallocated", raw)
    above = bench.times("embedded call: logged, synced, executed, answered", durable)
    bench.ratio("embedded durable call / raw write + fdatasync", above / below, Bar(1.7, 1.3, at_most=True))


@contextmanager
def raw_file(path: Path) -> Iterator[Callable[[], None]]:
    """A zeroed file like a segment, and a function that writes and syncs its next block."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, bytes(RAW_FILE_BYTES), 0)
    os.fsync(fd)
    places = itertools.cycle(range(0, RAW_FILE_BYTES, RAW_BYTES))
    block = os.urandom(RAW_BYTES)

    def write() -> None:
        os.pwrite(fd, block, next(places))
        os.fdatasync(fd)

    yield write
    os.close(fd)


# -- batches on one SQLite -----------------------------------------------------------------------------------------------


class EngineLane:
    """A partition engine that is fed transfer batches as log records."""

    def __init__(self, folder: Path, *, digest_rows: bool, savepoints: bool = False, keyed: bool = False) -> None:
        catalogs = Catalogs()
        catalogs.add_live(1, bank.db)
        state = PartitionState.open(folder, partition=0)
        self.engine = PartitionEngine(state, catalogs, digest_rows=digest_rows, policy=KeyPolicy())
        self._savepoints, self._keyed = savepoints, keyed
        self._index, self._millis = 1, 1_700_000_000_000
        executor = self.engine.executor
        statements = bank.db.schema_statements()
        executor.apply_schema(index=1, term=1, checksum=0, txn_id=self._txn(), change=StatedChange(tuple(statements)))
        for call in bank.loader(branches=BRANCHES, customers=CUSTOMERS, checking=1_000_000):
            self.engine.apply(self.record([call]))

    def _txn(self) -> int:
        self._millis += 1
        return make_txn_id(millis=self._millis, counter=0, partition=0)

    def record(self, calls: list[bank.Call]) -> Record:
        """The next batch record, as it comes from the log."""
        self._index += 1
        first = self._txn()
        return decode_record(encode_calls(calls, index=self._index, first=first, keyed=self._keyed))

    def run(self, calls: list[bank.Call]) -> float:
        record = self.record(calls)
        if self._savepoints:
            self.engine.executor._savepoint_batches = 2  # noqa: SLF001 - what it does for some batches after a failed one
        began = time.thread_time()
        self.engine.apply(record)
        return len(calls) / _cpu_since(began)


def encode_calls(calls: list[bank.Call], *, index: int, first: int, keyed: bool) -> bytes:
    """The batch record of these calls."""
    return encode_batch(
        partition=0,
        term=1,
        index=index,
        catalog=1,
        txn_ids=range(first, first + TICK * len(calls), TICK),
        procedures=[NUMBERS[name] for name, _ in calls],
        params=[orjson.dumps(bank.db.procedures[name].bind(params)) for name, params in calls],
        keys=[key_fingerprint("", f"{index}-{number}") for number in range(len(calls))] if keyed else None,
    )


def run_bare(connection: apsw.Connection, calls: list[bank.Call]) -> float:
    """The same statements in a bare loop on one cursor; parameters are Python tuples already."""
    rows = [tuple(params.values()) for _, params in calls]
    began = time.thread_time()
    execute = connection.cursor().execute
    execute("BEGIN IMMEDIATE")
    for branch, source, target, amount in rows:
        execute(LOOK, (branch, source)).fetchall()
        execute(ADD, (-amount, branch, source))
        execute(ADD, (amount, branch, target))
    execute("COMMIT")
    return len(calls) / _cpu_since(began)


def _cpu_since(began: float) -> float:
    """Seconds of this thread; never 0, which a virtual machine's clock may say of a call."""
    return max(1e-6, time.thread_time() - began)


def measure_batches(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """PartitionEngine.apply of whole batches beside the bare loop, by CPU time: one thread that computes, and nothing is synced.

    Small batches have no bar: what a batch costs by itself counts there, and the bare loop has none of it. A site has one engine,
    so only states that are compared take turns: each one more throws the others out of the processor's caches.
    """
    bare = EngineLane(folder / "bare.sqlite", digest_rows=False).engine.state.connection
    plain = EngineLane(folder / "plain.sqlite", digest_rows=False)
    digest = EngineLane(folder / "digest.sqlite", digest_rows=True)
    saved = EngineLane(folder / "saved.sqlite", digest_rows=False, savepoints=True)
    keyed = EngineLane(folder / "keyed.sqlite", digest_rows=True, keyed=True)
    for size in (1, 16, 64, 256):
        bench.section(f"Engine: batches of {size} transfers of three statements, from log record to answer")
        rounds = min(4000, (4000 if options.quick else 60_000) // size)

        def load(number: int, size: int = size) -> list[bank.Call]:
            return transfers(options.seed * 1_000_003 + number, size)

        found = in_turns(
            {
                "bare loop": lambda number: run_bare(bare, load(number)),
                "digest off": lambda number: plain.run(load(number)),
                "digest on": lambda number: digest.run(load(number)),
            },
            rounds,
        )
        variants = in_turns(
            {
                "digest off": lambda number: plain.run(load(number)),
                "savepoints": lambda number: saved.run(load(number)),
                "digest on": lambda number: digest.run(load(number)),
                "keys": lambda number: keyed.run(load(number)),
            },
            rounds,
        )
        bench.rates("bare loop, one cursor, BEGIN and COMMIT per batch", found["bare loop"])
        bench.rates("PartitionEngine.apply, row digest off", found["digest off"])
        bench.rates("PartitionEngine.apply, row digest on", found["digest on"])
        bench.rates("PartitionEngine.apply, digest off, savepoint per call", variants["savepoints"])
        bench.rates("PartitionEngine.apply, digest on, an idempotency key per call", variants["keys"])
        off, on = BARS.get(size, (None, None))
        bench.ratio(f"engine / bare, {size}, digest off", paired(found["digest off"], found["bare loop"]), off)
        bench.ratio(f"engine / bare, {size}, digest on", paired(found["digest on"], found["bare loop"]), on)
        bench.ratio(f"digest on / off, {size}", paired(found["digest on"], found["digest off"]))
        bench.ratio(f"keys / none, digest on, {size}", paired(variants["keys"], variants["digest on"]))
        bench.ratio(f"savepoints / none, {size}", paired(variants["savepoints"], variants["digest off"]))


# -- durable throughput --------------------------------------------------------------------------------------------------


def measure_durable(bench: Bench, folder: Path, options: argparse.Namespace, *, sites: int | None) -> None:
    """The whole node with the log off, async and sync: three nodes, in turns."""
    where = "in this process" if sites is None else f"in {sites} site process"
    with ExitStack() as stack:
        nodes = {
            sync: stack.enter_context(open_node(folder / f"{sync}-{sites}", log_sync=sync, sites=sites))
            for sync in ("off", "async", "sync")
        }
        for window in (1, 32, 256):
            bench.section(f"Durable throughput: {window} calls in flight, procedures {where}")
            count = min(window * 200, 6000) // (6 if options.quick else 1)
            rounds = 2 if options.quick else 15
            latencies: dict[str, list[float]] = {sync: [] for sync in nodes}

            def lane(
                sync: str, window: int = window, count: int = count, latencies: dict[str, list[float]] = latencies
            ) -> Callable[[int], float]:
                return lambda number: run_window(
                    nodes[sync], transfers(options.seed + number, count), window=window, latencies=latencies[sync]
                )

            found = in_turns({sync: lane(sync) for sync in nodes}, rounds)
            for sync, rates in found.items():
                bench.rates(f"log {sync}", rates)
                median = bench.times(f"log {sync}: latency of a call", latencies[sync])
                if sync == "sync" and window > 1:
                    bench.ratio("p99 / median latency, log sync", _p99(latencies[sync]) / median, Bar(5.0, at_most=True))
            bar = Bar(0.9, 0.97) if window >= 32 else None
            bench.ratio(f"log sync / off, {window} in flight", paired(found["sync"], found["off"]), bar)
            bench.ratio(f"log async / off, {window} in flight", paired(found["async"], found["off"]))


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


# -- bytes and memory ----------------------------------------------------------------------------------------------------


def measure_bytes(bench: Bench, seed: int) -> None:
    """Bytes of full batches as they are on disk, beside their parameters as JSON objects."""
    bench.section("Log bytes of a full batch of 1024 calls / bytes of its parameters as JSON objects")
    calls = list(bank.workload(seed, calls=1024, branches=BRANCHES, customers=CUSTOMERS))
    objects = sum(len(orjson.dumps(params)) for _, params in calls)
    first = make_txn_id(millis=1_700_000_000_000, counter=0, partition=0)
    for keyed, bar in ((False, Bar(1.25, 1.0, at_most=True)), (True, None)):
        record = encode_calls(calls, index=2, first=first, keyed=keyed)
        kind = "with a 16-byte idempotency fingerprint each" if keyed else "without idempotency keys"
        bench.ratio(f"bank, {kind}: block on disk", block_bytes([record]) / objects, bar)
        bench.ratio(f"bank, {kind}: record alone", len(record) / objects)


def measure_memory(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """Resident memory of node and site while calls pass through."""
    calls = 2_000_000 if options.soak else 10_000 if options.quick else 100_000
    bench.section(f"Memory over {calls:,} calls, one site process")
    with open_node(folder / "soak", sites=1) as node:
        pids = {"node": os.getpid(), "site": node.status()["sites"][0]}
        work = transfers(options.seed, 10_000)
        tenth = calls // 10
        marks: list[dict[str, int]] = []
        rates = []
        for _ in range(10):
            for _ in range(max(1, tenth // len(work))):
                rates.append(run_window(node, work, window=256))
            marks.append({name: rss_bytes(pid) for name, pid in pids.items()})
    bench.rates("calls during it", rates)
    for name in pids:
        series = [mark[name] / 2**20 for mark in marks]
        bench.value(f"{name}: after the first tenth", series[0], "MiB")
        bench.value(f"{name}: after all calls", series[-1], "MiB")
        bench.ratio(f"{name}: end / after the second tenth", series[-1] / series[1], Bar(1.1, at_most=True))


if __name__ == "__main__":
    main()
