"""Standard output and error of a process that serves calls: what is written there never waits for who reads it.

One rule: a line goes into a queue, and a thread of its own writes it. A terminal that was paused, or a log driver that is stuck,
fills a pipe, and the next write would hold up the call that it is about, the status, and the end of the process. The queue is
bounded: what does not fit is dropped and counted, and a line says how much once lines can be written again. An end waits for
what is queued, but not for long.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

import orjson

QUEUE_BYTES_MAX: Final = 1 << 20  # some thousand lines
END_S_MAX: Final = 2.0  # for what is queued, when the process ends
LOOK_S: Final = 0.1  # whether a descriptor takes more
STANDARD: Final = {"stdout": 1, "stderr": 2}  # descriptors

_outputs: list[LineQueue] = []  # of this process


class LineQueue(io.RawIOBase):
    """One descriptor. Any thread writes; its own thread is started with the first line."""

    def __init__(self, fd: int, *, as_json: bool) -> None:
        """`as_json`: its lines are objects, so the one about dropped lines is."""
        self._fd, self._as_json = fd, as_json
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # with those that are being written
        self._unsaid = 0  # dropped lines that no line has reported
        self._thread: threading.Thread | None = None
        self._is_ended = False
        self.dropped = 0  # lines, since the start

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Never waits."""
        line = bytes(data)
        with self._changed:
            if self._queued_bytes + len(line) > QUEUE_BYTES_MAX or self._is_ended:
                lines = max(1, line.count(b"\n"))
                self.dropped, self._unsaid = self.dropped + lines, self._unsaid + lines
                return len(line)
            self._queue.append(line)
            self._queued_bytes += len(line)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cmdlog-output", daemon=True)
                self._thread.start()
        return len(line)

    def drain(self, patience_s: float) -> bool:
        """Waits until all is written, so long at most; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, patience_s)

    def end(self, patience_s: float) -> None:
        """As `drain`; nothing more is taken."""
        self.drain(patience_s)
        with self._changed:
            self._is_ended = True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                line = self._queue.popleft()
            self._write_out(line)
            with self._changed:
                self._queued_bytes -= len(line)
                unsaid, self._unsaid = self._unsaid, 0
                self._changed.notify_all()
            if unsaid:
                self._write_out(self._report(unsaid))

    def _write_out(self, line: bytes) -> None:
        """Waits for who reads; if nobody can, the line is lost."""
        rest = memoryview(line)
        with contextlib.suppress(OSError):
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # another process has made it so
                    select.select([], [self._fd], [], LOOK_S)

    def _report(self, lines: int) -> bytes:
        if not self._as_json:
            return f"log_lines_dropped count={lines}: nobody read them in time\n".encode()
        now = datetime.now(UTC).isoformat()
        event = {"count": lines, "event": "log_lines_dropped", "level": "warning", "logger": "cmdlog", "timestamp": now}
        return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)


def queue_output(*names: str, as_json: bool) -> None:
    """From now on `sys.stderr`, or what is named, never waits. A stream that goes elsewhere than the process's own stays."""
    for name in names:
        given = getattr(sys, name)
        if not isinstance(given, io.TextIOWrapper) or not _is_own(given, STANDARD[name]):
            continue
        given.flush()
        if not _outputs:
            atexit.register(end_output)
        output = LineQueue(given.fileno(), as_json=as_json)
        _outputs.append(output)
        stream = io.TextIOWrapper(io.BufferedWriter(output), encoding=given.encoding, errors=given.errors, line_buffering=True)
        setattr(sys, name, stream)


def _is_own(stream: io.TextIOWrapper, descriptor: int) -> bool:
    """Also through another buffer, as the command line has made it (`whole_line_stdout`)."""
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):  # of memory, or closed
        return False


def end_output(patience_s: float = END_S_MAX) -> None:
    """Writes what is queued, if that is possible in time: before a process ends without its clean-up, or becomes another."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    until = time.monotonic() + patience_s
    for output in _outputs:
        output.end(max(0.0, until - time.monotonic()))


def dropped_lines() -> int:
    """How many lines this process has dropped since its start."""
    return sum(output.dropped for output in _outputs)
