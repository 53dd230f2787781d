"""SQLite with the bank's transfer as three prepared statements in a transaction of its own, each of them synced."""

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


def sqlite_lane(path: Path, *, seconds: float, seed: int) -> Callable[[int], float]:
    """A loaded file; a function that gives the transfers per second of one round over one connection of this process."""
    connection = apsw.Connection(str(path))
    execute = connection.cursor().execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    execute(SCHEMA)
    rows = ((branch, customer) for branch in range(BRANCHES) for customer in range(CUSTOMERS))
    with connection:
        connection.cursor().executemany("INSERT INTO accounts VALUES (?, ?, 10000, 1000000)", rows)

    def run(number: int) -> float:
        work = [tuple(params.values()) for _, params in transfers(seed + number, 2000)]
        done, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            branch, source, target, amount = work[done % len(work)]
            execute("BEGIN IMMEDIATE")
            held = execute(LOOK, (branch, source)).get
            assert held >= amount
            execute(ADD, (-amount, branch, source))
            execute(ADD, (amount, branch, target))
            execute("COMMIT")
            done += 1
        return done / (time.perf_counter() - began)

    return run
