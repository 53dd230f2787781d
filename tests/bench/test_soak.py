"""The soak as a program: a short one, and one that is ended by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = PATIENCE_S

pytestmark = pytest.mark.slow


def start_soak(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The script, working and writing in the folder."""
    command = [sys.executable, "-m", "bench.soak", "--quick", "--dir", str(folder), "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def read_figures(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Values and ratios of a soak by name, and its lines over time."""
    figures = orjson.loads((folder / "soak.json").read_bytes())["figures"]
    named = {figure["name"]: figure for figure in figures if "name" in figure}
    return named, [figure for figure in figures if "series" in figure]


def test_so_many_calls_are_made_and_each_is_counted_once(tmp_path: Path) -> None:
    """It ends with their number, every acknowledged call is in the tables, and every line has a value for each sample."""
    with start_soak(tmp_path, "--calls", "3000", "--streams", "2", "--callers", "1") as process:
        told, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told
    assert "ended by the number of calls" in told
    named, series = read_figures(tmp_path)
    assert named["acknowledged"]["value"] >= 3000
    assert named["acknowledged"]["value"] == named["counted by the procedures"]["value"]
    assert named["calls without a result"]["ratio"] == 0
    assert named["slots that do not hold each acknowledged call once"]["reached"] == "bar"
    assert {"node: slope", "site 0: slope"} <= set(named)
    assert len(series) == 6
    assert {len(line) for figure in series for line in figure["lines"].values()} == {len(series[0]["at_s"])}


@pytest.mark.torture
def test_ctrl_c_ends_it_as_its_time_would(tmp_path: Path) -> None:
    """The calls under way are answered, all are counted, and the figures are written."""
    with start_soak(tmp_path, "--minutes", "60", "--callers", "1") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Load"):
                break
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told
    assert "ended by hand" in told
    named, _ = read_figures(tmp_path)
    assert named["acknowledged"]["value"] == named["counted by the procedures"]["value"]
