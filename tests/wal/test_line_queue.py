"""Output that nobody reads: it holds nothing up, what is lost is counted, and what can be written is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import orjson
import pytest

from cmdlog.wal.system import line_queue
from cmdlog.wal.system.line_queue import LineQueue
from tests.waiting import PATIENCE_S, wait_for

LINE = b"x" * 999 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its ends."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_all(end: int, wanted: int) -> bytes:
    """So many bytes, by somebody who reads again."""
    found = b""
    while len(found) < wanted:
        found += os.read(end, 1 << 16)
    return found


def dropped_of(said: bytes, *, as_json: bool) -> int:
    """How many lines were lost, of the lines that say so."""
    lines = [line for line in said.splitlines(keepends=True) if b"log_lines_dropped" in line and line.endswith(b"\n")]
    return sum(int(orjson.loads(line)["count"]) if as_json else int(line.split()[1][6:-1]) for line in lines)


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_that_nobody_reads_are_dropped_and_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """Writing goes on; who reads again gets what was kept, then how much was lost, then the next lines."""
    monkeypatch.setattr(line_queue, "QUEUE_BYTES_MAX", 200 * len(LINE))
    output = LineQueue(pipe[1], as_json=as_json)
    for _ in range(1000):
        assert output.write(LINE) == len(LINE)
    assert not output.drain(0.0)
    kept = 1000 - output.dropped
    assert 0 < kept < 1000
    said = b""
    while said.count(LINE) < kept or dropped_of(said.replace(LINE, b""), as_json=as_json) < output.dropped:
        said += os.read(pipe[0], 1 << 16)
    output.write(b"next\n")
    assert read_all(pipe[0], 5) == b"next\n"


def test_output_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    """As a terminal that was closed."""
    gone, end = os.pipe()
    os.close(gone)
    output = LineQueue(end, as_json=True)
    output.write(LINE)
    wait_for(partial(output.drain, 0.0))
    os.close(end)


BLOCKED = """
import sys
from cmdlog.wal.system import line_queue
from cmdlog.wal.system.line_queue import queue_output

line_queue.END_S_MAX = 0.1
line_queue.end_output.__defaults__ = (0.1,)
queue_output("stdout", "stderr", as_json=False)
for number in range(1000):
    print("x" * 1000)
    sys.stderr.write("y" * 1000 + "\\n")
    sys.stdout.buffer.write(b"z" * 1000)
sys.stderr.flush()
"""
SPOKEN = """
import sys
from cmdlog.wal.system.line_queue import queue_output

queue_output("stdout", "stderr", as_json=False)
print("one")
print("two", file=sys.stderr)
sys.stdout.write("no end of a line")
"""


@pytest.mark.slow
def test_process_ends_though_nobody_reads() -> None:
    """Neither a print nor the end of the interpreter waits for longer than an end may."""
    with subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_end_writes_what_is_queued() -> None:
    """Where somebody reads nothing is lost, also what has no end of a line yet."""
    ended = subprocess.run([sys.executable, "-c", SPOKEN], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("one\nno end of a line", "two\n")


@pytest.mark.slow
def test_signal_ends_a_process_whose_output_is_stuck() -> None:
    """The main thread is never in a write."""
    source = BLOCKED + "\nprint('over')\nimport signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nsignal.pause()\n"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:

        def has_handler() -> bool:
            with open(f"/proc/{process.pid}/status") as status:
                caught = next(line for line in status if line.startswith("SigCgt"))
            return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)

        wait_for(has_handler)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 3
