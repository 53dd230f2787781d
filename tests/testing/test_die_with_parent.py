"""A server of a test that is killed ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import signal
from cmdlog.testing import cmdlog_clock, cmdlog_server

def test_that_never_ends(cmdlog_server):
    server = cmdlog_server("tests.node.apps.faulty:db", sites=2)
    print("server", server.pid, flush=True)
    signal.pause()
"""


def family(server: int) -> set[int]:
    """A process and its children, as far as they run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z" and server in (int(folder.name), int(parent)):
            found.add(int(folder.name))
    return found


def running(processes: set[int]) -> set[int]:
    """Those of them that still run."""
    return {process for process in processes if process in family(process)}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_killed_pytest_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL gives it no chance to clean up; server and sites end all the same, and soon."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", ".", "test_suite.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as suite:
        started: set[int] = set()
        try:
            assert suite.stdout is not None
            for line in suite.stdout:
                if "server " in line:
                    started = family(int(line.partition("server ")[2]))
                    break
            assert len(started) >= 2  # with its sites
            suite.kill()
            wait_for(lambda: not running(started))
        finally:
            suite.kill()
            for process in running(started):
                os.kill(process, signal.SIGKILL)
