"""A procedure: a function, the contract that its type hints state, and where its calls run.

`bind` turns the named parameters of a request into the list that the log holds, in the order of the signature, with
defaults filled in; where that is not what the caller gave, the list knows what was given (`SentParameters`). Nothing
after it checks again: `decode` trusts the log.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from operator import is_
from types import SimpleNamespace
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from procedures.errors import DefinitionError, InvalidParameters
from procedures.native import accelerator
from procedures.wire.result_json import Encode, encoder_for
from procedures.wire.scalar_codecs import KINDS, Codec, Schema, WireError
from procedures.wire.sent_request import SentParameters
from procedures.wire.type_codecs import codec_for

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)  # goes into URLs, file names and Spark columns as it is
PARAMETERS_MAX = 64  # a procedure with more wants a dataclass


PROCEDURES_ATTRIBUTE: Final = "__cmdlog_procedures__"  # of a function: as which procedures it is registered


class EverywhereFunction(Protocol[P, R_co, A_co]):
    """For type checkers: a function registered with `partition_by=None`. A call of it answers with A, not with R."""

    @property
    def __cmdlog_answer__(self) -> A_co:
        """One result per partition; None, where the function returns nothing. No function has it at run time."""

    def __call__(self, tx: Any, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Runs it in another procedure, as any function."""


class Access(IntEnum):
    """What a procedure may touch, by where it runs."""

    SINGLE = 0  # one partition: writes its own rows; replicated tables are read-only to it
    EVERYWHERE = 1  # all partitions: reads and writes replicated tables alone, so that all copies stay equal
    READ = 2  # one partition, writes nothing; not logged
    EACH = 3  # all partitions, each on rows of its own; replicated tables are read-only to it
    READ_ALL = 5  # all partitions, each of which answers from rows of its own; writes nothing, and is not logged
    MIGRATION = 4  # all partitions: reads and writes both kinds of tables, as they are at that moment


class Each(Enum):
    """The kind of `EACH`."""

    EACH = "EACH"

    def __repr__(self) -> str:
        return self.value


EACH: Final = Each.EACH
"""`partition_by=EACH`: a call runs once on each partition, on that partition's own rows, at one place of their common order."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a procedure."""

    name: str
    codec: Codec
    required: bool
    default: Any  # wire form; None when required


@dataclass(frozen=True, slots=True)
class Procedure:
    """A registered function with its contract; made by `Database.procedure`."""

    name: str
    function: Callable[..., Any]
    run: Callable[..., Any]  # the function, or what passes its keyword-only parameters by name: takes all by position
    parameters: tuple[Parameter, ...]
    partition_by: str | None  # parameter whose value names the partition; None = all partitions
    each: bool  # all partitions, and each decides about rows of its own
    read_only: bool
    encode: Encode  # result -> JSON bytes
    result_codec: Codec | None  # None: any JSON
    bind: Callable[[Mapping[str, Any]], list[Any]]  # named parameters -> wire list; raises InvalidParameters
    decode: Callable[[list[Any]], list[Any]] | None  # wire list -> arguments; None: they are the same
    partition_at: int | None  # position of partition_by in the list

    @property
    def access(self) -> Access:
        if self.read_only:
            return Access.READ_ALL if self.partition_by is None else Access.READ
        if self.each:
            return Access.EACH
        return Access.EVERYWHERE if self.partition_by is None else Access.SINGLE

    @property
    def returns_nothing(self) -> bool:
        """`-> None`: then a call on all partitions answers None as well, and not a list of them."""
        return self.result_codec is not None and self.result_codec.schema == {"type": "null"}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def partition_value(self, params: list[Any]) -> int | str | None:
        """The wire value that names the partition; None for a procedure that runs on all of them."""
        if self.partition_at is None:
            return None
        value: int | str = params[self.partition_at]
        return value

    def json_schema(self) -> Schema:
        """Schema of the request's object of parameters."""
        properties = {}
        for parameter in self.parameters:
            properties[parameter.name] = dict(parameter.codec.schema)
            if not parameter.required:
                properties[parameter.name]["default"] = parameter.default
        required = [parameter.name for parameter in self.parameters if parameter.required]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def result_schema(self) -> Schema:
        """Schema of the result; `{}` says any JSON."""
        return dict(self.result_codec.schema) if self.result_codec else {}


