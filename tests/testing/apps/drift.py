"""An application that does not replay: a result by chance, rows in the order of a set."""

from __future__ import annotations

import random

from sqlalchemy import Column, Integer, String, insert

from procedures import Database, Transaction

db = Database("drift")
notes = db.table("notes", Column("id", Integer, primary_key=True), Column("text", String, nullable=False), partition_by="id")
NOTE = insert(notes)


@db.procedure(partition_by="id")
def steady(tx: Transaction, id: int) -> int:  # noqa: A002 - a column's name
    """What it should be like."""
    tx.execute(NOTE, id=id, text="steady")
    return tx.random.randrange(1 << 60)


@db.procedure(partition_by="id")
def by_chance(tx: Transaction, id: int) -> int:  # noqa: A002
    """Asks a generator that is not the transaction's."""
    tx.execute(NOTE, id=id, text="by chance")
    return random.SystemRandom().randrange(1 << 60)


@db.procedure(partition_by="id")
def by_order(tx: Transaction, id: int) -> None:  # noqa: A002
    """Writes what the hash seed decides."""
    tx.execute(NOTE, id=id, text=" ".join({f"word {n}" for n in range(50)}))
