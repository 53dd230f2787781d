"""Where a procedure raised: its file and line, and its traceback in the application's frames alone.

One rule: nothing here is an outcome. Traces travel beside the outcomes of the live node, are never logged in the command log,
hashed or compared, and a replay makes none; so they may hold what differs between processes.

Files are named as Python knows them: code of a bundle as `<bundle 1f2e…>/shop.py`, which is shown without its first part.

A value of a local is shown only where `show_locals` is set, and only if it is of a built-in type: no code of the application
runs for it. Texts cost about 50 us each, so a node makes at most `TEXTS_MAX` in `TEXTS_EVERY_S`; places are always known.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import linecache
import re
import reprlib
import sys
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, FunctionType, TracebackType, WrapperDescriptorType
from typing import Any, Final

from procedures.declaration.procedure import Procedure
from procedures.execution.outcome_bodies import describe_failure, failure_body
from procedures.raised_errors import causes_of, class_name, is_raised, linked_to, set_trace, text_of, trace_of
from procedures.source.distributions import is_installed
from procedures.source.own_modules import FRAMEWORK, SAMPLES
from procedures.statements.raised import FromSqlite
from procedures.storage.authorizer import alternative_to
from procedures.wire.scalar_codecs import WireError

TRACES_MAX: Final = 256  # of one batch; calls after that have an outcome, and no trace
TEXTS_MAX: Final = 20  # in TEXTS_EVERY_S
TEXTS_EVERY_S: Final = 1.0
FRAMES_MAX: Final = 30  # of one exception: the innermost ones
CAUSES_MAX: Final = 4
TEXT_CHARACTERS_MAX: Final = 8000
LOCALS_MAX: Final = 20
_BUNDLE = re.compile(r"^<bundle [0-9a-f]+>/")
_FUNCTION = re.compile(r"not authorized to use function: (\w+)|function (\w+) does not depend on its arguments alone")
_VERB = re.compile(r": ([A-Z]+) is not for procedures; they read and change rows$")
_TRANSACTION: Final = "each call is a transaction by itself: it commits when the procedure returns, and tx.abort undoes it"
_TABLES: Final = "declare tables with Database.table; a new version of the application changes them"
_VERBS: Final = {
    **dict.fromkeys(("BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"), _TRANSACTION),
    **dict.fromkeys(("CREATE", "ALTER", "DROP", "REINDEX"), _TABLES),
}
_SCALARS: Final = (
    str, bytes, int, float, bool, type(None),
    decimal.Decimal, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID,
)  # fmt: skip
_SORTED: Final = (dict, set, frozenset)
_NESTED: Final = (list, tuple, *_SORTED)
_TEXT_MAKERS: Final = (*FRAMEWORK, "sqlalchemy", "pydantic_core")
_bases_of: Final = type.__dict__["__mro__"].__get__
_members_of: Final = type.__dict__["__dict__"].__get__
_arguments_of: Final = BaseException.__dict__["args"].__get__


@dataclass(frozen=True, slots=True)
class FailureTrace:
    """One call that raised: `file` and `line` are the innermost of the application, else the procedure's definition."""

    txn_id: int
    procedure: str
    file: str
    line: int
    function: str
    error: str  # class and message
    text: str = ""  # the traceback; "" when too many were made just now
    hint: str = ""  # what to do instead, where that is known
    raised: BaseException | None = field(default=None, compare=False, repr=False)  # in the process that ran the call

    @property
    def place(self) -> str:
        """`file:line`, "" when it is not known."""
        return f"{self.file}:{self.line}" if self.file else ""


