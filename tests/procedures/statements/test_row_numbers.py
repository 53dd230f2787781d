"""Numbers that SQLite gives new rows."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import (
    bindparam,
    insert,
    text,
)

from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import StatementBench

LAST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("INSERT INTO rows (name) VALUES (:name)", {"name": "x"}),
        ("INSERT INTO rows (name) VALUES (:name) RETURNING id", {"name": "x"}),
        ("INSERT INTO rows (id, name) VALUES (:number, :name)", {"name": "x", "number": None}),
        ("INSERT INTO rows (id, name) VALUES (nullif(:number, 1), :name)", {"name": "x", "number": 1}),
        ("INSERT INTO rows (name, other) SELECT name, other FROM rows", {}),
        ("INSERT INTO rows (id) VALUES (:number) ON CONFLICT (id) DO UPDATE SET other = 1", {"number": None}),
    ],
)
def test_number_is_never_drawn_by_chance(bench: StatementBench, sql: str, values: dict[str, Any]) -> None:
    """SQLite gives a new row the next number; behind the last one it would draw, and every replay would get another row."""
    statement = text(sql)
    assert bench.run(lambda tx: tx.execute(statement, **values).rowcount)[0] == Status.OK
    bench.run(lambda tx: tx.execute(insert(bench.rows).values(id=LAST)).rowcount)
    before = bench.site.rows("SELECT * FROM rows")
    status, body = bench.run(lambda tx: tx.execute(statement, **values).rowcount)
    assert (status, body["type"]) == (Status.FAILED, "IntegrityError")
    assert str(LAST) in body["message"]
    assert bench.site.rows("SELECT * FROM rows") == before


def test_rows_of_one_statement_do_not_run_into_the_last_number(bench: StatementBench) -> None:
    """The first of them would get it, and the second one would be drawn."""
    bench.run(lambda tx: tx.execute(insert(bench.rows).values(id=LAST - 1)).rowcount)
    two = text("INSERT INTO rows (name) VALUES ('a'), ('b')")
    assert bench.run(lambda tx: tx.execute(two).rowcount)[0] == Status.FAILED
    assert bench.site.rows("SELECT id FROM rows") == [(LAST - 1,)]


def test_number_of_its_own_passes_beside_the_last_one(bench: StatementBench) -> None:
    """Only a row whose number SQLite would have to draw is refused; one with a stated number goes in, old or new."""
    add = insert(bench.rows).values(id=bindparam("number"), name="x")
    for number in (LAST, 7, -3, 0):
        assert bench.run(lambda tx, number=number: tx.execute(add, number=number).rowcount) == (Status.OK, 1)  # type: ignore[misc]
    assert bench.run(lambda tx: tx.execute(text("INSERT INTO rows (id) VALUES (9)")).rowcount) == (Status.OK, 1)
