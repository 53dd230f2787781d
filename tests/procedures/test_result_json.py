"""Results as JSON: of annotations that say nothing exact, by the types of the values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from procedures.wire.result_json import encode_any, encoder_for
from procedures.wire.scalar_codecs import WireError


class Card(BaseModel):
    """A model, whose members are not in the order of their names."""

    until: date
    amounts: list[Decimal] = []


class Hidden(BaseModel):
    """A model that does not come back from its JSON."""

    secret: SecretStr


class Tags(BaseModel):
    """A model with a set."""

    tags: set[str]


@dataclass(frozen=True)
class Visit:
    """A dataclass with types of the second version."""

    length: timedelta
    card: Card


CARD = Card(until=date(2030, 1, 31), amounts=[Decimal("1.50")])
CARD_JSON = b'{"amounts":["1.50"],"until":"2030-01-31"}'


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (timedelta(minutes=90), b'"PT1H30M"'),
        (time(9, 30), b'"09:30:00"'),
        (CARD, CARD_JSON),
        ([Visit(timedelta(0), CARD)], b'[{"length":"PT0S","card":' + CARD_JSON + b"}]"),
        ({"z": CARD, "a": (timedelta(seconds=-1),)}, b'{"z":' + CARD_JSON + b',"a":["-PT1S"]}'),
    ],
)
def test_values_have_the_form_of_their_hints(value: Any, body: bytes) -> None:
    """Without an annotation a value is written as with its own type as the annotation."""
    assert encode_any(value) == body
    assert encoder_for(type(value))[0](value) == body


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, "result: set has no JSON form; return a list, sorted"),
        (object(), "result: object has no JSON form; return numbers, texts"),
        (time(9, tzinfo=UTC), "result: expected a time of day without a zone"),
        (Hidden(secret=SecretStr("x")), "result: Hidden does not come back equal"),
        (Tags(tags={"a"}), "result: Tags holds a set"),
    ],
)
def test_values_without_a_form_are_refused_by_name(value: Any, said: str) -> None:
    """The sentence says what to return instead, wherever the value is."""
    for whole in (value, {"in": [value]}):
        with pytest.raises(WireError, match=said):
            encode_any(whole)
