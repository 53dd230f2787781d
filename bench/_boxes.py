"""An application whose state grows large quickly: boxes with 400 bytes of text each, transfers of three statements between two.

One rule: it is what snapshots are measured with, so a row is as long as those of real tables, and calls touch rows all over it.
"""

from __future__ import annotations

from sqlalchemy import Column, Integer, String, bindparam, insert, select, update

from procedures import Database, Transaction

db = Database("boxes")

boxes = db.table(
    "boxes",
    Column("box", Integer, primary_key=True),
    Column("amount", Integer, nullable=False),
    Column("label", String, nullable=False),
    partition_by="box",
)
FILL = insert(boxes).values(box=bindparam("box_"), amount=1_000_000, label=bindparam("label_"))
HELD = select(boxes.c.amount).where(boxes.c.box == bindparam("box_"))
ADD = update(boxes).where(boxes.c.box == bindparam("box_")).values(amount=boxes.c.amount + bindparam("amount_"))

LABEL_CHARACTERS = 400
ROW_BYTES = 445  # of the file, measured: nine rows on a page of 4096 bytes
TEXT = "".join(f"{number:x}" for number in range(5_000))


@db.procedure(partition_by="first")
def fill(tx: Transaction, first: int, count: int) -> int:
    for box in range(first, first + count):
        at = box * 7919 % (len(TEXT) - LABEL_CHARACTERS)
        tx.execute(FILL, box_=box, label_=TEXT[at : at + LABEL_CHARACTERS])
    return count


@db.procedure(partition_by="source")
def move(tx: Transaction, source: int, target: int, amount: int) -> int:
    held: int = tx.execute(HELD, box_=source).scalar()
    tx.execute(ADD, box_=source, amount_=-amount)
    tx.execute(ADD, box_=target, amount_=amount)
    return held - amount
