"""A bank: SmallBank's six transactions, a transfer inside one branch, and a replicated table of rates.

Branches are the unit of partitioning: all customers of a branch live on one partition, so that a call may touch two of them.
Money is integer cents. `workload` draws a seeded mix of calls; `BankModel` applies the same calls in plain Python, knowing
nothing of SQL or logs, and says what every account must hold and every call must answer.

SmallBank: Alomar, Cahill, Fekete, Röhm, "The Cost of Serializability on Platforms That Use Snapshot Isolation", ICDE 2008.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Integer, String, bindparam, func, insert, select, update

from procedures import Database, Transaction

db = Database("bank")

accounts = db.table(
    "accounts",
    Column("branch", Integer, primary_key=True),
    Column("customer", Integer, primary_key=True),
    Column("savings", Integer, nullable=False),
    Column("checking", Integer, nullable=False),
    partition_by="branch",
)
rates = db.table(
    "rates",
    Column("name", String, primary_key=True),
    Column("basis_points", Integer, nullable=False),
    replicated=True,
)

_WHO = (accounts.c.branch == bindparam("branch_"), accounts.c.customer == bindparam("customer_"))
ROW = select(accounts.c.savings, accounts.c.checking).where(*_WHO)
CHECKING = select(accounts.c.checking).where(*_WHO)
SAVINGS = select(accounts.c.savings).where(*_WHO)
ADD_CHECKING = update(accounts).where(*_WHO).values(checking=accounts.c.checking + bindparam("amount"))
ADD_SAVINGS = update(accounts).where(*_WHO).values(savings=accounts.c.savings + bindparam("amount"))
EMPTY = update(accounts).where(*_WHO).values(savings=0, checking=0)
OPEN = insert(accounts).values(
    branch=bindparam("branch_"), customer=bindparam("customer_"), savings=bindparam("savings_"), checking=bindparam("checking_")
)
TOTAL = select(func.coalesce(func.sum(accounts.c.savings + accounts.c.checking), 0), func.count()).select_from(accounts)
RATE = select(rates.c.basis_points).where(rates.c.name == bindparam("name_"))
CHANGE_RATE = update(rates).where(rates.c.name == bindparam("name_")).values(basis_points=bindparam("value_"))
ADD_RATE = insert(rates).values(name=bindparam("name_"), basis_points=bindparam("value_"))

PENALTY = 100  # cents, for a check that overdraws


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a customer has, in cents."""

    savings: int
    checking: int


@db.procedure(partition_by="branch")
def open_account(tx: Transaction, branch: int, customer: int, savings: int = 0, checking: int = 0) -> None:
    tx.execute(OPEN, branch_=branch, customer_=customer, savings_=savings, checking_=checking)


@db.procedure(partition_by="branch")
def open_accounts(  # noqa: PLR0917 - the log holds parameters by position
    tx: Transaction, branch: int, first: int, count: int, savings: int, checking: int
) -> int:
    """The loader: customers `first` up to `first + count`, all with the same holdings."""
    if not 0 < count <= 10_000:
        tx.abort("bad_count", "between 1 and 10000 accounts a call")
    for customer in range(first, first + count):
        tx.execute(OPEN, branch_=branch, customer_=customer, savings_=savings, checking_=checking)
    return count


@db.procedure(partition_by="branch", read_only=True)
def holdings(tx: Transaction, branch: int, customer: int) -> Holdings | None:
    row = tx.execute(ROW, branch_=branch, customer_=customer).one_or_none()
    return Holdings(row.savings, row.checking) if row else None


@db.procedure(partition_by="branch", read_only=True)
def balance(tx: Transaction, branch: int, customer: int) -> int:
    """SmallBank: Balance."""
    row = tx.execute(ROW, branch_=branch, customer_=customer).one_or_none()
    if row is None:
        tx.abort("no_account", f"customer {customer}")
    return int(row.savings + row.checking)


@db.procedure(partition_by="branch")
def deposit_checking(tx: Transaction, branch: int, customer: int, amount: int) -> None:
    """SmallBank: DepositChecking."""
    if amount < 0:
        tx.abort("bad_amount", "a deposit is not negative")
    if tx.execute(ADD_CHECKING, branch_=branch, customer_=customer, amount=amount).rowcount == 0:
        tx.abort("no_account", f"customer {customer}")


@db.procedure(partition_by="branch")
def transact_savings(tx: Transaction, branch: int, customer: int, amount: int) -> int:
    """SmallBank: TransactSavings; returns the new balance, which is never negative."""
    savings: int | None = tx.execute(SAVINGS, branch_=branch, customer_=customer).scalar()
    if savings is None:
        tx.abort("no_account", f"customer {customer}")
    if savings + amount < 0:
        tx.abort("insufficient_funds", f"savings hold {savings}")
    tx.execute(ADD_SAVINGS, branch_=branch, customer_=customer, amount=amount)
    return savings + amount


