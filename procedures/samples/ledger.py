"""A double-entry ledger: every posting moves money between accounts of one book, and every book adds up to zero.

A book is the unit of partitioning: a currency, a fund, a customer with all of their accounts. A posting touches accounts of one
book only, so it is one transaction on one partition. Money is `Numeric(14, 2)` and `Decimal`: exact in SQL and in Python.

Entries are never changed. What was wrong is reversed by an entry of its own, so that the history explains every balance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from sqlalchemy import Column, DateTime, Integer, Numeric, String, bindparam, func, insert, select, update

from cmdlog import Database, Transaction

db = Database("ledger")

CENT = Decimal("0.01")
LINES_MAX = 100  # of one posting
MONEY_MAX = Decimal("999999999999.99")  # what Numeric(14, 2) holds

accounts = db.table(
    "accounts",
    Column("book", String, primary_key=True),
    Column("account", String, primary_key=True),
    Column("balance", Numeric(14, 2), nullable=False),
    Column("floor", Numeric(14, 2)),  # the balance never falls below it; NULL: no limit
    partition_by="book",
)
entries = db.table(
    "entries",
    Column("book", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("posted_at", DateTime(timezone=True), nullable=False),
    Column("text", String, nullable=False),
    Column("reverses", Integer),  # the number of the entry that this one takes back
    partition_by="book",
)
lines = db.table(
    "lines",
    Column("book", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("account", String, nullable=False, index=True),
    Column("amount", Numeric(14, 2), nullable=False),
    partition_by="book",
)

OPEN = insert(accounts).values(
    book=bindparam("book_"), account=bindparam("account_"), balance=Decimal("0.00"), floor=bindparam("floor_")
)
_ACCOUNT = (accounts.c.book == bindparam("book_"), accounts.c.account == bindparam("account_"))
ACCOUNT = select(accounts.c.balance, accounts.c.floor).where(*_ACCOUNT)
MOVE = update(accounts).where(*_ACCOUNT).values(balance=accounts.c.balance + bindparam("amount_"))
LAST = select(func.max(entries.c.number)).where(entries.c.book == bindparam("book_"))
ADD_ENTRY = insert(entries).values(
    book=bindparam("book_"),
    number=bindparam("number_"),
    posted_at=bindparam("at_"),
    text=bindparam("text_"),
    reverses=bindparam("reverses_"),
)
ADD_LINE = insert(lines).values(
    book=bindparam("book_"),
    number=bindparam("number_"),
    line=bindparam("line_"),
    account=bindparam("account_"),
    amount=bindparam("amount_"),
)
LINES_OF = (
    select(lines.c.account, lines.c.amount)
    .where(lines.c.book == bindparam("book_"), lines.c.number == bindparam("number_"))
    .order_by(lines.c.line)
)
REVERSAL = select(entries.c.number).where(entries.c.book == bindparam("book_"), entries.c.reverses == bindparam("number_"))
STATEMENT = (
    select(entries.c.number, entries.c.posted_at, entries.c.text, lines.c.amount)
    .join(lines, (lines.c.book == entries.c.book) & (lines.c.number == entries.c.number))
    .where(entries.c.book == bindparam("book_"), lines.c.account == bindparam("account_"))
    .order_by(entries.c.number.desc(), lines.c.line)
    .limit(bindparam("rows_"))
)
SUMS = select(accounts.c.book, func.sum(accounts.c.balance)).group_by(accounts.c.book).order_by(accounts.c.book)


@dataclass(frozen=True, slots=True)
class Line:
    """One side of a posting: what the account gets, or gives if negative."""

    account: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One line of an account's statement."""

    number: int
    posted_at: datetime
    text: str
    amount: Decimal


@db.procedure(partition_by="book")
def open_account(tx: Transaction, book: str, account: str, floor: Decimal | None = None) -> None:
    """Opens an account with nothing in it. `floor` 0 forbids an overdraft."""
    if tx.execute(ACCOUNT, book_=book, account_=account).first() is not None:
        tx.abort("exists", f"account {account} of {book} is open")
    if floor is not None:
        _check_money(tx, floor)
        if floor > 0:
            tx.abort("bad_floor", "an account opens with nothing in it: its floor is 0 or negative")
    tx.execute(OPEN, book_=book, account_=account, floor_=floor)


@db.procedure(partition_by="book")
def post(tx: Transaction, book: str, lines: list[Line], text: str = "") -> int:
    """Posts an entry whose lines add up to zero; returns its number."""
    if not 2 <= len(lines) <= LINES_MAX:
        tx.abort("bad_entry", f"an entry has 2 to {LINES_MAX} lines")
    for line in lines:
        _check_money(tx, line.amount)
    if total := sum(line.amount for line in lines):
        tx.abort("unbalanced", f"the lines add up to {total}")
    return _write(tx, book, lines, text, None)


