"""An application before and after a change of its tables that the rows may not allow."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, bindparam, insert

from procedures import Database, Transaction


def _application(*, unique: bool) -> Database:
    made = Database("tagged")
    columns = (Column("id", Integer, primary_key=True), Column("tag", Integer, nullable=False))
    items = made.table("items", *columns, partition_by="id")
    if unique:
        Index("items_tag", items.c.tag, unique=True)
    new = insert(items).values(id=bindparam("id_"), tag=bindparam("tag_"))

    @made.procedure(partition_by="id")
    def put(tx: Transaction, id: int, tag: int) -> int:  # noqa: A002 - a column's name
        """A new row."""
        tx.execute(new, id_=id, tag_=tag)
        return tag

    return made


plain = _application(unique=False)
unique = _application(unique=True)
