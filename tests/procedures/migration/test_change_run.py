"""A change in its transaction: kept or taken back, whole or not at all, and what the machine does to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import Column, Integer, Text, update

from procedures import Database
from procedures.errors import EnvironmentFault, MigrationFailed, SchemaConflict
from procedures.migration.change_run import RecordedOperations, StepsDiffer
from tests.procedures.migration.people import ChangingSite, program


def _before(db: Database) -> None:
    db.table("t", Column("id", Integer, primary_key=True), Column("n", Integer), partition_by="id")


def _after(db: Database) -> None:
    db.table("t", Column("id", Integer, primary_key=True), Column("n", Integer), Column("x", Text), partition_by="id")


def _site(path: Path) -> ChangingSite:
    site = ChangingSite(path / "t.db", program(_before))
    site.start()
    site.run_sql("INSERT INTO t VALUES (1, 1), (2, 2)")
    return site


def _filling(raises: BaseException | None = None) -> Database:
    db = program(_after)
    table = db.tables["t"].table

    @db.migration("0001")
    def fill(tx: Any, op: Any) -> None:
        op.add_column("t", Column("x", Text))
        tx.execute(update(table).values(x="filled"))
        if raises is not None:
            raise raises

    return db


def test_kept_change_is_committed_by_its_entry(tmp_path: Path) -> None:
    """Nobody else sees it before; then it is there, and the state has no open transaction."""
    site = _site(tmp_path)
    rehearsal = site.rehearse(_filling(), keep=True)
    assert rehearsal is not None
    assert site.state.connection.in_transaction
    other = apsw.Connection(str(site.state.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert len(other.execute("SELECT * FROM t").fetchall()[0]) == len(("id", "n"))
    site.apply(rehearsal.change)
    assert other.execute("SELECT x FROM t").fetchall() == [("filled",), ("filled",)]
    assert not site.state.connection.in_transaction
    other.close()
    site.close()


@pytest.mark.parametrize("what", ["drop", "advance", "another"])
def test_kept_change_is_dropped_by_anything_else(tmp_path: Path, what: str) -> None:
    """Also by an entry of another change."""
    site = _site(tmp_path)
    before = site.dump()
    site.rehearse(_filling(), keep=True)
    if what == "drop":
        site.executor.drop_rehearsal()
    elif what == "advance":
        site.executor.advance(index=site.state.position.index + 1, term=1, checksum=0)
    else:
        site.rehearse(program(_before))
    assert site.dump() == before
    assert not site.state.connection.in_transaction
    site.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), apsw.ConstraintError("no")])
def test_migration_that_raises_changes_nothing(tmp_path: Path, error: BaseException) -> None:
    """Whatever it is; a later one goes through."""
    site = _site(tmp_path)
    before = site.dump()
    with pytest.raises(MigrationFailed, match="'0001' on partition 0: after 1 steps of op"):
        site.rehearse(_filling(error))
    assert site.dump() == before
    site.deploy(_filling())
    assert site.rows("SELECT x FROM t") == [("filled",), ("filled",)]
    site.close()


def test_failure_of_the_machine_is_not_the_migration_s(tmp_path: Path) -> None:
    """A disk that is full, also if the function swallows it; nothing is changed."""
    site = _site(tmp_path)
    before = site.dump()
    with pytest.raises(EnvironmentFault) as fault:
        site.rehearse(_filling(apsw.FullError("database or disk is full")))
    assert fault.value.kind == "disk_full"
    assert site.dump() == before
    pages = site.state.connection.pragma("page_count")
    site.state.connection.pragma("max_page_count", pages)
    db = _filling()

    @db.migration("0002")
    def grow(tx: Any, op: Any) -> None:
        for number in range(20):
            op.create_index(f"by{number}", "t", ["n", "x"])

    with pytest.raises(EnvironmentFault, match="disk_full"):
        site.rehearse(db)
    site.state.connection.pragma("max_page_count", 1 << 20)
    assert site.dump() == before
    site.close()


def test_migration_that_does_not_repeat_itself_is_refused(tmp_path: Path) -> None:
    """Before it is logged: other rows, and other numbers of steps."""
    site = _site(tmp_path)
    table, runs = program(_after).tables["t"].table, [0]

    def count(tx: Any, op: Any) -> None:
        runs[0] += 1
        op.add_column("t", Column("x", Text))
        tx.execute(update(table).values(x=str(runs[0])))

    with pytest.raises(MigrationFailed, match="not deterministic: when it was run again, it changed other rows"):
        site.rehearse(program(_after, ("0001", count)))
    site.close()


def test_state_that_has_the_tables_needs_nothing(tmp_path: Path) -> None:
    """None, and no transaction; an addition that the rows do not allow is a conflict."""
    site = _site(tmp_path)
    assert site.rehearse(program(_before)) is None

    def unique(db: Database) -> None:
        db.table("t", Column("id", Integer, primary_key=True), Column("n", Integer, index=True, unique=True), partition_by="id")

    site.run_sql("UPDATE t SET n = 5")
    with pytest.raises(SchemaConflict):
        site.rehearse(program(unique))
    assert not site.state.connection.in_transaction
    site.close()


def test_calls_run_their_steps_whatever_they_say() -> None:
    """A batch is one step, at its end; nothing comes back but a name."""
    ran: list[tuple[str, ...]] = []
    op = RecordedOperations([("one",), (), ("two", "three")], ran.append)
    assert op.add_column("t", None) is None
    with op.batch_alter_table("t") as batch:
        assert batch.add_column(None) is None
        assert batch.f("n") == op.f("n") == "n"
        assert ran == [("one",)]
    op.drop_table("t")
    op.end_steps()
    assert ran == [("one",), (), ("two", "three")]


def test_other_numbers_of_calls_are_a_difference() -> None:
    """More, and fewer."""
    op = RecordedOperations([("one",)], lambda _step: None)
    with pytest.raises(StepsDiffer, match="it made 0 calls of op"):
        op.end_steps()
    op.drop_table("t")
    with pytest.raises(StepsDiffer, match="more than 1 times"):
        op.drop_table("t")
    with pytest.raises(AttributeError):
        _ = op._none
