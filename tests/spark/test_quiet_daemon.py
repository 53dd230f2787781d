"""What the daemon of Spark's Pythons prints about those that it forks. No session needed: Spark's side is a socket."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from replay.spark.session import DAEMON
from tests.processes import is_gone
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
WRITES = """
def main(infile, outfile):
    for _ in range(2000):
        outfile.write(bytes(4096))
"""
FAILS = """
def main(infile, outfile):
    raise ValueError("a defect")
"""


def printed(folder: Path, daemon: str, program: str) -> str:
    """Standard error of a daemon whose only Python runs the program, and finds its socket closed when it writes."""
    (folder / "pyspark_reading.py").write_text(program)
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
    }  # fmt: skip
    command, pipe = [sys.executable, "-m", daemon, "pyspark_reading"], subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(process.stdout.read(*struct.unpack("!i", process.stdout.read(4))).decode())
            (forked,) = struct.unpack("!i", reader.recv(4, socket.MSG_WAITALL))
        wait_for(lambda: is_gone(forked))
        process.stdin.close()
        return process.stderr.read().decode()


def test_read_that_ends_early_prints_no_trace(tmp_path: Path) -> None:
    """`show()` closes the socket of a Python that still writes: that is nobody's error, though Spark's own daemon prints one."""
    assert "BrokenPipeError" in printed(tmp_path, "pyspark.daemon", WRITES)
    assert printed(tmp_path, DAEMON, WRITES) == ""


def test_defect_prints_its_trace(tmp_path: Path) -> None:
    """Only a broken pipe is silent."""
    assert "ValueError: a defect" in printed(tmp_path, DAEMON, FAILS)
