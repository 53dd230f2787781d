"""Histories of calls with generated parameters, for Hypothesis: whatever an application is asked to do, it has to replay.

One rule: only what the signature accepts is generated, so that every call reaches the procedure. Values are small and repeat, so
that calls meet each other's rows; `parameters` says better where an application knows better.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import tempfile
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from hypothesis import strategies as st

from cmdlog.errors import CallError
from cmdlog.node.assembly import Outside
from cmdlog.node.clock import TimeSource
from cmdlog.node.embedded.embedded import Embedded, open_embedded_on
from cmdlog.testing.machine import UnsyncedFiles
from cmdlog.testing.proof import assert_replays
from cmdlog.testing.server import SMALL
from procedures import Database, InvalidParameters
from procedures.declaration.procedure import Procedure, hints_of

CALLS_MAX: Final = 30  # of one history
SMALL_INTEGERS: Final = (0, 9)  # few, so that calls meet; one in four is any integer of 64 bits
_SIZES: Final = {"min_size": "min_length", "max_size": "max_length"}  # as Hypothesis and as annotated_types name them
INT64: Final = (-(1 << 63), (1 << 63) - 1)
LONGEST: Final = timedelta(microseconds=INT64[1])
LENGTH_MAX: Final = 4  # of lists, and of strings that are no key

GeneratedCall = tuple[str, dict[str, Any]]
"""A procedure's name and its parameters."""


def histories(
    db: Database,
    *,
    parameters: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] | None = None,
    calls_max: int = CALLS_MAX,
) -> st.SearchStrategy[list[GeneratedCall]]:
    """Lists of calls of an application's procedures, those that only read among them.

    `parameters`: procedure -> parameter -> strategy, where the one from the type hint is not wanted.
    Raises: TypeError, for a hint that needs a strategy of yours.
    """
    given = parameters or {}
    one_call = st.one_of([_calls_of(procedure, given.get(procedure.name, {})) for procedure in db.procedure_list])
    return st.lists(one_call, max_size=calls_max)


def assert_history_replays(db: Database, calls: Sequence[GeneratedCall], **settings: Any) -> None:
    """Runs the calls in a throw-away database; then `assert_replays`, and raises as that does.

    Aborts and errors that a procedure raises are outcomes, and have to replay too.
    """
    with tempfile.TemporaryDirectory(prefix="cmdlog-history-") as folder:
        database = open_embedded_on(Outside(UnsyncedFiles(), TimeSource()), f"{folder}/data", db, {**SMALL, **settings})
        with database:
            run_history(database, calls)
            assert_replays(database)


def run_history(database: Embedded, calls: Sequence[GeneratedCall]) -> None:
    """Calls one after the other."""
    for name, params in calls:
        with contextlib.suppress(CallError):
            database.call(name, **params)


def _calls_of(procedure: Procedure, given: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[GeneratedCall]:
    hints = hints_of(procedure.function)
    names = procedure.parameter_names
    chosen = {name: given[name] if name in given else strategy_of(hints[name]) for name in names}
    fitting = st.fixed_dictionaries(chosen).filter(lambda params: _is_accepted(procedure, params))
    return st.tuples(st.just(procedure.name), fitting)


def _is_accepted(procedure: Procedure, params: Mapping[str, Any]) -> bool:
    try:
        procedure.bind(params)
    except InvalidParameters:
        return False
    return True


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a parameter of this type hint accepts. Raises: TypeError, when there is no telling."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _constrained(arguments[0], hint.__metadata__)
    if origin in (typing.NotRequired, typing.Required):
        return strategy_of(arguments[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([strategy_of(one) for one in arguments])
    if origin is list:
        return st.lists(strategy_of(arguments[0]), max_size=LENGTH_MAX)
    if origin is dict:
        return st.dictionaries(strategy_of(arguments[0]), strategy_of(arguments[1]), max_size=LENGTH_MAX)
    if origin is tuple and arguments[-1:] == (...,):
        return st.lists(strategy_of(arguments[0]), max_size=LENGTH_MAX).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy_of, arguments))
    return _strategy_of_class(hint)


def _constrained(hint: Any, metadata: Sequence[Any]) -> st.SearchStrategy[Any]:
    """By bounds that Hypothesis knows, those of `annotated_types`, also inside pydantic's `Field`; else any value is tried."""
    parts = [part for stated in metadata for part in getattr(stated, "metadata", [stated])]
    bounds: Any = [part for part in parts if type(part).__module__ == "annotated_types"]
    if typing.get_origin(hint) is list:
        sizes = {name: getattr(part, stated) for name, stated in _SIZES.items() for part in bounds if hasattr(part, stated)}
        return st.lists(strategy_of(typing.get_args(hint)[0]), **{"max_size": sizes.get("min_size", 0) + LENGTH_MAX, **sizes})
    within: Any = typing.Annotated[hint, *bounds] if bounds else None
    if not bounds:
        return strategy_of(hint)
    known: st.SearchStrategy[Any] = st.from_type(within)
    return known.filter(lambda value: INT64[0] <= value <= INT64[1]) if hint is int else known


def _strategy_of_class(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, typing.NewType):
        return strategy_of(hint.__supertype__)
    if typing.is_typeddict(hint) or (isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")):
        hints = typing.get_type_hints(hint, include_extras=True)
        fields = {name: strategy_of(field) for name, field in hints.items()}
        if not typing.is_typeddict(hint):
            return st.builds(hint, **fields)
        missing = {name for name in hints if _may_be_missing(hint, name, typing.get_origin(hints[name]))}
        return st.fixed_dictionaries(
            {name: field for name, field in fields.items() if name not in missing},
            optional={name: field for name, field in fields.items() if name in missing},
        )
    if hint is timedelta:
        return st.timedeltas(-LONGEST, LONGEST)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{field.name: strategy_of(hints[field.name]) for field in dataclasses.fields(hint)})
    try:
        stated: Mapping[str, Any] = getattr(hint, "model_fields", {})  # of pydantic
        fields = {name: _constrained(field.annotation, field.metadata) for name, field in stated.items()}
        strategy: st.SearchStrategy[Any] = st.builds(hint, **fields) if fields else st.from_type(hint)
        strategy.validate()
    except Exception as error:
        raise TypeError(f"no values are known for {hint}; give a strategy in `parameters`") from error
    return strategy


def _may_be_missing(hint: Any, name: str, origin: Any) -> bool:
    """A class whose hints are texts does not know its NotRequired ones itself."""
    return origin is typing.NotRequired or (name in hint.__optional_keys__ and origin is not typing.Required)


def _few(usual: st.SearchStrategy[Any], anything: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly usual values, which repeat."""
    return st.one_of(usual, usual, usual, anything)


_JSON: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(*INT64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abc", max_size=2),
    lambda inner: st.lists(inner, max_size=LENGTH_MAX) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=LENGTH_MAX),
    max_leaves=2 * LENGTH_MAX,
)
_SIMPLE: Final[Mapping[Any, st.SearchStrategy[Any]]] = {
    bool: st.booleans(),
    type(None): st.none(),
    None: st.none(),
    int: _few(st.integers(*SMALL_INTEGERS), st.integers(*INT64)),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: _few(st.sampled_from("abc"), st.text(st.characters(codec="utf-8"), max_size=LENGTH_MAX)),
    bytes: st.binary(max_size=LENGTH_MAX),
    Decimal: st.decimals(min_value=-100, max_value=100, places=2, allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    UUID: st.uuids(),
    Any: _JSON,
    object: _JSON,
}
