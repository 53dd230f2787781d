"""The right to write a state file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.wal.errors import Locked
from replay.state import state_lock
from replay.state.state_lock import StateLock, is_locked

HOLDER = """
import sys, time
from replay.state.state_lock import StateLock
lock = StateLock(sys.argv[1])
print("held", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_state_of_another_process_is_locked_until_that_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site of a killed node keeps its state file until the kernel has ended it; the error says what to look for."""
    monkeypatch.setattr(state_lock, "LOCK_WAIT_S", 0.05)
    path = str(tmp_path / "state" / "p0000.sqlite")
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as site:
        assert site.stdout is not None
        assert site.stdout.readline() == b"held\n"
        assert is_locked(path)
        with pytest.raises(Locked, match="look for a site that did not end"):
            StateLock(path)
        site.kill()
        site.wait()
        assert not is_locked(path)
        StateLock(path).close()


def test_looking_at_a_lock_leaves_nothing(tmp_path: Path) -> None:
    """A copy of a node's directory gets no file by being read."""
    assert not is_locked(str(tmp_path / "p0000.sqlite"))
    assert list(tmp_path.iterdir()) == []
