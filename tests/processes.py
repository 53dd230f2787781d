"""Processes that a node starts for work that makes way, watched from a test."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cmdlog.child_process import ChildProcess
from tests import warm_start


def is_gone(process: int) -> bool:
    """Whether it has ended, also while nobody has collected it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may be collected between opening and reading
        return True


def watch_policies(monkeypatch: pytest.MonkeyPatch, *, starve: bool = False) -> list[int]:
    """The policies that are asked for, in order; with `starve` a process that asks for idle time gets none at all.

    Each starts like everybody else: what only takes idle time while Python imports does not rest, and lets nobody in. A cold
    start takes long enough to see that.
    """
    monkeypatch.setenv(warm_start.SWITCH, "cold")
    policies: list[int] = []

    start = ChildProcess.__init__

    def watched(process: ChildProcess, *command: str, **more: Any) -> None:
        start(process, *command, **more)
        policies.append(int(command[-1]))
        assert os.sched_getscheduler(process.pid) == os.sched_getscheduler(0)
        if starve and policies[-1] == os.SCHED_IDLE:
            os.kill(process.pid, signal.SIGSTOP)

    monkeypatch.setattr(ChildProcess, "__init__", watched)
    return policies
