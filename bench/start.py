"""What a start of `cmdlog serve` costs: CPU time from exec until calls are served, of the node and its sites together.

Beside it, in turns, what `import fastapi, sqlalchemy` costs an interpreter. The first start makes the directory, a restart opens
one that was closed in order. There is one site, whatever the cores.

Run: `python bench/start.py [--quick]`. CPU time is the figure to believe; the clock is beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose snapshot.py is no package

import orjson

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from cmdlog.child_process import without_settings

IMPORTS, FIRST, RESTART = "import fastapi, sqlalchemy", "first start", "restart"
BARS = {RESTART: Bar(1.7, 1.4, at_most=True), FIRST: Bar(2.2, 1.8, at_most=True)}
COMPILED = {name: value for name, value in without_settings().items() if name != "PYTHONDONTWRITEBYTECODE"}  # as it is installed
OPTIONS = ("--sites", "1", "--port", "0", "--json", "--log-format", "json")


def cpu_of_family(pid: int) -> float:
    """CPU seconds of a process and of those that it has started and that run, by `clock_getcpuclockid(3)`."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return time.clock_gettime((~pid << 3) | 2) + sum(map(cpu_of_family, children))


def import_both() -> float:
    process = subprocess.Popen([sys.executable, "-c", IMPORTS], env=COMPILED)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def serve(folder: Path, walls: list[float]) -> float:
    """CPU seconds until ready; then the server is stopped in order. Raises: RuntimeError."""
    command = [sys.executable, "-m", "cmdlog", "serve", "procedures.samples.bank:db", "--data", f"{folder}/data", *OPTIONS]
    began = time.perf_counter()
    with (folder / "log").open("ab") as log, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, env=COMPILED
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if not any(orjson.loads(line)["event"] == "ready" for line in process.stdout):
            raise RuntimeError(f"it did not start: {folder}/log")
        walls.append(time.perf_counter() - began)
        used = cpu_of_family(process.pid)
        process.terminate()
        process.stdout.read()
    return used


def main() -> None:
    options = make_parser("start", "What a start costs.").parse_args()
    bench = Bench("start", options.seed, options.quick)
    bench.head()
    walls: defaultdict[str, list[float]] = defaultdict(list)
    with work_directory(options.dir) as folder:

        def first(_round: int) -> float:
            shutil.rmtree(folder / "data", ignore_errors=True)
            return serve(folder, walls[FIRST])

        first(0)
        walls.clear()
        lanes = {IMPORTS: lambda _: import_both(), FIRST: first, RESTART: lambda _: serve(folder, walls[RESTART])}
        found = in_turns(lanes, 12 if options.quick else 40)
    for name, seconds in found.items():
        bench.times(name + ": CPU", seconds)
    for name, bar in BARS.items():
        bench.times(f"{name}: by the clock", walls[name])
        bench.ratio(f"{name} / imports", paired(found[name], found[IMPORTS]), bar)
    bench.write()


if __name__ == "__main__":
    main()
