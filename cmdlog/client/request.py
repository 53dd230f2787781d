"""Requests as values: what is sent, and whether sending it twice can do harm. No socket here.

One rule: the body is encoded once. A retry sends the same bytes under the same key, or it would be another call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from cmdlog.client.keys import check_key
from cmdlog.client.wire_values import encode_params
from cmdlog.errors import InvalidParameters, UnknownProcedure
from cmdlog.procedure_calls import Consistency, Durability

if TYPE_CHECKING:
    from procedures.declaration.procedure import Procedure

JSON: Final = ("Content-Type", "application/json")
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)  # wider than names are: the server knows which there are
STALE: Final = "?consistency=stale"
SCALARS: Final = (int, float, str, bool, type(None))


class Effect(Enum):
    """What a second sending of a request can do."""

    READS = "it changes nothing"
    KEYED = "its idempotency key makes the second one a repetition"
    ONCE = "it would be done twice"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Of a call, path and headers follow from name, key and durability."""

    method: str
    path: str
    effect: Effect
    body: bytes = b""
    procedure: str = ""
    key: str | None = None
    durability: Durability | None = None
    declared: Procedure | None = None  # whose codec reads the result
    stale: bool = False  # whatever the server has will do; a batch has no such lines

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of this request alone."""
        headers = [JSON] if self.body else []
        if self.key is not None:
            headers.append(("Idempotency-Key", self.key))
        if self.durability is not None:
            headers.append(("Prefer", f"durability={self.durability}"))
        return headers

    def line(self) -> bytes:
        """The call as a line of /v1/batch, without the newline."""
        more = b"" if self.key is None else b',"key":' + orjson.dumps(self.key)
        if self.durability is not None:
            more += b',"durability":"%b"' % self.durability.encode()
        return b'{"procedure":"%b","params":%b%b}' % (self.procedure.encode(), self.body, more)

    def under(self, key: str) -> Ask:
        """The same call under another key."""
        return replace(self, key=key)


def call_ask(
    name: str,
    params: Mapping[str, Any],
    *,
    key: str | None,
    reads: bool = False,
    stale: bool = False,
    durability: Durability | None = None,
    declared: Procedure | None = None,
) -> Ask:
    """One call. Raises: InvalidParameters, UnknownProcedure."""
    effect = Effect.READS if reads else Effect.ONCE if key is None else Effect.KEYED
    path = _call_path(name) + (STALE if stale else "")
    return Ask("POST", path, effect, encode_params(params), name, check_key(key), durability, declared, stale)


@lru_cache(1024)
def _call_path(name: str) -> str:
    """Raises: UnknownProcedure."""
    if not NAME.fullmatch(name):
        raise UnknownProcedure(f"there is no procedure {name!r}")
    return f"/v1/procedures/{name}"


def query_ask(sql: str, params: Sequence[Any], partition: int | None, consistency: Consistency | None = None) -> Ask:
    """A SELECT. Raises: InvalidParameters."""
    wrong = [at for at, value in enumerate(params) if not _scalar(value)]
    if wrong:
        raise InvalidParameters(problems=[(f"params[{at}]", "must be a number, a string, a boolean or None") for at in wrong])
    body = orjson.dumps({"sql": sql, "params": list(params), "partition": partition})
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
