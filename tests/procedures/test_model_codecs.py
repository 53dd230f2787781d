"""Pydantic's types on the wire: exact, canonical, repeatable."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Annotated, Any
from uuid import uuid4

import orjson
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FutureDate,
    PrivateAttr,
    SecretStr,
    field_serializer,
    field_validator,
)

from procedures import Database, DefinitionError, InvalidParameters, Transaction
from procedures.wire.scalar_codecs import NotRepeatable, WireError
from procedures.wire.type_codecs import codec_for


class Line(BaseModel):
    """One line of an order."""

    item: int = Field(gt=0)
    price: Decimal
    note: str | None = None


class Order(BaseModel):
    """An order with everything that models are used for."""

    model_config = ConfigDict(extra="forbid")
    customer: str = Field(alias="customerName")
    lines: list[Line]
    due: date | None = None
    extra: dict[str, Any] = {}

    @field_validator("customer")
    @classmethod
    def trimmed(cls, value: str) -> str:
        """A validator that changes the value."""
        return value.strip()


class Strict(BaseModel):
    """Takes Python's types alone, and texts of JSON for what JSON has no type for."""

    model_config = ConfigDict(strict=True)
    when: datetime
    count: int


TICKETS = itertools.count(1)


class Ticket(BaseModel):
    """Numbered by a factory, which gives another number whenever it is asked."""

    number: int = Field(default_factory=lambda: next(TICKETS))


class Secret(BaseModel):
    """Does not show what it holds."""

    password: SecretStr


class Tree(BaseModel):
    """Contains itself."""

    children: list[Tree]


def test_models_come_back_equal_through_json() -> None:
    """Model → wire → JSON → wire → model is the identity; from an instance and from JSON the bytes are the same."""
    codec = codec_for(Order)
    given = {"customerName": " Ann ", "lines": [{"price": "1.50", "item": 1}], "due": "2026-01-31", "extra": {"b": 1, "a": []}}
    order = Order(customerName="Ann", lines=[Line(item=1, price=Decimal("1.50"))], due=date(2026, 1, 31), extra={"a": [], "b": 1})
    wire = orjson.dumps(codec.to_wire(given))
    assert wire == orjson.dumps(codec.to_wire(order))
    assert wire == (
        b'{"customerName":"Ann","due":"2026-01-31","extra":{"a":[],"b":1},"lines":[{"item":1,"note":null,"price":"1.50"}]}'
    )
    assert codec.from_wire(orjson.loads(wire)) == order


def test_misfits_are_named_by_place() -> None:
    """What pydantic refuses is refused with pydantic's words and the field's place."""
    with pytest.raises(WireError, match=r"\.lines\[0\]\.item: .*greater than 0"):
        codec_for(Order).to_wire({"customerName": "a", "lines": [{"item": 0, "price": "1"}]})
    with pytest.raises(WireError, match=r"\.other"):
        codec_for(Order).to_wire({"customerName": "a", "lines": [], "other": 1})


def test_strict_models_read_json_as_json() -> None:
    """A strict model takes a time as text from JSON, and no number as text."""
    codec = codec_for(Strict)
    wire = codec.to_wire({"when": "2026-01-31T12:00:00Z", "count": 1})
    assert codec.from_wire(wire) == Strict(when=datetime(2026, 1, 31, 12, tzinfo=UTC), count=1)
    with pytest.raises(WireError, match="count"):
        codec.to_wire({"when": "2026-01-31T12:00:00Z", "count": "1"})


def test_a_default_is_made_once_before_the_log() -> None:
    """What a factory gave is in the wire form: a replay does not ask the factory again."""
    codec = codec_for(Ticket)
    wire = codec.to_wire({})
    assert codec.from_wire(wire) == codec.from_wire(wire) == Ticket(number=wire["number"])


def test_models_that_hide_a_value_are_refused() -> None:
    """A secret is written as stars, so it could not be repeated."""
    with pytest.raises(WireError, match="come back equal"):
        codec_for(Secret).to_wire(Secret(password=SecretStr("open")))


@pytest.mark.parametrize("hint", [set[int], frozenset[str], FutureDate, Tree, dict[str, set[int]], complex, list[complex]])
def test_types_that_cannot_be_repeated_are_refused(hint: Any) -> None:
    """Sets, comparisons with the clock, complex numbers and models without a bounded depth are refused when declared."""
    with pytest.raises(DefinitionError):
        codec_for(hint)


