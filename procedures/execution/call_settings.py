"""The settings of the interpreter that calls run with: what Python documents as its defaults, whatever the process has.

A program sets them by options (`python -W error`), variables (PYTHONINTMAXSTRDIGITS) and functions (`sys.setrecursionlimit`), and
a module may while it is imported. A call would then depend on the process that runs it, and a replay is another.

One rule: every batch, read and migration begins with these settings, and the process has its own back after it:

    decimal context      the documented default
    recursion limit      as many frames for a procedure as a program has by default, wherever it is called from
    warnings             neither shown nor raised
    text of integers     up to 4300 digits
    print                never fails: not for a closed pipe, not for a character that the encoding of a stream lacks
    locale               "C", for numbers, times, the order of texts and messages of the system

They are of the batch, not of the call: a copy of the decimal context for each call costs a twentieth of a small one. So what a
call sets, and the flags of decimals that it raises, are seen by the later calls of its batch. A replay sees them too: the log
holds batches, one that is cut keeps its first calls, and one that runs a second time begins as the first did. `cmdlog check`
refuses such a call; `decimal.localcontext` and `warnings.catch_warnings` end where their blocks do.

The decimal context, warnings and print are of the thread that runs the calls. The others are of the process: the other threads of
a program have them too, while it runs calls. Where several threads run calls at once, each has at least the frames.

The same holds while a version's modules are loaded, so that they leave nothing to those of another version.
"""

from __future__ import annotations

import importlib
import locale
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import ROUND_HALF_EVEN, Context, DivisionByZero, InvalidOperation, Overflow, getcontext, setcontext
from threading import get_ident
from types import TracebackType
from typing import Any, Final

from procedures.execution.process_guard import CHILD_CODE, attempts, running

