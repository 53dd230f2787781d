"""Versions of a small application as modules, and nodes in which they ran."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import RecordKind
from procedures import Database
from replay.log.source import open_source
from replay.state.trust import state_path
from snapshot.table_digest import open_image

SMALL: dict[str, Any] = {"segments": 4, "segment_bytes": 4 << 20}
LEDGER = """
from sqlalchemy import Column, Float, Integer, LargeBinary, Text, bindparam, insert, select, update
from procedures import Database

db = Database("ledger")
accounts = db.table(
    "accounts",
    Column("id", Integer, primary_key=True),
    Column("balance", Integer, nullable=False),
    Column("note", Text),
    partition_by="id",
)
rates = db.table("rates", Column("name", Text, primary_key=True), Column("rate", Integer, nullable=False), replicated=True)
OPEN = insert(accounts).values(id=bindparam("id_"), balance=0)
ADD = update(accounts).where(accounts.c.id == bindparam("id_")).values(balance=accounts.c.balance + bindparam("amount_"))
BALANCE = select(accounts.c.balance).where(accounts.c.id == bindparam("id_"))
RATE = insert(rates).values(name=bindparam("name_"), rate=bindparam("rate_"))


@db.procedure(partition_by="account")
def begin(tx, account: int) -> int:
    tx.execute(OPEN, id_=account)
    return account


@db.procedure(partition_by="account")
def deposit(tx, account: int, amount: int) -> int:
    tx.execute(ADD, id_=account, amount_=amount * 1)
    return tx.execute(BALANCE, id_=account).scalar()


@db.procedure(partition_by="account")
def look(tx, account: int) -> int:
    return tx.execute(BALANCE, id_=account).scalar()


@db.procedure()
def set_rate(tx, name: str, rate: int) -> int:
    tx.execute(RATE, name_=name, rate_=rate)
    return rate
"""


class Versions:
    """Imports versions of an application under names of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.loaded: dict[str, str] = {}  # name -> source

    def load(self, name: str, source: str = LEDGER, **changes: str) -> Database:
        """The `db` of the module `name`. Each change replaces the text of `TEXTS[key]` by the value."""
        for old, new in changes.items():
            assert TEXTS[old] in source
            source = source.replace(TEXTS[old], new)
        if self.loaded.get(name) != source:
            sys.modules.pop(name, None)
            (self._folder / f"{name}.py").write_text(source)
            importlib.invalidate_caches()
            self.loaded[name] = source
        db: Database = importlib.import_module(name).db
        return db


TEXTS = {
    "factor": "amount * 1",
    "deposit": "def deposit(tx, account: int, amount: int) -> int:",
    "set_rate": "@db.procedure()\n",
    "key": 'db = Database("ledger")\n',
    "note": '    Column("note", Text),\n',
}


@contextmanager
def importable(folder: Path) -> Iterator[Versions]:
    """Modules of the folder can be imported; they are forgotten at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        patch.setattr(sys, "dont_write_bytecode", True)  # versions of one name within a second would look alike
        versions = Versions(folder)
        yield versions
        for name in versions.loaded:
            sys.modules.pop(name, None)


def rows_of(directory: str | Path, table: str, *, partitions: int = 2) -> list[tuple[Any, ...]]:
    """All rows of a table over all partitions, as the files hold them."""
    found: list[tuple[Any, ...]] = []
    for p in range(partitions):
        connection = open_image(state_path(str(directory), p))
        found += connection.execute(f'SELECT * FROM "{table}"').fetchall()  # noqa: S608 - a name of ours
        connection.close()
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the log has it."""

    txn_id: int
    partition: int
    index: int
    position: int
    count: int  # calls in its batch
    params: list[Any]


def logged_calls(directory: str | Path) -> list[Call]:
    """Every call of the log, by transaction id."""
    source = open_source(RealFiles(), str(directory))
    calls = []
    for _, record in source.read(from_block=source.first_blocks[0]):
        if record.kind is RecordKind.BATCH:
            batch = decode_batch(record)
            for at, (txn_id, params) in enumerate(zip(batch.txn_ids, batch.params(), strict=True)):
                calls.append(Call(txn_id, record.partition, record.index, at, batch.count, params))
    return sorted(calls, key=lambda call: call.txn_id)
