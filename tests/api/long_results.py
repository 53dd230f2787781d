"""An application whose results are as long as its callers want."""

from __future__ import annotations

from sqlalchemy import Column, Integer

from procedures import Database, Transaction

db = Database("long_results")
items = db.table("items", Column("id", Integer, primary_key=True), partition_by="id")


@db.procedure(partition_by="item", read_only=True)
def read_long(tx: Transaction, item: int, size: int) -> str:
    """So many characters."""
    return "x" * size


@db.procedure(partition_by="item")
def write_long(tx: Transaction, item: int, size: int) -> str:
    """The same, logged."""
    return "x" * size
