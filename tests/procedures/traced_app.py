"""An application whose procedures raise."""

from __future__ import annotations

from sqlalchemy import Column, Integer, bindparam, func, insert, select

from procedures import Database, Transaction

db = Database("traced")
things = db.table("things", Column("id", Integer, primary_key=True), partition_by="id")
NEW = insert(things).values(id=bindparam("id_"))


@db.procedure(partition_by="id")
def fine(tx: Transaction, id: int) -> int:  # noqa: A002 - a column's name
    """Works."""
    tx.execute(NEW, id_=id)
    return id


@db.procedure(partition_by="id")
def fail_at_once(tx: Transaction, id: int) -> int:  # noqa: A002
    """Raises before it changed anything."""
    raise LookupError("at once")


@db.procedure(partition_by="id")
def fail_after_write(tx: Transaction, id: int) -> int:  # noqa: A002
    """Raises after a change."""
    tx.execute(NEW, id_=id)
    raise LookupError("after a write")


@db.procedure(partition_by="id")
def refuse(tx: Transaction, id: int) -> int:  # noqa: A002
    """Aborts."""
    tx.abort("no", "not today")


@db.procedure(partition_by="id")
def ask_the_clock(tx: Transaction, id: int) -> str:  # noqa: A002
    """Calls what no procedure may call."""
    return str(tx.execute(select(func.current_timestamp())).scalar())


@db.procedure(partition_by="id", read_only=True)
def look(tx: Transaction, id: int) -> int:  # noqa: A002
    """Raises while it reads."""
    return id // 0


@db.procedure(partition_by="id")
def give_numbers(tx: Transaction, id: int) -> str:  # noqa: A002
    """Returns what is no text."""
    return (number for number in range(id))  # type: ignore[return-value]
