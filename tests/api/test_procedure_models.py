"""Models of procedures: real models of pydantic, which take and write exactly what the gate does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field, ValidationError

from cmdlog.api.routes.procedure_models import answer_model, parameters_model
from cmdlog.node.slot_map import make_routes
from procedures import Database, InvalidParameters, Transaction

db = Database("procedure_models")
Cents = NewType("Cents", int)


class Size(Enum):
    """A few values."""

    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True)
class Part:
    """A part of an order."""

    item: int
    price: Decimal = Decimal("1.50")
    marks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plain:
    x: int  # without a docstring: `dataclass` generates one, which says nothing


class Options(TypedDict):
    """Some options."""

    gift: bool
    note: NotRequired[str]


class Place(NamedTuple):
    """Where to."""

    street: str
    number: int


class Card(BaseModel):
    """A model of the application's own."""

    number: str = Field(min_length=4)
    until: date


@db.procedure(partition_by="item")
def order(  # noqa: PLR0917 - one of each
    tx: Transaction,
    item: int,
    parts: list[Part],
    options: Options,
    place: Place,
    card: Card,
    raw: bytes,
    by_day: dict[str, Plain],
    count: Annotated[int, Field(gt=0)],
    at: datetime,
    of_day: time | None = None,
    wait: timedelta = timedelta(hours=1),
    size: Size = Size.SMALL,
    cents: Cents = Cents(5),
    kind: Literal["new", 2] = "new",
    anything: Any = None,
    _hidden: int = 1,
    json: str = "",
) -> tuple[Part, timedelta]:
    """Orders parts."""
    return parts[0], wait


@db.procedure(partition_by=None, read_only=True)
def parts_of(tx: Transaction) -> Card | None:
    """On every partition."""
    return None


ROUTES = make_routes(db)
ORDER = ROUTES["order"].procedure
GIVEN: dict[str, Any] = {
    "item": 7,
    "parts": [{"item": 1}, {"item": 2, "price": "3.10", "marks": ["a"]}],
    "options": {"gift": True},
    "place": ["Lane", 3],
    "card": {"number": "1234", "until": "2030-01-31"},
    "raw": "AP8=",
    "by_day": {"mon": {"x": 1}},
    "count": 3,
    "at": "2026-01-31T14:00:00+02:00",
    "_hidden": 4,
    "json": "text",
}


def test_model_gives_the_values_that_the_procedure_gets() -> None:
    """A request that is validated by the model becomes Python's values, defaults included, and is dumped as the log has it."""
    held = parameters_model(ORDER).model_validate(GIVEN)
    wire = ORDER.bind(GIVEN)
    assert ORDER.decode is not None
    assert [getattr(held, name) for name in type(held).model_fields] == ORDER.decode(wire)
    assert held.model_dump(by_alias=True, mode="json") == dict(zip(ORDER.parameter_names, wire, strict=True))
    assert held.parts == [Part(1), Part(2, Decimal("3.10"), ["a"])]  # type: ignore[attr-defined]  # made at run time
    assert held.at == datetime(2026, 1, 31, 12, tzinfo=UTC)  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("item", "7"),
        ("item", 1 << 63),
        ("count", 0),
        ("parts", [{"item": 1, "more": 2}]),
        ("options", {}),
        ("place", ["Lane"]),
        ("card", {"number": "1", "until": "2030-01-31"}),
        ("raw", "AP8"),
        ("at", "2026-01-31T14:00:00"),
        ("unknown", 1),
    ],
)
def test_model_refuses_what_the_gate_refuses(name: str, value: Any) -> None:
    """Neither is looser than the other, where pydantic alone would convert."""
    misfit = {**GIVEN, name: value}
    with pytest.raises(InvalidParameters):
        ORDER.bind(misfit)
    with pytest.raises(ValidationError):
        parameters_model(ORDER).model_validate(misfit)


def test_schema_describes_the_form_of_json() -> None:
    """Each type is described by its wire form, objects as definitions of their own, parameters by their own names."""
    schema = parameters_model(ORDER).model_json_schema()
    members, models = schema["properties"], schema["$defs"]
    assert list(members) == list(ORDER.parameter_names)
    assert schema["required"] == [parameter.name for parameter in ORDER.parameters if parameter.required]
    assert models.keys() == {"Part", "Options", "Card", "Plain", "Size"}
    assert members["parts"]["items"] == {"$ref": "#/$defs/Part"}
    assert models["Part"]["properties"]["price"] == {"type": "string", "format": "decimal", "title": "Price", "default": "1.50"}
    assert (models["Part"]["required"], models["Part"]["description"]) == (["item"], "A part of an order.")
    assert "description" not in models["Plain"]
    assert (models["Options"]["required"], models["Options"]["additionalProperties"]) == (["gift"], False)
    assert [part["type"] for part in members["place"]["prefixItems"]] == ["string", "integer"]
    assert members["count"]["exclusiveMinimum"] == 0
    assert (members["wait"]["format"], members["wait"]["default"]) == ("duration", "PT1H")
    assert members["size"] == {"$ref": "#/$defs/Size", "default": "small"}
    assert {name: members[name]["type"] for name in ("raw", "at", "cents")} == {
        "raw": "string",
        "at": "string",
        "cents": "integer",
    }


def test_answers_are_models_of_results() -> None:
    """What a server answers is validated into the types of the annotation; on all partitions it is a list."""
    held: Any = answer_model(ROUTES["order"]).model_validate({"txn_id": "9", "partition": 0, "result": [{"item": 1}, "PT5S"]})
    assert held.result == (Part(1), timedelta(seconds=5))
    everywhere: Any = answer_model(ROUTES["parts_of"])
    card = {"number": "1234", "until": "2030-01-31"}
    assert everywhere.model_validate({"txn_id": "9", "partition": None, "result": [card, None]}).result == [
        Card(number="1234", until=date(2030, 1, 31)),
        None,
    ]
    with pytest.raises(ValidationError):
        everywhere.model_validate({"txn_id": "9", "partition": 1, "result": []})
