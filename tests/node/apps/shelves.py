"""Goods that expire: tables and procedures that run on each partition."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Integer, String, bindparam, delete, func, insert, select

from procedures import EACH, Database, Transaction

db = Database("shelves")
goods = db.table("goods", Column("item", Integer, primary_key=True), Column("due", Integer), partition_by="item")
moved = db.table(
    "moved", Column("item", Integer, primary_key=True), Column("due", Integer), Column("note", String(5)), partition_by="item"
)
limits = db.table("limits", Column("name", String, primary_key=True), Column("due", Integer), replicated=True)

PUT = insert(goods).values(item=bindparam("which"), due=bindparam("until"))
LIMIT = insert(limits).values(name="due", due=bindparam("until"))
EXPIRE = delete(goods).where(goods.c.due < select(limits.c.due).scalar_subquery())
COPY = insert(moved).from_select(["item", "due"], select(goods.c.item, goods.c.due))
COUNT = select(func.count()).select_from(goods)


@db.procedure(partition_by="item")
def put(tx: Transaction, item: int, due: int) -> None:
    """A new piece of goods."""
    tx.execute(PUT, which=item, until=due)


@db.procedure(partition_by=None)
def set_limit(tx: Transaction, due: int) -> None:
    """From when on goods have expired, on every partition."""
    tx.execute(LIMIT, until=due)


@db.procedure(partition_by=EACH)
def expire(tx: Transaction) -> list[int]:
    """Removes what has expired: partition, how many, and a number drawn there."""
    return [tx.partition, tx.execute(EXPIRE).rowcount, tx.random.randrange(1 << 30)]


@db.procedure(partition_by=EACH)
def copy(tx: Transaction) -> int:
    """Copies all goods into a new table."""
    return int(tx.execute(COPY).rowcount)


@db.procedure(partition_by=EACH)
def empty(tx: Transaction, but: list[int]) -> int:
    """Removes all goods, except on the partitions that abort."""
    count = int(tx.execute(delete(goods)).rowcount)
    if tx.partition in but:
        tx.abort("kept", "not here")
    return count


@db.procedure(partition_by=EACH)
def set_limit_on_each(tx: Transaction, due: int) -> None:
    """Refused: copies of a replicated table would differ."""
    tx.execute(LIMIT, until=due)


@db.procedure(partition_by=EACH)
def put_on_each(tx: Transaction, item: int) -> None:
    """Right on one partition, refused on the others."""
    tx.execute(PUT, which=item, until=1)


@db.procedure(partition_by=None, read_only=True)
def count(tx: Transaction) -> Any:
    """Goods on each partition."""
    return tx.execute(COUNT).scalar()
