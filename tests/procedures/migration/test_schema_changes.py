"""Migrations from rehearsal to replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, Text, column, func, select, table, update

from procedures import Database
from tests.procedures.migration.people import ChangingSite, as_logged, program


def _whole_names(db: Database) -> None:
    db.table("person", Column("id", Integer, primary_key=True), Column("name", Text, nullable=False), partition_by="id")


def _split_names(db: Database) -> None:
    db.table(
        "person",
        Column("id", Integer, primary_key=True),
        Column("name", Text, nullable=False),
        Column("family", Text, nullable=False, server_default=""),
        partition_by="id",
    )


def _split_name(tx: Any, op: Any) -> None:
    op.add_column("person", Column("family", Text, nullable=False, server_default=""))
    person = table("person", column("id"), column("name"), column("family"))
    tx.execute(update(person).values(family=func.upper(person.c.name)))
    assert tx.scalar(select(func.count()).select_from(person)) == 2


ROWS = ("INSERT INTO person (id, name) VALUES (1, 'Ada'), (2, 'Grace')",)


def test_migration_is_replayed_from_its_entry(tmp_path: Path) -> None:
    """Rehearsed, logged, and run from the entry on a second state: the same rows, tables and digest."""
    after = program(_split_names, ("0001_split", _split_name))
    sites = [ChangingSite(tmp_path / name, program(_whole_names)) for name in ("live.db", "replica.db")]
    for site in sites:
        site.start()
        site.run_sql(*ROWS)
    live, replica = sites
    rehearsal = live.rehearse(after)
    assert rehearsal is not None
    assert live.state.migrations_done() == []
    change = rehearsal.change
    assert [run.name for run in change.migrations] == ["0001_split"]
    assert change.rows_digest
    live.apply(change)
    replica.programs[2] = after
    replica.apply(as_logged(change))
    assert live.dump() == replica.dump()
    assert live.rows("SELECT id, name, family FROM person") == [(1, "Ada", "ADA"), (2, "Grace", "GRACE")]
    assert live.state.migrations_done() == ["0001_split"]
    assert live.rehearse(after) is None
    for site in sites:
        site.close()
