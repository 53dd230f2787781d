"""What a change returns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, String, Uuid, bindparam, delete, exc, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from procedures import Database, Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


def test_inserted_primary_key(make_site: MakeSite) -> None:
    """It is known whether the caller, the statement or SQLite gave it; also to an upsert that met no conflict."""
    db = Database("keys")
    numbered = db.table("numbered", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")
    pair = db.table(
        "pair", Column("a", String, primary_key=True), Column("b", Uuid, primary_key=True), Column("n", Integer), partition_by="a"
    )
    named = insert(numbered).values(id=bindparam("number"), name="x")

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> list[Any]:
        uid = UUID(int=5)
        keys = [
            tx.execute(insert(numbered), name="first").inserted_primary_key,
            tx.execute(insert(numbered), id=7, name="y").inserted_primary_key,
            tx.execute(insert(numbered).values(name="built")).inserted_primary_key,
            tx.execute(insert(numbered).values(id=20)).inserted_primary_key,
            tx.execute(named, number=30).inserted_primary_key,
            tx.execute(named, number=None).inserted_primary_key,
        ]
        assert [key.id for key in keys] == [1, 7, 8, 20, 30, 31]
        assert tx.execute(insert(pair), a="x", b=uid).inserted_primary_key == ("x", uid)
        assert tx.execute(insert(pair).values(a="y", b=uid, n=1)).inserted_primary_key._asdict() == {"a": "y", "b": uid}
        upsert = sqlite_insert(numbered).values(name="z").on_conflict_do_nothing()
        assert tx.execute(upsert).inserted_primary_key == (32,)
        for other in (update(numbered).values(name="n"), select(numbered)):
            with pytest.raises(exc.InvalidRequestError):
                _ = tx.execute(other).inserted_primary_key
        return []

    assert make_site(db).call("run", n=1) == (Status.OK, [])


def test_keys_of_rows_are_exact_or_refused(make_site: MakeSite) -> None:
    """`lastrowid` and keys, one for each execution, are those of the added rows; where SQL alone knows them, it says so."""
    db = Database("places")
    spots = db.table(
        "spots",
        Column("id", Integer, primary_key=True),
        Column("code", String, unique=True),
        Column("n", Integer),
        replicated=True,
    )
    words = db.table("words", Column("word", String, primary_key=True), replicated=True)
    new = sqlite_insert(spots)
    computed = insert(spots).values(id=select(func.max(spots.c.id) + 1).scalar_subquery(), code="computed")
    elsewhere = new.on_conflict_do_update(index_elements=["code"], set_={"n": 1})
    moved = new.on_conflict_do_update(index_elements=["id"], set_={"id": 99})
    same = new.on_conflict_do_update(index_elements=[spots.c.id], set_={"n": 7})

    @db.procedure(partition_by=None)
    def run(tx: Transaction) -> None:
        assert tx.execute(insert(spots), code="a").lastrowid == 1
        assert tx.execute(insert(spots), id=5, code="b").lastrowid == 5
        several = tx.execute(insert(spots), [{"code": "c"}, {"id": 9, "code": "d"}, {"code": "e"}])
        assert (several.rowcount, several.inserted_primary_key_rows) == (3, [(6,), (9,), (10,)])
        assert tx.execute(insert(words), word="w").inserted_primary_key_rows == [("w",)]
        assert tx.execute(same, id=5, code="b").lastrowid == 5
        left_out = tx.execute(insert(spots).prefix_with("OR IGNORE"), id=50, code="a")
        assert (left_out.rowcount, left_out.inserted_primary_key) == (0, (None,))
        assert tx.execute(insert(spots).prefix_with("OR REPLACE"), id=50, code="a").lastrowid == 50
        assert tx.execute(computed).inserted_primary_key == (51,)
        for result in (tx.execute(elsewhere, id=60, code="b"), tx.execute(moved, id=5, code="b")):
            for ask in ("inserted_primary_key", "inserted_primary_key_rows", "lastrowid"):
                with pytest.raises(exc.InvalidRequestError, match=r"add returning\(id\)"):
                    getattr(result, ask)
        several_values = insert(spots).values([{"code": "y"}, {"code": "z"}])
        word, returning = insert(words).values(word="x"), insert(words).values(word="r").returning(words)
        others: Any = (word, returning, update(spots).values(n=2), select(spots), several_values)
        other: Any
        for other in (left_out, several, *map(tx.execute, others)):
            with pytest.raises(exc.InvalidRequestError, match="lastrowid"):
                _ = other.lastrowid

    assert make_site(db).call("run") == (Status.OK, None)


def test_what_results_of_cursors_have_is_refused_in_a_sentence(bench: StatementBench) -> None:
    """An attribute that a result of SQLAlchemy has and one of `tx.execute` has not says what stands for it."""

    def body(tx: Transaction) -> None:
        added = tx.execute(insert(bench.rows), id=1)
        result: Any
        for result in (added, tx.execute(delete(bench.rows)), tx.execute(select(bench.rows))):
            for name, hint in (("returned_defaults", "returning"), ("last_inserted_params", "parameters"), ("yield_per", "list")):
                with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{hint}"):
                    getattr(result, name)
            with pytest.raises(AttributeError, match=r"no attribute 'rowcuont'$"):
                result.rowcuont  # noqa: B018

    assert bench.run(body) == (Status.OK, None)
