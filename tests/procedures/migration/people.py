"""A site whose program changes: tables before and after, and migrations between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw

from procedures import Database
from procedures.execution.executor import Executor
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.stated_change import Rehearsal, StatedChange
from procedures.storage.state import PartitionState
from tests.procedures.sites import START_MS, txn_at

Dump = tuple[dict[str, str], dict[str, list[tuple[Any, ...]]], list[str]]


class ChangingSite:
    """One partition's state and executor, on which programs follow each other."""

    def __init__(self, path: Path, db: Database, *, partition: int = 0, digest_rows: bool = True) -> None:
        self.programs = {1: db}
        self.state = PartitionState.open(path, partition=partition)
        self.executor = Executor(
            self.state,
            lambda version: self.programs[version],
            digest_rows=digest_rows,
            millis_of=lambda txn: txn >> 21,
            progress=None,
            facts=lambda _version: VersionFacts(),
        )
        self.changes: list[StatedChange] = []
        self.digests: list[str] = []

    @property
    def at(self) -> int:
        return txn_at(START_MS + len(self.changes) + 1)

    def start(self) -> None:
        """The first program makes its tables."""
        self.deploy(self.programs[1])

    def run_sql(self, *statements: str) -> None:
        """Rows, past all rules."""
        with contextlib.closing(apsw.Connection(str(self.state.path))) as connection:
            for statement in statements:
                connection.execute(statement)

    def rehearse(self, db: Database, *, keep: bool = False) -> Rehearsal | None:
        self.programs[len(self.changes) + 1] = db
        return self.executor.rehearse_change(catalog=len(self.changes) + 1, at=self.at, keep=keep)

    def apply(self, change: StatedChange) -> None:
        index = self.state.position.index + 1
        self.executor.apply_schema(index=index, term=1, checksum=7, txn_id=self.at, change=change)
        self.changes.append(change)

    def deploy(self, db: Database, *, keep: bool = False) -> StatedChange:
        """Rehearses and applies."""
        rehearsal = self.rehearse(db, keep=keep)
        assert rehearsal is not None
        self.apply(rehearsal.change)
        return rehearsal.change

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.state.connection.execute(sql).fetchall()

    def dump(self) -> Dump:
        """Tables, rows, and migrations that are done."""
        schema = self.state.schema()
        tables = [name for name, sql in schema.items() if sql.startswith("CREATE TABLE")]
        return schema, {name: sorted(self.rows(f'SELECT * FROM "{name}"')) for name in tables}, self.state.migrations_done()  # noqa: S608

    def close(self) -> None:
        self.executor.close()
        self.state.close()


def as_logged(change: StatedChange) -> StatedChange:
    """After it was written down and read again."""
    return StatedChange.from_json(replace(change).to_json())


Declare = Callable[[Database], None]


def program(declare: Declare, *migrations: tuple[str, Callable[[Any, Any], object]]) -> Database:
    """A database with these tables and migrations."""
    db = Database("people")
    declare(db)
    for name, function in migrations:
        db.migration(name)(function)
    return db


def replayed(
    path: Path, rows: Sequence[str], first: Database, changes: Sequence[StatedChange], programs: dict[int, Database]
) -> Dump:
    """What another state holds after the logged changes."""
    site = ChangingSite(path, first)
    site.start()
    site.run_sql(*rows)
    site.programs |= programs
    for change in changes:
        site.apply(as_logged(change))
    found = site.dump()
    site.close()
    return found
