"""Starting a process that makes way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson

from snapshot.background_io import WORK_S
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, resource, signal, sys

def rests():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

first, looks = rests(), 0
while rests() < first + 5 and looks < 3_000_000:
    looks += 1
during, told = rests() - first, [signal.getitimer(signal.ITIMER_REAL)[1]]

def main():
    told.append(signal.getitimer(signal.ITIMER_REAL)[1])
    print(json.dumps({"rests": during, "timer": told, "arguments": sys.argv[1:]}))
    return 3
"""


def test_imports_rest(tmp_path: Path) -> None:
    """A module that only computes while it is imported gives the processor up again and again; its `main` is left alone."""
    (tmp_path / "probe.py").write_text(PROBE)
    done = subprocess.run(
        [sys.executable, "-m", "snapshot.background_process", "probe", "a", "b"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3, done.stderr
    told = orjson.loads(done.stdout)
    assert told["rests"] >= 5
    assert told["timer"] == [WORK_S, 0]
    assert told["arguments"] == ["a", "b"]
