"""An application whose names are also those of Python, of `cmdlog`, or of a client's own methods."""

from __future__ import annotations

import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from cmdlog import Database, Transaction

db = Database("odd")


class Client(BaseModel):
    """A customer, and members that are called like types."""

    name: str
    date: datetime.date
    until: datetime.date


class Call(StrEnum):
    """A choice."""

    CALL = "call"


@db.procedure(partition_by="item", read_only=True)
def batch(tx: Transaction, item: int, self: str, call: Call) -> Client:
    """A method of the written class."""
    return Client(name=f"{self}{call}", date=datetime.date.min, until=datetime.date.max)


@db.procedure(partition_by="item", read_only=True)
def client(tx: Transaction, item: int, date: datetime.date, idempotency_key: str, key_of_call: str = "") -> datetime.date:
    """An attribute of the written class, and parameters that are called like the result's type and the key."""
    return date


@db.procedure(partition_by="item", read_only=True, name="list")
def list_all(tx: Transaction, item: int, Client: Client | None = None, _given: int = 0, OddCalls: str = "") -> list[Client]:
    """A type of the written module, and parameters that are called like its classes."""
    return [] if Client is None else [Client]


@db.procedure(partition_by="item", read_only=True)
def batch_(tx: Transaction, item: int) -> list[int]:
    """The name that `batch` would have."""
    return [item]


@db.procedure(partition_by="item", read_only=True, name="staticmethod")
def decorated(tx: Transaction, item: int, self_: dict[str, Any], self: int) -> int:
    """What the written module decorates with."""
    return item
