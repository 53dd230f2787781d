"""Ctrl-C and SIGTERM while a command runs: it tidies up, reports in a sentence what is left and how to continue, and ends.

One rule: the exit code is 128 and the signal's number (130 for Ctrl-C, 143 for SIGTERM), as a shell reports it of any program,
whatever the command was doing; so both signals are one exception on the way out, and the number is kept here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cmdlog.cli.cli_errors import BROKEN_OFF, CommandFailed, ShownFailure
from cmdlog.operator_error import OperatorError
from cmdlog.signal_handlers import sigterm_raises

WORDS: Final = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_heard: list[signal.Signals] = []


class BrokenOff(CommandFailed):
    """A command that was interrupted; its message names what is left."""

    exit_code = BROKEN_OFF


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Until its end SIGTERM is the same as Ctrl-C, unless the command has a handler of its own; of the main thread alone."""
    _heard.clear()

    def terminated() -> KeyboardInterrupt:
        _heard[:] = [signal.SIGTERM]
        return KeyboardInterrupt()

    with sigterm_raises(terminated):
        yield


@contextmanager
def report_on_interrupt(what: str, *, hint: str = "", instead_of: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """What is left, and how to continue, of a command that is interrupted within, also where a part of it reports that itself.

    Raises: BrokenOff.
    """
    try:
        yield
    except BaseException as end:
        has_words = isinstance(end, OperatorError) and end.exit_code == BROKEN_OFF
        if not isinstance(end, instead_of) and (has_words or not caused_by_signal(end)):
            raise
        raise BrokenOff(f"{WORDS[_signal()]}; {what}", hint=hint) from None


def caused_by_signal(end: BaseException | None) -> bool:
    """Whether it is an interruption or was met on the way out of one: what the signal ended as well is gone, or reports it."""
    while end is not None and not issubclass(type(end), KeyboardInterrupt):  # a procedure's may lie about its class
        end = end.__context__
    return end is not None


def exit_code() -> int:
    """The exit code of a process that a signal ends."""
    return 128 + _signal()


def failure() -> ShownFailure:
    """The message of a command that does not report what is left."""
    return ShownFailure(BrokenOff.__name__, WORDS[_signal()], "", exit_code())


def _signal() -> signal.Signals:
    return _heard[-1] if _heard else signal.SIGINT
