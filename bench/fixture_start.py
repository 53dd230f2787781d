"""What the fixture `cmdlog_embedded` costs a test: opening, one call, closing; beside the same directory with its syncs.

Run: `python bench/fixture_start.py [--quick]`. The bar is for a quiet machine; the CPU time is the figure to believe beside other
processes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose snapshot.py is no package

from bench._common import Bar, Bench, make_parser, work_directory
from cmdlog.node.assembly import Outside
from cmdlog.node.clock import TimeSource
from cmdlog.node.embedded.embedded import Embedded, open_embedded_on
from cmdlog.testing.machine import UnsyncedFiles
from cmdlog.testing.server import DEFAULTS
from cmdlog.wal.files import Files, RealFiles
from procedures.samples import bank

FIXTURE = "as the fixture opens it"
DISKS: dict[str, Callable[[], Files]] = {FIXTURE: UnsyncedFiles, "with syncs": RealFiles}
STEPS = ("open", "call", "close")
OPEN_S_MAX = 0.050


def measure(files: Files, folder: Path) -> list[tuple[float, float]]:
    """(seconds, seconds of CPU) of each step."""
    found: list[tuple[float, float]] = []

    def timed(step: Callable[[], object]) -> object:
        wall, cpu = time.perf_counter(), time.process_time()
        value = step()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
        return value

    database = timed(lambda: open_embedded_on(Outside(files, TimeSource()), f"{folder}/data", bank.db, DEFAULTS))
    assert isinstance(database, Embedded)
    timed(lambda: database.call("open_account", branch=1, customer=1))
    timed(database.close)
    return found


def main() -> None:
    options = make_parser("fixture_start", "The fixture of users' tests.").parse_args()
    bench = Bench("fixture_start", options.seed, options.quick)
    bench.head()
    rounds: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in DISKS}
    for _ in range(10 if options.quick else 40):
        for name, disk in DISKS.items():
            with work_directory(options.dir) as folder:
                rounds[name].append(measure(disk(), folder))
    for name, measured in rounds.items():
        bench.section(f"Embedded, {name}")
        for step, figures in zip(STEPS, zip(*measured, strict=True), strict=True):
            wall = bench.times(step, [one[0] for one in figures])
            bench.value(f"{step}: CPU", statistics.median(one[1] for one in figures) * 1e3, "ms")
            if (name, step) == (FIXTURE, "open"):
                bench.ratio(f"open / {OPEN_S_MAX * 1e3:g} ms", wall / OPEN_S_MAX, Bar(1.0, at_most=True))
    bench.write()


if __name__ == "__main__":
    main()
