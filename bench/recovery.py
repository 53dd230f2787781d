"""Recovery: how fast the log becomes state again, in one and two processes, beside the live run and beside the bare engine.

Run: `python bench/recovery.py [--quick]`. What the ratios mean: bench/README.md.

Each ratio is there twice: by the clock, which others on the machine distort, and by CPU time, which they distort little. Two
processes on two free cores take as long as the longer one computes; so the CPU time of both says what the clock would.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from bench._load import Target as HttpTarget
from bench._load import run_load
from bench._nodes import transfers
from bench._server import answered, bank_server, batch_request, call_requests
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import Record, RecordKind
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.samples import bank
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine
from replay.plan.node_plan import Planned
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute

PARTITIONS = 2
SCALES_FROM_CALLS = 1_000_000  # below, the start of a second process counts for too much
CONNECTIONS = 32
BATCH_LINES = 4000
FILES = RealFiles()


def main() -> None:
    options = make_parser("recovery", "Recovery beside the live run and the engine.").parse_args()
    bench = Bench("recovery", options.seed, options.quick)
    bench.head()
    bench.value("CPU time of a worker process's start", process_start(), "s")
    with work_directory(options.dir) as folder:
        for way in (
            Way("single calls over HTTP, 32 in flight", 3_000 if options.quick else 60_000, write_single, Bar(1.5, 4.0)),
            Way("/v1/batch, 2 streams", 24_000 if options.quick else 1_200_000, write_batch, Bar(1.5, 2.0)),
        ):
            measure(bench, options, folder / way.write.__name__, way)
    bench.write()


@dataclass(frozen=True, slots=True)
class Way:
    """How a log comes to be."""

    name: str
    count: int
    write: Callable[[int, int, int], float]
    bar: Bar  # for recovery beside it


def process_start() -> float:
    """CPU seconds until a worker process could begin; the least of three."""

    def start() -> float:
        before = _cpu_seconds()
        subprocess.run([sys.executable, "-c", "import replay.recover.worker"], check=True)
        return _cpu_seconds() - before

    return min(start() for _ in range(3))


def write_single(port: int, count: int, seed: int) -> float:
    """Calls per second."""
    requests = call_requests(transfers(seed, 2000))
    return float(answered(run_load(HttpTarget(port, requests), connections=CONNECTIONS, count=count))["per_second"])


def write_batch(port: int, count: int, seed: int) -> float:
    """Calls per second."""
    bodies = [batch_request(transfers(seed + number, BATCH_LINES)) for number in range(4)]
    found = answered(run_load(HttpTarget(port, bodies), connections=2, count=count // BATCH_LINES))
    return float(found["per_second"]) * BATCH_LINES


def measure(bench: Bench, options: argparse.Namespace, folder: Path, way: Way) -> None:
    """Writes a log by a live run, then recovers from it in turns with the bare engine."""
    bench.section(f"Log written by {way.name}: {way.count:,} transfers on {PARTITIONS} partitions")
    with bank_server(folder, partitions=PARTITIONS) as (_, port):
        live = bench.rates("live", [way.write(port, way.count // 3, options.seed + number) for number in range(3)])
    planned = make_plan(FILES, str(folder / "data"), PAST)
    records = entries(planned)
    batches = sum(record.kind is RecordKind.BATCH for of in records.values() for record in of)
    bench.value("calls in a batch, mean", planned.plan.calls / batches, "calls")
    cpu: dict[str, list[float]] = {}  # seconds per call
    lanes: dict[str, Callable[[int], float]] = {
        "engine": timed(cpu, "engine", lambda number: run_engine(records, folder / f"engine-{number}")),
        "here": timed(cpu, "here", lambda number: run_replay(planned, folder / f"here-{number}", workers=0)),
        "one": timed(cpu, "one", lambda number: run_replay(planned, folder / f"one-{number}", workers=1)),
        "two": timed(cpu, "two", lambda number: run_replay(planned, folder / f"two-{number}", workers=2)),
    }
    found = in_turns(lanes, 2 if options.quick else 6)
    bench.rates("engine: records in memory, one process, row digest on", found["engine"])
    here = bench.rates("recovery in the calling process", found["here"])
    bench.rates("recovery, one worker process, its start counted", found["one"])
    two = bench.rates("recovery, two worker processes, their start counted", found["two"])
    bench.ratio(f"recovery, best / live by {way.name}", max(here, two) / live, way.bar)
    bench.ratio("recovery in the calling process / engine", paired(found["here"], found["engine"]), Bar(1.0, 1.3))
    scaling = Bar(1.7, 1.8) if planned.plan.calls >= SCALES_FROM_CALLS else None
    bench.ratio("two workers / one", paired(found["two"], found["one"]), scaling)
    least = {name: min(of) for name, of in cpu.items()}
    for name, value in least.items():
        bench.value(f"CPU time per call, least: {name}", value * 1e6, "us")
    bench.ratio("recovery in the calling process / engine, by CPU time", least["engine"] / least["here"], Bar(1.0, 1.3))
    bench.ratio("two workers on free cores / one, by CPU time", 2 * least["one"] / least["two"], scaling)


def timed(cpu: dict[str, list[float]], name: str, run: Callable[[int], tuple[int, float]]) -> Callable[[int], float]:
    """Calls per second by the clock; the CPU time per call goes to `cpu`."""

    def once(number: int) -> float:
        before = _cpu_seconds()
        calls, seconds = run(number)
        cpu.setdefault(name, []).append((_cpu_seconds() - before) / calls)
        return calls / seconds

    return once


def entries(planned: Planned) -> dict[int, list[Record]]:
    """Every partition's entries, in memory."""
    plan = planned.plan
    found: dict[int, list[Record]] = {part.partition: [] for part in plan.partitions}
    for _, record in planned.source.read(from_block=plan.from_block, upto_block=plan.last_block):
        if record.partition in found and record.is_entry:
            found[record.partition].append(record)
    return found


def run_engine(records: dict[int, list[Record]], folder: Path) -> tuple[int, float]:
    """Applies the entries, one partition after the other; calls and seconds."""
    folder.mkdir()
    catalogs = Catalogs()
    catalogs.add_live(1, bank.db)
    calls = 0
    began = time.perf_counter()
    for partition, of in records.items():
        state = PartitionState.open(folder / f"{partition}.sqlite", partition=partition)
        engine = PartitionEngine(state, catalogs, digest_rows=True, policy=KeyPolicy())
        for record in of:
            applied = engine.apply(record)
            calls += len(applied.bodies) if applied is not None else 0
        engine.close()
    return calls, time.perf_counter() - began


def run_replay(planned: Planned, folder: Path, *, workers: int) -> tuple[int, float]:
    """What `cmdlog recover` does after its plan is made; calls and seconds."""
    (folder / "state").mkdir(parents=True)
    began = time.perf_counter()
    report = execute(planned, Target(FILES, str(folder)), workers=workers)
    return report.calls, time.perf_counter() - began


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
