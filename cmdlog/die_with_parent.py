"""`python -m cmdlog.die_with_parent FD SIGNAL ERROR_FD MODULE ARGUMENTS…`: `MODULE.main()`, until the pipe FD is closed.

It is the child's side of `cmdlog.child_process`. One rule: nothing of the application is imported before the pipe is watched, so
there is no moment at which the child could outlive its parent and do harm.

The kernel watches. A thread would not do: a regular expression or an extension may hold the interpreter for ever. SIGKILL, which
most children ask for, can neither be blocked nor ignored. The whole process group gets the signal, as by `ChildProcess.kill`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import sys
from functools import partial
from types import TracebackType

from cmdlog.garbage_collection import loading
from cmdlog.signal_handlers import reset
from cmdlog.work_progress import ERROR_BYTES_MAX, claim_progress


def watch(pipe: int, number: int = signal.SIGKILL) -> None:
    """Returns at once; the process group gets the signal when the other end of the pipe is closed.

    The descriptor stays inheritable: a program that starts itself again with `exec` keeps the watch.
    """
    if os.getpgrp() != os.getpid():
        raise RuntimeError("a watched process leads a process group of its own: others must not end with it")
    fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)  # from now on the kernel signals the hang-up
    with contextlib.suppress(BlockingIOError):
        os.read(pipe, 1)  # nothing is ever written: it was closed before
        os.killpg(0, number)


def report_error(fd: int, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As `sys.excepthook`: the error in one line to the parent, then everything to standard error."""
    with contextlib.suppress(OSError):
        os.write(fd, " ".join(f"{kind.__name__}: {error}".split()).encode("utf-8", "replace")[:ERROR_BYTES_MAX])
    sys.__excepthook__(kind, error, trace)


def main() -> None:
    """Entry point of every child."""
    pipe, number, error_fd, module = sys.argv[1:5]
    del sys.argv[1:5]
    reset(signal.SIGTERM)  # a parent that ignores it has children that end by it
    watch(int(pipe), int(number))
    if int(error_fd) >= 0:
        claim_progress(int(error_fd))
        sys.excepthook = partial(report_error, int(error_fd))
    with loading():
        program = importlib.import_module(module)
    sys.exit(program.main())


if __name__ == "__main__":
    main()
