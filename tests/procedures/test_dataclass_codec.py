"""Frozen dataclasses and named tuples on the wire: what is left out, what is too much, and what is no object of the class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pydantic
import pytest
from pydantic import Field

from procedures.wire.scalar_codecs import NotRepeatable, WireError
from procedures.wire.sent_request import given_hash
from procedures.wire.type_codecs import codec_for

counted: list[int] = []


def count() -> int:
    """One more each time."""
    counted.append(len(counted))
    return counted[-1]


@dataclass(frozen=True)
class Plain:
    """Two defaults, one of them made."""

    item: str
    note: str = ""
    number: int = field(default_factory=count)


@dataclass(frozen=True)
class More(Plain):
    """Adds to it."""

    more: int = 2


class Pair(NamedTuple):
    """Two fields."""

    left: int
    right: str = ""


@pydantic.dataclasses.dataclass(frozen=True)
class Checked:
    """A dataclass of pydantic, with defaults of each kind."""

    size: int = Field(gt=0)
    note: str = Field(default="n")
    number: int = Field(default_factory=count)
    parts: list[int] = field(default_factory=list)


@pydantic.dataclasses.dataclass(frozen=True)
class Following:
    """One field's default is made of another field, which only pydantic can."""

    first: int
    last: int = Field(default_factory=lambda data: data["first"])


def test_defaults_are_made_once_and_only_where_they_are_left_out() -> None:
    """In the order of the fields, whatever that of the caller."""
    counted.clear()
    codec = codec_for(Plain)
    assert codec.to_wire({"note": "n", "item": "a"}) == {"item": "a", "note": "n", "number": 0}
    assert list(codec.to_wire({"number": 7, "item": "a"})) == ["item", "note", "number"]
    assert counted == [0]


def test_last_elements_of_a_named_tuple_may_be_left_out() -> None:
    """Those with a default, so that a type may gain a field."""
    assert codec_for(Pair).to_wire([1]) == [1, ""]
    assert codec_for(list[Pair]).to_wire([[1], [2, "b"], Pair(3)]) == [[1, ""], [2, "b"], [3, ""]]
    assert codec_for(Pair).schema["minItems"] == 1


def test_defaults_of_a_dataclass_of_pydantic_are_its_own() -> None:
    """Stated by `field` or `Field`, made or not; what has none is missing."""
    counted.clear()
    codec = codec_for(Checked)
    assert codec.to_wire({"size": 2}) == {"size": 2, "note": "n", "number": 0, "parts": []}
    with pytest.raises(WireError, match="missing field size"):
        codec.to_wire({})
    with pytest.raises(WireError, match="missing field last"):
        codec_for(Following).to_wire({"first": 1})
    assert given_hash("place", {"it": Checked(size=2)}) == given_hash("place", {"it": {"size": 2}})


@pytest.mark.parametrize(
    ("hint", "given", "said"),
    [
        (Plain, {}, "missing field item"),
        (Plain, {"item": "a", "price": 1, "size": 2}, "unknown field price, size"),
        (Plain, {"item": 1}, ".item: expected a string"),
        (Plain, [], "expected an object"),
        (Pair, [], "expected an array of 2"),
        (Pair, Pair("x"), "expected an integer"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_object_of_the_class_is_refused(hint: Any, given: Any, said: str) -> None:
    """With the field."""
    with pytest.raises(WireError) as refused:
        codec_for(hint).to_wire(given)
    assert said in str(refused.value)


def test_object_of_a_subclass_is_refused() -> None:
    """It would come back without what it adds."""
    with pytest.raises(NotRepeatable, match="expected Plain, got its subclass More"):
        codec_for(list[Plain]).to_wire([More("a", number=1)])
