"""Requests as values: what is sent, and whether sending it twice can do harm. No socket here.

One rule: the body is encoded once. A retry sends the same bytes under the same key or number, or it would be another call.

Parameters have the form that their own types choose, for the client knows no signatures: bytes are base64, Decimal and UUID
strings, datetime RFC 3339 in UTC, Enum its value, dataclasses and pydantic models objects, tuples arrays, durations ISO 8601.
What has no exact form in JSON is refused here, by field, and never bent: no NaN becomes null, no time loses its zone.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from cmdlog.client.session import CallName, ClientSession, NumberedCall
from cmdlog.errors import InvalidParameters, UnknownProcedure
from cmdlog.procedure_calls import Consistency, Durability, QueryParameters, read_parameters

if TYPE_CHECKING:
    from procedures.declaration.procedure import Procedure

DEPTH_MAX: Final = 64  # of nesting; the server refuses more
INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
PLAIN: Final = frozenset((int, str, bool, type(None)))  # orjson writes them as they are, or raises


class NoWireForm(ValueError):
    """The value cannot be sent; the text says why."""


def encode_params(params: Mapping[str, Any]) -> bytes:
    """The JSON object of a call's parameters. Raises: InvalidParameters."""
    if all(type(value) in PLAIN for value in params.values()):
        try:
            return orjson.dumps(params)
        except TypeError:
            pass  # an integer beyond 64 bits, a lone surrogate: the slow way names the field
    problems: list[tuple[str, str]] = []
    wire: dict[str, Any] = {}
    for name, value in params.items():
        try:
            wire[_text(name)] = to_wire(value)
        except NoWireForm as error:
            problems.append((repr(name).strip("'"), str(error)))
    if problems:
        raise InvalidParameters(problems=problems)
    return orjson.dumps(wire)


def is_json(value: Any) -> bool:
    """Whether the value has JSON's own types alone."""
    if type(value) is dict:
        return all(type(name) is str and is_json(inner) for name, inner in value.items())
    return type(value) in PLAIN or type(value) is float or (type(value) is list and all(map(is_json, value)))