@db.procedure(partition_by="book")
def reverse(tx: Transaction, book: str, number: int) -> int:
    """Takes an entry back, once, by the opposite one; returns the number of that."""
    if tx.execute(REVERSAL, book_=book, number_=number).first() is not None:
        tx.abort("reversed", f"entry {number} is reversed already")
    opposite = [Line(account, -amount) for account, amount in tx.execute(LINES_OF, book_=book, number_=number)]
    if not opposite:
        tx.abort("unknown_entry", f"{book} has no entry {number}")
    return _write(tx, book, opposite, f"reversal of {number}", number)


@db.procedure(partition_by="book")
def pay_interest(tx: Transaction, book: str, account: str, payer: str, percent: Decimal) -> Decimal:
    """Pays a share of the balance from another account, rounded to the cent, half to even; returns it."""
    if not 0 <= percent <= 100:
        tx.abort("bad_rate", "0 to 100 percent")
    amount = (_balance(tx, book, account) * percent / 100).quantize(CENT, ROUND_HALF_EVEN)
    if amount <= 0:
        return Decimal("0.00")
    _write(tx, book, [Line(account, amount), Line(payer, -amount)], f"interest, {percent} %", None)
    return amount


@db.procedure(partition_by="book", read_only=True)
def balance(tx: Transaction, book: str, account: str) -> Decimal:
    """What the account has."""
    return _balance(tx, book, account)


@db.procedure(partition_by="book", read_only=True)
def statement(tx: Transaction, book: str, account: str, rows: int = 20) -> list[StatementLine]:
    """The newest lines of an account."""
    return [StatementLine(*row) for row in tx.execute(STATEMENT, book_=book, account_=account, rows_=min(max(rows, 1), 1000))]


@db.procedure(partition_by=None, read_only=True)
def trial_balance(tx: Transaction) -> list[tuple[str, Decimal]]:
    """The sum of every book on each partition: zero, or something is wrong."""
    return [(book, total) for book, total in tx.execute(SUMS)]


def _check_money(tx: Transaction, amount: Decimal) -> None:
    """Aborts unless the amount is whole cents and fits the column."""
    if abs(amount) > MONEY_MAX or amount != amount.quantize(CENT):
        tx.abort("bad_amount", f"{amount} is not an amount of whole cents up to {MONEY_MAX}")


def _balance(tx: Transaction, book: str, account: str) -> Decimal:
    row = tx.execute(ACCOUNT, book_=book, account_=account).first()
    if row is None:
        tx.abort("unknown_account", f"{book} has no account {account}")
    value: Decimal = row[0]
    return value


def _write(tx: Transaction, book: str, moved: list[Line], text: str, reverses: int | None) -> int:
    """Moves the money, then checks the floors: an entry may use an account twice. An abort takes everything back."""
    number: int = (tx.execute(LAST, book_=book).scalar() or 0) + 1
    tx.execute(ADD_ENTRY, book_=book, number_=number, at_=tx.now, text_=text, reverses_=reverses)
    for position, line in enumerate(moved):
        held = _balance(tx, book, line.account)
        if abs(held + line.amount) > MONEY_MAX:
            tx.abort("too_much", f"{line.account} cannot hold more than {MONEY_MAX}")
        tx.execute(MOVE, book_=book, account_=line.account, amount_=line.amount)
        tx.execute(ADD_LINE, book_=book, number_=number, line_=position, account_=line.account, amount_=line.amount)
    for line in moved:
        row = tx.execute(ACCOUNT, book_=book, account_=line.account).first()
        if row is not None and row[1] is not None and row[0] < row[1]:
            tx.abort("insufficient", f"{line.account} would have {row[0]}, its floor is {row[1]}")
    return number


Call = tuple[str, dict[str, Any]]
BOOKS = ("EUR", "USD", "CHF")
BANK = "bank"


def loader(*, customers: int = 20) -> Iterator[Call]:
    """Calls that open every account and give each customer 100.00."""
    for book in BOOKS:
        yield "open_account", {"book": book, "account": BANK}
        for customer in range(customers):
            yield "open_account", {"book": book, "account": f"c{customer}", "floor": Decimal("0.00")}
            given = [Line(f"c{customer}", Decimal("100.00")), Line(BANK, Decimal("-100.00"))]
            yield "post", {"book": book, "lines": given, "text": "opening"}


def workload(seed: int, *, calls: int, customers: int = 20) -> Iterator[Call]:
    """Seeded transfers, interest and reversals; some are refused: too much, unbalanced, reversed twice."""
    chance = random.Random(seed)
    for number in range(calls):
        book, source, target = chance.choice(BOOKS), *(f"c{chance.randrange(customers)}" for _ in range(2))
        amount = Decimal(chance.randrange(1, 6000)) / 100
        kind = chance.random()
        if kind < 0.8:
            wrong = CENT if chance.random() < 0.02 else 0
            yield (
                "post",
                {"book": book, "lines": [Line(source, -amount), Line(target, amount + wrong)], "text": f"payment {number}"},
            )
        elif kind < 0.9:
            percent = Decimal(chance.randrange(0, 500)) / 100
            yield "pay_interest", {"book": book, "account": source, "payer": BANK, "percent": percent}
        else:
            yield "reverse", {"book": book, "number": chance.randrange(1, customers + calls // 4 + 2)}
