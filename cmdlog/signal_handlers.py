"""Handlers of signals: what a process ignores, for how long, and SIGTERM as an exception that unwinds the work at hand.

One rule: a handler that another part of the program has set is left alone, and one that is set is taken back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NoReturn

STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What ends a server in order: the kernel would end it at once for any of them."""


def stop_signals() -> list[signal.Signals]:
    """`STOPS` without those that this process ignores from its start, as `nohup` makes it do."""
    return [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]


def ignore(*numbers: signal.Signals) -> None:
    """For a child whose parent decides when it ends."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def reset(number: signal.Signals) -> None:
    """The kernel's own action again, also where the parent ignores the signal, which a child inherits."""
    signal.signal(number, signal.SIG_DFL)


@contextmanager
def handled(handler: Callable[[], object], *numbers: signal.Signals) -> Iterator[None]:
    """Until its end these signals call `handler` in the main thread; after that, what they called before."""
    before = {number: signal.signal(number, lambda *_: handler()) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def undisturbed() -> AbstractContextManager[None]:
    """Until its end SIGINT and SIGTERM do nothing in the main thread; in any other one it does nothing.

    For tidying up after an interruption: a second Ctrl-C would end it half done, and leave processes and folders.
    """
    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return handled(lambda: None, signal.SIGINT, signal.SIGTERM)


def sigterm_raises(error: Callable[[], BaseException]) -> AbstractContextManager[None]:
    """Until its end SIGTERM raises `error()` in the main thread, if it would end the process at once; else nothing changes.

    In any other thread, and where a handler is set already, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return nullcontext()

    def end() -> NoReturn:
        raise error()

    return handled(end, signal.SIGTERM)
