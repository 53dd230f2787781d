"""An application whose calls may do another thing on each node: they look at files, which no procedure may."""

from __future__ import annotations

import contextlib
import os

from sqlalchemy import Column, Integer, bindparam, insert

from procedures import Database, Transaction

db = Database("drifting")

drifts = db.table("drifts", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
ADD = insert(drifts).values(id=bindparam("id_"), n=bindparam("n_"))


@db.procedure(partition_by="id")
def put(tx: Transaction, id: int, n: int) -> int:  # noqa: A002 - a column's name
    """The plain one."""
    tx.execute(ADD, id_=id, n_=n)
    return n


@db.procedure(partition_by="id")
def drift(tx: Transaction, id: int, folder: str, odd: int) -> int:  # noqa: A002
    """Writes 1 where it is executed as number `odd`, counted from 0 over all nodes, and 0 elsewhere."""
    for number in range(10):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_EXCL))
            tx.execute(ADD, id_=id, n_=int(number == odd))
            return int(number == odd)
    return -1
