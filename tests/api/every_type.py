"""An application with every type that crosses the wire, for tests that send whatever a schema allows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Column, Float, Integer, LargeBinary, String, bindparam, func, select
from sqlalchemy.dialects.sqlite import insert as upsert

from procedures import Database, Transaction

db = Database("every_type")
items = db.table("items", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")
kept = db.table(
    "kept",
    Column("id", Integer, primary_key=True),
    Column("real", Float),
    Column("whole", Integer),
    Column("text", String),
    Column("raw", LargeBinary),
    partition_by="id",
)
COLUMNS = ("id", "real", "whole", "text", "raw")
KEEP = upsert(kept).values({name: bindparam(f"{name}_") for name in COLUMNS})
KEEP = KEEP.on_conflict_do_update(index_elements=["id"], set_={name: KEEP.excluded[name] for name in COLUMNS[1:]})
KEPT = select(kept.c.real, kept.c.whole, kept.c.text, kept.c.raw).where(kept.c.id == bindparam("id_"))
NAME = select(items.c.name).where(items.c.id == bindparam("id_"))
PUT = upsert(items).values(id=bindparam("id_"), name=bindparam("name_"))
PUT = PUT.on_conflict_do_update(index_elements=["id"], set_={"name": PUT.excluded.name})
COUNT = select(func.count(items.c.id))


class Colour(Enum):
    """A few values."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    """A value of two parts."""

    x: int
    label: str = "origin"


@db.procedure(partition_by="item")
def put(tx: Transaction, item: int, name: str | None = None) -> int:
    """Keeps a name."""
    tx.execute(PUT, id_=item, name_=name)
    return item


@db.procedure(partition_by="item", read_only=True)
def get(tx: Transaction, item: int) -> str | None:
    """The name that was kept."""
    name: str | None = tx.execute(NAME, id_=item).scalar()
    return name


@db.procedure(partition_by="item")
def keep(tx: Transaction, item: int, real: float, whole: int, text: str, raw: bytes = b"") -> list[str]:  # noqa: PLR0917 - columns
    """Keeps a row; answers how the values look from inside."""
    tx.execute(KEEP, id_=item, real_=real, whole_=whole, text_=text, raw_=raw)
    return [real.hex(), str(whole), text.encode().hex(), raw.hex()]


@db.procedure(partition_by="item", read_only=True)
def kept_row(tx: Transaction, item: int) -> tuple[float, int, str, bytes] | None:
    """The row that was kept."""
    row: tuple[float, int, str, bytes] | None = tx.execute(KEPT, id_=item).one_or_none()
    return row


@db.procedure(partition_by=None, read_only=True)
def count(tx: Transaction) -> int:
    """How many names there are, by partition."""
    found: int = tx.execute(COUNT).scalar()
    return found


@db.procedure(partition_by="key")
def scalars(  # noqa: PLR0917 - one of each type is what it is for
    tx: Transaction,
    key: str,
    number: float,
    flag: bool,
    raw: bytes,
    price: Decimal,
    at: datetime,
    day: date,
    ident: UUID,
    size: Literal["small", 2] = "small",
    colour: Colour = Colour.RED,
) -> list[str]:
    """One of each scalar; comes back as text."""
    return [str(value) for value in (number, flag, raw.hex(), price, at, day, ident, size, colour.value)]


@db.procedure(partition_by="key")
def nested(  # noqa: PLR0917 - as above
    tx: Transaction,
    key: UUID,
    point: Point,
    points: list[Point],
    pair: tuple[int, str],
    named: dict[str, list[int]] | None = None,
) -> dict[str, Any]:
    """Values within values; come back."""
    return {"x": point.x, "label": point.label, "points": len(points), "pair": list(pair), "named": len(named or {})}


@db.procedure(partition_by="item")
def stop(tx: Transaction, item: int, message: str) -> None:
    """Always aborts."""
    tx.abort("stopped", message)


@db.procedure(partition_by="item")
def fail(tx: Transaction, item: int, message: str) -> None:
    """Always raises."""
    raise ValueError(message)
