"""What a change returns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, String, Uuid, bindparam, exc, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from procedures import Database, Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import MakeSite


def test_inserted_primary_key(make_site: MakeSite) -> None:
    """It is known whether the caller, the statement or SQLite gave it; an upsert that adds nothing has none from SQLite."""
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
        assert tx.execute(upsert).inserted_primary_key == (None,)
        for other in (update(numbered).values(name="n"), select(numbered)):
            with pytest.raises(exc.InvalidRequestError):
                _ = tx.execute(other).inserted_primary_key
        return []

    assert make_site(db).call("run", n=1) == (Status.OK, [])
