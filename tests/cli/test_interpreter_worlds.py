"""Programs started with other settings of the interpreter: what they log replays, whatever the replay is started with."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.procedures.settings_program import SETS

END_S = 300
OPTIONS: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "plain": ((), {}),
    "-W error": (("-W", "error"), {}),
    "-bb": (("-bb",), {}),
    "-O": (("-O",), {}),
    "-X dev": (("-X", "dev"), {}),
    "ascii": ((), {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}),
    "digits": ((), {"PYTHONINTMAXSTRDIGITS": "640"}),
    "warnings": ((), {"PYTHONWARNINGS": "error::UserWarning"}),
    "optimized": ((), {"PYTHONOPTIMIZE": "2"}),
}
REPLAYS = ("plain", "ascii", "digits", "warnings", "optimized")
WORLDS = [(options, sets, sites) for options, sets in itertools.product(OPTIONS, SETS) for sites in (0, 1)]
SLICE = [("digits", "locale", 1, "optimized")]
ALL = [(*world, replay) for world, replay in zip(WORLDS, itertools.cycle(REPLAYS), strict=False)]


def started(options: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A process with these options and variables."""
    flags, variables = OPTIONS[options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.run(
        [sys.executable, *flags, *map(str, arguments)],
        check=False,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=END_S,
    )


def outcomes_of(folder: Path, options: str, sets: str, sites: int) -> dict[str, Any]:
    """What the calls of such a program came to."""
    done = started(options, "-m", "tests.procedures.settings_program", folder / "data", folder / "out", sets, sites, cwd=folder)
    assert done.returncode in (0, 120), done.stderr  # 120: what is left in a stream that nobody reads
    found: dict[str, Any] = json.loads((folder / "out").read_text())
    return found


EXPECTED = {
    "warn": "warned", "warn_recorded": 1, "compare_bytes": False, "descend": 900, "digits": 4001, "say": 2, "say_bytes": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sets", "sites", "replay"), [*SLICE, *(pytest.param(*world, marks=pytest.mark.torture) for world in ALL)]
)
def test_what_a_program_logged_replays_elsewhere(tmp_path: Path, options: str, sets: str, sites: int, replay: str) -> None:
    """Every call has the outcome that it has anywhere, and a recovery in another world comes to the same digests."""
    found = outcomes_of(tmp_path, options, sets, sites)
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    optimized = options in ("-O", "optimized")
    assert (found["asserts"] == "no asserts") is optimized
    done = started(replay, "-m", "cmdlog.cli", "recover", tmp_path / "data", "--to", tmp_path / "again", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
