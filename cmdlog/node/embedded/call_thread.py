"""The calling thread of a program with a node inside: its signals are handled between two pieces of work, not inside one.

One rule: an exception of a signal handler never strikes the thread that holds the log's turn or drives a site. It would leave
the turn taken for ever: everybody else, and the orderly end of the program too, would wait for it. In the middle of a procedure
it would be taken for the outcome of the call, which no replay comes to again.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from cmdlog.operator_error import OperatorError

LOOK_S: Final = 0.05
INLINE_FRAMES_MAX: Final = 150  # of a caller whose thread executes its call: a procedure needs room for its own recursion
CALL_FRAMES: Final = 150  # that a call needs of its caller's stack to be placed and answered; with fewer it is not begun
GRACE_S: Final = 2.0  # for the end of a work that hurries
NUMBERS: Final = [int(number) for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})]

_in_c: Any = importlib.import_module("_signal")  # which makes no enums: a twentieth of the time
_handler_of, _set_handler = _in_c.getsignal, _in_c.signal
_SHARING: Final = threading.RLock()
_OF_PROCESS: Final[list[Interrupts]] = []  # the one that all share, while it has users


class Unfinished(OperatorError):
    """Ctrl-C ended the wait for a work that could not hurry. It is the context of the KeyboardInterrupt."""


class Interrupts:
    """Defers the handlers of signals while the main thread is inside `with interrupts:`. Anywhere else it costs a comparison.

    A handler that was deferred runs at the end of the work, once, and raises there what it raises. That of SIGINT, which every
    program has, is replaced from the beginning; others are looked for at each work. All databases of a process share one.
    """

    __slots__ = ("_before", "_depth", "_missed", "_own", "_plain", "_raised", "_taken", "_thread", "_users")

    def __init__(self) -> None:
        self._users = 1
        self._depth = 0
        self._missed: set[int] = set()
        self._raised: BaseException | None = None  # by a handler that `interrupted` ran
        self._thread = threading.main_thread().ident
        self._own: Callable[[int, FrameType | None], None] = self._handle
        self._plain: list[Any] = []  # handlers of all signals, as they were seen last, when none had to be replaced
        self._taken: dict[int, Any] = {}  # signal -> handler that is replaced while work is under way
        self._before: Any = None  # that of SIGINT
        self._take_ctrl_c()

    @classmethod
    def of_process(cls) -> Interrupts:
        """What all share. To be given back by `restore`."""
        with _SHARING:
            if _OF_PROCESS:
                _OF_PROCESS[0].add_user()
            else:
                _OF_PROCESS.append(cls())
            return _OF_PROCESS[0]

    def __enter__(self) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth == 1:
            try:
                if (seen := list(map(_handler_of, NUMBERS))) != self._plain:
                    self._take_handlers(seen)
            except BaseException:  # of a handler that was not replaced yet
                self._leave()
                raise

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._taken or self._raised is not None:
            self._leave()
            return
        self._depth -= 1
        if self._missed and not self._depth:  # looked at last: what comes from here on is handled at once
            self._run_missed()

    def interrupted(self) -> bool:
        """Runs deferred handlers inside of a work that can end early: whether one raised, which the end of the work raises."""
        if threading.get_ident() != self._thread:
            return False
        if self._missed and self._raised is None:
            try:
                self._run_missed()
            except BaseException as error:  # noqa: BLE001 - the library that called this might make an error of its own of it
                self._raised = error
        return self._raised is not None

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
                work(lambda: bool(self._missed))
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
        """The last user gives SIGINT back, unless another handler has been set since."""
        with _SHARING:
            self._users -= 1
            if self._users or threading.get_ident() != self._thread:
                return
            if self in _OF_PROCESS:
                _OF_PROCESS.clear()
        if self._before is not None and _handler_of(signal.SIGINT) is self._own:
            signal.signal(signal.SIGINT, self._before)

    def add_user(self) -> None:
        """One more gives it back."""
        self._users += 1
        self._take_ctrl_c()

    def forget_work(self) -> None:
        """In a fork: what another thread of the parent was in the middle of is not under way here."""
        self._depth = 0
        self._missed.clear()
        self._raised = None

    def _take_ctrl_c(self) -> None:
        if self._before is None and threading.get_ident() == self._thread and callable(signal.getsignal(signal.SIGINT)):
            self._before = signal.signal(signal.SIGINT, self._own)

    def _take_handlers(self, seen: list[Any]) -> None:
        """Replaces those that are not ours, of all signals' handlers."""
        for number, handler in zip(NUMBERS, seen, strict=True):
            if callable(handler) and handler is not self._own:
                self._taken[number] = handler
                _set_handler(number, self._own)
        if not self._taken:
            self._plain = seen

    def _leave(self) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            while self._taken:  # one that is given back may run at once, and raise: the others are given back by the next work
                number, handler = next(iter(self._taken.items()))
                if _handler_of(number) is self._own:  # else the work has set another one
                    _set_handler(number, handler)
                del self._taken[number]
        finally:
            self._depth -= 1
            raised, self._raised = self._raised, None
            try:
                if self._missed:
                    self._run_missed()
            finally:
                if raised is not None:
                    raise raised

    def _run_missed(self) -> None:
        number = min(self._missed)
        self._missed.discard(number)
        handler = _handler_of(number)
        try:
            if handler is self._own:
                handler = self._taken.get(number, self._before)
            if callable(handler):
                handler(number, sys._getframe())  # noqa: SLF001 - what a handler is given
        finally:
            if self._missed:
                self._run_missed()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._missed.add(number)
            return
        handler = self._taken.get(number, self._before if number == signal.SIGINT else None)
        if callable(handler):
            handler(number, frame)


def _forget_in_child() -> None:
    """The parent's databases are not the child's, whose main thread may be another one; what it opens shares one of its own."""
    for shared in _OF_PROCESS:
        shared.forget_work()
    _OF_PROCESS.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def has_stack() -> bool:
    """Whether the calling thread's stack leaves room for a procedure. Raises: RecursionError, where not even for the call."""
    limit = max(sys.getrecursionlimit() - CALL_FRAMES, 0)
    try:
        sys._getframe(min(INLINE_FRAMES_MAX, limit))  # noqa: SLF001 - what asks for one frame does not walk the whole stack
    except ValueError:  # the stack has fewer
        return True
    try:
        sys._getframe(limit)  # noqa: SLF001 - as above
    except ValueError:
        return False
    raise RecursionError(f"fewer than {CALL_FRAMES} stack frames are left before the recursion limit; nothing was called")


class CallbackThread(threading.local):
    """Whether this thread runs callbacks of futures. It must not wait then: no other thread would answer it."""

    answers = False

    def note_answering(self, answers: bool) -> None:
        """Whether the thread runs callbacks from now on."""
        self.answers = answers