def test_other_types_of_pydantic_work() -> None:
    """What pydantic writes and reads back is a type of a parameter."""
    codec = codec_for(IPv4Address)
    assert codec.from_wire(codec.to_wire(IPv4Address("10.0.0.1"))) == IPv4Address("10.0.0.1")


def test_constraints_of_annotated_hold_at_the_gate_and_are_described() -> None:
    """`Annotated[int, Field(gt=0)]` refuses 0 with its place, changes what its validators change, and is in the schema."""
    db = Database("bounds")

    @db.procedure(partition_by="item")
    def put(
        tx: Transaction,
        item: Annotated[int, Field(gt=0, le=10)],
        name: Annotated[str, AfterValidator(str.strip)] = "x",
        tags: list[Annotated[str, Field(max_length=2)]] = [],  # noqa: B006 - it is never changed
        *,
        within: timedelta = timedelta(minutes=90),
    ) -> None: ...

    procedure = db.procedures["put"]
    assert procedure.bind({"item": 1, "name": " a "}) == [1, "a", [], "PT1H30M"]
    with pytest.raises(InvalidParameters) as caught:
        procedure.bind({"item": 0, "tags": ["abc"]})
    assert [field for field, _ in caught.value.problems] == ["item", "tags"]
    item = procedure.json_schema()["properties"]["item"]
    assert (item["exclusiveMinimum"], item["maximum"]) == (0, 10)


class OneWay(BaseModel):
    """Writes a date that it does not read."""

    day: date

    @field_serializer("day")
    def write_day(self, day: date) -> str:
        """As people do."""
        return day.strftime("%d.%m.%Y")


class Renamed(BaseModel):
    """Is written under another name than it is read under."""

    item: str = Field(serialization_alias="Item")


class Token(BaseModel):
    """Makes up what no JSON of it says."""

    item: str
    _secret: str = PrivateAttr(default_factory=lambda: str(uuid4()))


class Doubled(BaseModel):
    """Changes what it reads."""

    amount: int

    @field_validator("amount")
    @classmethod
    def double(cls, amount: int) -> int:
        """Each time."""
        return 2 * amount


class Lasting(BaseModel):
    """Holds a duration, which it takes as a number of seconds, too."""

    lasts: timedelta


class Stopping(BaseModel):
    """Fails in its own way."""

    amount: int

    @field_validator("amount")
    @classmethod
    def divide(cls, amount: int) -> int:
        """By nothing."""
        return amount // 0


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (OneWay, {"day": "2026-01-31"}, r"OneWay cannot read the JSON that it writes \(\.day: .*Correct the model"),
        (OneWay, OneWay(day=date(2026, 1, 31)), r"OneWay cannot read the JSON that it writes \(\.day: .*Correct the model"),
        (Renamed, {"item": "a"}, r"Renamed cannot read the JSON that it writes \(\.item: "),
        (Token, {"item": "a"}, "Token does not come back equal from its JSON; its field '_secret' is hidden or bent"),
        (Token, Token(item="a"), "Token does not come back equal from its JSON; its field '_secret' is hidden or bent"),
        (Doubled, {"amount": 2}, "Doubled does not come back equal from its JSON; its field 'amount' is hidden or bent"),
        (Doubled, Doubled(amount=2), "Doubled does not come back equal from its JSON; its field 'amount' is hidden or bent"),
    ],
    ids=str,
)
def test_model_that_goes_one_way_is_blamed(model: type[BaseModel], given: Any, said: str) -> None:
    """The refusal names the model and its field, also inside of a list: the value is not at fault."""
    for hint, value in ((model, given), (list.__class_getitem__(model), [given])):
        with pytest.raises(NotRepeatable, match=said):
            codec_for(hint).to_wire(value)


@pytest.mark.parametrize(
    ("model", "params", "said"),
    [
        (Lasting, {"lasts": "P106751992D"}, "duration of 64 bits"),
        (Lasting, {"lasts": "-P999999999DT1S"}, "magnitude"),
        (Lasting, {"lasts": timedelta.max}, "duration of 64 bits"),
        (Stopping, {"amount": 1}, "ZeroDivisionError"),
    ],
    ids=str,
)
def test_value_at_its_types_limit_is_the_callers(model: type[BaseModel], params: Any, said: str) -> None:
    """Whatever pydantic, or a validator, raises for it: the request is invalid, and nothing of it is logged."""

    def take(tx: Transaction, value: Any) -> None:
        """One."""

    take.__annotations__["value"] = model
    db = Database("limits")
    db.procedure(partition_by=None)(take)
    with pytest.raises(InvalidParameters, match=said):
        db.procedures["take"].bind({"value": params})
