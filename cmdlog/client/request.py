"""Requests as values: what is sent, and whether sending it twice can do harm. No socket here.

One rule: the body is encoded once. A retry sends the same bytes under the same key or number, or it would be another call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from cmdlog.client.session import CallName, ClientSession, NumberedCall
from cmdlog.client.wire_values import encode_params
from cmdlog.errors import InvalidParameters, UnknownProcedure
from cmdlog.procedure_calls import Consistency, Durability, QueryParameters, read_parameters

if TYPE_CHECKING:
    from procedures.declaration.procedure import Procedure

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
