"""What `tx` of a migration may read and write."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, Numeric, String, column, insert, select, table, text, update

from procedures import Database
from procedures.errors import MigrationFailed
from tests.procedures.migration.people import ChangingSite, program

BEFORE = Database("before")
OLD = BEFORE.table("t", Column("id", Integer, primary_key=True), Column("sum", Numeric(8, 2)), partition_by="id")


def _declare(scale: int, *more: Column[Any]) -> Callable[[Database], None]:
    def declare(db: Database) -> None:
        db.table("t", Column("id", Integer, primary_key=True), *more, Column("sum", Numeric(12, scale)), partition_by="id")
        db.table("shared", Column("id", Integer, primary_key=True), Column("n", Integer), replicated=True)

    return declare


def _site(path: Path, **options: Any) -> ChangingSite:
    def declare(db: Database) -> None:
        db.table("t", Column("id", Integer, primary_key=True), Column("sum", Numeric(8, 2)), partition_by="id")
        db.table("shared", Column("id", Integer, primary_key=True), Column("n", Integer), replicated=True)

    site = ChangingSite(path / "t.db", program(declare), **options)
    site.start()
    site.run_sql("INSERT INTO t (id, sum) VALUES (1, 150)", "INSERT INTO shared VALUES (1, 1)")
    return site


def _run(site: ChangingSite, what: Callable[[Any, Database], object], scale: int = 4) -> None:
    db = program(_declare(scale))

    def migrate(tx: Any, op: Any) -> None:
        what(tx, db)
        op.alter_column("t", "sum", type_=Numeric(12, scale))

    db.migration("0001")(migrate)
    site.deploy(db)


def test_table_as_it_was_is_declared_on_a_database_of_its_own(tmp_path: Path) -> None:
    """Before the decimals change, the old declaration writes units of the old size."""
    site = _site(tmp_path)
    _run(site, lambda tx, db: tx.execute(update(OLD).values(sum=OLD.c.sum + Decimal("0.25"))))
    assert site.rows("SELECT sum FROM t") == [(17500,)]
    site.close()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda tx, db: tx.execute(update(db.tables["t"].table).values(sum=Decimal(1))), "2 decimals .* takes it for one with 4"),
        (lambda tx, db: tx.execute(text("UPDATE t SET sum = 1")), "2 decimals .* does not say so"),
        (lambda tx, db: tx.execute(insert(table("t", column("id"), column("sum"))).values(id=2, sum=1)), "does not say so"),
        (
            lambda tx, db: tx.execute(update(table("t", column("id", Numeric(5, 1)))).values(id=Decimal("2.5"))),
            "t.id is no Numeric at this point",
        ),
        (lambda tx, db: tx.execute(text("UPDATE shared SET n = (SELECT max(id) FROM t)")), "shared is replicated"),
        (
            lambda tx, db: tx.execute(update(db.tables["shared"].table).values(n=tx.scalar(select(OLD.c.id)))),
            "shared is replicated, and the migration has read t",
        ),
        (lambda tx, db: tx.execute(text("DELETE FROM _cmdlog_meta")), "not for procedures"),
        (lambda tx, db: tx.execute(text("DROP TABLE t")), "DROP is not for procedures"),
    ],
)
def test_statement_that_would_be_wrong_is_refused(tmp_path: Path, what: Any, why: str) -> None:
    """Units of another size, copies that would differ, tables of the framework."""
    site = _site(tmp_path)
    before = site.dump()
    with pytest.raises(MigrationFailed, match=why):
        _run(site, what)
    assert site.dump() == before
    site.close()


def test_rows_are_judged_by_the_columns_that_there_are(tmp_path: Path) -> None:
    """A limit of the declaration holds for `tx`, wherever the column is in the state; a call after it is judged so, too."""
    site = _site(tmp_path)
    db = program(_declare(2, Column("name", String(3))))
    name = db.tables["t"].table.c.name

    def migrate(tx: Any, op: Any) -> None:
        op.alter_column("t", "sum", type_=Numeric(12, 2))
        op.add_column("t", Column("name", String(3)))
        tx.execute(update(db.tables["t"].table).values(name=length * "x"))

    db.migration("0001")(migrate)
    length = 4
    with pytest.raises(MigrationFailed, match=f"column {name}: .*3 characters"):
        site.deploy(db)
    length = 3
    site.deploy(db)
    assert site.rows("SELECT id, sum, name FROM t") == [(1, 150, "xxx")]
    site.close()
