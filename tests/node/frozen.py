"""Work of a node that is frozen at a chosen process, and a clock that needs nobody to wait."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cmdlog.child_process import ChildProcess
from tests import warm_start
from tests.waiting import wait_for


class SteppedClock:
    """A monotonic clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = time.monotonic()  # work that began by the real one is no older, and not from the future

    def __call__(self) -> float:
        return self.now

    def skip(self, seconds: float) -> None:
        """So much time passes."""
        self.now += seconds


class Freezer:
    """Stops each process of one module as soon as it is started, until `thaw`."""

    def __init__(self, module: str, after: int = 0) -> None:
        """`after`: so many pieces of its work."""
        self._module, self._after = module, after
        self._frozen: list[ChildProcess] = []
        self._is_cold = True

    def note_start(self, child: ChildProcess, command: tuple[str, ...]) -> None:
        """A process was started."""
        if self._is_cold and self._module in command:
            threading.Thread(target=self._freeze, args=(child,), daemon=True).start() if self._after else self._freeze(child)

    def _freeze(self, child: ChildProcess) -> None:
        wait_for(lambda: child.progress() >= self._after or child.poll() is not None)
        if child.poll() is None and self._is_cold:
            os.kill(child.pid, signal.SIGSTOP)
            self._frozen.append(child)

    @property
    def pids(self) -> list[int]:
        """Of processes that are stopped."""
        return [child.pid for child in self._frozen if child.poll() is None]

    def thaw(self) -> None:
        """They get on, and others start as ever."""
        self._is_cold = False
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen_starts(monkeypatch: pytest.MonkeyPatch, module: str, after: int = 0) -> Iterator[Freezer]:
    """Within it, processes of the module are stopped. They start cold: none has done anything by then."""
    monkeypatch.setenv(warm_start.SWITCH, "cold")
    freezer, start = Freezer(module, after), ChildProcess.__init__

    def started(child: ChildProcess, *command: str, **more: Any) -> None:
        start(child, *command, **more)
        freezer.note_start(child, command)

    monkeypatch.setattr(ChildProcess, "__init__", started)
    try:
        yield freezer
    finally:
        freezer.thaw()
