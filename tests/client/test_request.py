"""Requests as values."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cmdlog.client.request import Effect, call_ask, query_ask
from cmdlog.errors import InvalidParameters, UnknownProcedure


@pytest.mark.parametrize("durability", [None, "sync", "async"])
@pytest.mark.parametrize("key", [None, "k", 'quote"and\\back'])
def test_line_says_what_the_request_says(key: str | None, durability: Any) -> None:
    """A call on a line of a batch is the same call as alone: procedure, parameters, key, promise."""
    ask = call_ask("bump", {"id": 1, "text": "ä\n"}, key=key, durability=durability)
    line = ask.line()
    assert b"\n" not in line
    told = orjson.loads(line)
    assert told.pop("procedure") == "bump"
    assert ask.path == "/v1/procedures/bump"
    assert told.pop("params") == orjson.loads(ask.body) == {"id": 1, "text": "ä\n"}
    headers = dict(ask.headers)
    assert told.pop("key", None) == headers.pop("Idempotency-Key", None) == key
    assert told.pop("durability", None) == (headers.pop("Prefer", "").partition("=")[2] or None) == durability
    assert (told, headers) == ({}, {"Content-Type": "application/json"})


def test_effect_follows_from_key_and_kind() -> None:
    """What only reads may be repeated freely, what has a key under it, the rest not."""
    assert call_ask("bump", {}, key="k").effect is Effect.KEYED
    assert call_ask("bump", {}, key=None).effect is Effect.ONCE
    assert call_ask("peek", {}, key=None, reads=True).effect is Effect.READS
    assert query_ask("select 1", [], None).effect is Effect.READS


def test_stale_read_says_so_in_its_address() -> None:
    """It may be repeated freely, and is no line of a batch."""
    ask = call_ask("peek", {}, key=None, reads=True, stale=True)
    assert (ask.path, ask.stale, ask.effect) == ("/v1/procedures/peek?consistency=stale", True, Effect.READS)
    assert query_ask("select 1", [], None, "stale").path == "/v1/query?consistency=stale"
    assert query_ask("select 1", [], None, "linearizable").path == "/v1/query"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a b", "é", "a%2fb", "x" * 201, "a\n"])
def test_name_that_no_address_can_hold_is_unknown(name: str) -> None:
    """It cannot be a procedure's, and it is not sent where it might mean another route."""
    with pytest.raises(UnknownProcedure):
        call_ask(name, {}, key=None)


@pytest.mark.parametrize("value", [b"x", [1], {}, float("nan"), float("inf"), 1 << 63, object()])
def test_query_takes_scalars_alone(value: Any) -> None:
    """Of anything else it is not known how the procedures stored it."""
    with pytest.raises(InvalidParameters) as refused:
        query_ask("select ?", [1, value], None)
    assert [field for field, _ in refused.value.problems] == ["params[1]"]
    assert orjson.loads(query_ask("select ?", (1, "a", None, 0.5, True), 2).body) == {
        "sql": "select ?", "params": [1, "a", None, 0.5, True], "partition": 2
    }  # fmt: skip