@db.procedure(partition_by="branch")
def amalgamate(tx: Transaction, branch: int, source: int, target: int) -> int:
    """SmallBank: Amalgamate; moves all that one customer has to the checking account of another."""
    row = tx.execute(ROW, branch_=branch, customer_=source).one_or_none()
    if row is None:
        tx.abort("no_account", f"customer {source}")
    tx.execute(EMPTY, branch_=branch, customer_=source)
    moved = row.savings + row.checking
    if tx.execute(ADD_CHECKING, branch_=branch, customer_=target, amount=moved).rowcount == 0:
        tx.abort("no_account", f"customer {target}")
    return int(moved)


@db.procedure(partition_by="branch")
def write_check(tx: Transaction, branch: int, customer: int, amount: int) -> int:
    """SmallBank: WriteCheck; a check that overdraws costs a penalty. Returns what was taken."""
    row = tx.execute(ROW, branch_=branch, customer_=customer).one_or_none()
    if row is None:
        tx.abort("no_account", f"customer {customer}")
    taken = amount if row.savings + row.checking >= amount else amount + PENALTY
    tx.execute(ADD_CHECKING, branch_=branch, customer_=customer, amount=-taken)
    return taken


@db.procedure(partition_by="branch")
def send_payment(tx: Transaction, branch: int, source: int, target: int, amount: int) -> None:
    """SmallBank: SendPayment, between two checking accounts."""
    checking: int | None = tx.execute(CHECKING, branch_=branch, customer_=source).scalar()
    if checking is None:
        tx.abort("no_account", f"customer {source}")
    if checking < amount:
        tx.abort("insufficient_funds", f"checking holds {checking}")
    tx.execute(ADD_CHECKING, branch_=branch, customer_=source, amount=-amount)
    if tx.execute(ADD_CHECKING, branch_=branch, customer_=target, amount=amount).rowcount == 0:
        tx.abort("no_account", f"customer {target}")


@db.procedure(partition_by="branch")
def transfer(tx: Transaction, branch: int, source: int, target: int, amount: int) -> int:
    """Three statements: look, take, give. Returns what the source has left; the target must exist."""
    checking: int | None = tx.execute(CHECKING, branch_=branch, customer_=source).scalar()
    if checking is None or checking < amount:
        tx.abort("insufficient_funds", f"checking holds {checking}")
    tx.execute(ADD_CHECKING, branch_=branch, customer_=source, amount=-amount)
    if tx.execute(ADD_CHECKING, branch_=branch, customer_=target, amount=amount).rowcount == 0:
        tx.abort("no_account", f"customer {target}")
    return checking - amount


@db.procedure(partition_by=None, read_only=True)
def total(tx: Transaction) -> tuple[int, int]:
    """(money, accounts) of each partition."""
    row = tx.execute(TOTAL).one()
    return int(row[0]), int(row[1])


@db.procedure(partition_by=None)
def set_rate(tx: Transaction, name: str, basis_points: int) -> None:
    """Writes the replicated table, on every partition alike."""
    if tx.execute(CHANGE_RATE, name_=name, value_=basis_points).rowcount == 0:
        tx.execute(ADD_RATE, name_=name, value_=basis_points)


@db.procedure(partition_by="branch")
def pay_interest(tx: Transaction, branch: int, customer: int, rate: str) -> int:
    """Reads the replicated table on one partition; returns the interest, rounded down."""
    points: int | None = tx.execute(RATE, name_=rate).scalar()
    savings: int | None = tx.execute(SAVINGS, branch_=branch, customer_=customer).scalar()
    if points is None or savings is None:
        tx.abort("not_found", f"rate {rate} or customer {customer}")
    interest = savings * points // 10_000
    tx.execute(ADD_SAVINGS, branch_=branch, customer_=customer, amount=interest)
    return interest


Call = tuple[str, dict[str, Any]]


def loader(*, branches: int = 8, customers: int = 100, savings: int = 10_000, checking: int = 10_000) -> Iterator[Call]:
    """Calls that fill an empty bank."""
    for branch in range(branches):
        for first in range(0, customers, 10_000):
            count = min(10_000, customers - first)
            yield (
                "open_accounts",
                {"branch": branch, "first": first, "count": count, "savings": savings, "checking": checking},
            )
    yield "set_rate", {"name": "savings", "basis_points": 150}


def workload(seed: int, *, calls: int, branches: int = 8, customers: int = 100) -> Iterator[Call]:
    """A seeded mix of SmallBank's transactions and transfers; one in twenty asks for more than there is."""
    chance = random.Random(seed)
    kinds = ("deposit_checking", "transact_savings", "amalgamate", "write_check", "send_payment", "transfer", "pay_interest")
    weights = (15, 15, 5, 15, 20, 25, 5)
    for _ in range(calls):
        (kind,) = chance.choices(kinds, weights)
        branch, source = chance.randrange(branches), chance.randrange(customers)
        target = (source + 1 + chance.randrange(customers - 1)) % customers
        amount = chance.randrange(1, 500) if chance.random() < 0.95 else 10_000_000
        yield kind, _params(kind, branch=branch, source=source, target=target, amount=amount)


