"""What statements are compiled, and which texts are refused."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    Column,
    Integer,
    func,
    text,
)

from procedures import Database, StatementRefused
from procedures.execution.executor import Status
from procedures.statements.compiled import check_text, compile_statement
from tests.procedures.statements.statement_bench import StatementBench


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
