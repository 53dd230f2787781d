"""The gate before a state file, as its site and its readers see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.state.state_lock import ReaderGate, is_shut

SITE = """
import sys
from replay.state.state_lock import ReaderGate
gate = ReaderGate(sys.argv[1])
gate.shut()
print("shut", flush=True)
sys.stdin.read()
"""


def test_gate_is_open_until_it_is_shut(tmp_path: Path) -> None:
    """Shutting it twice is the same, and what was opened leaves no file behind."""
    path = str(tmp_path / "p0.sqlite")
    gate = ReaderGate(path)
    assert not is_shut(path)
    gate.shut()
    gate.shut()
    assert is_shut(path)
    gate.open()
    gate.open()
    assert not is_shut(path)
    assert list(tmp_path.iterdir()) == []


def test_gate_that_cannot_be_made_stays_open(tmp_path: Path) -> None:
    """The log grows on then; calls do not fail for it."""
    path = str(tmp_path / "gone" / "p0.sqlite")
    gate = ReaderGate(path)
    gate.shut()
    assert not is_shut(path)
    gate.open()


@pytest.mark.slow
def test_gate_of_a_killed_site_is_open(tmp_path: Path) -> None:
    """Shut is a lock, which ends with its process."""
    path = str(tmp_path / "p0.sqlite")
    with subprocess.Popen([sys.executable, "-c", SITE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as site:
        assert site.stdout is not None
        assert site.stdout.readline() == b"shut\n"
        assert is_shut(path)
        site.kill()
    assert not is_shut(path)
    assert os.path.exists(f"{path}.gate"), "the next site takes it over"
    gate = ReaderGate(path)
    gate.shut()
    assert is_shut(path)
    gate.open()
