"""The application of `faulty` as a later deploy has it: one table and two procedures more."""

from __future__ import annotations

from sqlalchemy import Column, Integer, String, bindparam, func, insert, select

from procedures import Database, Transaction

db = Database("faulty")

counters = db.table("counters", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
remarks_made = db.table(
    "remarks",
    Column("id", Integer, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("text", String, nullable=False),
    partition_by="id",
)

COUNT = select(func.count()).select_from(remarks_made).where(remarks_made.c.id == bindparam("id_"))
NEW = insert(remarks_made).values(id=bindparam("id_"), seq=bindparam("seq_"), text=bindparam("text_"))


@db.procedure(partition_by="id")
def remark(tx: Transaction, id: int, text: str) -> int:  # noqa: A002 - a column's name
    """Keeps a text; how many there are."""
    count = int(tx.execute(COUNT, id_=id).scalar() or 0)
    tx.execute(NEW, id_=id, seq_=count, text_=text)
    return count + 1


@db.procedure(partition_by="id", read_only=True)
def remarks(tx: Transaction, id: int) -> int:  # noqa: A002
    """How many there are."""
    return int(tx.execute(COUNT, id_=id).scalar() or 0)
