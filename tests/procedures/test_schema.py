"""Declarations: which tables are refused, and the way from an older set of tables to a newer one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    String,
    Time,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.schema import SchemaItem

from procedures import Database, DefinitionError, slot_of
from procedures.errors import SchemaConflict, StateRefused
from procedures.execution.executor import Executor
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState, Position, open_reader
from tests.procedures.sites import Site, counters, txn_at

GOLDEN_SLOTS = [170, 937, 12464, 7282, 13480, 7085, 3123]


def key() -> Column[Any]:
    """The usual first column."""
    return Column("id", Integer, primary_key=True)


REFUSED: dict[str, Callable[[], tuple[SchemaItem, ...]]] = {
    "no primary key": lambda: (Column("id", Integer),),
    "default from the clock": lambda: (key(), Column("at", DateTime, server_default=text("CURRENT_TIMESTAMP"))),
    "default from a function": lambda: (key(), Column("at", Integer, server_default=func.random())),
    "default in parentheses": lambda: (key(), Column("at", Integer, server_default=text("(abs(random()))"))),
    "default of no argument": lambda: (key(), Column("n", Integer, default=lambda: 5)),
    "Python onupdate": lambda: (key(), Column("n", Integer, onupdate=lambda: 5)),
    "identity of the column by which rows are partitioned": lambda: (Column("id", Integer, Identity(), primary_key=True),),
    "deferrable": lambda: (key(), Column("n", Integer, ForeignKey("x.id", deferrable=True))),
    "rollback clause": lambda: (key(), Column("n", Integer), UniqueConstraint("n", sqlite_on_conflict="ROLLBACK")),
    "virtual column": lambda: (key(), Column("n", Integer, Computed("id + 1", persisted=False))),
    "time of day with a zone": lambda: (key(), Column("n", Time(timezone=True))),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_table_that_cannot_be_replayed_is_refused(reason: str) -> None:
    """Each rule of a table is checked when it is declared, and the refused table leaves no trace."""
    db = Database("refused")
    db.table("x", Column("id", Integer, primary_key=True), partition_by="id")
    with pytest.raises(DefinitionError):
        db.table("t", *REFUSED[reason](), partition_by="id")
    assert list(db.tables) == ["x"]
    db.table("t", Column("id", Integer, primary_key=True), partition_by="id")


@pytest.mark.parametrize("name", ["_cmdlog_x", "cmdlog_x", "sqlite_x", "a b", "", "1a", "x" * 64, 'a"b'])
def test_names_of_tables_are_plain(name: str) -> None:
    """Names that belong to SQLite or the framework, or that would need quoting, are refused."""
    with pytest.raises(DefinitionError):
        Database("names").table(name, Column("id", Integer, primary_key=True), partition_by="id")


def test_placement_of_a_table_is_stated_once() -> None:
    """A table is partitioned by a column of its own, or replicated; not both, not neither, and declared once."""
    db = Database("placement")
    for wrong in ({}, {"partition_by": "id", "replicated": True}, {"partition_by": "other"}):
        with pytest.raises(DefinitionError):
            db.table("t", key(), **wrong)
    db.table("t", key(), replicated=True)
    with pytest.raises(DefinitionError, match="twice"):
        db.table("T", key(), replicated=True)


def test_decorator_without_brackets_is_told_what_to_write() -> None:
    """Not a TypeError of ours: the procedure is named, and both ways to declare it."""
    db = Database("bare")
    decorate: Any = db.procedure
    with pytest.raises(DefinitionError, match=r"'pay': write @db\.procedure\(partition_by='<parameter>'\).*partition_by=None\)"):

        @decorate
        def pay(tx: Any, account: int) -> None: ...


def test_tables_are_strict_and_without_hidden_rowids() -> None:
    """One INTEGER key is the rowid itself; every other table has none; both check their types."""
    db = Database("ddl")
    db.table("a", Column("id", Integer, primary_key=True), Column("n", Integer, index=True), partition_by="id")
    db.table(
        "b",
        Column("x", String, primary_key=True),
        Column("y", Integer, primary_key=True),
        Column("z", Integer, server_default="5"),
        CheckConstraint("z > 0"),
        partition_by="x",
    )
    statements = db.schema_statements()
    assert statements[0].endswith(" STRICT")
    assert statements[1] == "CREATE INDEX ix_a_n ON a (n)"
    assert statements[2].endswith(" STRICT, WITHOUT ROWID")
    connection = apsw.Connection(":memory:")
    for statement in statements:
        connection.execute(statement)
    with pytest.raises(apsw.ConstraintError):
        connection.execute("INSERT INTO a VALUES (1, 'text')")
    with pytest.raises(apsw.ConstraintError):
        connection.execute("INSERT INTO b VALUES (NULL, 1, 1)")


def test_plan_creates_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    """From a state's tables to the application's: none when they agree, only additions else, conflicts named."""
    old = Database("shop")
    old.table("a", Column("id", Integer, primary_key=True), partition_by="id")
    site = Site(tmp_path / "s.db", old)
    assert old.plan_schema(site.state.schema()) == []
    new = Database("shop")
    new.table("a", Column("id", Integer, primary_key=True), partition_by="id")
    new.table("b", Column("id", Integer, primary_key=True), Column("n", Integer), Index("by_n", "n"), replicated=True)
    plan = new.plan_schema(site.state.schema())
    assert [statement.split()[1:3] for statement in plan] == [["TABLE", "b"], ["INDEX", "by_n"]]
    index = site.state.position.index + 1
    site.executor.apply_schema(
        index=index, term=1, checksum=0, txn_id=txn_at(site.milliseconds + 1), change=StatedChange(tuple(plan))
    )
    assert new.plan_schema(site.state.schema()) == []
    changed = Database("shop")
    changed.table("a", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
    with pytest.raises(SchemaConflict, match="table 'a': column 'n' cannot be added"):
        changed.plan_schema(site.state.schema())
    site.close()


def test_state_of_another_partition_or_format_is_refused(tmp_path: Path) -> None:
    """A file that is not this partition's state is refused by name, and not changed."""
    path = tmp_path / "p.db"
    PartitionState.open(path, partition=3).close()
    with pytest.raises(StateRefused, match="partition 3"):
        PartitionState.open(path, partition=4)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE _cmdlog_meta SET format = 99")
    connection.close()
    with pytest.raises(StateRefused, match="format 99"):
        PartitionState.open(path, partition=3)
    other = tmp_path / "other.db"
    connection = apsw.Connection(str(other))
    connection.execute("CREATE TABLE x(a)")
    connection.close()
    with pytest.raises(StateRefused, match="no state"):
        PartitionState.open(other, partition=3)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database at all, and longer than a header" * 100)
    with pytest.raises(StateRefused, match="recover"):
        PartitionState.open(garbage, partition=3)


