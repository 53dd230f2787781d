"""No process starts in a procedure, and no child of a process that runs procedures lives on.

A procedure is a function of its rows and parameters. A fork inside of one would run the rest of the batch a second time, on
the same state file and the same socket to the node; any other process would be started again at every replay.

One rule: the attempt fails, nothing was started, and the call fails even if it caught the error.
An audit hook sees it before it happens, in the thread that runs a
procedure and nowhere else: the program around it may start what it likes. So the call fails the same way live and in replay.

What an audit hook cannot see (an extension that calls the C library's `fork`) is noticed when the calls of the batch end: the
process is not the one that opened the state, and exits before it commits or answers anything (`call_settings`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from procedures.errors import ProceduresError

__all__ = ["CHILD_CODE", "ProcessRefused", "attempts", "end_children", "running", "take_attempt", "watch"]

REFUSED_EVENTS: Final = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"}
CHILD_CODE: Final = 71  # exit code of a child that may not live


class ProcessRefused(ProceduresError):
    """A procedure tried to start a process."""


attempts: dict[int, ProcessRefused] = {}  # thread that runs procedures -> what its present call tried
running: dict[int, Callable[[], str]] = {}  # thread -> name of the procedure that it runs
_alone: list[bool] = []  # this process runs procedures and nothing else: each thread in it is one of theirs
_watching: list[bool] = []  # a hook stays until the process ends, so there is one


def watch() -> None:
    """From now on procedures of this process start none. Idempotent."""
    if not _watching:
        _watching.append(True)
        sys.addaudithook(_refuse)


def take_attempt() -> ProcessRefused | None:
    """What this thread's present call tried, also if it caught the error: the call fails with it."""
    return attempts.pop(get_ident(), None)


def end_children() -> None:
    """From now on a fork of this process ends at once, also one that a thread or a module of the application makes.

    The process has no other business than procedures: while one runs, no thread of it may start a process.
    """
    _alone.append(True)
    os.register_at_fork(after_in_child=lambda: os._exit(CHILD_CODE))


def _refuse(
    event: str,
    _arguments: tuple[Any, ...],
    *,
    refused: set[str] = REFUSED_EVENTS,  # bound here: a hook outlives its module's globals
    running: dict[int, Callable[[], str]] = running,
    tried: dict[int, ProcessRefused] = attempts,
    alone: list[bool] = _alone,
    thread: Callable[[], int] = get_ident,
    error: type[ProcessRefused] = ProcessRefused,
) -> None:
    if event not in refused or not running:
        return
    caller = thread()
    if caller not in running and alone:
        caller = next(iter(running))  # a thread that the procedure has started
    if (procedure := running.get(caller)) is not None:
        refusal = error(
            f"{procedure()} tried to start a process ({event}), which a procedure must not: "
            "do it in the caller, and pass what comes out as a parameter"
        )
        tried.setdefault(caller, error(*refusal.args))
        raise refusal
