"""Values on their way into SQLite: what is a number to Python is a number there, wherever a statement has it from."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Column, Float, Integer, LargeBinary, String, bindparam, func, literal, select

from procedures import Database, Transaction
from procedures.execution.executor import Status
from procedures.storage.stored_values import stored_value
from tests.procedures.sites import Site


class Level(IntEnum):
    """Integers."""

    HIGH = 5


class Word(StrEnum):
    """Texts."""

    A = "a"


class Counted(int):
    """An integer of the application."""


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.int64(5), 5), (np.uint8(5), 5), (np.array(5), 5), (np.float32(0.5), 0.5), (np.array(0.5), 0.5), (np.bool_(True), 1),
        (np.float64(0.5), 0.5), (np.str_("a"), "a"), (np.bytes_(b"a"), b"a"), (Level.HIGH, 5), (Word.A, "a"), (Counted(5), 5),
        (bytearray(b"a"), b"a"), (memoryview(b"a"), b"a"), (True, 1), (None, None), (b"a", b"a"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_value_of_a_known_class_is_what_it_says(value: Any, stored: Any) -> None:
    """A scalar of numpy is a number, and bytes of any kind are bytes."""
    assert stored_value(value) == stored


@pytest.mark.parametrize(
    "value", [np.arange(3), np.array([5]), array("i", [5]), np.datetime64("2026-01-01"), np.complex64(1)], ids=type
)
def test_other_buffer_is_refused_by_its_class(value: Any) -> None:
    """SQLite would take it as bytes, which equal nothing."""
    with pytest.raises(TypeError, match=rf"{type(value).__name__} is a buffer"):
        stored_value(value)


@pytest.mark.parametrize("value", [Decimal(5), Fraction(1, 2), object()], ids=["Decimal", "Fraction", "object"])
def test_what_is_no_buffer_is_left_to_the_driver(value: Any) -> None:
    """It says what it does not take."""
    assert stored_value(value) is value


db = Database("bound")
rows = db.table(
    "rows", Column("id", Integer, primary_key=True), Column("n", Integer, default=lambda tx: np.int64(5)), Column("x", Float),
    Column("t", String), Column("b", LargeBinary), partition_by="id",
)  # fmt: skip
FIVE: Any = np.int64(5)
FINDS: dict[str, Callable[[Transaction], Any]] = {
    "in the statement": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n == FIVE)),
    "literal": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n == literal(FIVE, Integer))),
    "bindparam": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n == bindparam("n")), n=FIVE),
    "value of a bindparam": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n == bindparam("n", FIVE, Integer))),
    "list": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n.in_([FIVE, np.int8(7)]))),
    "list given": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n.in_(bindparam("ns", expanding=True))), ns=[FIVE]),
    "between": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n.between(np.int8(4), np.uint64(6)))),
    "function": lambda tx: tx.execute(select(rows.c.id).where(func.abs(rows.c.n) == FIVE)),
    "key": lambda tx: tx.execute(select(rows.c.id).where(rows.c.id == np.int64(1))),
    "float": lambda tx: tx.execute(select(rows.c.id).where(rows.c.x == np.float32(0.5))),
    "level": lambda tx: tx.execute(select(rows.c.id).where(rows.c.n == Level.HIGH)),
    "word": lambda tx: tx.execute(select(rows.c.id).where(rows.c.t == Word.A)),
    "bytes": lambda tx: tx.execute(select(rows.c.id).where(rows.c.b == bytearray(b"a"))),
}


@db.procedure(partition_by="number")
def put(tx: Transaction, number: int) -> int:
    """One row, by a default and by values given and set."""
    tx.execute(rows.insert(), id=np.int64(number), x=np.float32(0.25), t=Word.A, b=memoryview(b"a"))
    tx.execute(rows.insert(), [{"id": np.int64(number + at), "n": np.int16(1)} for at in (10, 20)])
    return tx.execute(rows.update().where(rows.c.id == number).values(x=np.float64(0.5))).rowcount


@db.procedure(partition_by="number")
def find(tx: Transaction, number: int, how: str) -> list[int]:
    """What is found."""
    return [row.id for row in FINDS[how](tx)]


@db.procedure(partition_by="number")
def misfit(tx: Transaction, number: int) -> None:
    """A buffer that is no value."""
    tx.execute(rows.insert(), id=number, b=np.arange(3))


@pytest.mark.parametrize("how", FINDS)
def test_statement_finds_by_a_value_of_numpy(tmp_path: Path, how: str) -> None:
    """Wherever it has the value from."""
    site = Site(tmp_path / "state", db)
    assert site.call("put", number=1) == (Status.OK, 1)
    assert site.rows("SELECT id, typeof(n), n, typeof(x), t, typeof(b) FROM rows ORDER BY id")[:2] == [
        (1, "integer", 5, "real", "a", "blob"),
        (11, "integer", 1, "null", None, "null"),
    ]
    assert site.call("find", number=1, how=how) == (Status.OK, [1])


def test_buffer_that_is_no_value_fails_its_call(tmp_path: Path) -> None:
    """With its class."""
    status, body = Site(tmp_path / "state", db).call("misfit", number=1)
    assert status == Status.FAILED
    assert "numpy.ndarray is a buffer" in body["message"]
