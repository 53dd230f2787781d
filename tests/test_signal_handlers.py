"""Handlers of signals: SIGTERM as an exception, and what was set before comes back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cmdlog.signal_handlers import handled, ignore, reset, sigterm_raises, undisturbed


class Ended(BaseException):
    """What SIGTERM is in these tests."""


def terminate() -> None:
    """SIGTERM to this process, handled before the next line."""
    signal.raise_signal(signal.SIGTERM)


def test_sigterm_is_the_given_error_until_the_end() -> None:
    """The work at hand unwinds by it; afterwards the signal has its own action again."""
    with pytest.raises(Ended), sigterm_raises(Ended):
        terminate()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outer_handler_keeps_the_signal() -> None:
    """A command's own words come before those of a part of its work."""
    with pytest.raises(Ended), sigterm_raises(Ended), sigterm_raises(KeyboardInterrupt):
        terminate()


def test_other_threads_leave_signals_alone() -> None:
    """Python runs handlers in the main thread only, and only that one may set them."""
    found = []

    def work() -> None:
        with sigterm_raises(Ended):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_tidying_up_is_not_interrupted_again() -> None:
    """Ctrl-C and SIGTERM do nothing within, and what they did before afterwards; other threads may use it, too."""
    with undisturbed():
        signal.raise_signal(signal.SIGINT)
        terminate()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    found: list[object] = []

    def work() -> None:
        with undisturbed():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_handlers_of_before_come_back() -> None:
    """Each of the signals calls the handler within, and what it called before afterwards."""
    heard: list[str] = []
    with handled(lambda: heard.append("outer"), signal.SIGUSR1):
        with handled(lambda: heard.append("inner"), signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert sorted(heard[:2]) == ["inner", "inner"]
    assert heard[2:] == ["outer"]
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_ignored_signal_does_nothing_until_it_is_reset() -> None:
    """A child ignores what its parent decides about."""
    try:
        ignore(signal.SIGUSR1, signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        reset(signal.SIGUSR1)
        reset(signal.SIGUSR2)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
