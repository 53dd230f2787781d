"""A partition for tests: state, executor, and batches that follow on each other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Column, Integer, String, bindparam, insert, select, update

from procedures import Database, Transaction
from procedures.execution.executor import Applied, Executor, Invocations, KeyPolicy
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState

START_MS = 1_700_000_000_000
Call = tuple[str, dict[str, Any]]


def txn_at(milliseconds: int, counter: int = 0) -> int:
    """A transaction id of the log's layout, on partition 0."""
    return milliseconds << 21 | counter << 10


def uuid7(milliseconds: int, tail: int = 1) -> str:
    """A UUID of version 7 with a stated time."""
    return str(uuid.UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | tail))


class Site:
    """One partition with its executor; `apply` builds the next batch from named calls."""

    def __init__(
        self,
        path: Path,
        db: Database,
        *,
        digest_rows: bool = True,
        policy: KeyPolicy | None = None,
        partition: int = 0,
        progress: Callable[[int], object] | None = None,
        partitions: int | None = None,
    ) -> None:
        self.db = db
        self.path = path
        self.state = PartitionState.open(path, partition=partition)
        self.executor = Executor(
            self.state,
            lambda _version: db,
            digest_rows=digest_rows,
            millis_of=lambda txn: txn >> 21,
            progress=progress,
            key_policy=policy,
            facts=lambda _version: VersionFacts(partitions),
        )
        self.milliseconds = START_MS
        self.numbers = {procedure.name: number for number, procedure in enumerate(db.procedure_list)}
        if self.state.position.index == 0:
            self.executor.apply_schema(
                index=1, term=1, checksum=7, txn_id=txn_at(START_MS - 1), change=StatedChange(tuple(db.schema_statements()))
            )
        else:
            self.milliseconds = (self.state.position.txn_id >> 21) + 1

    def batch(
        self,
        calls: Sequence[Call],
        *,
        keys: Sequence[bytes] | None = None,
        skips: Sequence[int] = (),
        floors: Mapping[bytes, int] | None = None,
    ) -> Invocations:
        """The next batch; every one is a millisecond after the last."""
        self.milliseconds += 1
        return Invocations(
            index=self.state.position.index + 1,
            term=1,
            checksum=7,
            catalog=1,
            txn_ids=[txn_at(self.milliseconds, counter) for counter in range(len(calls))],
            procedures=[self.numbers[name] for name, _ in calls],
            params=[self.db.procedures[name].bind(params) for name, params in calls],
            keys=keys,
            skips=frozenset(skips),
            floors=floors or {},
        )

    def apply(
        self,
        *calls: Call,
        keys: Sequence[bytes] | None = None,
        skips: Sequence[int] = (),
        floors: Mapping[bytes, int] | None = None,
    ) -> Applied:
        return self.executor.apply(self.batch(calls, keys=keys, skips=skips, floors=floors))

    def call(self, name: str, /, **params: Any) -> tuple[int, Any]:
        """(status, decoded body) of one call in a batch of its own."""
        applied = self.apply((name, params))
        return applied.statuses[0], orjson.loads(applied.bodies[0])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.state.connection.execute(sql).fetchall()

    def dump(self) -> list[tuple[Any, ...]]:
        """Everything that the state file holds, position included."""
        tables = [name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [(table, *row) for table in tables for row in self.rows(f'SELECT * FROM "{table}" ORDER BY 1, 2')]  # noqa: S608

    def close(self) -> None:
        self.executor.close()
        self.state.close()


def counters() -> Database:
    """A small application: named counters, one replicated table, and procedures that go wrong in stated ways."""
    db = Database("counters")
    table = db.table(
        "counters", Column("name", String, primary_key=True), Column("value", Integer, nullable=False), partition_by="name"
    )
    shared = db.table("shared", Column("id", Integer, primary_key=True), Column("note", String), replicated=True)
    read = select(table.c.value).where(table.c.name == bindparam("who"))
    add = update(table).where(table.c.name == bindparam("who")).values(value=table.c.value + bindparam("by"))
    make = insert(table).values(name=bindparam("who"), value=bindparam("by"))
    note = insert(shared).values(id=bindparam("number"), note=bindparam("text"))

    @db.procedure(partition_by="name")
    def count(tx: Transaction, name: str, by: int) -> int:
        if tx.execute(add, who=name, by=by).rowcount == 0:
            tx.execute(make, who=name, by=by)
        value: int = tx.execute(read, who=name).scalar()
        return value

    @db.procedure(partition_by="name", read_only=True)
    def peek(tx: Transaction, name: str) -> int | None:
        value: int | None = tx.execute(read, who=name).scalar()
        return value

    @db.procedure(partition_by="name")
    def count_then_raise(tx: Transaction, name: str, by: int) -> None:
        count(tx, name, by)
        raise ValueError("changed my mind")

    @db.procedure(partition_by="name")
    def count_then_abort(tx: Transaction, name: str, by: int) -> None:
        count(tx, name, by)
        tx.abort("no", "not today")

    @db.procedure(partition_by="name")
    def refuse(tx: Transaction, name: str) -> None:
        tx.abort("refused")

    @db.procedure(partition_by=None)
    def add_note(tx: Transaction, number: int, text: str) -> None:
        tx.execute(note, number=number, text=text)

    return db
