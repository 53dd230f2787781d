"""The application of the soak: slots that count the calls they got, and which.

One rule: what a slot holds tells one set of calls from another. Number, sum and sum of squares differ when a call is lost, when
one is counted twice, and when both happen.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Integer, bindparam, insert, select, update

from procedures import Database, Transaction

SQUARE_MODULUS: Final = (1 << 31) - 1  # keeps the sum of four thousand million squares below 2^63

db = Database("soak")

slots = db.table(
    "slots",
    Column("slot", Integer, primary_key=True),
    Column("calls", Integer, nullable=False),
    Column("numbers", Integer, nullable=False),
    Column("squares", Integer, nullable=False),
    partition_by="slot",
)
NEW = insert(slots).values(slot=bindparam("slot_"), calls=1, numbers=bindparam("number_"), squares=bindparam("square_"))
MORE = (
    update(slots)
    .where(slots.c.slot == bindparam("slot_"))
    .values(
        calls=slots.c.calls + 1,
        numbers=slots.c.numbers + bindparam("number_"),
        squares=slots.c.squares + bindparam("square_"),
    )
)
CALLS = select(slots.c.calls).where(slots.c.slot == bindparam("slot_"))


@db.procedure(partition_by="slot")
def count(tx: Transaction, slot: int, number: int) -> int:
    """Counts this call; how many the slot has counted."""
    square = number * number % SQUARE_MODULUS
    if tx.execute(MORE, slot_=slot, number_=number, square_=square).rowcount == 0:
        tx.execute(NEW, slot_=slot, number_=number, square_=square)
    calls: int = tx.execute(CALLS, slot_=slot).scalar()
    return calls
