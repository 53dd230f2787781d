"""Calls as values, procedures given by name or as the function itself, and parameters of a query.

One rule: nothing is imported that a client without an application does not have. A function that `@db.procedure` registered
carries its procedure, so its name, its parameters and the type of its result are known wherever it can be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, NamedTuple, ParamSpec, TypeVar, overload

from cmdlog.errors import InvalidParameters

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    from procedures import Transaction
    from procedures.declaration.procedure import EverywhereFunction, Procedure

    R = DefaultedTypeVar("R", default=Any)  # of a call by name, the result may be anything, as `Client.invoke` has it
else:
    R = TypeVar("R")  # Python 3.11 and 3.12 know no default, and nothing asks for it

Durability = Literal["sync", "async"]
Consistency = Literal["linearizable", "stale"]
QueryParameters = Sequence[Any] | Mapping[str, Any]  # by place, or by name
P = ParamSpec("P")
T = TypeVar("T")  # of functions: inside of `Call`, R is the result of that call, which pyright does not know for `Call.of`

_TEXTS: Final = (str, bytes, bytearray, memoryview)  # which are no lists of values
PROCEDURES_ATTRIBUTE: Final = "__cmdlog_procedures__"  # of a registered function; see `procedures.declaration.procedure`


class NewKey(Enum):
    """What stands for "make a key for me"."""

    NEW = "new"


NEW_KEY: Final = NewKey.NEW


class Call(NamedTuple, Generic[R]):
    """One call. Where a batch is expected, a plain `(procedure, params)` is as good."""

    procedure: str
    params: Mapping[str, Any] = {}
    idempotency_key: str | NewKey | None = NEW_KEY
    durability: Durability | None = None
    declared: Procedure | None = None  # what `of` was given; None: it was given by name

    @overload
    @staticmethod
    def of(procedure: EverywhereFunction[P, Any, T], /, *args: P.args, **params: P.kwargs) -> Call[T]: ...
    @overload
    @staticmethod
    def of(procedure: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **params: P.kwargs) -> Call[T]: ...
    @staticmethod
    def of(procedure: Any, /, *args: Any, **params: Any) -> Any:
        """A call of a function that `@db.procedure` registered; its arguments and its result have the function's types.

        Raises: TypeError.
        """
        return named_call(procedure, args, params)

    def under(self, idempotency_key: str | None, *, durability: Durability | None = None) -> Call[R]:
        """The same call under this idempotency key; None: without one."""
        return self._replace(idempotency_key=idempotency_key, durability=durability)

    def with_options(self, idempotency_key: str | NewKey | None, durability: Durability | None) -> Call[R]:
        """The same call with these options, each where it says something; where it does not, the call keeps its own."""
        key = self.idempotency_key if idempotency_key is NEW_KEY else idempotency_key
        return self._replace(idempotency_key=key, durability=durability or self.durability)


def call_of_item(item: Any) -> Call[Any]:
    """The call that an item of a batch is. Raises: TypeError."""
    named = isinstance(item, tuple | list) and item and isinstance(item[0], str)
    if not named or (len(item) > 1 and not isinstance(item[1], Mapping)):
        raise TypeError(f"{item!r:.80} is no item of a batch: give (name, parameters), (name, parameters, key) or Call.of(...)")
    return item if isinstance(item, Call) else Call(*item)


def named_call(procedure: Any, args: Sequence[Any] = (), params: Mapping[str, Any] | None = None) -> Call[Any]:
    """The call of a procedure that is given by its name or as its function.

    Raises: TypeError: the function is no procedure, or its arguments are not those of its signature.
    """
    given = {} if params is None else params
    if isinstance(procedure, str):
        if args:
            raise TypeError(f"a procedure given by name takes its parameters by name: call({procedure!r}, <parameter>=...)")
        return Call(procedure, given)
    known: tuple[Procedure, ...] = getattr(procedure, PROCEDURES_ATTRIBUTE, ())
    names = sorted({each.name for each in known})
    what = getattr(procedure, "__qualname__", repr(procedure))
    if not names:
        raise TypeError(f"{what} is no procedure: give the name of one, or a function with @db.procedure")
    if len(names) > 1:
        raise TypeError(f"{what} is registered as {' and '.join(names)}: give the name")
    declared = known[-1]
    return Call(names[0], _by_name(declared, args, given), declared=declared)


def _by_name(declared: Procedure, args: Sequence[Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    if not args:
        return params
    names = declared.parameter_names
    if len(args) > len(names):
        raise TypeError(f"{declared.name} takes {len(names)} parameters, got {len(args)}")
    placed = dict(zip(names, args, strict=False))
    if twice := sorted(placed.keys() & params.keys()):
        raise TypeError(f"{declared.name} got {', '.join(twice)} by position and by name")
    return {**placed, **params}


def read_parameters(params: Any) -> list[Any] | dict[str, Any]:
    """As a query is run with them. Raises: InvalidParameters, naming the type."""
    if params is None:
        return []
    if isinstance(params, Mapping):
        if wrong := next((name for name in params if not isinstance(name, str)), None):
            raise _wrong_parameters(f"names of parameters are text, not {type(wrong).__name__}")
        return dict(params)
    if isinstance(params, Sequence) and not isinstance(params, _TEXTS):
        return list(params)
    raise _wrong_parameters(f"must be a list, or a dict by name, not {type(params).__name__}")


def _wrong_parameters(problem: str) -> InvalidParameters:
    return InvalidParameters(problems=[("params", problem)])
