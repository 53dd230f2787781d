"""Ctrl-C in a program that calls procedures in its main thread: it takes effect between two pieces of work, not inside one.

One rule: an exception of a signal handler never strikes the thread that holds the log's turn or drives a site. It would leave
the turn taken for ever: everybody else, and the orderly end of the program too, would wait for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from cmdlog.operator_error import OperatorError

LOOK_S: Final = 0.05
GRACE_S: Final = 2.0  # for the end of a work that hurries


class Unfinished(OperatorError):
    """Ctrl-C ended the wait for a work that could not hurry. It is the context of the KeyboardInterrupt."""


class Interrupts:
    """Defers SIGINT's handler while the main thread is inside `with interrupts:`. Anywhere else it costs a comparison.

    The handler that was there before is called, with the frame of the end of the work; it raises KeyboardInterrupt by default.
    """

    __slots__ = ("_before", "_depth", "_missed", "_thread")

    def __init__(self) -> None:
        self._depth = 0
        self._missed = False
        self._thread = 0
        self._before: Any = None
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._thread = threading.get_ident()
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if self._missed and not self._depth:
            self._missed = False
            self._before(signal.SIGINT, None)

    def wait_for(self, work: Callable[[Callable[[], bool]], None]) -> bool:
        """Does the work beside a main thread that waits; False if Ctrl-C ended the wait, and the work is still under way.

        The work is given a function that says whether it should hurry. What it raises is raised.
        """
        if threading.get_ident() != self._thread:
            work(lambda: False)
            return True
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work(lambda: self._missed)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                errors.append(error)

        worker, left_s = threading.Thread(target=run, name="last-work", daemon=True), GRACE_S
        worker.start()
        while worker.is_alive() and left_s > 0:
            worker.join(LOOK_S)
            left_s -= LOOK_S if self._missed else 0.0
        if errors:
            raise errors[0]
        return not worker.is_alive()

    def restore(self) -> None:
        """Gives the signal back, unless somebody else has taken it since."""
        if threading.get_ident() == self._thread and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._missed = True
            return
        self._before(number, frame)
