"""What the scrub costs: CPU time of the process that reads and of the node's thread that orders, at the default speed.

Run: `python bench/scrub.py [--quick]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

import structlog

from bench import _boxes
from bench._common import Bar, Bench, cpu_seconds, make_parser, work_directory
from cmdlog.node.node import Node
from cmdlog.node.scrub.scrub_reader import ScrubReader
from cmdlog.node.scrub.scrubber import FIRST_AFTER_S, Scrubber
from cmdlog.node.settings import Settings

TARGET = "bench._boxes:db"
FILL_ROWS = 1000  # of one loading call
IN_FLIGHT = 256
SHARE = Bar(0.05, 0.03, at_most=True)


@dataclass(slots=True)
class Cost:
    """Of one pass."""

    bytes: int = 0
    wall_s: float = 0.0
    start_s: float = 0.0  # CPU time until the first slice was read: the process and its imports
    reader_s: float = 0.0  # CPU time after that
    thread_s: float = 0.0  # of the thread that orders


def main() -> None:
    options = make_parser("scrub", "CPU time of the scrub.").parse_args()
    bench = Bench("scrub", options.seed, options.quick)
    bench.head()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rows, calls = (150_000, 40_000) if options.quick else (1_000_000, 400_000)
    with work_directory(options.dir) as parent:
        with a_node(parent / "large", {}) as node:
            place_calls(node, "fill", [{"first": at, "count": FILL_ROWS} for at in range(0, rows, FILL_ROWS)])
            node.take_snapshot()
            node.take_snapshot()
            report(bench, "Two images", measure_pass(node.overview.checks.scrub))
        with a_node(parent / "small", {"batch_calls_max": 1}) as node:
            place_calls(node, "fill", [{"first": 0, "count": FILL_ROWS}])
            moves = [{"source": n % FILL_ROWS, "target": (n + 1) % FILL_ROWS, "amount": 1} for n in range(calls)]
            place_calls(node, "move", moves)
            report(bench, "A log with one call per record", measure_pass(node.overview.checks.scrub))
    bench.write()


@contextmanager
def a_node(folder: Path, settings: dict[str, Any]) -> Iterator[Node]:
    """With one partition; it takes no snapshots by itself, and its scrub is stepped here."""
    quiet: dict[str, Any] = {"snapshot_age_max_s": 0, "recovery_budget_s": 0, "scrub_every_s": 0, "segments": 128}
    node = Node.open(str(folder), _boxes.db, Settings(partitions=1, sites=1, **quiet, **settings), target=TARGET)
    try:
        node.attach(None)
        yield node
    finally:
        node.close()


def place_calls(node: Node, name: str, calls: list[dict[str, int]]) -> None:
    """Returns when all are answered."""
    room, route = threading.Semaphore(IN_FLIGHT), node.routes[name]
    for params in calls:
        room.acquire()
        node.call(route, route.procedure.bind(params), done=lambda _reply: room.release())
    for _ in range(IN_FLIGHT):
        room.acquire()


def measure_pass(scrub: Scrubber) -> Cost:
    """One pass, waiting as the node's thread does."""
    cost, now = Cost(), time.time() + FIRST_AFTER_S
    reader = scrub.reader
    assert isinstance(reader, ScrubReader)
    began, thread_began, pid = time.perf_counter(), time.thread_time(), None
    while not scrub.status()["passes"]:
        wait_s = scrub.step(now)
        if pid is None and reader.pid is not None:
            pid, cost.start_s = reader.pid, cpu_seconds(reader.pid)
            began, thread_began = time.perf_counter(), time.thread_time()
        if pid is not None and reader.pid is not None:
            cost.reader_s = cpu_seconds(pid) - cost.start_s
        time.sleep(wait_s)
    cost.thread_s, cost.wall_s = time.thread_time() - thread_began, time.perf_counter() - began
    cost.bytes = scrub.status()["last"]["bytes"]
    return cost


def report(bench: Bench, title: str, cost: Cost) -> None:
    bench.section(title)
    bench.value("read", cost.bytes / 1e6, "MB")
    bench.value("speed", cost.bytes / 1e6 / cost.wall_s, "MB/s")
    bench.value("CPU time to start", cost.start_s, "s")
    bench.ratio("share of a core", (cost.reader_s + cost.thread_s) / cost.wall_s, SHARE)
    bench.ratio("of it the node's thread", cost.thread_s / cost.wall_s)


if __name__ == "__main__":
    main()
