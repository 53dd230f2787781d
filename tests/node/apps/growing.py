"""An application whose table grows: `first`, then `second` with two columns in the middle, then `third` with an index less."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Index, Integer, Numeric, Text, bindparam, insert, select, update

from procedures import Database, Transaction


def _application(step: int) -> Database:
    made = Database("growing")
    grown: list[Column[Any]] = [Column("mood", Text), Column("score", Numeric(6, 2), nullable=False, server_default="1.5")]
    columns = (
        Column("id", Integer, primary_key=True), *(grown if step > 1 else ()), Column("tag", Integer, nullable=False),
    )  # fmt: skip
    items = made.table("items", *columns, partition_by="id")
    if step < 3:
        Index("items_tag", items.c.tag)
    new = insert(items).values(id=bindparam("id_"), tag=bindparam("tag_"))
    every = select(items).order_by(items.c.id)

    @made.procedure(partition_by="id")
    def put(tx: Transaction, id: int, tag: int) -> int:  # noqa: A002 - a column's name
        """A new row."""
        tx.execute(new, id_=id, tag_=tag)
        return tag

    @made.procedure(read_only=True)
    def show(tx: Transaction) -> list[list[str]]:
        """All rows, column by column as declared."""
        return [[str(value) for value in row] for row in tx.execute(every)]

    if step > 1:
        raised = update(items).values(score=items.c.score + 1, mood=bindparam("mood_")).where(items.c.id == bindparam("id_"))

        @made.procedure(partition_by="id")
        def cheer(tx: Transaction, id: int, mood: str) -> int:  # noqa: A002
            """Writes the new columns."""
            return tx.execute(raised, id_=id, mood_=mood).rowcount

    return made


first, second, third = (_application(step) for step in (1, 2, 3))
