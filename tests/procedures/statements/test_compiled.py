"""What statements are compiled, and which texts are refused."""

from __future__ import annotations

from contextlib import closing, nullcontext
from datetime import timedelta
from decimal import Decimal
from typing import Any

import apsw
import pytest
from sqlalchemy import (
    Column,
    Computed,
    Date,
    Float,
    FrameClause,
    FrameClauseType,
    Integer,
    Interval,
    MetaData,
    String,
    Table,
    bindparam,
    exc,
    func,
    select,
    text,
    union,
)

from procedures import Database, StatementRefused, Transaction
from procedures.declaration.dialect import bind_processor_of
from procedures.errors import DefinitionError
from procedures.execution.executor import Status
from procedures.statements.compiled import check_text, compile_statement
from procedures.storage.authorizer import TABLE_FUNCTIONS, Authorizer, Mode
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "BEGIN",
        "ROLLBACK",
        "SAVEPOINT x",
        "RELEASE call",
        "END",
        "PRAGMA user_version = 5",
        "PRAGMA table_info(rows)",
        "ATTACH 'x' AS y",
        "DETACH main",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "CREATE TABLE x(a)",
        "DROP TABLE rows",
        "ALTER TABLE rows ADD COLUMN x",
        "EXPLAIN SELECT 1",
        "",
        ";",
        "SELECT 1; COMMIT",
        "INSERT OR ROLLBACK INTO rows(id) VALUES (1)",
        "UPDATE or /* x */ rollback rows SET id = 1",
        "/* SELECT */ COMMIT",
        "-- SELECT\nCOMMIT",
        "SELECT random()",
        "SELECT randomblob(4)",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT current_date, current_time",
        "SELECT date('now')",
        "SELECT strftime('%s', 'now')",
        "SELECT unixepoch()",
        "SELECT julianday(2)",
        "SELECT last_insert_rowid()",
        "SELECT changes()",
        "SELECT total_changes()",
        "SELECT sqlite_version()",
        "SELECT load_extension('x')",
        "SELECT sin(1)",
        "SELECT * FROM _cmdlog_meta",
        "UPDATE _cmdlog_meta SET idx = 99",
        "UPDATE _CMDLOG_meta SET idx = 99",
        'DELETE FROM "_cmdlog_keys"',
        "SELECT * FROM sqlite_master",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM pragma_table_info('rows')",
        "SELECT * FROM pragma_database_list",
        "WITH x AS (SELECT random() AS r) SELECT r FROM x",
        "INSERT INTO rows(id) SELECT random()",
        "SELECT id FROM rows WHERE id IN (SELECT idx FROM _cmdlog_meta)",
        "SELECT * FROM nowhere",
    ],
)
def test_texts_that_no_procedure_may_run(bench: StatementBench, sql: str) -> None:
    """Transaction control, schema, PRAGMA, the framework's tables, clock and chance are refused, and nothing remains."""
    before = bench.site.rows("SELECT * FROM sqlite_master")
    for name in ("single", "everywhere", "look"):
        if name != "look":
            status, body = bench.run(lambda tx: list(tx.execute(text(sql))), name)
            assert status == Status.FAILED, body
        else:
            bench.body = lambda tx: list(tx.execute(text(sql)))
            _, answers = bench.site.executor.read([(bench.site.numbers["look"], [1])], catalog=1)
            assert answers[0][0] == Status.FAILED
    assert bench.site.rows("SELECT * FROM sqlite_master") == before
    assert bench.run(lambda tx: 5) == (Status.OK, 5)


NAMED_LATE = (
    "bytecode", "carray", "completion", "csv", "dbstat", "fsdir", "generate_series", "json_each", "json_tree", "series",
    "sqlite_dbpage", "sqlite_schema", "sqlite_stmt", "sqlite_temp_master", "tables_used", "zipfile",
)  # fmt: skip
"""Tables of SQLite and of its shell that are registered when they are named, and then or never are in a list."""


