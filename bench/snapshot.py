"""What a snapshot costs the calls beside it, what a restore takes beside a plain copy of the file.

Run: `python bench/snapshot.py [--quick] [--gb N]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

import structlog

from bench import _boxes
from bench._common import Bar, Bench, cpu_seconds, in_turns, make_parser, paired, percentile, work_directory
from bench._timeline import Phase, Slice
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.settings import Settings
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from snapshot.background_io import forget_cache
from snapshot.catalog import Snapshot, list_snapshots, restore

TARGET = "bench._boxes:db"
FILL_ROWS = 1000  # of one loading call
FILLS_IN_FLIGHT = 4
FULL = 64  # calls of a group under full load …
FULL_WINDOW = 4  # … and groups in flight
HALF = 16  # calls of a group at half load
SLICE_S = 0.25
LOOK_S = 0.02  # at the processes of the node
SETTLE_S = 1.0  # after a change, not counted
PREPARED = 20_000  # transfers, used over and over
RESTORE_ROUNDS = 3
PAUSE_S = 0.025  # longer ones are counted
CHANGED = 0.01  # of the rows, before a delta


def main() -> None:
    parser = make_parser("snapshot", "Calls beside a snapshot; restore beside a file copy.")
    parser.add_argument("--gb", type=float, default=None, help="size of the state; 1, or 0.15 with --quick")
    options = parser.parse_args()
    size = options.gb or (0.15 if options.quick else 1.0)
    bench = Bench("snapshot", options.seed, options.quick)
    bench.head()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with work_directory(options.dir) as parent:
        folder, rows = parent / "node", int(size * 1e9 / _boxes.ROW_BYTES)
        fill(bench, folder, rows)
        with open_boxes(folder, digest_rows=True) as node:
            work = Work(node, transfers(options.seed, rows))
            gc.collect()
            gc.freeze()  # as `cmdlog serve` does: one collection that looked at all prepared calls held the node up for 60 ms
            measure_half(bench, work, options, full_rate=measure_full(bench, work, options))
        measure_restore(bench, folder, "Restore of a whole image")
        measure_delta(bench, folder, rows, options)
        measure_restore(bench, folder, "Restore of a delta and the image that it lies on")
    bench.write()


# -- the node and its load -----------------------------------------------------------------------------------------------


@contextmanager
def open_boxes(folder: Path, *, digest_rows: bool, deltas: bool = False) -> Iterator[Node]:
    """A node with one partition in a site process, which takes no snapshots by itself."""
    settings = Settings(
        partitions=1,
        sites=1,
        digest_rows=digest_rows,
        snapshot_deltas=deltas,
        snapshot_age_max_s=0,
        recovery_budget_s=0,
        segments=256,  # so that neither does the log's fill
    )
    node = Node.open(str(folder), _boxes.db, settings, target=TARGET)
    try:
        node.attach(None)
        yield node
    finally:
        node.close()


def fill(bench: Bench, folder: Path, rows: int) -> None:
    began = time.perf_counter()
    with open_boxes(folder, digest_rows=False) as node:
        room = threading.Semaphore(FILLS_IN_FLIGHT)
        route = node.routes["fill"]
        for first in range(0, rows, FILL_ROWS):
            room.acquire()
            params = route.procedure.bind({"first": first, "count": min(FILL_ROWS, rows - first)})
            node.call(route, params, done=lambda _reply: room.release())
        for _ in range(FILLS_IN_FLIGHT):
            room.acquire()
    with (folder / "state" / "p0000.sqlite").open("rb") as state:
        os.fsync(state.fileno())  # else the kernel writes it out 30 s later, at once: the site stood still for 240 ms
        size = os.fstat(state.fileno()).st_size
    bench.note(f"{rows:,} rows, {size / 1e9:.2f} GB, loaded in {time.perf_counter() - began:.0f} s")


def transfers(seed: int, rows: int) -> list[dict[str, int]]:
    """Between boxes all over the state: each touches two pages that nobody touched lately."""
    chance = random.Random(seed)
    return [
        {"source": chance.randrange(rows), "target": chance.randrange(rows), "amount": chance.randrange(1, 10)}
        for _ in range(PREPARED)
    ]


@dataclass(frozen=True, slots=True)
class Answered:
    """A group of calls, all answered."""

    at: float
    latency_s: float
    calls: int


class Work:
    """Groups of transfers for a node, and when they were answered."""

    def __init__(self, node: Node, calls: Sequence[dict[str, int]]) -> None:
        self.node = node
        route = node.routes["move"]
        self._bound = [(route, route.procedure.bind(params)) for params in calls]
        self._at = 0
        self.answered: list[Answered] = []
        self.wrong: list[Reply] = []

    def place(self, count: int, due: float, answered: Callable[[], object]) -> None:
        """Places the next `count` calls; a latency counts from `due`."""
        missing = [count]

        def done(reply: Reply) -> None:
            if not isinstance(reply, CallOutcome) or reply.status:
                self.wrong.append(reply)
            missing[0] -= 1  # answers of one node come from one thread
            if not missing[0]:
                now = time.perf_counter()
                self.answered.append(Answered(now, now - due, count))
                answered()

        if self._at + count > len(self._bound):
            self._at = 0
        calls = self._bound[self._at : self._at + count]
        self._at += count
        self.node.call_many([(route, params, b"", done, None) for route, params in calls])

    def closed(self, stop: threading.Event) -> None:
        """A window of groups, full at any moment."""
        room = threading.Semaphore(FULL_WINDOW)
        while not stop.is_set():
            room.acquire()
            self.place(FULL, time.perf_counter(), room.release)
        for _ in range(FULL_WINDOW):
            room.acquire()

    def open(self, stop: threading.Event, per_second: float, seed: int) -> None:
        """Groups that are due at the moments of a Poisson process, whether or not others were answered."""
        chance, due = random.Random(seed), time.perf_counter()
        placed = 0
        finished = threading.Semaphore(0)
        while not stop.is_set():
            due += chance.expovariate(per_second / HALF)
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            self.place(HALF, due, finished.release)
            placed += 1
        for _ in range(placed):
            finished.acquire()


# -- phases --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Timeline:
    """When calls were answered, and when snapshots were captured and sealed. Seconds of `perf_counter`."""

    phases: list[Phase] = field(default_factory=list)
    quiet: list[tuple[float, float]] = field(default_factory=list)  # no snapshot was under way
    cpu: dict[str, list[float]] = field(default_factory=dict)  # phase -> CPU seconds of the site per call


def run(bench: Bench, work: Work, load: Callable[[threading.Event], None], *, cycles: int, quiet_s: float) -> Timeline:
    """Quiet, snapshot, quiet, snapshot, … quiet, under a load that never ends."""
    stop, line = threading.Event(), Timeline()
    work.answered.clear()
    thread = threading.Thread(target=load, args=(stop,))
    thread.start()
    try:
        _quiet(work, line, quiet_s)
        for _ in range(cycles):
            _snapshot(work, line)
            _quiet(work, line, quiet_s)
    finally:
        stop.set()
        thread.join()
    if work.wrong:
        raise RuntimeError(f"{len(work.wrong)} calls failed, the first: {work.wrong[0]}")
    return line


def _quiet(work: Work, line: Timeline, seconds: float) -> None:
    time.sleep(SETTLE_S)
    began = time.perf_counter()
    with _cpu(work, line, "quiet"):
        time.sleep(seconds)
    line.quiet.append((began, time.perf_counter()))


def _snapshot(work: Work, line: Timeline) -> None:
    taken: list[object] = []
    taker = threading.Thread(target=lambda: taken.append(work.node.take_snapshot(0)))
    began = time.perf_counter()
    with _cpu(work, line, "capture"):
        taker.start()
        while taker.is_alive() and not _sealing():
            time.sleep(LOOK_S)
    sealed = time.perf_counter()
    with _cpu(work, line, "seal"):
        taker.join()
    line.phases += [Phase("capture", began, sealed), Phase("seal", sealed, time.perf_counter())]
    if not taken:
        raise RuntimeError("the snapshot failed")


@contextmanager
def _cpu(work: Work, line: Timeline, phase: str) -> Iterator[None]:
    pid, before = work.node.status()["sites"][0], len(work.answered)
    cpu = cpu_seconds(pid)
    yield
    calls = sum(group.calls for group in work.answered[before:])
    line.cpu.setdefault(phase, []).append((cpu_seconds(pid) - cpu) / max(calls, 1))


def _sealing() -> bool:
    """Whether the process that checks an image is running: the image itself is complete then."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                if b"snapshot.seal" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


