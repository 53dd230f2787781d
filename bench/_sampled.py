"""The command line of cmdlog with a sampling profiler inside: `python -m bench._sampled OUT serve ...`.

One rule: samples are taken per CPU time of the event loop's thread, never per wall time. A thread that samples by the clock gets
the interpreter's lock when the loop lets go of it, which is when it has nothing to do: such a profile shows a server that sleeps.

SIGUSR1 starts sampling; the next one ends it and writes JSON to OUT: seconds of CPU by thread, and samples of the loop's thread
by part (`PARTS`) and by function. The kernel counts this clock in ticks (4 ms at 250 Hz). A sample belongs to the innermost frame
of a package that is known; C code below it (orjson, the transport's send) counts as its caller.
"""

from __future__ import annotations

import collections
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

import orjson

INTERVAL_S: Final = 0.002
SIGEV_THREAD_ID: Final = 4
FRAMES_KEPT: Final = 4
# The first prefix that fits the file of a frame, from the innermost frame outwards, names the part.
PARTS: Final = (
    ("/cmdlog/api/connection", "HTTP: connection, framing, send"),
    ("/cmdlog/api/exchange", "HTTP: connection, framing, send"),
    ("/cmdlog/api/framing", "HTTP: connection, framing, send"),
    ("/cmdlog/api/roster", "HTTP: connection, framing, send"),
    ("/cmdlog/api/", "API: gate, checks, answer"),
    ("/procedures/", "API: parameters bound, slot"),
    ("/cmdlog/wal/", "log: waking its threads"),
    ("/cmdlog/node/sites", "site pipes and answers"),
    ("/cmdlog/node/channel", "site pipes and answers"),
    ("/cmdlog/node/readers", "site pipes and answers"),
    ("/cmdlog/node/frames", "site pipes and answers"),
    ("/cmdlog/node/desk", "site pipes and answers"),
    ("/cmdlog/node/", "sequencer"),
    ("/uvicorn/", "HTTP: event loop, poll, receive"),
    ("/asyncio/runners", "HTTP: event loop, poll, receive"),
)


class _Event(ctypes.Structure):
    """`struct sigevent` with its thread id."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )  # fmt: skip


class _Spec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (("every_s", ctypes.c_long), ("every_ns", ctypes.c_long), ("first_s", ctypes.c_long), ("first_ns", ctypes.c_long))


class Sampler:
    """Samples the thread that makes it, the main one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(signo=signal.SIGPROF, notify=SIGEV_THREAD_ID, thread=threading.get_native_id())
        clock = time.pthread_getcpuclockid(threading.get_ident())
        if self._libc.timer_create(clock, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")
        self._stacks: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._parts: collections.Counter[str] = collections.Counter()
        self._before: dict[str, float] | None = None
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._toggle)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        part = ""
        while frame is not None:
            code = frame.f_code
            if not part:
                part = next((name for prefix, name in PARTS if prefix in code.co_filename), "")
            if len(stack) < FRAMES_KEPT:
                stack.append(f"{Path(code.co_filename).stem}.{code.co_qualname}")
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1
        self._parts[part or "other"] += 1

    def _toggle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._before is None:
            self._before = _cpu_by_thread()
            self._arm(INTERVAL_S)
            return
        self._arm(0.0)
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in _cpu_by_thread().items()}
        tops: collections.Counter[str] = collections.Counter()
        for stack, count in self._stacks.items():
            tops[stack[0]] += count
        found = {"threads": spent, "parts": self._parts, "functions": dict(tops.most_common(60))}
        stacks = [[count, *stack] for stack, count in self._stacks.most_common(200)]
        part = self._out.with_suffix(".part")
        part.write_bytes(orjson.dumps(found | {"stacks": stacks}))
        part.rename(self._out)

    def _arm(self, every_s: float) -> None:
        nanos = round(every_s * 1e9)
        spec = _Spec(every_ns=nanos, first_ns=nanos)
        self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)


def _cpu_by_thread() -> dict[str, float]:
    """Seconds of CPU of every Python thread of this process, by name."""
    spent: dict[str, float] = {}
    for thread in threading.enumerate():
        run_ns = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
        spent[thread.name] = int(run_ns) / 1e9
    return spent


def main() -> None:
    from cmdlog.cli import main as command_line  # noqa: PLC0415 - after the sampler's own imports

    out = Path(sys.argv.pop(1))
    Sampler(out)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command_line()


if __name__ == "__main__":
    main()
