"""What a process prints arrives whole, without Python's own buffer and under a rain of signals."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios

import pytest

from cmdlog.whole_line_stdout import find_answer
from tests.waiting import PATIENCE_S, wait_for

RAIN = """
import signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
"""
DRY = "; signal.setitimer(signal.ITIMER_REAL, 0)"
ANSWER = RAIN + "from cmdlog.whole_line_stdout import answer; answer(b'x' * 3_000_000 + b'end')" + DRY
LINES = (
    RAIN
    + "from cmdlog.whole_line_stdout import keep_lines_whole; keep_lines_whole(); "
    + "print('x' * 3_000_000 + 'end', end='', flush=True)"
    + DRY
)
CUT = """
from cmdlog.whole_line_stdout import keep_lines_whole
keep_lines_whole()
try:
    print("x" * 3_000_000 + "end", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def printed(program: str, *, interrupted: bool = False) -> bytes:
    """What a process without Python's buffer printed; with `interrupted` it gets SIGINT while it waits for its reader."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    if interrupted:
        room = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        wait_for(lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) == room)
        process.send_signal(signal.SIGINT)
    parts = []
    while data := os.read(pipe, 1 << 14):
        parts.append(data)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    return b"".join(parts)


@pytest.mark.parametrize("program", [ANSWER, LINES], ids=["answer", "lines"])
def test_everything_is_written_whatever_signals_come(program: str) -> None:
    """A write into a pipe takes a part when a signal meets it; the rest follows."""
    assert printed(program) == b"x" * 3_000_000 + b"end"


def test_plain_python_loses_the_rest() -> None:
    """What the two above are for: if this ever fails, Python has become whole and `cmdlog.whole_line_stdout` can go."""
    assert len(printed(RAIN + "sys.stdout.buffer.write(b'x' * 3_000_000)" + DRY)) < 3_000_000


def test_interrupted_line_ends_before_the_next_begins() -> None:
    """A reader of lines of JSON gets the interrupted one whole, and then what the command says of its end."""
    assert printed(CUT, interrupted=True) == b"x" * 3_000_000 + b"end\ninterrupted\n"


def test_an_answer_is_found_after_what_an_application_prints() -> None:
    """Its last line, if that is an object with the members that are asked for; anything else is no answer."""
    assert find_answer(b'{"problem": "its own"}\nhello\n{"problem": ""}\n', "problem") == {"problem": ""}
    for output in (b"", b"hello", b"1", b'["problem"]', b'{"problem": ""}\n1', b'{"problem": "", "more": 1}', b'{"problem"'):
        assert find_answer(output, "problem") is None
