"""Every type becomes every other one over rows of all kinds: it is refused with the row at fault, or all rows can be used.

A slice of the seeds in each run of the suite, many by `make torture`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, Table, select, types

from procedures import Database
from procedures.errors import MigrationFailed
from tests.procedures.migration.people import ChangingSite, as_logged
from tests.procedures.sites import Site


class Lowered(types.TypeDecorator[str]):
    """Text of lower case letters, read as it was written; it reads nothing else."""

    impl = types.String(6)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        if value is not None and value != value.lower():
            raise ValueError("capitals")
        return value


Make = Callable[[random.Random], Any]
WORDS: Final = (
    "a", "b", "12", "1.5", "-3", "", "words", "Capital", "2026-02-28", "12:30:00.000000", '{"a": 1}', "null", "true", "x" * 9,
)  # fmt: skip


def _number(draw: random.Random) -> int:
    bits = draw.choice((1, 7, 15, 31, 62))
    return draw.randrange(-(1 << bits), 1 << bits)


def _decimal(digits: int, scale: int) -> Make:
    return lambda draw: Decimal(draw.choice((0, 1, draw.randrange(-(10**digits) + 1, 10**digits)))).scaleb(-scale)


KINDS: Final[Mapping[str, tuple[Callable[[], Any], Make]]] = {
    "Integer": (types.Integer, _number),
    "BigInteger": (types.BigInteger, _number),
    "SmallInteger": (types.SmallInteger, lambda draw: draw.randrange(-(1 << 15), 1 << 15)),
    "Float": (types.Float, lambda draw: draw.choice((0.0, 1.0, 0.1 + 0.2, draw.uniform(-9, 9), 2.0**60, -3.0))),
    "Text": (types.Text, lambda draw: draw.choice(WORDS)),
    "String(4)": (lambda: types.String(4), lambda draw: draw.choice(WORDS)[:4]),
    "Enum": (lambda: types.Enum("a", "b", "12"), lambda draw: draw.choice(("a", "b", "12"))),
    "smaller Enum": (lambda: types.Enum("a", "b"), lambda draw: draw.choice(("a", "b"))),
    "Lowered": (Lowered, lambda draw: draw.choice(("a", "12", "words"))),
    "LargeBinary": (types.LargeBinary, lambda draw: draw.randbytes(draw.randrange(9))),
    "LargeBinary(3)": (lambda: types.LargeBinary(3), lambda draw: draw.randbytes(draw.randrange(4))),
    "Boolean": (types.Boolean, lambda draw: draw.random() < 0.5),
    "Numeric(8, 2)": (lambda: types.Numeric(8, 2), _decimal(8, 2)),
    "Numeric(12, 4)": (lambda: types.Numeric(12, 4), _decimal(12, 4)),
    "Numeric(4, 0)": (lambda: types.Numeric(4, 0), _decimal(4, 0)),
    "Numeric(18, 2)": (lambda: types.Numeric(18, 2), _decimal(18, 2)),
    "DateTime": (types.DateTime, lambda draw: datetime(draw.randrange(1, 9999), 2, 28, 23, 59, tzinfo=UTC)),
    "Date": (types.Date, lambda draw: date(draw.randrange(1, 9999), 2, 28)),
    "Time": (types.Time, lambda draw: time(draw.randrange(24), 30)),
    "Interval": (types.Interval, lambda draw: timedelta(microseconds=draw.randrange(-(1 << 40), 1 << 40))),
    "Uuid": (types.Uuid, lambda draw: UUID(int=draw.getrandbits(128))),
    "JSON": (types.JSON, lambda draw: draw.choice(({"a": 1}, [1, 2], "a", 12))),
}  # fmt: skip
PAIRS: Final = list(itertools.product(KINDS, KINDS))
SLICE: Final = 4  # of the kinds to which each one becomes in a run of the suite


def _program(kind: str, values: Sequence[Any] = (), *, migrates: bool = False) -> tuple[Database, Table, list[Any]]:
    """With procedures that write the values, read all, and write what was read."""
    db, read = Database("types"), list[Any]()
    make, _ = KINDS[kind]
    t = db.table("t", Column("id", Integer, primary_key=True), Column("c", make()), replicated=True)

    @db.procedure(partition_by=None)
    def fill(tx: Any) -> None:
        for key, value in enumerate(values):
            tx.execute(t.insert(), id=key, c=value)

    @db.procedure(partition_by=None)
    def show(tx: Any) -> None:
        read[:] = tx.execute(select(t).order_by(t.c.id)).all()

    @db.procedure(partition_by=None)
    def rewrite(tx: Any) -> None:
        for key, value in tx.execute(select(t)).all():
            tx.execute(t.update().where(t.c.id == key), c=value)

    if migrates:
        db.migration("0001")(lambda tx, op: op.alter_column("t", "c", type_=make()))
    return db, t, read


def _number_of(value: Any) -> Fraction | None:
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1))
    return Fraction(value) if isinstance(value, int | float | Decimal) else None


def _means_the_same(old: Any, new: Any) -> bool:
    """A number is the same number (a Float the nearest one); anything else has the same text, or is stored as it was."""
    before, after = _number_of(old), _number_of(new)
    if before is None or after is None:
        return True
    nearest = (
        isinstance(old, Decimal) and isinstance(new, float) and round(Decimal(repr(new)), -int(old.as_tuple().exponent)) == old
    )
    return before == after or nearest


def _try(tmp_path: Path, was: str, becomes: str, values: Sequence[Any]) -> None:
    first, _, before = _program(was, values)
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    site = Site(path, first)
    assert site.call("fill")[0] == site.call("show")[0] == 0, (was, values)
    site.close()
    second, _, after = _program(becomes, migrates=True)
    changing = ChangingSite(path, second)
    dump, refused = changing.dump(), ""
    try:
        changing.apply(as_logged(changing.rehearse(second).change))  # type: ignore[union-attr]
    except MigrationFailed as error:
        refused = str(error)
    if refused:
        assert "by itself" in refused or " of t " in refused, (was, becomes, refused)
        assert changing.dump() == dump
        assert (was, becomes) not in NEVER_REFUSED
    changing.close()
    if refused:
        return
    site = Site(path, second)
    rows = site.rows("SELECT * FROM t")
    assert site.call("show") == (0, None), (was, becomes, values)
    assert all(_means_the_same(old, new) for (_, old), (_, new) in zip(before, after, strict=True)), (before, after)
    assert site.call("rewrite") == (0, None), (was, becomes, values)
    if becomes != "JSON":
        assert site.rows("SELECT * FROM t") == rows
    site.close()


NEVER_REFUSED: Final = {(kind, kind) for kind in KINDS} | {
    ("SmallInteger", "Integer"), ("String(4)", "Text"), ("smaller Enum", "Enum"), ("Enum", "Text"), ("Enum", "String(4)"),
    ("LargeBinary(3)", "LargeBinary"), ("Numeric(8, 2)", "Numeric(12, 4)"), ("Date", "Text"), ("Uuid", "Text"),
    ("Boolean", "Integer"),
}  # fmt: skip


def _check(tmp_path: Path, seed: int, pairs: Sequence[tuple[str, str]]) -> None:
    draw = random.Random(seed)
    for was, becomes in pairs:
        _, make = KINDS[was]
        for count in (1, 4):
            _try(tmp_path, was, becomes, [None, *(make(draw) for _ in range(count))])


@pytest.mark.slow
@pytest.mark.parametrize("was", KINDS)
def test_type_that_becomes_another_keeps_its_rows_readable(tmp_path: Path, was: str) -> None:
    """Some of the others, of one seed: a change is refused with table, column and key, or each row is read and written again."""
    draw = random.Random(f"kinds {was}")
    _check(tmp_path, 1, [(was, was), *((was, other) for other in draw.sample(list(KINDS), SLICE))])


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(40))
def test_every_type_becomes_every_other_one(tmp_path: Path, seed: int) -> None:
    """The same of all pairs and many seeds."""
    _check(tmp_path, seed, PAIRS)