class FailureTracer:
    """Gathers the traces of one batch, or of reads; one thread at a time."""

    def __init__(
        self, *, show_locals: bool = False, keep_errors: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`keep_errors`: traces hold the exceptions, as a caller in the same process gets them."""
        self._show_locals, self._keep_errors, self._now = show_locals, keep_errors, now
        self._traces: list[FailureTrace] = []
        self._texts: deque[float] = deque(maxlen=TEXTS_MAX)  # when the last ones were made

    def begin_attempt(self) -> None:
        """Forgets what the attempt before has brought."""
        self._traces = []

    def add(self, error: BaseException, txn_id: int, procedure: Procedure, described: str) -> None:
        """A call of the procedure raised. `described`: class and message, as its outcome has them."""
        home = procedure.function.__module__
        if len(self._traces) >= TRACES_MAX:
            return
        steps = _application_steps(trace_of(error), home)
        file, line, function = _place(steps[-1]) if steps else _place_of(procedure)
        text = self._text(error, home, described)
        raised = _without_our_frames(error, home, show_locals=self._show_locals) if self._keep_errors else None
        hint = hint_of(described)
        if is_raised(error, WireError) and not steps:  # the procedure had returned: the outcome's text does not say so
            hint = f"the result of {procedure.name} is refused: its return annotation states what it may be"
        self._traces.append(FailureTrace(txn_id, procedure.name, file, line, function, described, text, hint, raised))

    def take_traces(self) -> Sequence[FailureTrace]:
        """The traces since `begin_attempt`, in the order of their calls."""
        if not self._traces:
            return ()
        traces, self._traces = self._traces, []
        return traces

    def _text(self, error: BaseException, home: str, described: str) -> str:
        now, made = self._now(), self._texts
        if len(made) == TEXTS_MAX and now - made[0] < TEXTS_EVERY_S:
            return ""
        made.append(now)
        text = "\n".join(_paragraphs(error, home, described, show_locals=self._show_locals))
        if len(text) <= TEXT_CHARACTERS_MAX:
            return text
        half = TEXT_CHARACTERS_MAX // 2
        return f"{text[:half]}\n[…]\n{text[-half:]}"


Step = tuple[FrameType, int]  # a frame and the line that it was at


def _application_steps(trace: TracebackType | None, home: str) -> list[Step]:
    return [(step.tb_frame, step.tb_lineno) for step in _application_trace(trace, home)]


def _application_trace(trace: TracebackType | None, home: str) -> Iterator[TracebackType]:
    top = home.partition(".")[0]
    while trace is not None:
        if _is_application(trace.tb_frame, top):
            yield trace
        trace = trace.tb_next


def _is_application(frame: FrameType, top: str) -> bool:
    name = frame.f_globals.get("__name__", "")
    if type(name) is not str:  # the application's own making
        return True
    package = name.partition(".")[0]
    if package in FRAMEWORK:
        return name.startswith(f"{SAMPLES}.")
    return bool(name) and (package == top or not (package in sys.stdlib_module_names or is_installed(frame.f_code.co_filename)))


def _place(step: Step) -> tuple[str, int, str]:
    frame, line = step
    return shown_file(frame.f_code.co_filename), line, frame.f_code.co_qualname


def _place_of(procedure: Procedure) -> tuple[str, int, str]:
    """Where it is defined: of an error that none of its lines raised, such as a result of another type."""
    code = getattr(inspect.unwrap(procedure.function), "__code__", None)
    return (shown_file(code.co_filename), code.co_firstlineno, code.co_qualname) if code is not None else ("", 0, "")


def hint_of(error: str) -> str:
    """What to do instead of what SQLite or the rules for statements have refused; "" where that is not known.

    It is found by the text: an outcome's text is in the log, where it cannot change, and the hint is beside it.
    """
    if refused := _FUNCTION.search(error):
        return alternative_to(refused[1] or refused[2])
    verb = _VERB.search(error)
    return _VERBS.get(verb[1], "") if verb is not None else ""


def shown_file(file: str) -> str:
    """The file's name for people: code of a bundle without the bundle's name."""
    return _BUNDLE.sub("", file)


def _paragraphs(error: BaseException, home: str, described: str, *, show_locals: bool) -> Iterator[str]:
    """The lines of the traceback, causes first."""
    chain: list[tuple[BaseException, str]] = [(error, "")]
    while len(chain) <= CAUSES_MAX:
        if is_raised(chain[-1][0], FromSqlite):
            break  # what SQLite said of the values
        cause, context = causes_of(chain[-1][0])
        if cause is not None:
            chain.append((cause, "The above exception was the direct cause of the following exception:"))
        elif context is not None:
            chain.append((context, "During handling of the above exception, another exception occurred:"))
        else:
            break
    for at, (one, joint) in reversed(list(enumerate(chain))):
        steps = _application_steps(trace_of(one), home)[-FRAMES_MAX:]
        if steps:
            yield "Traceback (most recent call last):"
        for step in steps:
            yield from _frame_lines(step, show_locals=show_locals)
        yield _describe_cause(one) if at else described
        if at:
            yield f"\n{joint}\n"


def _describe_cause(error: BaseException) -> str:
    """Class and message, the latter where no code of the application makes it: it would run for live calls alone."""
    return describe_failure(failure_body(class_name(error), text_of(error) if _has_plain_text(error) else ""))


def _has_plain_text(error: BaseException) -> bool:
    """Whether Python, a library or this framework makes its text, of built-in values."""
    make = next(vars_of["__str__"] for vars_of in map(_members_of, _bases_of(type(error))) if "__str__" in vars_of)
    if type(make) is FunctionType:
        package = str(make.__globals__.get("__name__", "")).partition(".")[0]
        return package in _TEXT_MAKERS or package in sys.stdlib_module_names
    return type(make) is WrapperDescriptorType and all(map(_is_plain, _arguments_of(error)))


def _is_plain(value: Any) -> bool:
    kind = type(value)  # `in` would ask its class for an `==` of its own
    return any(kind is plain for plain in _SCALARS)


def _frame_lines(step: Step, *, show_locals: bool) -> Iterator[str]:
    frame, number = step
    file, _, function = _place(step)
    yield f'  File "{file}", line {number}, in {function}'
    if source := linecache.getline(frame.f_code.co_filename, number).strip():
        yield f"    {source}"
    if show_locals:
        for name, value in sorted(frame.f_locals.items())[:LOCALS_MAX]:
            yield f"      {name} = {_shown_value(value)}"


def _shown_value(value: Any) -> str:
    """A value of a built-in type, shortened; of others the type alone, whose `repr` would be the application's code."""
    return _SHORT.repr1(value, _SHORT.maxlevel)


def _has_order(value: Any) -> bool:
    """Whether `reprlib` sorts its elements, by an order of their own."""
    return any(type(value) is kind for kind in _SORTED)


class _ShortRepr(reprlib.Repr):
    """`repr` of built-in types that runs no code of the application."""

    def repr1(self, x: Any, level: int) -> str:
        plain = _is_plain(x) or (any(type(x) is kind for kind in _NESTED) and (not _has_order(x) or all(map(_is_plain, x))))
        return super().repr1(x, level) if plain else f"<{class_name(x)}>"


_SHORT = _ShortRepr()


def _without_our_frames(error: BaseException, home: str, *, show_locals: bool) -> BaseException:
    """The exception and its causes with the application's frames alone, which let go of the values that they held."""
    waiting, seen = [error], [error]
    while waiting:
        one = waiting.pop()
        if not show_locals:
            traceback.clear_frames(trace_of(one))  # they hold the transaction, which ends
        kept: TracebackType | None = None
        for step in reversed(list(_application_trace(trace_of(one), home))):
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
        set_trace(one, kept)
        new = [cause for cause in linked_to(one) if all(cause is not known for known in seen)]
        waiting += new
        seen += new
    return error
