"""Requests as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from cmdlog.client.client_base import as_declared
from cmdlog.client.request import DEPTH_MAX, Effect, NoWireForm, call_ask, encode_params, is_json, query_ask, to_wire
from cmdlog.errors import InvalidParameters, UnknownProcedure
from procedures import Database, Transaction
from procedures.wire.type_codecs import codec_for


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


class Colour(enum.Enum):
    """An enumeration of an application."""

    RED = "red"


class Size(enum.IntEnum):
    """One whose members are integers as well."""

    BIG = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A value of an application."""

    x: int
    label: str | None = None


class Letter(BaseModel):
    """A model of an application."""

    text: str
    sent: date = date(2026, 1, 31)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (None, None),
        (True, True),
        (-(1 << 63), -(1 << 63)),
        (0.5, 0.5),
        ("ä", "ä"),
        (b"\0\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), "2026-01-31T12:00:00Z"),
        (date(2026, 1, 31), "2026-01-31"),
        (time(8, 30), "08:30:00"),
        (timedelta(days=-1, seconds=1), "-P0DT86399.000000S"),
        (Letter(text="a"), {"text": "a", "sent": "2026-01-31"}),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Size.BIG, 2),
        (Point(1), {"x": 1, "label": None}),
        ((1, [Point(2, "b")]), [1, [{"x": 2, "label": "b"}]]),
        ({"a": {"b": Decimal(1)}}, {"a": {"b": "1"}}),
    ],
)
def test_value_has_one_wire_form(value: Any, wire: Any) -> None:
    """Every type of the contract has the form that WRITING.md states."""
    assert to_wire(value) == wire
    assert orjson.loads(encode_params({"v": value})) == {"v": wire}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        Decimal("-Infinity"),
        1 << 63,
        -(1 << 63) - 1,
        "\ud800",
        datetime(2026, 1, 31, tzinfo=None),  # noqa: DTZ001 - a time without its zone is what is refused
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        {1, 2},
        object(),
        {1: "a"},
        {"\udfff": 1},
        Point,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_exact_form_is_refused(value: Any) -> None:
    """Nothing is bent to fit: the error names the field, and other fields are not blamed."""
    with pytest.raises(InvalidParameters) as refused:
        encode_params({"good": 1, "bad": value, "worse": [value]})
    assert [field for field, _ in refused.value.problems] == ["bad", "worse"]


def test_nesting_is_bounded() -> None:
    """A value inside itself is refused instead of followed for ever; the deepest that the server takes passes."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NoWireForm):
        to_wire(loop)
    deep: Any = 1
    for _ in range(DEPTH_MAX):
        deep = [deep]
    assert to_wire(deep) == deep
    with pytest.raises(NoWireForm):
        to_wire([deep])


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (bytes, st.binary(max_size=40)),
        (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=5)),
        (datetime, st.datetimes(timezones=st.just(UTC))),
        (date, st.dates()),
        (UUID, st.uuids()),
        (int, st.integers(-(1 << 63), (1 << 63) - 1)),
        (float, st.floats(allow_nan=False, allow_infinity=False)),
        (str, st.text()),
        (list[bytes], st.lists(st.binary(max_size=5), max_size=5)),
        (dict[str, Decimal], st.dictionaries(st.text(max_size=5), st.decimals(-100, 100, places=2), max_size=3)),
        (Point, st.builds(Point, st.integers(0, 9), st.none() | st.text(max_size=3))),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_server_reads_what_the_client_writes(hint: Any, values: st.SearchStrategy[Any]) -> None:
    """For every hint, the codec that checks requests takes the client's form as it is and gives the value back."""
    codec = codec_for(hint)

    @given(values)
    def run(value: Any) -> None:
        wire = orjson.loads(encode_params({"v": value}))["v"]
        assert codec.to_wire(wire) == wire
        assert codec.from_wire(wire) == value

    run()


@given(st.timedeltas(timedelta(days=-106_751_991), timedelta(days=106_751_991)))
def test_the_server_reads_every_duration(value: timedelta) -> None:
    """What is sent is one of the spellings that the server takes for the same duration."""
    codec = codec_for(timedelta)
    assert codec.from_wire(codec.to_wire(to_wire(value))) == value


@dataclass(frozen=True)
class Cents:
    """Changes its amount whenever it is made."""

    amount: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", self.amount * 100)


@dataclass(frozen=True)
class Trimmed:
    """Comes to rest."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())


class Doubling(BaseModel):
    """Changes its amount whenever it is read."""

    amount: int

    @field_validator("amount")
    @classmethod
    def double(cls, amount: int) -> int:
        """Each time."""
        return 2 * amount


@pytest.mark.parametrize(("value", "said"), [(Cents(5), "whose amount is another"), (Doubling(amount=1), "come back equal")])
def test_object_that_the_server_would_make_another_of_is_refused(value: Any, said: str) -> None:
    """By a client that knows no declaration, too, and inside of lists."""
    for placed in (value, [value], {"a": value}):
        with pytest.raises(InvalidParameters, match=said):
            encode_params({"price": placed})
    assert encode_params({"price": {"amount": 5}}) == b'{"price":{"amount":5}}'
    assert encode_params({"price": Trimmed(" a ")}) == b'{"price":{"text":"a"}}'


def test_json_goes_as_it_is_given() -> None:
    """A declaration adds no default to it, and blames an object that would come back changed."""

    def put(tx: Transaction, price: Cents, order: Trimmed) -> None:
        """Takes two."""

    db = Database("declared")
    db.procedure(partition_by=None)(put)
    declared = db.procedures["put"]
    given = {"price": {"amount": 5}, "order": Trimmed("a")}
    assert as_declared(declared, given) == {"price": {"amount": 5}, "order": {"text": "a"}}
    with pytest.raises(InvalidParameters, match="price: Cents does not come back equal"):
        as_declared(declared, {"price": Cents(5)})
    assert [is_json(value) for value in (1.5, [{"a": [None]}], (1,), {1: 2}, [Decimal(1)])] == [True, True, False, False, False]
