"""What a caller sent as a number: the same for equal JSON, whatever the types make of it, and for objects as they were given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import orjson
import pytest
from pydantic import BaseModel, Field

from procedures import Database, Transaction
from procedures.execution.batch_attempt import CallRequests
from procedures.execution.invocations import Invocations
from procedures.native import accelerator
from procedures.wire.sent_request import SentParameters, SentSignature, call_text, given_hash

made = itertools.count()


class Size(Enum):
    """Two."""

    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Order:
    """With a default of each kind."""

    item: str
    no: str = field(default_factory=lambda: f"made {next(made)}")
    note: str = ""
    tags: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=lambda: [*()])


class Model(BaseModel):
    """The same, of pydantic."""

    item: str = Field(alias="Item")
    no: str = Field(default_factory=lambda: f"made {next(made)}")


class Point(NamedTuple):
    """Has gained a field."""

    x: int
    y: int = 0


def place(tx: Transaction, name: str, order: Order | None = None, rate: float = 1.0, size: Size = Size.SMALL) -> None:
    """Takes some of everything."""


db = Database("sent")
db.procedure(partition_by="name")(place)
BIND = db.procedures["place"].bind


def request_of(given: Mapping[str, Any]) -> int:
    """What the log says of a call with these parameters, told as the log tells it."""
    params = BIND(given)
    sent = [params.request()] if isinstance(params, SentParameters) else ()
    batch = Invocations(1, 1, 0, 1, [1], [0], [orjson.loads(orjson.dumps(params))], [bytes(16)], sent=sent)
    return CallRequests(db.procedure_list, {}).hash_of(batch, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"name":"n","order":{"item":"a","note":"b"}}', '{ "order" : {"note":"b", "item":"\\u0061"}, "name":"n"}'),
        ('{"name":"n","rate":1}', '{"name":"n","rate":1.0}'),
        ('{"name":"n","rate":-0.0}', '{"name":"n","rate":0}'),
        ('{"name":"n","rate":1e2}', '{"name":"n","rate":100}'),
        ('{"name":"n","order":null,"rate":2,"size":"s"}', '{"size":"s","rate":2.0,"order":null,"name":"n"}'),
        ('{"name":"1.0"}', '{"name":"1.0"}'),
    ],
)
def test_equal_json_is_one_request(one: str, other: str) -> None:
    """Order of members, white space, escapes and the spelling of numbers say nothing."""
    assert request_of(orjson.loads(one)) == request_of(orjson.loads(other))


@pytest.mark.parametrize(
    "other",
    [
        {"name": "n", "order": {"item": "b"}},
        {"name": "n", "order": {"item": "a", "note": ""}},
        {"name": "n", "order": {"item": "a"}, "rate": 1.0},
        {"name": "n", "order": None},
        {"name": "n"},
    ],
    ids=str,
)
def test_other_json_is_another_request(other: dict[str, Any]) -> None:
    """A member that is given is not one that is left out, even with the value of its default."""
    assert request_of(other) != request_of({"name": "n", "order": {"item": "a"}})


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (Order("a"), {"item": "a"}),
        (Order("a", note="b"), {"item": "a", "note": "b"}),
        (Order("a", parts=[1]), {"item": "a", "parts": [1]}),
        (Model(Item="a"), {"Item": "a"}),
        (Model(Item="a", no="1"), {"Item": "a", "no": "1"}),
        ([Order("a"), Model(Item="b")], [{"item": "a"}, {"Item": "b"}]),
        (Point(1), [1]),
        (Point(1, 2), [1, 2]),
        ({2, 1}, [1, 2]),
        (Size.LARGE, "l"),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (b"\0", "AA=="),
    ],
    ids=str,
)
def test_object_is_what_it_was_given(given: Any, sent: Any) -> None:
    """Its defaults are left out, so that it is the request that says the same in JSON."""
    assert given_hash("place", {"it": given}) == given_hash("place", {"it": sent})


def test_value_without_a_form_counts_as_it_is_logged() -> None:
    """A class of the caller's own, which a codec has written, and orjson could not."""
    one, other = (SentParameters("place", ("at",), {"at": object()}, [wire]) for wire in ("a", "b"))
    assert one.request() == given_hash("place", {"at": "a"}) != other.request()


def test_only_what_was_sent_otherwise_is_marked() -> None:
    """Parameters that are as they were sent need no mark: the log has them."""
    assert call_text(BIND({"name": "n", "order": None, "rate": 2.5, "size": "s"})) == b'["n",null,2.5,"s"]'
    for given in ({"name": "n"}, {"name": "n", "order": None, "rate": 2, "size": "s"}):
        text = call_text(BIND(given))
        assert text[-16:] == b"%016x" % given_hash("place", given)
        assert orjson.loads(text[:-16]) == BIND(given)


@pytest.mark.skipif(accelerator is None, reason="the engine's module in C is not built here")
def test_both_ways_to_bind_mark_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step in C, and the Python beside it."""
    monkeypatch.setattr("procedures.declaration.procedure.accelerator", None)
    python = Database("plain")
    python.procedure(partition_by="name")(place)
    for given in (
        {"name": "n", "order": None, "rate": 2.5, "size": "s"},
        {"name": "n", "order": {"item": "a"}, "rate": 2.5, "size": "s"},
        {"name": "n", "order": None, "rate": 2, "size": Size.SMALL},
        {"name": "é"},
    ):
        found = [type(bind(given)) is SentParameters for bind in (BIND, python.procedures["place"].bind)]
        assert found[0] == found[1] == (given != {"name": "n", "order": None, "rate": 2.5, "size": "s"})


def test_hash_is_for_ever() -> None:
    """It is stored with outcomes: a golden number."""
    assert SentSignature.of("move", ("target", "amount")).hash_of([2, 1.0]) == given_hash("move", {"amount": 1, "target": 2})
    assert given_hash("move", {"amount": 1, "target": 2}) == GOLDEN


GOLDEN = 13290326988201611455
