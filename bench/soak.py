"""Minutes to hours of load through the default Python client on a real server: rate, latency, memory, log, snapshots, every call.

Run: `python bench/soak.py [--quick] [--minutes M] [--calls N]`. Two processes stream calls through `Client.batch` as fast as they
go, threads of another one make single calls, whose latency is told. Ctrl-C ends it as its time would: the calls under way are
answered, each acknowledged call is looked for in the tables, and the figures are written. What they mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench import _soak_app
from bench._common import OUT, Bar, Bench, make_parser, work_directory
from bench._server import server_pids
from bench._soak_callers import Crew, SoakCallers, soak_callers
from bench._soak_samples import Samples, told_latencies
from bench._soak_tally import Sums, find_miscounts
from cmdlog import Client
from cmdlog.cli.demo.server import LaunchedServer

APPLICATION = "soak_app"
SLOTS_ASKED = "SELECT slot, calls, numbers, squares FROM slots ORDER BY slot"
STREAMS, CALLERS = 2, 4
MINUTES, QUICK_MINUTES = 5.0, 0.15
SAMPLE_S, QUICK_SAMPLE_S = 2.0, 0.5
TOLD_EVERY_S = 30.0
GROWTH = Bar(1.1, 1.02, at_most=True)
NONE = Bar(0, at_most=True)
MISCOUNTS_TOLD = 10


def main() -> int:
    parser = make_parser("soak", "Load for minutes to hours, with every call accounted for.")
    parser.add_argument("--minutes", type=float, help=f"of load; by default {MINUTES:g}, or until --calls are made")
    parser.add_argument("--calls", type=int, help="of the batches, all streams together")
    parser.add_argument("--streams", type=int, default=STREAMS, help="processes that stream batches")
    parser.add_argument("--callers", type=int, default=CALLERS, help="threads that make single calls")
    parser.add_argument("--sample-s", type=float, help=f"time between samples; by default {SAMPLE_S:g}")
    parser.add_argument("--serve", default="", help="further options of `cmdlog serve`, as one text")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures are written")
    options = parser.parse_args()
    bench = Bench("soak", options.seed, options.quick, options.out)
    bench.head()
    try:
        with work_directory(options.dir) as folder:
            right = soak(bench, options, folder)
    finally:
        if bench.figures:  # what was seen of a server that failed says how it came to that
            bench.write()
    return 0 if right else 1


def soak(bench: Bench, options: argparse.Namespace, folder: Path) -> bool:
    """The run; whether every acknowledged call was counted once, and the server did not fail."""
    shutil.copyfile(_soak_app.__file__, folder / f"{APPLICATION}.py")
    server = LaunchedServer(
        folder / "data", "--port", "0", *shlex.split(options.serve), log=folder / "log", application=f"{APPLICATION}:db"
    )
    try:
        server.wait_ready()
        port = int(server.url.rpartition(":")[2])
        pids = server_pids(server, port)
        with soak_callers(server.url, make_crews(options)) as callers:
            callers.wait_started()
            samples = Samples(port, folder / "data", pids)
            with interruptible() as stopped:
                bench.section(f"Load, {options.streams} streams of batches and {options.callers} single callers")
                end = run(options, samples, callers, stopped)
                problem = callers.stop()
            bench.note(f"ended by {end.why}{problem}")
            samples.add_answers(callers.take_interval())
            tell_load(bench, samples)
            tell_memory(bench, options, samples)
            right = tell_counts(bench, server.url, callers)
        server.stop()
    finally:
        if server.alive:
            server.kill([])
    return right and end.orderly and not problem


def make_crews(options: argparse.Namespace) -> list[Crew]:
    """One process for each stream, as one Python makes no more calls than it can encode; one for all single callers."""
    each = None if options.calls is None else math.ceil(options.calls / options.streams)
    crews = [Crew("batch", 1, each) for _ in range(options.streams)]
    return crews + ([Crew("single", options.callers, None)] if options.callers else [])


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event; a second one ends the program at once."""
    stopped = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _frame: object) -> None:
        print("\n  stopping: waiting for the calls under way", flush=True)
        stopped.set()
        for own, handler in before.items():
            signal.signal(own, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class End(NamedTuple):
    """What ended a run."""

    why: str
    orderly: bool = True


def run(options: argparse.Namespace, samples: Samples, callers: SoakCallers, stopped: threading.Event) -> End:
    """Samples until the end."""
    default = math.inf if options.calls is not None else QUICK_MINUTES if options.quick else MINUTES
    seconds = 60 * (options.minutes if options.minutes is not None else default)
    every = options.sample_s or (QUICK_SAMPLE_S if options.quick else SAMPLE_S)
    told = time.monotonic()
    while True:
        stopped.wait(every)
        try:
            samples.take(callers.take_interval())
        except (OSError, RuntimeError, HTTPException) as error:
            return End(f"a server that could not be looked at: {error!r}", orderly=False)
        if time.monotonic() >= told + TOLD_EVERY_S:
            told = time.monotonic()
            print(f"  {samples.told_last()}", flush=True)
        if stopped.is_set():
            return End("hand")
        if callers.done:
            return End("the number of calls")
        if samples.at_s[-1] >= seconds:
            return End("time")


def tell_load(bench: Bench, samples: Samples) -> None:
    """What was answered, and how quickly."""
    bench.value("acknowledged calls", samples.calls, "calls")
    bench.rates("acknowledged", samples.lines["calls/s"]["acknowledged"])
    for name, milliseconds in told_latencies(samples.totals).items():
        bench.value(f"single call: {name}", milliseconds, "ms")
    for code, count in sorted(samples.totals.errors.items()):
        bench.value(f"calls without a result: {code}", count, "calls")
    bench.ratio("calls without a result", samples.totals.errors.total(), NONE)
    samples.tell(bench)


def tell_memory(bench: Bench, options: argparse.Namespace, samples: Samples) -> None:
    """Whether it is flat. A quick run ends before the caches have filled, so it is held to no bar."""
    bench.section("Memory, by a straight line through the last four fifths of the run")
    for name, (by_calls, by_time) in samples.memory_trends().items():
        bench.value(f"{name}: slope", by_calls.per_x, "MiB per million calls")
        bench.value(f"{name}: slope", by_time.per_x, "MiB per hour")
        bench.ratio(f"{name}: end / begin of the line", by_calls.end / by_calls.begin, None if options.quick else GROWTH)


def tell_counts(bench: Bench, url: str, callers: SoakCallers) -> bool:
    """Whether each slot holds each acknowledged call once."""
    bench.section("Every acknowledged call, in the tables")
    with Client(url) as client:
        found = {slot: Sums(*sums) for slot, *sums in client.query(SLOTS_ASKED).rows}
    wrong = find_miscounts(callers.acknowledged, callers.unknown, found)
    for slot, what in list(wrong.items())[:MISCOUNTS_TOLD]:
        bench.note(f"slot {slot}: {what}")
    bench.value("acknowledged", sum(sums.calls for sums in callers.acknowledged.values()), "calls")
    bench.value("counted by the procedures", sum(sums.calls for sums in found.values()), "calls")
    bench.value("of unknown outcome", sum(map(len, callers.unknown.values())), "calls")
    bench.ratio("slots that do not hold each acknowledged call once", len(wrong), NONE)
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