def built_in_tables() -> list[str]:
    """All names that this SQLite may have a table for by itself."""
    with closing(apsw.Connection(":memory:")) as empty:
        modules = [str(name) for (name,) in empty.execute("SELECT name FROM pragma_module_list")]
        pragmas = [f"pragma_{name}" for (name,) in empty.execute("SELECT name FROM pragma_pragma_list")]
    return sorted({*modules, *pragmas, *NAMED_LATE})


@pytest.mark.parametrize("name", built_in_tables())
def test_of_the_tables_of_sqlite_those_of_the_list_are_read(name: str) -> None:
    """A new version of SQLite brings new ones: whatever it has by itself is refused, whichever way it is read."""
    guard = Authorizer()
    expected = nullcontext() if name in TABLE_FUNCTIONS else pytest.raises(apsw.Error)
    with closing(apsw.Connection(":memory:")) as connection:
        connection.authorizer = guard
        guard.mode = Mode.PROCEDURE
        for form in ("SELECT * FROM {}", "SELECT count(*) FROM {}", "SELECT 1 FROM main.{}('[]')", 'SELECT 1 FROM "{}" AS t'):
            for spelt in (name, name.upper()):
                with expected:
                    connection.execute(form.format(spelt)).fetchall()
        common = f"WITH later_{name} AS (SELECT 1) SELECT count(*) FROM later_{name}"  # noqa: S608 - names of SQLite
        assert connection.execute(common).get == 1


def test_a_table_that_sqlite_has_cannot_be_declared() -> None:
    """Its rows could be written and not be read."""
    with pytest.raises(DefinitionError, match="SQLite has one"):
        Database("shapes").table("carray", Column("id", Integer, primary_key=True), replicated=True)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "values (1), (2)",
        "WITH x(a) AS (VALUES (1)) SELECT a FROM x",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT 'a;b', \"id\", ';' FROM rows",
        "SELECT 'insert or rollback'",
        "SELECT count(*), max(id), group_concat(name) FROM rows",
        "SELECT row_number() OVER (ORDER BY id) FROM rows",
        "SELECT json_extract('{\"a\": 1}', '$.a'), abs(-1), round(1.5), upper('x'), coalesce(NULL, 1)",
        "INSERT OR IGNORE INTO rows(id) VALUES (1)",
        "REPLACE INTO rows(id) VALUES (1)",
    ],
)
def test_texts_that_procedures_may_run(bench: StatementBench, sql: str) -> None:
    """Reading and changing rows with functions of their arguments alone is allowed."""
    status, body = bench.run(lambda tx: tx.execute(text(sql)).rowcount)
    assert status == Status.OK, body


def test_what_is_no_statement_is_refused() -> None:
    """Strings, tables, functions of SQLAlchemy's ORM and schema statements are refused with a hint."""
    db = Database("shapes")
    table = db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
    for wrong in ("select 1", None, 5, table, table.c.id, func.count()):
        with pytest.raises(StatementRefused):
            compile_statement(wrong)
    with pytest.raises(StatementRefused, match="semicolon"):
        check_text("SELECT 1; SELECT 2")


def test_columns_whose_names_no_parameter_may_have(make_site: MakeSite) -> None:
    """Punctuation in the name of a column is no part of SQL: it is given, compared, listed and returned as any other."""
    names = ("per cent", "per_20_cent", "q?", "a:b", "(x)")
    db = Database("punctuated")
    table = db.table("t", Column("id", Integer, primary_key=True), *(Column(name, Integer) for name in names), replicated=True)

    @db.procedure(partition_by=None)
    def write_and_read(tx: Transaction) -> list[int]:
        key = tx.execute(table.insert(), {"id": 1, **{name: at for at, name in enumerate(names)}}).inserted_primary_key
        tx.execute(table.update().where(table.c.id == key.id), {"q?": 7})
        same = [
            table.c["per cent"] == 0,
            table.c["per_20_cent"] == 1,
            table.c["a:b"].in_([3, 4]),
            table.c["(x)"] == bindparam("(x)"),
        ]
        row = tx.execute(select(table).where(*same), {"(x)": 4}).one()
        return [row._mapping[name] for name in names]

    assert make_site(db).call("write_and_read") == (Status.OK, [0, 1, 7, 3, 4])