def _params(kind: str, *, branch: int, source: int, target: int, amount: int) -> dict[str, Any]:
    if kind == "amalgamate":
        return {"branch": branch, "source": source, "target": target}
    if kind in ("send_payment", "transfer"):
        return {"branch": branch, "source": source, "target": target, "amount": amount}
    if kind == "pay_interest":
        return {"branch": branch, "customer": source, "rate": "savings"}
    sign = -1 if kind == "transact_savings" and amount % 2 else 1
    return {"branch": branch, "customer": source, "amount": sign * amount}


@dataclass(slots=True)
class BankModel:
    """The bank in plain Python: the judge of what a state must hold."""

    accounts: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (branch, customer) -> [savings, checking]
    rates: dict[str, int] = field(default_factory=dict)

    def apply(self, procedure: str, params: dict[str, Any]) -> tuple[str, Any]:
        """Applies a call; returns ("ok", result), ("aborted", code) or ("failed", "")."""
        answer: tuple[str, Any] = getattr(self, procedure)(**params)
        return answer

    def money(self) -> int:
        return sum(savings + checking for savings, checking in self.accounts.values())

    def open_account(self, branch: int, customer: int, savings: int = 0, checking: int = 0) -> tuple[str, Any]:
        if (branch, customer) in self.accounts:
            return "failed", ""
        self.accounts[branch, customer] = [savings, checking]
        return "ok", None

    def open_accounts(self, branch: int, first: int, count: int, savings: int, checking: int) -> tuple[str, Any]:
        if not 0 < count <= 10_000:
            return "aborted", "bad_count"
        wanted = range(first, first + count)
        if any((branch, customer) in self.accounts for customer in wanted):
            return "failed", ""
        self.accounts.update({(branch, customer): [savings, checking] for customer in wanted})
        return "ok", count

    def deposit_checking(self, branch: int, customer: int, amount: int) -> tuple[str, Any]:
        if amount < 0:
            return "aborted", "bad_amount"
        if (branch, customer) not in self.accounts:
            return "aborted", "no_account"
        self.accounts[branch, customer][1] += amount
        return "ok", None

    def transact_savings(self, branch: int, customer: int, amount: int) -> tuple[str, Any]:
        if (branch, customer) not in self.accounts:
            return "aborted", "no_account"
        account = self.accounts[branch, customer]
        if account[0] + amount < 0:
            return "aborted", "insufficient_funds"
        account[0] += amount
        return "ok", account[0]

    def amalgamate(self, branch: int, source: int, target: int) -> tuple[str, Any]:
        if (branch, source) not in self.accounts or (branch, target) not in self.accounts:
            return "aborted", "no_account"
        moved = sum(self.accounts[branch, source])
        self.accounts[branch, source] = [0, 0]
        self.accounts[branch, target][1] += moved
        return "ok", moved

    def write_check(self, branch: int, customer: int, amount: int) -> tuple[str, Any]:
        if (branch, customer) not in self.accounts:
            return "aborted", "no_account"
        account = self.accounts[branch, customer]
        taken = amount if sum(account) >= amount else amount + PENALTY
        account[1] -= taken
        return "ok", taken

    def send_payment(self, branch: int, source: int, target: int, amount: int) -> tuple[str, Any]:
        if (branch, source) not in self.accounts:
            return "aborted", "no_account"
        if self.accounts[branch, source][1] < amount:
            return "aborted", "insufficient_funds"
        if (branch, target) not in self.accounts:
            return "aborted", "no_account"
        self.accounts[branch, source][1] -= amount
        self.accounts[branch, target][1] += amount
        return "ok", None

    def transfer(self, branch: int, source: int, target: int, amount: int) -> tuple[str, Any]:
        if (branch, source) not in self.accounts or self.accounts[branch, source][1] < amount:
            return "aborted", "insufficient_funds"
        if (branch, target) not in self.accounts:
            return "aborted", "no_account"
        left = self.accounts[branch, source][1] - amount
        self.accounts[branch, source][1] -= amount
        self.accounts[branch, target][1] += amount
        return "ok", left

    def set_rate(self, name: str, basis_points: int) -> tuple[str, Any]:
        self.rates[name] = basis_points
        return "ok", None

    def pay_interest(self, branch: int, customer: int, rate: str) -> tuple[str, Any]:
        if rate not in self.rates or (branch, customer) not in self.accounts:
            return "aborted", "not_found"
        interest = self.accounts[branch, customer][0] * self.rates[rate] // 10_000
        self.accounts[branch, customer][0] += interest
        return "ok", interest
