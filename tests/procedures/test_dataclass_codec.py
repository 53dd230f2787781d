"""Frozen dataclasses and named tuples on the wire: what is left out, what is too much, and what is no object of the class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from procedures.wire.scalar_codecs import NotRepeatable, WireError
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


def test_defaults_are_made_once_and_only_where_they_are_left_out() -> None:
    """In the order of the fields, whatever that of the caller."""
    counted.clear()
    codec = codec_for(Plain)
    assert codec.to_wire({"note": "n", "item": "a"}) == {"item": "a", "note": "n", "number": 0}
    assert list(codec.to_wire({"number": 7, "item": "a"})) == ["item", "note", "number"]
    assert counted == [0]


@pytest.mark.parametrize(
    ("hint", "given", "said"),
    [
        (Plain, {}, "missing field item"),
        (Plain, {"item": "a", "price": 1, "size": 2}, "unknown field price, size"),
        (Plain, {"item": 1}, ".item: expected a string"),
        (Plain, [], "expected an object"),
        (Pair, [1], "expected an array of 2"),
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
