"""Whole statements over exact decimals: unions and assignments whose decimals differ are refused, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, Numeric, cast, func, insert, select, union_all, update

from procedures import Database, StatementRefused
from procedures.statements.compiled import compile_statement

db = Database("statements")
goods = db.table(
    "goods",
    Column("id", Integer, primary_key=True),
    Column("price", Numeric(12, 2)),
    Column("rate", Numeric(6, 4)),
    partition_by="id",
)
price, rate = goods.c.price, goods.c.rate


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        (union_all(select(price), select(rate)), r"cast them to one Numeric\(p, s\)"),
        (update(goods).values(price=price * rate), r"func\.round\(x, 2\)"),
        (insert(goods).from_select(["id", "price"], select(goods.c.id, rate)), "cast it"),
    ],
)
def test_decimals_that_differ_are_refused(statement: Any, remedy: str) -> None:
    """Nothing is rounded unasked."""
    with pytest.raises(StatementRefused, match=remedy):
        compile_statement(statement)


@pytest.mark.parametrize(
    "statement",
    [
        union_all(select(cast(price, Numeric(14, 4))), select(rate)),
        update(goods).values(price=func.round(price * rate, 2)),
        update(goods).values(rate=price),
        insert(goods).from_select(["id", "price"], select(goods.c.id, func.round(rate, 2))),
    ],
)
def test_the_remedies_compile(statement: Any) -> None:
    """Also a value with fewer decimals than its column."""
    assert compile_statement(statement).sql