# -- figures -------------------------------------------------------------------------------------------------------------


def within(groups: Sequence[Answered], begin: float, end: float) -> list[Answered]:
    return [group for group in groups if begin <= group.at < end]


def slices(groups: Sequence[Answered], begin: float, end: float) -> list[Slice]:
    """The stretch in equal parts."""
    count = max(1, int((end - begin) / SLICE_S))
    width = (end - begin) / count
    parts = []
    for number in range(count):
        low = begin + number * width
        inside = within(groups, low, low + width)
        times = [low, *(group.at for group in inside), low + width]
        parts.append(
            Slice(
                low + width / 2,
                sum(group.calls for group in inside) / width,
                1e3 * percentile([group.latency_s for group in inside] or [width], 0.99),
                1e3 * max(b - a for a, b in pairwise(times)),
            )
        )
    return parts


def rates(groups: Sequence[Answered], stretches: Sequence[tuple[float, float]]) -> list[float]:
    return [part.per_second for begin, end in stretches for part in slices(groups, begin, end)]


def pauses(groups: Sequence[Answered], stretches: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds from each answer to the next one, and to the ends of the stretch: one without an answer is a pause as a whole."""
    moments = [[begin, *(group.at for group in within(groups, begin, end)), end] for begin, end in stretches]
    return [after - before for stretch in moments for before, after in pairwise(stretch)]


def stretches_of(line: Timeline, *names: str) -> list[tuple[float, float]]:
    return [(phase.begin_s, phase.end_s) for phase in line.phases if phase.name in names]


def tell_line(bench: Bench, work: Work, line: Timeline) -> list[Slice]:
    """The run over time, with its phases."""
    zero, end = line.quiet[0][0], line.quiet[-1][1]
    parts = slices(work.answered, zero, end)
    spans: dict[str, list[tuple[float, float]]] = {}
    for phase in line.phases:
        spans.setdefault(phase.name, []).append((phase.begin_s - zero, phase.end_s - zero))
    at_s = [part.at_s - zero for part in parts]
    bench.series("Calls", at_s, {"answered": [part.per_second for part in parts]}, "calls/s", spans)
    waits = {"p99": [part.p99_ms for part in parts], "longest time between answers": [part.gap_ms for part in parts]}
    bench.series("Waiting", at_s, waits, "ms", spans)
    return parts


def measure_full(bench: Bench, work: Work, options: argparse.Namespace) -> float:
    """Calls per second, snapshots included."""
    bench.section(f"Full load: {FULL_WINDOW} groups of {FULL} transfers in flight, all over the state, one site process")
    line = run(bench, work, work.closed, cycles=3 if options.quick else 2, quiet_s=3 if options.quick else 8)
    groups = work.answered
    bench.rates("no snapshot", rates(groups, line.quiet))
    taken = stretches_of(line, "capture")
    bench.value("capture, mean", statistics.fmean(end - begin for begin, end in taken), "s")
    bench.value("seal, mean", statistics.fmean(end - begin for begin, end in stretches_of(line, "seal")), "s")
    bench.rates("during the capture", rates(groups, taken))
    bench.rates("while the image is checked", rates(groups, stretches_of(line, "seal")))
    for phase, seconds in line.cpu.items():
        bench.value(f"CPU time of the site per call, {phase}", statistics.median(seconds) * 1e6, "us")
    around = [statistics.median(rates(groups, [a, b])) for a, b in pairwise(line.quiet)]
    during = [statistics.median(rates(groups, [stretch])) for stretch in taken]
    sealing = [statistics.median(rates(groups, [stretch])) for stretch in stretches_of(line, "seal")]
    bench.ratio("calls during the capture / around it", paired(during, around), Bar(0.75, 0.9))
    bench.ratio("calls while the image is checked / around", paired(sealing, around), Bar(0.75, 0.9))
    for name, stretches in (("quiet", line.quiet), ("capture", taken), ("seal", stretches_of(line, "seal"))):
        found = sorted(pauses(groups, stretches))
        bench.value(f"pause, {name}, 99th percentile", 1e3 * percentile(found, 0.99), "ms")
        long = sum(pause > PAUSE_S for pause in found)
        bench.value(f"pauses over {PAUSE_S * 1e3:.0f} ms, {name}", 60 * long / sum(b - a for a, b in stretches), "a minute")
        bench.value(f"longest pause, {name}", 1e3 * found[-1], "ms")
    for begin, end in taken:
        inside = within(groups, begin, end)
        worst = sorted(((b.at - a.at, a.at) for a, b in pairwise(inside)), reverse=True)[:3]
        places = ", ".join(f"{1e3 * pause:.0f} ms at {100 * (at - begin) / (end - begin):.0f} %" for pause, at in worst)
        bench.note(f"longest pauses of a capture: {places}")
    bench.ratio("longest pause during the capture, ms", 1e3 * max(pauses(groups, taken)), Bar(25, 10, at_most=True))
    return statistics.median(part.per_second for part in tell_line(bench, work, line))


def measure_half(bench: Bench, work: Work, options: argparse.Namespace, *, full_rate: float) -> None:
    rate = full_rate / 2
    bench.section(f"Half load: {rate:,.0f} calls/s in groups of {HALF}, due whether or not others were answered")
    cycles, quiet_s = (2, 3.0) if options.quick else (1, 10.0)
    line = run(bench, work, lambda stop: work.open(stop, rate, options.seed), cycles=cycles, quiet_s=quiet_s)
    groups = work.answered
    p99 = {
        name: [percentile([group.latency_s for group in within(groups, *stretch)] or [0.0], 0.99) for stretch in stretches]
        for name, stretches in (
            ("quiet", line.quiet), ("capture", stretches_of(line, "capture")), ("seal", stretches_of(line, "seal")),
        )
    }  # fmt: skip
    for name, seconds in p99.items():
        bench.value(f"p99, {name}", 1e3 * statistics.median(seconds), "ms")
    around = [(a + b) / 2 for a, b in pairwise(p99["quiet"])]
    bench.ratio("p99 during the capture / around it", paired(p99["capture"], around), Bar(1.2, at_most=True))
    bench.ratio("p99 while the image is checked / around", paired(p99["seal"], around), Bar(1.2, at_most=True))
    tell_line(bench, work, line)


# -- restore and deltas --------------------------------------------------------------------------------------------------


def measure_restore(bench: Bench, folder: Path, title: str) -> None:
    """The newest snapshot, beside a plain copy of the image that it is or lies on."""
    bench.section(f"{title}, beside a plain copy of the image; nothing of either in the page cache")
    snapshot = newest(folder)
    links = [next(Path(link.path).glob("*.sqlite")) for link in snapshot.chain]
    size = links[-1].stat().st_size

    def timed(copy: Callable[[Path], object]) -> Callable[[int], float]:
        def once(number: int) -> float:
            target = folder / f"copy-{number}"
            for link in links:
                forget_cache(str(link))
            began = time.perf_counter()
            copy(target)
            took = time.perf_counter() - began
            target.unlink()
            return size / took / 1e6

        return once

    found = in_turns(
        {"copy": timed(lambda to: shutil.copyfile(links[-1], to)), "restore": timed(lambda to: restore(snapshot, str(to)))},
        RESTORE_ROUNDS,
    )
    bench.rates("plain copy", found["copy"], "MB/s")
    bench.rates("restore, checked", found["restore"], "MB/s")
    bench.ratio("restore / copy", paired(found["restore"], found["copy"]), Bar(0.5))


def measure_delta(bench: Bench, folder: Path, rows: int, options: argparse.Namespace) -> None:
    bench.section(f"A snapshot after {CHANGED:.0%} of the rows changed, all over the state, beside a whole one")
    with open_boxes(folder, digest_rows=True, deltas=True) as node:
        full = [_timed_snapshot(node) for _ in range(2)][-1]  # after a start both lineages begin with a whole image
        work = Work(node, transfers(options.seed + 1, rows))
        answered = threading.Semaphore(0)
        groups = int(rows * CHANGED / 2 / FULL)
        for _ in range(groups):
            work.place(FULL, time.perf_counter(), answered.release)
            answered.acquire()
        delta = _timed_snapshot(node)
    bench.note(f"kind of the first: {full[0]['kind']}, of the second: {delta[0]['kind']}")
    for name, (described, seconds) in (("whole", full), ("after the changes", delta)):
        bench.value(f"{name}: bytes", described["bytes"] / 1e6, "MB")
        bench.value(f"{name}: seconds", seconds, "s")
    bench.ratio("bytes, after the changes / whole", delta[0]["bytes"] / full[0]["bytes"], Bar(0.1, at_most=True))


def _timed_snapshot(node: Node) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    [described] = node.take_snapshot(0)
    return described, time.perf_counter() - began


def newest(folder: Path) -> Snapshot:
    files = RealFiles()
    return list_snapshots(files, str(folder), load_instance(files, str(folder)).identity)[-1]


if __name__ == "__main__":
    main()
