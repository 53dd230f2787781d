"""The application that a history runs, in versions: its source, and what each of its calls does to a plain dictionary.

One rule: source and model are written independently of each other. A version differs in the amount that a deposit counts, and in
the procedures that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

VERSIONS: Final = (1, 2, 3)
MIXED: Final = 1_000_003
SOURCE: Final = """
from sqlalchemy import Column, Integer, Text, bindparam, insert, select, update
from procedures import Database

db = Database("campaign")
accounts = db.table(
    "accounts",
    Column("id", Integer, primary_key=True),
    Column("balance", Integer, nullable=False),
    Column("note", Text, nullable=False),
    partition_by="id",
)
rates = db.table("rates", Column("name", Text, primary_key=True), Column("value", Integer, nullable=False), replicated=True)
OPEN = insert(accounts).values(id=bindparam("id_"), balance=0, note="")
SET = update(accounts).where(accounts.c.id == bindparam("id_")).values(balance=bindparam("balance_"))
NOTE = update(accounts).where(accounts.c.id == bindparam("id_")).values(note=bindparam("note_"))
BALANCE = select(accounts.c.balance).where(accounts.c.id == bindparam("id_"))
RATE = select(rates.c.value).where(rates.c.name == bindparam("name_"))
NEW_RATE = insert(rates).values(name=bindparam("name_"), value=bindparam("value_"))
SET_RATE = update(rates).where(rates.c.name == bindparam("name_")).values(value=bindparam("value_"))


def balance_of(tx, account):
    balance = tx.execute(BALANCE, id_=account).scalar()
    if balance is None:
        tx.abort("no_account", str(account))
    return balance


@db.procedure(partition_by="account")
def begin(tx, account: int) -> int:
    if tx.execute(BALANCE, id_=account).scalar() is not None:
        tx.abort("exists", str(account))
    tx.execute(OPEN, id_=account)
    return account


@db.procedure(partition_by="account")
def deposit(tx, account: int, amount: int) -> int:
    balance = balance_of(tx, account) + amount * FACTOR
    tx.execute(SET, id_=account, balance_=balance)
    return balance


@db.procedure(partition_by="account")
def withdraw(tx, account: int, amount: int) -> int:
    balance = balance_of(tx, account) - amount
    tx.execute(SET, id_=account, balance_=balance)
    if balance < 0:
        tx.abort("short", str(-balance))
    return balance


@db.procedure(partition_by="account")
def crunch(tx, account: int, rounds: int) -> int:
    value = balance_of(tx, account)
    for number in range(rounds):
        value = (value * 31 + number) % 1000003
    tx.execute(SET, id_=account, balance_=value)
    return value


@db.procedure(partition_by="account")
def broken(tx, account: int) -> int:
    tx.execute(SET, id_=account, balance_=-1)
    raise ValueError("a defect of the application")


@db.procedure(partition_by="account")
def note(tx, account: int, text: str) -> int:
    balance_of(tx, account)
    tx.execute(NOTE, id_=account, note_=text)
    return len(text)


@db.procedure()
def set_rate(tx, name: str, value: int) -> int:
    before = tx.execute(RATE, name_=name).scalar()
    tx.execute(NEW_RATE if before is None else SET_RATE, name_=name, value_=value)
    if value < 0:
        tx.abort("negative", name)
    return 0 if before is None else before
"""
BONUS: Final = """

@db.procedure(partition_by="account")
def bonus(tx, account: int) -> int:
    balance = balance_of(tx, account) * 2
    tx.execute(SET, id_=account, balance_=balance % 1000003)
    return balance % 1000003
"""

Outcome = tuple[str, Any]
"""("ok", result), ("aborted", code) or ("failed", the exception's type)."""


def module_of(version: int) -> str:
    """Its name; APP of the command line is this with `:db`."""
    return f"campaign_v{version}"


def write_versions(folder: Path) -> None:
    """Every version as a module of its own."""
    for version in VERSIONS:
        more = BONUS if version == VERSIONS[-1] else ""
        (folder / f"{module_of(version)}.py").write_text(f"FACTOR = {version}\n{SOURCE}{more}")


class _Ended(Exception):
    """The call ends otherwise than with a result, and changes nothing."""


@dataclass(slots=True)
class Ledger:
    """What all partitions hold together."""

    partitions: int
    accounts: dict[int, tuple[int, str]] = field(default_factory=dict)  # id -> balance, note
    rates: dict[str, int] = field(default_factory=dict)

    def call(self, procedure: str, params: Mapping[str, Any], version: int) -> Outcome:
        """Does what the procedure does."""
        try:
            return "ok", getattr(self, f"_{procedure}")(version=version, **params)
        except _Ended as end:
            kind, what = end.args
            return kind, what

    def _balance(self, account: int) -> int:
        if account not in self.accounts:
            raise _Ended("aborted", "no_account")
        return self.accounts[account][0]

    def _set(self, account: int, balance: int) -> int:
        self.accounts[account] = balance, self.accounts[account][1]
        return balance

    def _begin(self, *, account: int, version: int) -> int:
        if account in self.accounts:
            raise _Ended("aborted", "exists")
        self.accounts[account] = 0, ""
        return account

    def _deposit(self, *, account: int, amount: int, version: int) -> int:
        return self._set(account, self._balance(account) + amount * version)

    def _withdraw(self, *, account: int, amount: int, version: int) -> int:
        if self._balance(account) < amount:
            raise _Ended("aborted", "short")
        return self._set(account, self._balance(account) - amount)

    def _crunch(self, *, account: int, rounds: int, version: int) -> int:
        value = self._balance(account)
        for number in range(rounds):
            value = (value * 31 + number) % MIXED
        return self._set(account, value)

    def _broken(self, *, account: int, version: int) -> int:
        raise _Ended("failed", "ValueError")

    def _note(self, *, account: int, text: str, version: int) -> int:
        self.accounts[account] = self._balance(account), text
        return len(text)

    def _set_rate(self, *, name: str, value: int, version: int) -> list[int]:
        if value < 0:
            raise _Ended("aborted", "negative")
        before, self.rates[name] = self.rates.get(name, 0), value
        return [before] * self.partitions

    def _bonus(self, *, account: int, version: int) -> int:
        return self._set(account, self._balance(account) * 2 % MIXED)