def to_wire(value: Any, depth: int = 1) -> Any:
    """The value as JSON types. Raises: NoWireForm."""
    if value is None or value is True or value is False:
        return value
    for kind, convert in _SCALARS:
        if isinstance(value, kind):
            return convert(value)
    if depth > DEPTH_MAX:
        raise NoWireForm(f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return {_text(key): to_wire(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(inner, depth + 1) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _check_remade(value)
        return {field.name: to_wire(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value) if field.init}
    if hasattr(type(value), "model_dump"):  # a model of pydantic, which a client need not have
        return to_wire(_model_json(value), depth + 1)
    raise NoWireForm(f"is of type {type(value).__name__}, which cannot be sent as JSON")


def _check_remade(value: Any) -> None:
    """Raises: NoWireForm, when the server would make another object of the fields of this dataclass."""
    kind, fields = type(value), dataclasses.fields(value)
    if not hasattr(kind, "__post_init__"):
        return
    try:
        again = dataclasses.replace(value)
    except Exception as error:
        raise NoWireForm(f"is a {kind.__name__} that its own fields do not make again: {error}") from error
    for field in fields:
        if getattr(value, field.name) != getattr(again, field.name):
            raise NoWireForm(
                f"is a {kind.__name__} whose {field.name} is another once it is made again, as the server makes it: its "
                "__post_init__ must leave a finished object as it is; or send a dict"
            )


def _model_json(value: Any) -> Any:
    """The JSON of a model. Raises: NoWireForm, when the model reads another one in it."""
    kind, dumped = type(value), value.model_dump(mode="json", by_alias=True)
    try:
        same = kind.model_validate_json(orjson.dumps(dumped)) == value
    except ValueError as error:
        raise NoWireForm(f"is a {kind.__name__}, which cannot read the JSON that it writes: {error}") from None
    if not same:
        raise NoWireForm(f"is a {kind.__name__} that does not come back equal from its JSON; correct the model, or send a dict")
    return dumped


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise NoWireForm(f"a name must be a string, not {type(value).__name__}")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NoWireForm("contains a lone surrogate, which is not a Unicode character") from None
    return text


def _integer(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise NoWireForm("is longer than 64 bits")
    return int(value)


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise NoWireForm("is NaN or infinite")
    return float(value)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise NoWireForm("is NaN or infinite")
    return str(value)


def _datetime(value: datetime) -> str:
    if value.tzinfo is None:
        raise NoWireForm("is a time without a time zone")
    try:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise NoWireForm("lies outside of the years 1 to 9999 in UTC") from None


def _time(value: time) -> str:
    if value.tzinfo is not None:
        raise NoWireForm("is a time of day with a zone, whose offset depends on the date")
    return value.isoformat()


def _duration(value: timedelta) -> str:
    size = abs(value)
    return f"{'-' if value < timedelta() else ''}P{size.days}DT{size.seconds}.{size.microseconds:06}S"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(value).decode()


_SCALARS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (Enum, lambda value: to_wire(value.value)),  # before int and str, which its members may be as well
    (str, _text),
    (int, _integer),
    (float, _float),
    (bytes | bytearray | memoryview, _bytes),
    (Decimal, _decimal),
    (datetime, _datetime),  # before date, which it is as well
    (date, date.isoformat),
    (time, _time),
    (timedelta, _duration),
    (UUID, str),
)


JSON: Final = ("Content-Type", "application/json")
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)  # wider than names are: the server knows which there are
STALE: Final = "?consistency=stale"
SESSION: Final = "Cmdlog-Session"
SCALARS: Final = (int, float, str, bool, type(None))


class Effect(Enum):
    """What a second sending of a request can do."""

    READS = "it changes nothing"
    KEYED = "its key or number makes the second one a repetition"
    ONCE = "it would be done twice"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Of a call, path and headers follow from procedure, name and durability."""

    method: str
    path: str
    effect: Effect
    body: bytes = b""
    procedure: str = ""
    key: CallName | None = None  # by which a retry of the call is known
    durability: Durability | None = None
    declared: Procedure | None = None  # whose codec reads the result
    stale: bool = False  # whatever the server has will do; a batch has no such lines

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of this request alone."""
        headers = [JSON] if self.body else []
        key = self.key
        if isinstance(key, NumberedCall):
            headers.append((SESSION, key.header()))
        elif key is not None:
            headers.append(("Idempotency-Key", key))
        if self.durability is not None:
            headers.append(("Prefer", f"durability={self.durability}"))
        return headers

    def line(self, session: ClientSession | None = None) -> bytes:
        """The call as a line of /v1/batch, without the newline; `session` is the one that the request's header names."""
        key = self.key
        if isinstance(key, NumberedCall):
            more = b',"number":%d' % key.number
            if (own := key.session) is not session:
                more += b',"session":"%b","floor":%d' % (own.uuid.encode(), own.floor)
        else:
            more = b"" if key is None else b',"key":' + orjson.dumps(key)
        if self.durability is not None:
            more += b',"durability":"%b"' % self.durability.encode()
        return b'{"procedure":"%b","params":%b%b}' % (self.procedure.encode(), self.body, more)

    def under(self, key: CallName) -> Ask:
        """The same call under another key or number."""
        return replace(self, key=key)


def call_ask(
    name: str,
    params: Mapping[str, Any],
    *,
    key: CallName | None,
    reads: bool = False,
    stale: bool = False,
    durability: Durability | None = None,
    declared: Procedure | None = None,
) -> Ask:
    """One call. Raises: InvalidParameters, UnknownProcedure."""
    effect = Effect.READS if reads else Effect.ONCE if key is None else Effect.KEYED
    path = _call_path(name) + (STALE if stale else "")
    return Ask("POST", path, effect, encode_params(params), name, key, durability, declared, stale)


def session_of(asks: Sequence[Ask]) -> ClientSession | None:
    """The session that a request of these calls names in its header: that of the first one that has any."""
    return next((ask.key.session for ask in asks if isinstance(ask.key, NumberedCall)), None)


@lru_cache(1024)
def _call_path(name: str) -> str:
    """Raises: UnknownProcedure."""
    if not NAME.fullmatch(name):
        raise UnknownProcedure(f"there is no procedure {name!r}")
    return f"/v1/procedures/{name}"


def query_ask(sql: str, params: QueryParameters, partition: int | None, consistency: Consistency | None = None) -> Ask:
    """A SELECT. Raises: InvalidParameters."""
    given = read_parameters(params)
    places = given.items() if isinstance(given, dict) else enumerate(given)
    wrong = [place for place, value in places if not _scalar(value)]
    if wrong:
        raise InvalidParameters(
            problems=[(f"params[{place}]", "must be a number, a string, a boolean or None") for place in wrong]
        )
    body = orjson.dumps({"sql": sql, "params": given, "partition": partition})
    return Ask("POST", "/v1/query" + (STALE if consistency == "stale" else ""), Effect.READS, body)


def _scalar(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0.0  # neither NaN nor infinite
    return isinstance(value, SCALARS) and (not isinstance(value, int) or -(1 << 63) <= value < 1 << 63)


def read_ask(path: str) -> Ask:
    """Something to look at."""
    return Ask("GET", path, Effect.READS)


READY: Final = read_ask("/readyz")
SNAPSHOT: Final = Ask("POST", "/v1/snapshots", Effect.ONCE)
POINT: Final = Ask("POST", "/v1/snapshots", Effect.ONCE, b'{"consistent":true}')
"""Taking a snapshot now: twice is harmless, and yet not what was asked for."""


MEMBERS: Final = read_ask("/v1/cluster/members")


def change_ask(kind: str, node: int, options: Mapping[str, Any]) -> Ask:
    """A change of a cluster's members. Once it is done or under way, asking again does nothing more."""
    return Ask("POST", f"/v1/cluster/members/{node}/{kind}", Effect.KEYED, orjson.dumps(options))


def deploy_ask(options: Mapping[str, Any]) -> Ask:
    """Other code. The same code twice is deployed once; a rollback twice would not be."""
    effect = Effect.ONCE if options.get("rollback") else Effect.KEYED
    code = {"bundle": orjson.Fragment(options["bundle"].to_bytes())} if "bundle" in options else {}
    return Ask("POST", "/v1/deploy", effect, orjson.dumps({**options, **code}))


def recovery_ask(options: Mapping[str, Any]) -> Ask:
    """Continuing without a majority; the same holds."""
    return Ask("POST", "/v1/cluster/unsafe-recover", Effect.KEYED, orjson.dumps(options))


def end_session_ask(uuid: str) -> Ask:
    """No more calls are made in a session. Once it has ended, ending it does nothing more."""
    return Ask("DELETE", f"/v1/sessions/{uuid}", Effect.KEYED)


def cancel_copy_ask(node: int) -> Ask:
    """Ends a copy; a second one would find none."""
    return Ask("DELETE", f"/v1/cluster/copies/{node}", Effect.ONCE)