def test_reader_sees_one_frozen_state_and_cannot_write(tmp_path: Path) -> None:
    """A reader's transaction stays as it was while the site goes on, and nothing can be written through it."""
    site = Site(tmp_path / "s.db", counters())
    site.call("count", name="a", by=1)
    reader, _ = open_reader(site.path)
    reader.execute("BEGIN")
    before = reader.execute("SELECT value FROM counters").fetchall()
    site.call("count", name="a", by=1)
    assert reader.execute("SELECT value FROM counters").fetchall() == before == [(1,)]
    reader.execute("COMMIT")
    assert reader.execute("SELECT value FROM counters").fetchall() == [(2,)]
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM counters")
    reader.close()
    site.close()


def test_state_that_was_not_closed_is_whole(tmp_path: Path) -> None:
    """What a killed process leaves is the last batch, whole: the file is read again without being closed."""
    site = Site(tmp_path / "s.db", counters())
    for _ in range(3):
        site.call("count", name="a", by=1)
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{site.path}{suffix}").read_bytes())
    again = PartitionState.open(copy, partition=0)
    assert again.position == site.state.position
    assert again.connection.execute("SELECT value FROM counters").fetchall() == [(3,)]
    again.close()
    site.close()


def test_new_state_is_at_zero(tmp_path: Path) -> None:
    """A new state contains nothing of the log."""
    state = PartitionState.open(tmp_path / "n.db", partition=0)
    assert state.position == Position(0, 0, 0, 0)
    executor = Executor(state, lambda _: counters(), digest_rows=True, millis_of=lambda _: 0, progress=None)
    assert not list(executor._known.keys)
    state.close()


def test_slots_are_where_rows_stay() -> None:
    """The slot function never changes: these values are part of the on-disk contract."""
    assert [slot_of(value) for value in (0, 1, -5, 1 << 62, "", "a", "ü")] == GOLDEN_SLOTS
    assert all(0 <= slot_of(number) < 16384 for number in range(1000))
    for wrong in (1.5, None, True, b"a", [1]):
        with pytest.raises(TypeError):
            slot_of(wrong)
