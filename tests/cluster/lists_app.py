"""An application of append-only lists, whose histories can be judged (`tests.cluster.histories`)."""

from __future__ import annotations

from sqlalchemy import Column, Integer, String, bindparam, func, insert, select

from procedures import EACH, Database, Transaction
from procedures.declaration.hash_slots import partition_by_slot, slot_of

db = Database("lists")
items = db.table(
    "items",
    Column("name", String, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("value", Integer, nullable=False),
    partition_by="name",
)
names = db.table("names", Column("name", String, primary_key=True), partition_by="name")

OPEN = insert(names).values(name=bindparam("name_"))
NAMES = select(names.c.name).order_by(names.c.name)
LENGTH = select(func.count()).select_from(items).where(items.c.name == bindparam("name_"))
APPEND = insert(items).values(name=bindparam("name_"), place=bindparam("place_"), value=bindparam("value_"))
VALUES = select(items.c.value).where(items.c.name == bindparam("name_")).order_by(items.c.place)


def _append(tx: Transaction, name: str, value: int) -> int:
    length = int(tx.execute(LENGTH, name_=name).scalar() or 0) + 1
    tx.execute(APPEND, name_=name, place_=length, value_=value)
    return length


def _values(tx: Transaction, name: str) -> list[int]:
    return [int(value) for (value,) in tx.execute(VALUES, name_=name)]


def _names(tx: Transaction) -> list[str]:
    return [str(name) for (name,) in tx.execute(NAMES)]


@db.procedure(partition_by="name")
def open_list(tx: Transaction, name: str) -> None:
    """A new list."""
    tx.execute(OPEN, name_=name)


@db.procedure(partition_by="name")
def append(tx: Transaction, name: str, value: int) -> int:
    """How long the list is with it."""
    return _append(tx, name, value)


@db.procedure(partition_by="name", read_only=True)
def values(tx: Transaction, name: str) -> list[int]:
    """The list."""
    return _values(tx, name)


@db.procedure(partition_by=EACH)
def append_all(tx: Transaction, value: int) -> dict[str, int]:
    """How long every list of the partition is with it."""
    return {name: _append(tx, name, value) for name in _names(tx)}


@db.procedure(partition_by=None, read_only=True)
def values_of_all(tx: Transaction) -> dict[str, list[int]]:
    """Every list of the partition."""
    return {name: _values(tx, name) for name in _names(tx)}


def list_names(partitions: int) -> list[str]:
    """Names of lists, one for each partition, in their order."""
    partition_of = partition_by_slot(partitions)
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(partition_of[slot_of(f"list{number}")], f"list{number}")
        if len(found) == partitions:
            break
    return [found[partition] for partition in range(partitions)]