def test_generated_columns_are_left_out_of_what_parameters_choose(make_site: MakeSite) -> None:
    """`insert(table)` and `update(table)` set the columns that are named, and SQLite computes the others."""
    db = Database("squares")
    area = Column("area", Integer, Computed("side * side", persisted=True))
    table = db.table("t", Column("id", Integer, primary_key=True), Column("side", Integer), area, replicated=True)

    @db.procedure(partition_by=None)
    def write_and_read(tx: Transaction) -> int:
        tx.execute(table.insert(), id=1, side=10)
        tx.execute(table.insert(), [{"id": 2, "side": 20}, {"id": 3, "side": 30}])
        tx.execute(table.update().where(table.c.id == 1), side=11)
        total: int = tx.scalar(select(func.sum(table.c.area)))
        return total

    assert make_site(db).call("write_and_read") == (Status.OK, 121 + 400 + 900)


@pytest.mark.parametrize(
    ("type_", "offset", "allowed"),
    [
        (Integer(), 1, True),
        (Float(), 0.5, True),
        (Interval(), timedelta(days=1), True),
        (Interval(), 1, False),
        (Date(), timedelta(days=1), False),
        (String(), 1, False),
    ],
)
def test_range_frames_count_from_numbers(type_: Any, offset: Any, allowed: bool) -> None:
    """SQLite takes the equal ones alone for a RANGE over text, and says nothing."""
    column = Column("c", type_)
    Table("t", MetaData(), Column("id", Integer, primary_key=True), column)
    frame = FrameClause(offset, None, FrameClauseType.PRECEDING, FrameClauseType.CURRENT)
    statement = select(func.count().over(order_by=column.desc(), range_=frame))
    if allowed:
        assert "RANGE BETWEEN" in compile_statement(statement).sql
    else:
        with pytest.raises(StatementRefused, match="RANGE frame"):
            compile_statement(statement)


def test_range_without_an_offset_is_for_any_order() -> None:
    """From the first row to those equal to this one: that needs no numbers."""
    column = Column("c", String())
    Table("t", MetaData(), Column("id", Integer, primary_key=True), column)
    assert "RANGE BETWEEN" in compile_statement(select(func.count().over(order_by=column, range_=(None, None)))).sql


def test_what_sqlite_does_not_have_is_refused_with_a_sentence() -> None:
    """And not by a syntax error of SQLite."""
    table = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("name", String))
    part = select(table).order_by(table.c.id).limit(1)
    for statement, sentence in (
        (select(table).fetch(3), r"limit\(n\)"),
        (select(table).where(table.c.name.regexp_match("a+")), "no regular expressions"),
        (union(part, part), r"subquery\(\)"),
    ):
        with pytest.raises(StatementRefused, match=sentence):
            compile_statement(statement)


def test_text_that_sqlite_refuses_raises_as_in_sqlalchemy(make_site: MakeSite) -> None:
    """Also when it is met for the first time, in the call that runs it."""
    db = Database("refusals")

    @db.procedure(partition_by=None)
    def read(tx: Transaction) -> str:
        try:
            tx.execute(text("SELECT no_such_column"))
        except exc.OperationalError as error:
            return str(error)
        return "ran"

    assert make_site(db).call("read") == (Status.OK, "no such column: no_such_column")


def test_float_takes_a_decimal() -> None:
    """As in SQLAlchemy: who declares a Float accepts binary digits."""
    to_sqlite: Any = bind_processor_of(Float())
    assert to_sqlite(Decimal("1.5")) == 1.5
    with pytest.raises(ValueError, match="NaN"):
        to_sqlite(Decimal("NaN"))
