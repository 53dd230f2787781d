"""What the fixture `cmdlog_embedded` costs a test: opening, one call, closing; beside the same directory with its syncs.

    python bench/fixture_start.py [--rounds 40] [--dir DIR]

Bar: 50 ms for opening, on a quiet machine. The CPU time is the figure to believe beside other processes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose snapshot.py is no package

from cmdlog.node.assembly import Outside
from cmdlog.node.clock import TimeSource
from cmdlog.node.embedded import Embedded, open_embedded_on
from cmdlog.testing.files import UnsyncedFiles
from cmdlog.testing.server import DEFAULTS
from cmdlog.wal.files import Files, RealFiles
from procedures.samples import bank

DISKS: dict[str, Callable[[], Files]] = {"fixture": UnsyncedFiles, "with syncs": RealFiles}
STEPS = ("open", "call", "close")


def measure(files: Files, folder: str) -> list[tuple[float, float]]:
    """(milliseconds, milliseconds of CPU) of each step."""
    found: list[tuple[float, float]] = []

    def timed(step: Callable[[], object]) -> object:
        wall, cpu = time.perf_counter(), time.process_time()
        value = step()
        found.append(((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3))
        return value

    database = timed(lambda: open_embedded_on(Outside(files, TimeSource()), f"{folder}/data", bank.db, DEFAULTS))
    assert isinstance(database, Embedded)
    timed(lambda: database.call("open_account", branch=1, customer=1))
    timed(database.close)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="ten rounds")
    parser.add_argument("--dir", type=Path, help="where the directories are made; default: the system's temporary folder")
    given = parser.parse_args()
    rounds: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in DISKS}
    for _ in range(10 if given.quick else given.rounds):
        for name, disk in DISKS.items():
            with tempfile.TemporaryDirectory(dir=given.dir) as folder:
                rounds[name].append(measure(disk(), folder))
    for name, measured in rounds.items():
        for step, figures in zip(STEPS, zip(*measured, strict=True), strict=True):
            wall, cpu = sorted(one[0] for one in figures), statistics.median(one[1] for one in figures)
            print(f"{name:12} {step:6} median {statistics.median(wall):6.1f} ms  fastest {wall[0]:6.1f}  CPU {cpu:6.1f}")


if __name__ == "__main__":
    main()
