"""An application whose answers depend on the time."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Column, DateTime, Integer, bindparam, select
from sqlalchemy.dialects.sqlite import insert

from procedures import Database, Transaction

db = Database("lease")
leases = db.table(
    "leases",
    Column("item", Integer, primary_key=True),
    Column("until", DateTime(timezone=True), nullable=False),
    partition_by="item",
)
UNTIL = select(leases.c.until).where(leases.c.item == bindparam("item_"))
_PUT = insert(leases).values(item=bindparam("item_"), until=bindparam("until_"))
PUT = _PUT.on_conflict_do_update(index_elements=["item"], set_={"until": _PUT.excluded.until})


@db.procedure(partition_by="item")
def take(tx: Transaction, item: int, minutes: int) -> datetime:
    """Leases an item that nobody has; returns until when."""
    until = tx.execute(UNTIL, item_=item).scalar()
    if until is not None and until > tx.now:
        tx.abort("taken", f"until {until}")
    until = tx.now + timedelta(minutes=minutes)
    tx.execute(PUT, item_=item, until_=until)
    return until


@db.procedure(partition_by="item")
def time_of(tx: Transaction, item: int) -> datetime:
    """When the call runs."""
    return tx.now
