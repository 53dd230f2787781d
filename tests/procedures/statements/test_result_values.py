"""Results are read as those of SQLAlchemy are."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import exc, insert, select

from procedures import Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import StatementBench


def test_results_are_read_as_those_of_sqlalchemy(bench: StatementBench) -> None:
    """Mappings, scalars, fetches, partitions, columns and unique."""
    rows = bench.rows
    query = select(rows.c.id, rows.c.name).order_by(rows.c.id)
    one, none = query.where(rows.c.id == 2), query.where(rows.c.id == 9)

    def body(tx: Transaction) -> list[Any]:
        tx.execute(insert(rows), [{"id": number, "name": "same"} for number in (1, 2, 3)])
        assert tx.execute(query).mappings().all() == [{"id": number, "name": "same"} for number in (1, 2, 3)]
        assert tx.execute(one).mappings().one()[rows.c.id] == 2
        assert tx.execute(none).mappings().first() is None
        assert tx.execute(query).scalars().all() == tx.scalars(query) == [1, 2, 3]
        assert tx.execute(query).scalars("name").unique().all() == ["same"]
        assert tx.execute(query).scalars(rows.c.name)[0] == "same"
        assert (tx.execute(one).scalar_one(), tx.execute(none).scalar_one_or_none(), tx.scalar(one)) == (2, None, 2)
        assert (tx.scalars(one).one(), tx.scalars(none).one_or_none(), tx.scalars(none).first()) == (2, None, None)
        found = tx.execute(query)
        assert (found.fetchone().id, [row.id for row in found.fetchall()], found.fetchone()) == (1, [2, 3], None)
        found = tx.execute(query)
        assert [[row.id for row in found.fetchmany(2)], [row.id for row in found.fetchmany(2)]] == [[1, 2], [3]]
        assert [len(part) for part in tx.execute(query).partitions(2)] == [2, 1]
        assert tx.execute(query).columns("name", 0)[0] == ("same", 1)
        assert tx.execute(select(rows.c.name)).unique().all() == [("same",)]
        return tx.execute(query).mappings().all()

    assert bench.run(body) == (Status.OK, [{"id": number, "name": "same"} for number in (1, 2, 3)])


def test_exceptions_of_results_are_those_of_sqlalchemy(bench: StatementBench) -> None:
    """`NoResultFound` and `MultipleResultsFound`; both are LookupErrors, as they were."""
    rows = bench.rows

    def body(tx: Transaction) -> None:
        tx.execute(insert(rows), [{"id": 1}, {"id": 2}])
        all_rows, none = tx.execute(select(rows.c.id)), tx.execute(select(rows.c.id).where(rows.c.id == 9))
        several = (all_rows.one, all_rows.one_or_none, all_rows.scalar_one, all_rows.scalars().one, all_rows.mappings().one)
        for wrong in several:
            with pytest.raises(exc.MultipleResultsFound, match="returned 2"):
                wrong()
        for wrong in (none.one, none.scalar_one, none.scalars().one):
            with pytest.raises(exc.NoResultFound, match="returned 0"):
                wrong()
        with pytest.raises(LookupError):
            none.one()

    assert bench.run(body) == (Status.OK, None)
