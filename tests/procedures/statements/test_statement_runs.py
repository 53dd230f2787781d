"""Statements ready to run: lists, choices of columns, bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from procedures import Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import StatementBench


def test_lists_inside_in(bench: StatementBench) -> None:
    """A list parameter inside IN works for every length, none included."""
    rows = bench.rows
    some = select(rows.c.id).where(rows.c.id.in_(bindparam("ids", expanding=True))).order_by(rows.c.id)
    fixed = select(rows.c.id).where(rows.c.id.in_([1, 3])).order_by(rows.c.id)

    def body(tx: Transaction) -> Any:
        for number in range(5):
            tx.execute(insert(rows).values(id=bindparam("n")), n=number)
        lists: list[list[int]] = [[], [2], [1, 4], [4, 9, 0]]
        return [tx.execute(some, ids=ids).scalars() for ids in lists] + [tx.execute(fixed).scalars()]

    assert bench.run(body) == (Status.OK, [[], [2], [1, 4], [0, 4], [1, 3]])


def test_statements_built_per_call_do_not_pile_up(bench: StatementBench) -> None:
    """A procedure that builds statements as it goes is slow, but takes bounded memory."""
    from procedures.statements import statement_runs as statements

    rows = bench.rows
    limit = statements.STATEMENTS_MAX
    statements.STATEMENTS_MAX = 20
    try:
        status, body = bench.run(
            lambda tx: [tx.execute(select(rows.c.id).where(rows.c.id == number)).rowcount for number in range(60)]
        )
    finally:
        statements.STATEMENTS_MAX = limit
    assert (status, sum(body)) == (Status.OK, 0)
    runs = bench.site.executor._catalogs[1]._transactions.values()
    assert all(len(tx._statements) <= 20 and len(tx._statements.recent) <= statements.RECENT_MAX for tx in runs)


def test_statements_in_a_loop_of_one_call_are_prepared_once(bench: StatementBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says in the first call that a statement will live longer than it; still, each run after the first finds it."""
    from procedures.statements.structure_keys import Structure, StructureKeys

    rows, looked = bench.rows, []
    structure_of = StructureKeys.structure_of

    def counted(keys: StructureKeys, statement: Any) -> Structure | None:
        looked.append(statement)
        return structure_of(keys, statement)

    monkeypatch.setattr(StructureKeys, "structure_of", counted)
    add, some = insert(rows).values(id=bindparam("n")), select(rows.c.id).where(rows.c.id == bindparam("n"))

    def body(tx: Transaction) -> int:
        for number in range(50):
            tx.execute(add, n=number)
            assert tx.scalar(some, n=number) == number
        return len(looked)

    assert bench.run(body) == (Status.OK, 2)


def test_statement_in_a_loop_sets_the_columns_that_are_named_last(bench: StatementBench) -> None:
    """What was found for a statement in this call does not outlive its next choice of columns."""
    rows = bench.rows
    add = insert(rows)

    def body(tx: Transaction) -> list[Any]:
        for number in range(6):
            named = {"name": "x"} if number % 2 else {"other": number}
            tx.execute(add, id=number, **named)
        return [list(row) for row in tx.execute(select(rows.c.name, rows.c.other).order_by(rows.c.id))]

    assert bench.run(body) == (Status.OK, [[None, 0], ["x", None], [None, 2], ["x", None], [None, 4], ["x", None]])


