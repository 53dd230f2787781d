"""Ad-hoc SQL over exact decimals: digits in plain columns, and a refusal wherever SQL would see units unasked."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from sqlalchemy import Column, Integer, Numeric, bindparam, insert

import cmdlog
from cmdlog import Database, Transaction
from cmdlog.node.queries.query import QueryRefused

db = Database("accounts")
accounts = db.table("accounts", Column("id", Integer, primary_key=True), Column("balance", Numeric(12, 2)), partition_by="id")
ADD = insert(accounts).values(id=bindparam("n"), balance=bindparam("amount"))


@db.procedure(partition_by="number")
def begin(tx: Transaction, number: int, balance: Decimal | None) -> None:
    """Adds an account."""
    tx.execute(ADD, n=number, amount=balance)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cmdlog.Embedded]:
    """Three accounts: 10.00, -0.05 and NULL."""
    with cmdlog.open(tmp_path_factory.mktemp("shop"), db, partitions=1) as node:
        for number, balance in ((1, Decimal("10.00")), (2, Decimal("-0.05")), (3, None)):
            node.call("begin", number=number, balance=balance)
        yield node


DIGITS = [("10.00",), ("-0.05",), (None,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT balance FROM accounts ORDER BY id",
        "SELECT a.balance AS b FROM (SELECT * FROM accounts) AS a ORDER BY a.id",
        "SELECT balance FROM accounts WHERE units(balance) > 0 OR 1 ORDER BY id",
    ],
)
def test_plain_columns_are_digits(shop: cmdlog.Embedded, sql: str) -> None:
    """Whatever name and subquery they come through."""
    assert [tuple(row) for row in shop.query(sql).rows] == DIGITS


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM accounts WHERE balance > 9",
        "SELECT sum(balance) FROM accounts",
        "SELECT balance, balance + 1 FROM accounts",
        "SELECT max(balance), units(id) FROM accounts",
        "SELECT units(balance) + balance FROM accounts",
        "WITH x AS (SELECT balance * 2 AS twice FROM accounts) SELECT twice FROM x",
        "SELECT a.id FROM accounts AS a JOIN accounts AS b ON a.balance = b.id",
    ],
)
def test_units_are_not_shown_unasked(shop: cmdlog.Embedded, sql: str) -> None:
    """The refusal says how to write it."""
    with pytest.raises(QueryRefused, match=r"accounts.balance is a Numeric\(12, 2\).* write units\(balance\)"):
        shop.query(sql)


def test_units_are_there_for_who_asks(shop: cmdlog.Embedded) -> None:
    """In conditions, sums and order."""
    sql = "SELECT sum(units(balance)), max(units(balance)) FROM accounts WHERE units(balance) < 2000"
    assert [tuple(row) for row in shop.query(sql).rows] == [(995, 1000)]


def test_rows_of_other_queries_are_not_taken_for_units(shop: cmdlog.Embedded) -> None:
    """SQLite says of a compound's columns what the first query's are; an id would be shown as 0.01."""
    with pytest.raises(QueryRefused, match=r"compound SELECT may not read accounts\.balance"):
        shop.query("SELECT balance FROM accounts UNION ALL SELECT id FROM accounts")
