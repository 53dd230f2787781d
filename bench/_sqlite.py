"""SQLite with the bank's transfer as three prepared statements in a transaction of its own, each transaction synced."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw

from bench._nodes import BRANCHES, CUSTOMERS, transfers

SCHEMA = """
CREATE TABLE accounts (branch INTEGER NOT NULL, customer INTEGER NOT NULL, savings INTEGER NOT NULL, checking INTEGER NOT NULL,
    PRIMARY KEY (branch, customer)) WITHOUT ROWID
"""
LOOK = "SELECT checking FROM accounts WHERE branch = ? AND customer = ?"
ADD = "UPDATE accounts SET checking = checking + ? WHERE branch = ? AND customer = ?"


class Accounts:
    """A connection to the loaded file; for one thread at a time."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._execute = connection.cursor().execute

    def pragmas(self) -> dict[str, object]:
        """What decides when an answer is durable."""
        return {name: self._execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous")}

    def transfer(self, branch: int, source: int, target: int, amount: int) -> int | None:
        """What the source has left, durably; None when that would be less than nothing, and nothing has changed."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        held: int = execute(LOOK, (branch, source)).get
        if held < amount:
            execute("ROLLBACK")
            return None
        execute(ADD, (-amount, branch, source))
        execute(ADD, (amount, branch, target))
        execute("COMMIT")
        return held - amount


def open_accounts(path: Path) -> Accounts:
    """A new file with all accounts, whose log is synced at every commit."""
    connection = apsw.Connection(str(path))
    execute = connection.cursor().execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    execute(SCHEMA)
    rows = ((branch, customer) for branch in range(BRANCHES) for customer in range(CUSTOMERS))
    with connection:
        connection.cursor().executemany("INSERT INTO accounts VALUES (?, ?, 10000, 1000000)", rows)
    return Accounts(connection)


def sqlite_lane(path: Path, *, seconds: float, seed: int) -> Callable[[int], float]:
    """A function that gives the transfers per second of one round over one connection of this process."""
    accounts = open_accounts(path)

    def run(number: int) -> float:
        work = [tuple(params.values()) for _, params in transfers(seed + number, 2000)]
        transfer, done, began = accounts.transfer, 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            assert transfer(*work[done % len(work)]) is not None
            done += 1
        return done / (time.perf_counter() - began)

    return run