def test_parameters_are_keywords_a_dict_or_a_list_of_dicts(bench: StatementBench) -> None:
    """A list runs the statement for each; counts are added, rows are joined, and an empty list runs nothing."""
    rows = bench.rows
    some = select(rows.c.id).where(rows.c.id == bindparam("n"))

    def body(tx: Transaction) -> list[Any]:
        every = insert(rows)
        assert tx.execute(every, {"id": 1, "name": "a", "other": 1}).rowcount == 1
        assert tx.execute(every, [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}], other=5).rowcount == 2
        assert tx.execute(every, []).rowcount == 0
        returned = tx.execute(insert(rows).returning(rows.c.id), [{"id": 4}, {"id": 5, "name": "e"}])
        assert returned.all() == [(4,), (5,)]
        assert (
            tx.execute(update(rows).where(rows.c.id == bindparam("n")), [{"n": 1, "name": "x"}, {"n": 9, "name": "y"}]).rowcount
            == 1
        )
        for wrong in ([1], "id", 5, [("id", 1)]):
            with pytest.raises(TypeError, match="a list of dicts"):
                tx.execute(every, wrong)  # type: ignore[arg-type]
        return [tx.scalar(some, {"n": 2}), tx.scalars(some, [{"n": 1}, {"n": 5}]), tx.execute(select(rows.c.name)).scalars()]

    assert bench.run(body) == (Status.OK, [2, [1, 5], ["x", "b", "c", None, "e"]])


def test_insert_and_update_set_the_columns_that_parameters_name(bench: StatementBench) -> None:
    """As SQLAlchemy has it; names that are no columns and values that are missing are still refused."""
    rows = bench.rows
    add, change = insert(rows), update(rows).where(rows.c.id == bindparam("which"))
    fixed = insert(rows).values(other=7)

    def body(tx: Transaction) -> list[Any]:
        tx.execute(add, id=1, name="all", other=1)
        tx.execute(add, id=2)
        tx.execute(add, name="numbered")
        tx.execute(add, other=4, id=4)
        assert tx.execute(change, which=1, other=10).rowcount == 1
        assert tx.execute(change, which=2, name="two", other=20).rowcount == 1
        tx.execute(fixed, id=8, name="fixed")
        tx.execute(fixed, id=9)
        tx.execute(insert(rows).values(other=5), name="built", id=10)
        tx.execute(insert(rows).values(other=6), id=11)
        for wrong, message in (({"id": 5, "nmae": "x"}, "no parameter nmae"), ({"lable": "x"}, "no parameter lable")):
            with pytest.raises(TypeError, match=message):
                tx.execute(add, **wrong)
        with pytest.raises(TypeError, match="needs a value for"):
            tx.execute(change, name="x")
        with pytest.raises(TypeError, match="needs a value for"):
            tx.execute(update(rows))
        return [list(row) for row in tx.execute(select(rows).order_by(rows.c.id))]

    wanted = [
        [1, "all", 10],
        [2, "two", 20],
        [3, "numbered", None],
        [4, None, 4],
        [8, "fixed", 7],
        [9, None, 7],
        [10, "built", 5],
        [11, None, 6],
    ]
    assert bench.run(body) == (Status.OK, wanted)
    bench.run(lambda tx: tx.execute(delete(rows)).rowcount)
    assert bench.run(body) == (Status.OK, wanted)


def test_upserts_and_returning(bench: StatementBench) -> None:
    """ON CONFLICT DO UPDATE and DO NOTHING, with RETURNING; rows of a change are results like others."""
    rows = bench.rows
    base = sqlite_insert(rows)
    upsert = base.on_conflict_do_update(index_elements=[rows.c.id], set_={"name": base.excluded.name})
    ignore = base.on_conflict_do_nothing()

    def body(tx: Transaction) -> list[Any]:
        tx.execute(upsert, id=1, name="first", other=1)
        tx.execute(upsert, id=1, name="second", other=2)
        counts = [tx.execute(ignore, id=number, name="x", other=0).rowcount for number in (1, 2)]
        back = tx.execute(upsert.returning(rows.c.id, rows.c.name), id=2, name="y", other=0).one()
        gone = tx.execute(delete(rows).where(rows.c.id == 2).returning(rows.c.name)).scalars().all()
        return [counts, back.name, gone, tuple(tx.execute(select(rows)).one())]

    assert bench.run(body) == (Status.OK, [[0, 1], "y", ["y"], [1, "second", 1]])