def build_procedure(
    function: Callable[..., Any], *, name: str | None, partition_by: str | Each | None, read_only: bool
) -> Procedure:
    """Reads a function's signature into a `Procedure`.

    Raises:
        DefinitionError: the signature cannot be a contract; the message says what to write.
    """
    name = name or function.__name__
    if not NAME.fullmatch(name):
        raise DefinitionError(f"procedure {name!r}: a name is lower-case letters, digits and _, at most 63, a letter first")
    each = isinstance(partition_by, Each)
    column = None if isinstance(partition_by, Each) else partition_by
    # What the decorator says is judged first, then the signature, with the name of the procedure before its text.
    if each and read_only:
        raise DefinitionError(
            f"procedure {name!r}: what only reads runs on each partition with partition_by=None, read_only=True"
        )
    try:
        parameters, hint = _read_signature(function)
        encode, result_codec = encoder_for(hint)
        partition_at = _partition_at(parameters, column)
    except DefinitionError as error:
        raise DefinitionError(f"procedure {name!r}: {error}") from None
    return Procedure(
        name=name,
        function=function,
        run=_by_position(function),
        parameters=parameters,
        partition_by=column,
        each=each,
        read_only=read_only,
        encode=encode,
        result_codec=result_codec,
        bind=make_bind(name, parameters),
        decode=_make_decode(parameters),
        partition_at=partition_at,
    )


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a procedure's parameters and result. That of `tx` is for type checkers, and need not exist.

    Raises: NameError, TypeError, and what else evaluating one raises.
    """
    stated = getattr(function, "__annotations__", None)
    if not isinstance(stated, dict):
        return typing.get_type_hints(function, include_extras=True)
    contract = SimpleNamespace(__annotations__={name: hint for name, hint in stated.items() if name != "tx"})
    return typing.get_type_hints(contract, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)


def _read_signature(function: Callable[..., Any]) -> tuple[tuple[Parameter, ...], Any]:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError("must be a plain function: it runs to its end on one thread, without awaiting or yielding")
    try:
        hints = hints_of(function)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"its type hints cannot be read ({error}); they must be importable at module level") from None
    signature = list(inspect.signature(function).parameters.values())
    if not signature or signature[0].name != "tx":
        raise DefinitionError("the first parameter is the transaction and is called `tx`")
    if len(signature) - 1 > PARAMETERS_MAX:
        raise DefinitionError(f"has {len(signature) - 1} parameters, at most {PARAMETERS_MAX}; group them in a frozen dataclass")
    return tuple(_parameter(parameter, hints) for parameter in signature[1:]), hints.get("return", Any)


def _parameter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
    name = parameter.name
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise DefinitionError(
            f"parameter {name!r}: only parameters with a name have a place in the log (no *args, / or **kwargs)"
        )
    if name not in hints:
        raise DefinitionError(f"parameter {name!r} needs a type hint: it is the contract with the caller")
    try:
        codec = _constrained(codec_for(hints[name]), hints[name])
    except DefinitionError as error:
        raise DefinitionError(f"parameter {name!r}: {error}") from None
    if parameter.default is inspect.Parameter.empty:
        return Parameter(name, codec, required=True, default=None)
    try:
        return Parameter(name, codec, required=False, default=codec.to_wire(parameter.default))
    except WireError as error:
        raise DefinitionError(f"parameter {name!r}: its default does not fit its type: {error}") from None


def _constrained(codec: Codec, hint: Any) -> Codec:
    """With what `Annotated` states for pydantic. Only who imported pydantic can have stated something."""
    if "pydantic" not in sys.modules and "annotated_types" not in sys.modules:
        return codec
    from procedures.wire.model_codecs import constrained  # noqa: PLC0415 - it brings pydantic

    return constrained(codec, hint)


def mark_procedure(procedure: Procedure) -> None:
    """Notes at the function itself that it is this procedure, so that callers can give the function instead of the name."""
    known = getattr(procedure.function, PROCEDURES_ATTRIBUTE, ())
    with contextlib.suppress(AttributeError, TypeError):  # a callable without attributes is called by its name
        setattr(procedure.function, PROCEDURES_ATTRIBUTE, (*known, procedure))


def _by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, callable with all arguments by position, as the log holds them."""
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    named = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    if not named:
        return function
    plain = len(kinds) - len(named)

    def run(*given: Any) -> Any:
        return function(*given[:plain], **dict(zip(named, given[plain:], strict=True)))

    return run