FRAMES: Final = 1000  # of Python's stack, that a procedure has: a program's whole stack by default
INT_DIGITS: Final = sys.int_info.default_max_str_digits
PLAIN: Final = "C"
# Every value is given: what is left out could come from `decimal.DefaultContext`, which a module may change.
_STANDARD: Final = Context(
    prec=28,
    rounding=ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    capitals=1,
    clamp=0,
    flags=[],
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_CATEGORIES: Final = (locale.LC_NUMERIC, locale.LC_TIME, locale.LC_COLLATE, locale.LC_MONETARY, locale.LC_MESSAGES)
_locale_of: Final[Callable[[int], str]] = importlib.import_module("_locale").setlocale  # as it is: a third of the time


class standard_settings:
    """A block that has them; `frames` stand between it and the procedure."""

    __slots__ = ("_before", "_frames")
    _before: Context  # from `__enter__` on

    def __init__(self, *, frames: int = 0) -> None:
        self._frames = frames

    def __enter__(self) -> None:
        self._before = begin_block(self._frames)

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        end_block(self._before)


class _OfCalls:
    """Matches the warnings of threads that run calls: `warnings` asks for every one that is about to be shown or raised."""

    __slots__ = ("_threads",)

    def __init__(self, threads: dict[int, int]) -> None:
        self._threads = threads

    def match(self, _text: str) -> bool:
        """Whether this thread runs calls."""
        return get_ident() in self._threads


class _Stream:
    """Stands for a standard stream while calls run; what calls write to it never fails. Other threads use it as it is."""

    def __init__(self, threads: dict[int, int], stream: Any = None, *, is_text: bool = True) -> None:
        self.stream = stream
        self._threads, self._is_text = threads, is_text

    @property
    def buffer(self) -> Any:
        """The same for bytes."""
        return _Stream(self._threads, getattr(self.stream, "buffer", None), is_text=False)

    def write(self, text: Any) -> int:
        """`TextIOBase.write`."""
        if get_ident() not in self._threads:
            return 0 if self.stream is None else int(self.stream.write(text))
        if self._is_text and not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with suppress(Exception):  # a stream of the program's own may raise anything: where a text goes is no outcome
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """`TextIOBase.writelines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """`TextIOBase.flush`."""
        if get_ident() not in self._threads:
            self.stream.flush()
            return
        with suppress(Exception):  # as above
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Process:
    """What of the settings is the process's, or must be seen by it. Shared by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}  # that run calls -> blocks that each is in
        self._filter = ("ignore", _OfCalls(self._threads), Warning, None, 0)
        self._out, self._err = _Stream(self._threads), _Stream(self._threads)
        self._limit = self._limit_before = self._digits_before = 0
        self._plain = ""  # the locale as a whole, when it was last seen to be plain
        self._locale_before: dict[int, str] = {}

    def begin_block(self, frames: int, procedure: Callable[[], str] | None = None) -> Context:
        """This thread runs calls, `frames` below the caller. `procedure` names the one that runs, None: there is none, and the
        thread may start processes. Returns the decimal context that `end_block` puts back.
        """
        thread, threads, decimals = get_ident(), self._threads, getcontext()
        setcontext(_STANDARD.copy())
        with self._lock:
            blocks = threads.get(thread, 0)
            if not threads:
                filters: list[Any] = warnings.filters  # type: ignore[assignment] # typed as a sequence
                if not filters or filters[0] is not self._filter:
                    filters.insert(0, self._filter)
                out, err = self._out, self._err
                if (stream := sys.stdout) is not out:
                    out.stream, sys.stdout = stream, out
                if (stream := sys.stderr) is not err:
                    err.stream, sys.stderr = stream, err
                self._digits_before = digits = sys.get_int_max_str_digits()
                if digits != INT_DIGITS:
                    sys.set_int_max_str_digits(INT_DIGITS)
                if _locale_of(locale.LC_ALL) != self._plain:
                    self._take_locale()
                self._limit_before, self._limit = sys.getrecursionlimit(), 0
            limit = _depth() + frames + FRAMES
            if len(threads) > bool(blocks):  # calls of other threads as well
                limit = max(limit, self._limit)
            sys.setrecursionlimit(limit)
            self._limit = limit
            threads[thread] = blocks + 1
        if procedure is not None:
            running[thread] = procedure
        return decimals

    def end_block(self, decimals: Context, opener: int = 0) -> None:
        """It does not any more, unless it is in an outer block. `opener`: process that opened the state of the procedures.

        What a call has set of the process meanwhile stays: the next block has the standard again.
        """
        thread, threads = get_ident(), self._threads
        if opener:
            del running[thread]
            attempts.pop(thread, None)
            if opener != os.getpid():  # a fork that nothing announced does not get past this
                os._exit(CHILD_CODE)  # not SystemExit: what would unwind here belongs to the parent
        setcontext(decimals)
        with self._lock:
            blocks = threads[thread] - 1
            if blocks:
                threads[thread] = blocks
                return
            del threads[thread]
            if threads:
                return
            filters: list[Any] = warnings.filters  # type: ignore[assignment] # typed as a sequence
            if filters and filters[0] is self._filter:
                del filters[0]
            if sys.stdout is self._out:
                sys.stdout = self._out.stream
            if sys.stderr is self._err:
                sys.stderr = self._err.stream
            if self._digits_before != INT_DIGITS and sys.get_int_max_str_digits() == INT_DIGITS:
                sys.set_int_max_str_digits(self._digits_before)
            while self._locale_before:
                locale.setlocale(*self._locale_before.popitem())
            if sys.getrecursionlimit() == self._limit:
                try:
                    sys.setrecursionlimit(self._limit_before)
                except RecursionError:  # another thread has set a limit that this one is beyond
                    return

    def _take_locale(self) -> None:
        for category in _CATEGORIES:
            if (before := locale.setlocale(category)) != PLAIN:
                self._locale_before[category] = before
                locale.setlocale(category, PLAIN)
        if not self._locale_before:
            self._plain = _locale_of(locale.LC_ALL)


def _depth() -> int:
    """How deep this thread's stack is, as the limit counts it, which is more than its frames."""
    try:
        sys.setrecursionlimit(1)
    except RecursionError as error:  # always: it says how deep the stack is, and sets nothing
        _, _, said = error.args[0].partition(" depth ")
        if (depth := said.partition(":")[0]).isdecimal():
            return int(depth)
    frame, depth_seen = sys._getframe(), 0  # noqa: SLF001 - another Python says it in other words
    while frame.f_back is not None:
        frame, depth_seen = frame.f_back, depth_seen + 1
    return depth_seen


_PROCESS: Final = _Process()
begin_block: Final = _PROCESS.begin_block
end_block: Final = _PROCESS.end_block
