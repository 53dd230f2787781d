"""An application whose procedures are called by their functions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import Column, Integer, select

from cmdlog import Database, Transaction

db = Database("typed_shop")
stock = db.table(
    "stock", Column("item", Integer, primary_key=True), Column("count", Integer, nullable=False), partition_by="item"
)
rates = db.table("rates", Column("id", Integer, primary_key=True), replicated=True)


class Note(BaseModel):
    """What a customer wrote."""

    text: str
    within: timedelta = timedelta(hours=1)


class Kept(NamedTuple):
    """What is left, and what was written."""

    left: int
    note: Note


@db.procedure(partition_by="item")
def put(tx: Transaction, item: int, count: int) -> int:
    """Puts items into stock."""
    tx.execute(stock.insert(), item=item, count=count)
    return count


@db.procedure(partition_by="item")
def reserve(tx: Transaction, item: int, count: int, *, note: Note | None = None) -> Kept:
    """Takes items from stock."""
    left = tx.execute(select(stock.c.count).where(stock.c.item == item)).scalar() - count
    return Kept(left, note or Note(text="-"))


@db.procedure(partition_by="item", read_only=True)
def labels(tx: Transaction, item: int, more: dict[str, Any]) -> dict[str, Any]:
    """What is given, once more."""
    return dict(more)


@db.procedure(partition_by="item", read_only=True)
def promise(tx: Transaction, item: int) -> Any:
    """Values of types that an annotation would state."""
    return {"within": timedelta(minutes=90), "notes": [Note(text="soon")]}


@db.procedure(partition_by=None)
def set_rate(tx: Transaction, rate: int) -> None:
    """Runs on all partitions and returns nothing."""
    tx.execute(rates.insert(), id=rate)


@db.procedure(partition_by=None, read_only=True)
def rate_count(tx: Transaction) -> int:
    """Runs on all partitions."""
    return len(tx.execute(rates.select()).all())
