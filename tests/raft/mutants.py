"""`make mutants`: every known defect of a consensus core, planted one at a time; the tests must see each of them.

One rule: the checkout is never touched. A mutant is a snippet of `cmdlog/raft` that occurs exactly once, and what it becomes;
it is planted in a copy of the package. First the tests run, then a slice of the simulation; what neither sees has survived.
`tests.cluster.mutants` does the same with the defects of a cluster.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.raft.defects import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = Path("cmdlog/raft")
COPIED: Final = (
    "cmdlog",
    "tests/raft",
    "tests/golden",
    "pyproject.toml",
    "tests/conftest.py",
    "tests/skips.py",
    "tests/waiting.py",
    "tests/one_trust.py",
    "tests/memory_disk.py",
    "tests/warm_start.py",
    "tests/patient_requests.py",
)
TESTS_TIMEOUT_S: Final = 400
SIM_SEEDS: Final = 300
SIM_TIMEOUT_S: Final = 400
_NO_END: Final = -1
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) \S*?(test_\w+\.py(?:::\S+)?)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who saw it; "" for a survivor."""

    mutant: Mutant
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Suite:
    """Where defects of a kind are planted, and who looks."""

    package: Path
    copied: tuple[str, ...]
    tests: Callable[[Mutant | None], list[str]]  # what pytest is given; for None: without a defect
    simulation: tuple[str, ...]  # arguments of the interpreter


def _tests_of_consensus(_mutant: Mutant | None) -> list[str]:
    return ["tests/raft", *(f"--ignore=tests/raft/test_{name}.py" for name in ("sim", "mutants"))]


SIMULATION: Final = ("-m", "tests.raft.sim", "--seeds", str(SIM_SEEDS), "--jobs", "1", "--first-failure")
CONSENSUS: Final = Suite(PACKAGE, COPIED, _tests_of_consensus, SIMULATION)


def plant(mutant: Mutant, folder: Path, package: Path = PACKAGE) -> None:
    """Plants the mutant in the copy of the package. Raises: ValueError when its snippet is not there exactly once."""
    path = folder / package / mutant.module
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its snippet occurs {text.count(mutant.old)} times in {mutant.module}")
    path.write_text(text.replace(mutant.old, mutant.new))


def copy_to(folder: Path, copied: Iterable[str] = COPIED) -> None:
    """What the tests need, without anything compiled."""
    for name in copied:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)


def judge(mutant: Mutant, suite: Suite = CONSENSUS) -> Verdict:
    """Plants one mutant and lets everybody look."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_to(folder, suite.copied)
        plant(mutant, folder, suite.package)
        by = _by_tests(folder, suite.tests(mutant)) or _by_simulation(folder, suite.simulation)
    return Verdict(mutant, by, time.monotonic() - began)


def check_unharmed(suite: Suite = CONSENSUS) -> None:
    """The tests pass in a copy without a defect: else they would see everything. Raises: RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy_to(Path(name), suite.copied)
        if by := _by_tests(Path(name), suite.tests(None)):
            raise RuntimeError(f"without any defect, {by} fails")


def _by_tests(folder: Path, tests: list[str]) -> str:
    if not tests:
        return ""
    command = ["-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "60"]
    code, told = _run(folder, command, TESTS_TIMEOUT_S)
    if code == 0:
        return ""
    found = FAILED.search(told)
    return found[1] if found else "the tests, which did not end" if code == _NO_END else "the tests, which did not start"


def _by_simulation(folder: Path, command: Iterable[str]) -> str:
    code, told = _run(folder, list(command), SIM_TIMEOUT_S)
    if code == 0:
        return ""
    if code not in (1, _NO_END):
        raise RuntimeError(f"the simulation did not start: exit code {code}")
    return "simulation, " + (told.strip().splitlines() or ["which did not end"])[0][:90]


def _run(folder: Path, command: list[str], timeout_s: float) -> tuple[int, str]:
    environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own processes too: they would go on
        process.communicate()
        return _NO_END, ""
    return process.returncode, told


def main() -> int:
    """Judges all mutants, or those that are named; 1 when one survives."""
    return judge_all(MUTANTS, CONSENSUS, "Plants defects in the consensus core; the tests must see each.")


def judge_all(mutants: Iterable[Mutant], suite: Suite, described: str) -> int:
    """Those of the mutants that the command line names, or all; 1 when one survives."""
    parser = argparse.ArgumentParser(description=described)
    parser.add_argument("names", nargs="*", help="these mutants alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [one per core]")
    given = parser.parse_args()
    wanted = [mutant for mutant in mutants if not given.names or mutant.name in given.names]
    check_unharmed(suite)
    survivors = []
    with concurrent.futures.ProcessPoolExecutor(given.jobs) as pool:
        for verdict in pool.map(partial(judge, suite=suite), wanted):
            print(
                f"{verdict.mutant.name:36} {verdict.seconds:5.0f} s  {verdict.by or 'SURVIVED: ' + verdict.mutant.wrong}",
                flush=True,
            )
            survivors += [verdict.mutant.name] * (not verdict.by)
    print(
        f"{len(wanted) - len(survivors)} of {len(wanted)} mutants caught"
        + (f"; alive: {', '.join(survivors)}" if survivors else "")
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
