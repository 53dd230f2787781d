"""What each operation of `op` does with tables that hold rows, and that a replay does the same."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Computed,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Numeric,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    column,
)

from procedures import Database
from procedures.declaration.columns.held_values import values_shown
from procedures.errors import MigrationFailed
from tests.procedures.migration.people import ChangingSite, as_logged, program

Op = Callable[[Any], Any]
Items = Callable[[], list[Any]]  # columns belong to one table each, so each table gets its own
ROWS = "INSERT INTO t (id, name, cents) VALUES (1, 'one', 150), (2, 'two', 250), (3, 'three', 0)"


def _table(items: Items) -> Callable[[Database], None]:
    def declare(db: Database) -> None:
        made = items()
        refers = any(isinstance(item, ForeignKeyConstraint) for item in made)
        db.table("t", *made, partition_by=None if refers else "id", replicated=refers)

    return declare


def _base() -> list[Any]:
    return [_id(), _name(), _cents()]


def _migrate(tmp_path: Path, before: Items, after: Items, run: Op, *rows: str) -> ChangingSite:
    """The live site after it; a replay of the entry was compared."""
    tmp_path.mkdir(exist_ok=True)
    sites = [ChangingSite(tmp_path / file, program(_table(before))) for file in ("a.db", "b.db")]
    for site in sites:
        site.start()
        site.run_sql(*(rows or (ROWS,)))
    later = program(_table(after), ("0001", lambda tx, op: run(op)))
    change = sites[0].deploy(later)
    sites[1].programs[2] = later
    sites[1].apply(as_logged(change))
    assert sites[0].dump() == sites[1].dump()
    sites[1].close()
    assert sites[0].rehearse(later) is None
    return sites[0]


def _id() -> Column[Any]:
    return Column("id", Integer, primary_key=True)


def _name() -> Column[Any]:
    return Column("name", Text, nullable=False)


def _cents() -> Column[Any]:
    return Column("cents", Numeric(8, 2))


CHANGES: dict[str, tuple[Items, Op, list[tuple[Any, ...]]]] = {
    "add a column": (
        lambda: [_id(), _name(), _cents(), Column("more", Text)],
        lambda op: op.add_column("t", Column("more", Text)),
        [(1, "one", 150, None), (2, "two", 250, None), (3, "three", 0, None)],
    ),
    "add a Numeric with a default": (
        lambda: [_id(), _name(), _cents(), Column("fee", Numeric(6, 3), nullable=False, server_default="1.5")],
        lambda op: op.add_column("t", Column("fee", Numeric(6, 3), nullable=False, server_default="1.5")),
        [(1, "one", 150, 1500), (2, "two", 250, 1500), (3, "three", 0, 1500)],
    ),
    "add a unique column": (
        lambda: [_id(), _name(), _cents(), Column("more", Text, unique=True)],
        lambda op: op.add_column("t", Column("more", Text, unique=True)),
        [(1, "one", 150, None), (2, "two", 250, None), (3, "three", 0, None)],
    ),
    "add an indexed column": (
        lambda: [_id(), _name(), _cents(), Column("more", Text, index=True)],
        lambda op: op.add_column("t", Column("more", Text, index=True)),
        [(1, "one", 150, None), (2, "two", 250, None), (3, "three", 0, None)],
    ),
    "add a generated column": (
        lambda: [_id(), _name(), _cents(), Column("twice", Integer, Computed("id * 2", persisted=True))],
        lambda op: op.add_column("t", Column("twice", Integer, Computed("id * 2", persisted=True))),
        [(1, "one", 150, 2), (2, "two", 250, 4), (3, "three", 0, 6)],
    ),
    "drop a column": (lambda: [_id(), _name()], lambda op: op.drop_column("t", "cents"), [(1, "one"), (2, "two"), (3, "three")]),
    "rename a column": (
        lambda: [_id(), Column("label", Text, nullable=False), _cents()],
        lambda op: op.alter_column("t", "name", new_column_name="label"),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "rename a Numeric": (
        lambda: [_id(), _name(), Column("price", Numeric(8, 2))],
        lambda op: op.alter_column("t", "cents", new_column_name="price"),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "rename to a reserved word": (
        lambda: [_id(), Column("order", Text, nullable=False), _cents()],
        lambda op: op.alter_column("t", "name", new_column_name="order"),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "more decimals": (
        lambda: [_id(), _name(), Column("cents", Numeric(12, 4))],
        lambda op: op.alter_column("t", "cents", type_=Numeric(12, 4)),
        [(1, "one", 15000), (2, "two", 25000), (3, "three", 0)],
    ),
    "fewer decimals": (
        lambda: [_id(), _name(), Column("cents", Numeric(8, 1))],
        lambda op: op.alter_column("t", "cents", type_=Numeric(8, 1)),
        [(1, "one", 15), (2, "two", 25), (3, "three", 0)],
    ),
    "more digits": (
        lambda: [_id(), _name(), Column("cents", Numeric(12, 2))],
        lambda op: op.alter_column("t", "cents", type_=Numeric(12, 2)),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "a length that has no effect in SQL": (
        lambda: [_id(), Column("name", String(10), nullable=False), _cents()],
        lambda op: op.alter_column("t", "name", type_=String(10)),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "nullable": (
        lambda: [_id(), Column("name", Text), _cents()],
        lambda op: op.alter_column("t", "name", nullable=True),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "not null with a default": (
        lambda: [_id(), _name(), Column("cents", Numeric(8, 2), nullable=False, server_default="0.5")],
        lambda op: op.alter_column("t", "cents", nullable=False, server_default="0.5", existing_type=Numeric(8, 2)),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "a unique constraint": (
        lambda: [_id(), _name(), _cents(), UniqueConstraint("name", name="names")],
        lambda op: op.create_unique_constraint("names", "t", ["name"]),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "a check": (
        lambda: [_id(), _name(), _cents(), CheckConstraint("id > 0", name="ids")],
        lambda op: op.create_check_constraint("ids", "t", "id > 0"),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "a check of a Numeric": (
        lambda: [_id(), _name(), _cents(), CheckConstraint(column("cents") <= Decimal("99.5"), name="most")],
        lambda op: op.create_check_constraint("most", "t", column("cents") <= Decimal("99.5")),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "a column computed from a Numeric": (
        lambda: [
            _id(),
            _name(),
            _cents(),
            Column("twice", Numeric(9, 2), Computed(column("cents") + Decimal("0.5"), persisted=True)),
        ],
        lambda op: op.add_column("t", Column("twice", Numeric(9, 2), Computed(column("cents") + Decimal("0.5"), persisted=True))),
        [(1, "one", 150, 200), (2, "two", 250, 300), (3, "three", 0, 50)],
    ),
    "a foreign key to itself": (
        lambda: [_id(), _name(), _cents(), Column("up", Integer), ForeignKeyConstraint(["up"], ["t.id"], name="ups")],
        lambda op: (op.add_column("t", Column("up", Integer)), op.create_foreign_key("ups", "t", "t", ["up"], ["id"])),
        [(1, "one", 150, None), (2, "two", 250, None), (3, "three", 0, None)],
    ),
    "another key": (
        lambda: [Column("id", Integer, nullable=False), _name(), _cents(), PrimaryKeyConstraint("name", "id")],
        lambda op: op.create_primary_key(None, "t", ["name", "id"]),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
    "an index": (
        lambda: [_id(), _name(), _cents(), Index("by_name", "name", unique=True)],
        lambda op: op.create_index("by_name", "t", ["name"], unique=True),
        [(1, "one", 150), (2, "two", 250), (3, "three", 0)],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_operation_leads_to_the_declared_table(tmp_path: Path, change: str) -> None:
    """The tables are as declared, the rows are where they were, and the replay of the entry does the same."""
    after, run, rows = CHANGES[change]
    site = _migrate(tmp_path, _base, after, run)
    assert sorted(site.rows("SELECT * FROM t ORDER BY id")) == sorted(rows)
    site.close()


def test_a_check_by_a_declared_table_is_not_added_to_that(tmp_path: Path) -> None:
    """Else the declaration would have it twice, and no migration lead there."""
    former = Database("former").table("t", _id(), _cents(), partition_by="id")
    before = len(former.constraints)
    site = _migrate(
        tmp_path,
        _base,
        lambda: [*_base(), CheckConstraint(column("cents") <= Decimal("99.5"), name="most")],
        lambda op: op.create_check_constraint("most", "t", former.c.cents <= Decimal("99.5")),
    )
    assert "CONSTRAINT most CHECK (cents <= 9950)" in site.rows("SELECT sql FROM sqlite_schema WHERE name = 't'")[0][0]
    assert len(former.constraints) == before
    site.close()


def test_a_check_in_text_sees_no_units(tmp_path: Path) -> None:
    """Also where the table is not declared."""
    with pytest.raises(MigrationFailed, match="as text it can be compared with 0 alone"):
        _migrate(tmp_path, _base, _base, lambda op: op.create_check_constraint("most", "t", "cents <= 99"))


def test_batch_is_one_rewrite(tmp_path: Path) -> None:
    """All that a batch does is one step, and the rows are copied once; indexes and other constraints stay."""

    def before() -> list[Any]:
        old = Column("old", Integer, server_default="7")
        return [*_base(), old, Index("by_name", "name"), CheckConstraint("id > 0", name="ids")]

    def after() -> list[Any]:
        return [
            Column("id", Integer, primary_key=True),
            Column("name", Text),
            Column("cents", Numeric(12, 4), nullable=False),
            Column("new", Integer, nullable=False, server_default="3"),
            Index("by_name", "name"),
            UniqueConstraint("name", name="names"),
        ]

    def run(op: Any) -> None:
        with op.batch_alter_table("t") as batch:
            batch.drop_column("old")
            batch.alter_column("name", nullable=True)
            batch.alter_column("cents", type_=Numeric(12, 4), nullable=False)
            batch.add_column(Column("new", Integer, nullable=False, server_default="3"))
            batch.drop_constraint("ids", type_="check")
            batch.create_unique_constraint("names", ["name"])

    site = _migrate(tmp_path, before, after, run)
    (migration,) = site.changes[1].migrations
    (step,) = migration.steps
    assert [sql.split()[0] for sql in step] == ["CREATE", "INSERT", "DROP", "ALTER", "CREATE"]
    assert site.rows("SELECT id, name, cents, new FROM t") == [(1, "one", 15000, 3), (2, "two", 25000, 3), (3, "three", 0, 3)]
    site.close()


def test_renamed_table_keeps_indexes_and_references(tmp_path: Path) -> None:
    """Foreign keys and indexes of other tables follow a table and a column that are renamed, also through a rewrite of both."""

    def before(db: Database) -> None:
        db.table("a", Column("id", Integer, primary_key=True), Column("n", Integer, unique=True), replicated=True)
        db.table(
            "b", Column("id", Integer, primary_key=True), Column("a_n", Integer, ForeignKey("a.n")), Index("by_a", "a_n"),
            replicated=True,
        )  # fmt: skip

    def after(db: Database) -> None:
        db.table(
            "aa", Column("id", Integer, primary_key=True), Column("m", Integer, unique=True, nullable=False), replicated=True
        )
        db.table(
            "b", Column("id", Integer, primary_key=True), Column("aa_m", Integer, ForeignKey("aa.m"), nullable=False),
            Index("by_a", "aa_m"), replicated=True,
        )  # fmt: skip

    def run(tx: Any, op: Any) -> None:
        op.rename_table("a", "aa")
        op.alter_column("aa", "n", new_column_name="m", nullable=False)
        op.alter_column("b", "a_n", new_column_name="aa_m", nullable=False)

    site = ChangingSite(tmp_path / "a.db", program(before))
    site.start()
    site.run_sql("INSERT INTO a VALUES (1, 10)", "INSERT INTO b VALUES (1, 10)")
    site.deploy(program(after, ("0001", run)))
    assert site.rows("SELECT * FROM aa JOIN b ON aa_m = m") == [(1, 10, 1, 10)]
    assert site.rows("PRAGMA foreign_key_check") == []
    site.close()


def test_constraint_without_a_name_is_dropped_by_the_conventional_one(tmp_path: Path) -> None:
    """uq_, fk_ and ck_ with table and columns; the message lists the names."""
    site = _migrate(
        tmp_path,
        lambda: [*_base(), UniqueConstraint("name")],
        _base,
        lambda op: op.drop_constraint("uq_t_name", "t", type_="unique"),
    )
    site.close()


REFUSED: dict[str, tuple[Op, str]] = {
    "a column of the key": (lambda op: op.drop_column("t", "id"), "belongs to the primary key"),
    "an unknown column": (lambda op: op.drop_column("t", "nope"), "has no column 'nope'; it has id, name, cents"),
    "an unknown table": (lambda op: op.drop_column("u", "nope"), "there is no table 'u'"),
    "a constraint that is not there": (lambda op: op.drop_constraint("nope", "t"), "its constraints are pk_t"),
    "the key": (lambda op: op.drop_constraint("pk_t", "t"), "cannot be without a primary key"),
    "digits that are lost": (
        lambda op: op.alter_column("t", "cents", type_=Numeric(8, 0)),
        r"2 rows of t hold a cents that loses digits as .*; the first is id = 1, with cents = Decimal\('1.50'\)",
    ),
    "text as Numeric": (lambda op: op.alter_column("t", "name", type_=Numeric(8, 0)), "add a second column, fill it"),
    "text as Integer": (lambda op: op.alter_column("t", "name", type_=Integer()), "cannot store TEXT value in INTEGER column"),
    "NOT NULL without a default": (
        lambda op: op.add_column("t", Column("n", Integer, nullable=False)),
        r"NOT NULL constraint failed: t.n: 3 rows of t are refused; the first is id = 1",
    ),
    "execute": (lambda op: op.execute("DELETE FROM t"), "op.execute is not for migrations here; write it with tx.execute"),
    "bulk_insert": (lambda op: op.bulk_insert(None, []), "op.bulk_insert is not"),
    "get_bind": (lambda op: op.get_bind(), "there is no connection"),
    "a schema": (lambda op: op.drop_column("t", "cents", schema="x"), "a partition has one schema"),
    "a comment": (lambda op: op.create_table_comment("t", "x"), "op has no CreateTableComment"),
    "a unique index over rows that are not": (
        lambda op: op.create_index("u", "t", ["same"], unique=True),
        r"UNIQUE constraint failed: t.same: 2 rows of t are refused; the first is id = 2, same = 1",
    ),
    "an unused argument": (lambda op: op.add_column("t"), "TypeError"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_operation_that_cannot_be_done_changes_nothing(tmp_path: Path, what: str) -> None:
    """It is named with what to do instead; tables and rows are as before."""
    run, why = REFUSED[what]
    site = ChangingSite(tmp_path / "a.db", program(_table(lambda: [*_base(), Column("same", Integer)])))
    site.start()
    site.run_sql(ROWS, "UPDATE t SET same = 1")
    before = site.dump()
    site.executor.drop_rehearsal()
    with values_shown(), pytest.raises(MigrationFailed, match=why) as failed:
        site.rehearse(program(_table(_base), ("0001", lambda tx, op: (op.add_column("t", Column("x", Text)), run(op)))))
    assert failed.value.migration == "0001"
    assert site.dump() == before
    assert not site.state.connection.in_transaction
    site.close()


def test_rows_that_refer_to_nothing_are_found_at_the_end(tmp_path: Path) -> None:
    """A foreign key that is added over rows without a target fails the migration."""
    why = "a row of table t refers to a row that table t does not have; the first of 1 is id = 1, up = 99"
    with values_shown(), pytest.raises(MigrationFailed, match=why):
        _migrate(
            tmp_path,
            lambda: [*_base(), Column("up", Integer)],
            lambda: [*_base(), Column("up", Integer), ForeignKeyConstraint(["up"], ["t.id"], name="ups")],
            lambda op: op.create_foreign_key("ups", "t", "t", ["up"], ["id"]),
            ROWS,
            "UPDATE t SET up = 99 WHERE id = 1",
        )


def test_tables_are_created_and_dropped(tmp_path: Path) -> None:
    """As by their declaration, with exact numbers."""

    def after(db: Database) -> None:
        db.table(
            "u", Column("id", Integer, primary_key=True), Column("n", Numeric(5, 2), server_default="1.25"), partition_by="id"
        )

    def run(tx: Any, op: Any) -> None:
        op.create_table("u", Column("id", Integer, primary_key=True), Column("n", Numeric(5, 2), server_default="1.25"))
        op.drop_table("t")

    site = ChangingSite(tmp_path / "a.db", program(_table(_base)))
    site.start()
    site.run_sql(ROWS)
    site.deploy(program(after, ("0001", run)))
    assert list(site.state.schema()) == ["u"]
    assert Decimal("1.25") == Decimal(site.rows("SELECT dflt_value FROM pragma_table_info('u') WHERE name = 'n'")[0][0]) / 100
    site.close()
