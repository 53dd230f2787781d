"""Results, as SQLAlchemy's users know them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, delete, func, insert, literal, select, update

from procedures import Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import StatementBench


def test_results_offer_rows_in_all_ways(bench: StatementBench) -> None:
    """scalar, scalars, first, one, one_or_none, all, iteration, names of columns; and counts of changes."""
    rows = bench.rows
    everything = select(rows.c.id, rows.c.name).order_by(rows.c.id)
    none = select(rows.c.id).where(rows.c.id == literal(99))

    def body(tx: Transaction) -> Any:
        for number in (1, 2):
            tx.execute(insert(rows).values(id=bindparam("n"), name=bindparam("s")), n=number, s=f"row {number}")
        found = tx.execute(everything)
        empty = tx.execute(none)
        assert found.rowcount == 2
        assert [row.name for row in found] == [row.name for row in found.all()] == ["row 1", "row 2"]
        assert found.first().id == 1
        assert tx.execute(none).first() is None
        assert empty.one_or_none() is None
        assert empty.scalar() is None
        assert not empty
        for wrong in (found.one, found.one_or_none, empty.one, tx.execute(delete(rows)).all):
            with pytest.raises(LookupError):
                wrong()
        returned = tx.execute(insert(rows).values(id=9).returning(rows.c.id))
        return [found.scalars(), returned.scalar(), tx.execute(update(rows).values(other=1)).rowcount]

    assert bench.run(body) == (Status.OK, [[1, 2], 9, 1])


def test_result_of_one_statement_survives_the_next(bench: StatementBench) -> None:
    """Rows are read to the end at once: changing the table while iterating is safe."""
    rows = bench.rows

    def body(tx: Transaction) -> Any:
        for number in range(5):
            tx.execute(insert(rows).values(id=bindparam("n")), n=number)
        seen = []
        for row in tx.execute(select(rows.c.id).order_by(rows.c.id)):
            tx.execute(delete(rows).where(rows.c.id == bindparam("n")), n=row.id + 1)
            seen.append(row.id)
        return seen

    assert bench.run(body) == (Status.OK, [0, 1, 2, 3, 4])


def test_rows_are_the_same_by_index_iteration_and_method(bench: StatementBench) -> None:
    """Rows are named tuples however they are reached, and have what SQLAlchemy's rows have."""
    rows = bench.rows
    query = select(rows.c.id, rows.c.name, (rows.c.id + 1).label("next"), func.count("*").over()).order_by(rows.c.id)

    def body(tx: Transaction) -> None:
        tx.execute(insert(rows), [{"id": number, "name": f"row {number}", "other": 0} for number in (1, 2, 3)])
        found = tx.execute(query)
        assert found[0] == found.first() == found.all()[0] == next(iter(found)) == (1, "row 1", 2, 3)
        assert [row.name for row in found[1:]] == ["row 2", "row 3"]
        backwards: Any = found
        assert [row.name for row in reversed(backwards)] == ["row 3", "row 2", "row 1"]
        row = found[-1]
        assert (row.id, row.next, row._fields[:3]) == (3, 4, ("id", "name", "next"))
        assert row._asdict()["name"] == row._mapping["name"] == row._mapping[rows.c.name] == "row 3"
        assert found.keys()[:3] == ["id", "name", "next"]
        assert (row.t, row._tuple(), tuple(row)) == (row, row, (3, "row 3", 4, 3))
        with pytest.raises(KeyError):
            row._mapping[rows.c.other]
        with pytest.raises(TypeError, match=r"dict\(rows\.all"):
            dict(tx.execute(select(rows.c.id, rows.c.name)))
        assert dict(tx.execute(select(rows.c.id, rows.c.name)).all()) == {1: "row 1", 2: "row 2", 3: "row 3"}

    assert bench.run(body) == (Status.OK, None)


def test_mappings_are_asked_by_column(bench: StatementBench) -> None:
    """`[column]`, `get` and `in` find a column of the statement as they find its name, and miss what it has not."""
    rows = bench.rows

    def body(tx: Transaction) -> None:
        tx.execute(insert(rows).values(id=1, name="a"))
        found = tx.execute(select(rows.c.id, rows.c.name))
        (row,) = found.mappings()
        assert (row[rows.c.name], row.get(rows.c.name), row.get("name")) == ("a", "a", "a")
        assert rows.c.id in row
        assert "id" in row
        assert rows.c.other not in row
        assert (row.get(rows.c.other), row.get("other", 5), found.tuples()) == (None, 5, found)

    assert bench.run(body) == (Status.OK, None)