def _partition_at(parameters: tuple[Parameter, ...], partition_by: str | None) -> int | None:
    if partition_by is None:
        return None
    for position, parameter in enumerate(parameters):
        if parameter.name == partition_by:
            if parameter.codec.schema.get("type") not in ("integer", "string"):
                raise DefinitionError(f"partition_by={partition_by!r} must be an integer or have a string as wire form")
            return position
    raise DefinitionError(f"partition_by={partition_by!r} is none of its parameters")


def make_bind(procedure: str, parameters: tuple[Parameter, ...]) -> Callable[[Mapping[str, Any]], list[Any]]:
    """The hot check of a request: passes in comprehensions; only a misfit takes the slow way that names every fault."""
    names = tuple(parameter.name for parameter in parameters)
    count = len(names)
    checks = tuple((parameter.name, parameter.codec.to_wire) for parameter in parameters)
    known = frozenset(names)
    required = frozenset(parameter.name for parameter in parameters if parameter.required)
    optional = len(required) < count
    sent = partial(SentParameters, procedure, names)
    defaults = {parameter.name: parameter.default for parameter in parameters}

    def bind(given: Mapping[str, Any]) -> list[Any]:
        try:
            if len(given) == count:
                wire = [to_wire(given[name]) for name, to_wire in checks]
                return wire if all(map(is_, wire, [given[name] for name in names])) else sent(given, wire)
            if optional and len(given) < count and given.keys() <= known and required <= given.keys():
                return sent(given, [to_wire(given[name]) if name in given else defaults[name] for name, to_wire in checks])
        except Exception:  # noqa: BLE001, S110 - a class of the application may raise anything; the slow way says what
            pass
        return sent(given, _bind_slowly(procedure, parameters, given))

    if accelerator is None:
        return bind
    kinds = bytes(KINDS.get(to_wire, 0) for _, to_wire in checks)
    in_c: Callable[[Mapping[str, Any]], list[Any]] = accelerator.Bind(
        names, tuple(check for _, check in checks), kinds, bind, sent
    )
    return in_c


def _bind_slowly(procedure: str, parameters: tuple[Parameter, ...], given: Mapping[str, Any]) -> list[Any]:
    if not isinstance(given, Mapping):
        raise InvalidParameters(procedure, [("", f"expected an object of parameters, got {type(given).__name__}")])
    problems: list[tuple[str, str]] = []
    values: list[Any] = []
    for parameter in parameters:
        if parameter.name not in given:
            values.append(parameter.default)
            if parameter.required:
                problems.append((parameter.name, "missing"))
            continue
        try:
            values.append(parameter.codec.to_wire(given[parameter.name]))
        except WireError as error:
            problems.append((parameter.name, str(error)))
        except Exception as error:  # noqa: BLE001 - of a validator, or of a class's own code
            problems.append((parameter.name, f"its type refuses it with {type(error).__name__}: {error}"))
    known = {parameter.name for parameter in parameters}
    problems += [(str(name), "unknown parameter") for name in given if name not in known]
    if problems:
        raise InvalidParameters(procedure, problems)
    return values


def _make_decode(parameters: tuple[Parameter, ...]) -> Callable[[list[Any]], list[Any]] | None:
    if all(parameter.codec.plain for parameter in parameters):
        return None
    converts = tuple(parameter.codec.from_wire for parameter in parameters)

    def decode(wire: list[Any]) -> list[Any]:
        return [convert(value) for convert, value in zip(converts, wire, strict=True)]

    return decode
