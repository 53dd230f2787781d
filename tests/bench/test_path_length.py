"""The path of a call does not grow unseen: how many Python functions and locks it takes in each process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 1.05  # what a machine's mood may add: a timer that fell into the calls and not into the pause
MOST: dict[str, dict[str, tuple[float, float]]] = {
    "embedded, lone call": {"process": (317, 20)},
    "HTTP, lone call": {"node": (255, 22), "site 0": (99, 2)},
    "HTTP, block of 22": {"node": (690, 27), "site 0": (163, 2)},
    "HTTP, line of /v1/batch": {"node": (6.8, 0.1), "site 0": (3.2, 0.1)},
    "replay, call": {"process": (1.4, 0.1)},
}
"""Functions and locks of Python, by case and process. Lower them with the path; raise one only in a commit that says why."""

pytestmark = pytest.mark.slow  # two servers


def test_path_is_no_longer_than_it_was(tmp_path: Path) -> None:
    """Counted by the benchmark itself."""
    command = [sys.executable, "bench/path_length.py", "embedded", "http", "replay", "--json", "--dir", str(tmp_path)]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    found = json.loads(told.stdout.splitlines()[-1])
    longer = [
        f"{case}, {process}: {counted:.1f} {what}, {most} at most"
        for case, processes in MOST.items()
        for process, limits in processes.items()
        for what, counted, most in zip(("functions", "locks"), found[case][process], limits, strict=True)
        if counted > most * MARGIN
    ]
    assert not longer
