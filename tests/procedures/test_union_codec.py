"""Unions: one member per value, known from the wire form alone."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NewType
from uuid import UUID

import pytest
from pydantic import BaseModel

from procedures import DefinitionError
from procedures.wire.scalar_codecs import WireError
from procedures.wire.type_codecs import codec_for


class Shade(enum.Enum):
    """Has texts as values."""

    DARK = "dark"


@dataclass(frozen=True)
class Circle:
    """Told by its field."""

    radius: int


@dataclass(frozen=True)
class Square:
    """Told by its field."""

    side: int


@dataclass(frozen=True)
class Ball:
    """Looks like a circle on the wire."""

    radius: int


class Cat(BaseModel):
    """Told by its kind."""

    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    """Told by its kind."""

    kind: Literal["dog"] = "dog"
    name: str


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (int | str, [1, "1"]),
        (float | int, [1, 1.0, 2.5]),
        (bool | int, [True, 1, False, 0]),
        (int | str | None, [None, 0, ""]),
        (Decimal | int, [Decimal("1.0"), 1]),
        (date | UUID | None, [date(2026, 1, 31), UUID(int=7), None]),
        (Literal["all"] | int, ["all", 3]),
        (Circle | Square, [Circle(1), Square(1)]),
        (Cat | Dog | int, [Cat(name="a"), Dog(name="a"), 5]),
        (NewType("Id", int) | str | None, [3, "x", None]),
    ],
)
def test_values_come_back_as_the_member_that_they_were(hint: Any, values: list[Any]) -> None:
    """Type and value are the same after the wire, and the wire form of a wire form is itself."""
    codec = codec_for(hint)
    for value in values:
        wire = codec.to_wire(value)
        back = codec.from_wire(wire)
        assert (type(back), back) == (type(value), value)
        assert codec.to_wire(wire) == wire


@pytest.mark.parametrize(
    "hint",
    [
        str | date,
        str | timedelta,
        bytes | UUID,
        Shade | str,
        Circle | Ball,
        list[int] | list[str],
        tuple[int, ...] | list[int],
        dict[str, int] | Circle,
        int | Any,
        bytes | str,
    ],
)
def test_unions_with_two_readings_are_refused_when_declared(hint: Any) -> None:
    """What the log could not tell apart is no type of a parameter."""
    with pytest.raises(DefinitionError, match="no one meaning"):
        codec_for(hint)


def test_a_misfit_is_told_what_each_member_expects() -> None:
    """The message lists the members' expectations."""
    with pytest.raises(WireError, match=r"integer.*string"):
        codec_for(int | str).to_wire(1.5)
    with pytest.raises(WireError):
        codec_for(date | UUID).to_wire(datetime(2026, 1, 1))  # noqa: DTZ001 - no date, and without a zone
