"""The path of a call does not grow unseen: how many Python functions it enters in each process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 1.08  # what a busy machine may add: a timer that fell into the calls and not into the pause
MOST: dict[str, dict[str, float]] = {
    "embedded, lone call": {"process": 118},
    "HTTP, lone call": {"node": 131, "site 0": 34},
    "HTTP, block of 22": {"node": 560, "site 0": 97},
    "HTTP, line of /v1/batch": {"node": 5.6, "site 0": 3.1},
    "replay, call": {"process": 1.4},
}
"""Python functions entered, by case and process. Lower them with the path; raise one only in a commit that says why."""

pytestmark = pytest.mark.slow  # two servers


def test_path_is_no_longer_than_it_was(tmp_path: Path) -> None:
    """Counted by the benchmark itself."""
    command = [sys.executable, "bench/path_length.py", "embedded", "http", "replay", "--json", "--dir", str(tmp_path)]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    found = json.loads(told.stdout.splitlines()[-1])
    longer = [
        f"{case}, {process}: {found[case][process][0]:.1f} functions, {most} at most"
        for case, processes in MOST.items()
        for process, most in processes.items()
        if found[case][process][0] > most * MARGIN
    ]
    assert not longer
