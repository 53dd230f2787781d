"""Generated histories of calls."""

from __future__ import annotations

import abc
import dataclasses
import enum
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from cmdlog.testing import OpenEmbedded, assert_history_replays, histories
from cmdlog.testing.history import run_history, strategy_of
from procedures.samples import bank
from procedures.wire.type_codecs import codec_for
from replay.errors import Divergence
from tests.testing.apps import drift


class Colour(enum.Enum):
    """Two members."""

    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True)
class Line:
    """A class of an application."""

    item: int
    price: Decimal


class Order(typing.TypedDict):
    """One key may be missing."""

    item: int
    note: typing.NotRequired[str]


class Span(typing.NamedTuple):
    """A tuple with names."""

    begin: time
    days: int


class Basket(BaseModel):
    """A model with a limit and a default."""

    count: int = Field(gt=0)
    kept: timedelta
    names: list[str] = []


Number = typing.NewType("Number", int)


class Shape(abc.ABC):
    """Has no members that could be made."""

    @abc.abstractmethod
    def area(self) -> int:
        """A number."""


HINTS = (
    bool, int, float, str, bytes, Decimal, datetime, date, UUID, Colour, Line, typing.Literal[1, "a"], int | None,
    list[int], tuple[int, ...], tuple[str, int], dict[str, int], list[Line],
    time, timedelta, Order, list[Order], Span, Span | None, Basket, Basket | list[int] | None, int | str, Number,
    Any, object, dict[str, Any], list[Any], typing.Annotated[int, Field(gt=0, lt=50)],
    typing.Annotated[str, Field(min_length=2, max_length=3)], typing.Annotated[list[int], Field(min_length=1)],
)  # fmt: skip


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_every_type_of_a_parameter_has_values(hint: Any) -> None:
    """What is generated is accepted at the gate; every type of the codecs' table is here."""
    codec = codec_for(hint)

    @settings(max_examples=25, database=None, derandomize=True)
    @given(value=strategy_of(hint))
    def accepted(value: Any) -> None:
        codec.to_wire(value)

    accepted()


def test_keys_that_may_be_missing_are_there_and_missing() -> None:
    """Both happen in what is generated, and small values repeat in the fields as elsewhere."""
    found: list[Any] = []

    @settings(max_examples=50, database=None, derandomize=True)
    @given(value=strategy_of(Order))
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    assert {"note" in value for value in found} == {True, False}
    assert sum(value["item"] in range(10) for value in found) > len(found) // 2


def test_a_type_without_values_is_named() -> None:
    """The error says which hint, and what to give."""
    with pytest.raises(TypeError, match="give a strategy in `parameters`"):
        strategy_of(Shape)


def test_histories_call_every_procedure() -> None:
    """Also those that only read; a parameter's own strategy takes the place of its hint's."""
    called: set[str] = set()

    @settings(max_examples=50, deadline=None, database=None, derandomize=True)
    @given(calls=histories(bank.db, parameters={"balance": {"branch": st.just(7)}}))
    def collect(calls: list[tuple[str, dict[str, Any]]]) -> None:
        called.update(name for name, _ in calls)
        assert {params["branch"] for name, params in calls if name == "balance"} <= {7}

    collect()
    assert called == bank.db.procedures.keys()


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(calls=histories(bank.db))
def test_outcomes_of_all_kinds_do_not_stop_a_history(
    cmdlog_embedded: OpenEmbedded, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    """Aborts and errors of procedures are outcomes."""
    database = cmdlog_embedded(bank.db)
    run_history(database, calls)
    database.close()


@pytest.mark.slow
@settings(max_examples=5, deadline=None, database=None, derandomize=True)
@given(calls=histories(bank.db, calls_max=20))
def test_what_the_bank_does_replays(calls: list[tuple[str, dict[str, Any]]]) -> None:
    """The way an application writes it."""
    assert_history_replays(bank.db, calls, partitions=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["by_chance", "by_order"])
def test_a_history_that_does_not_replay_is_found(name: str) -> None:
    """Hypothesis sees the failure of a procedure that depends on chance."""
    with pytest.raises(Divergence, match=name):
        assert_history_replays(drift.db, [("steady", {"id": 1}), (name, {"id": 2})])
