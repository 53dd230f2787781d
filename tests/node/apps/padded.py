"""An application whose small calls write much: what fills a state's write-ahead log, and hardly the command log."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, bindparam

from procedures import Database, Transaction

db = Database("padded")

pads = db.table("pads", Column("id", Integer, primary_key=True), Column("data", LargeBinary, nullable=False), partition_by="id")
_REMOVE = pads.delete().where(pads.c.id == bindparam("id_"))
_ADD = pads.insert().values(id=bindparam("id_"), data=bindparam("data_"))


@db.procedure(partition_by="id")
def pad(tx: Transaction, id: int, size: int) -> int:  # noqa: A002 - a column's name
    """Writes all bytes of the row anew."""
    tx.execute(_REMOVE, id_=id)
    tx.execute(_ADD, id_=id, data_=bytes(size))
    return size
