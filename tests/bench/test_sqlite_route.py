"""SQLite served by FastAPI: it does the work of a transfer, durably, and answers as the server does."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from bench._load import Target, run_load
from bench._nodes import BRANCHES, CUSTOMERS, transfers
from bench._server import call_requests, module_server
from bench._sqlite import open_accounts

MONEY = "SELECT sum(checking), sum(checking <> 1000000) FROM accounts"
ALL = BRANCHES * CUSTOMERS * 1_000_000


def read_money(path: Path) -> tuple[int, int]:
    """All there is, and in how many accounts it is not what it was."""
    found: tuple[int, int] = apsw.Connection(str(path)).cursor().execute(MONEY).get
    return found


def test_transfer_moves_money_or_nothing(tmp_path: Path) -> None:
    """A source that has too little keeps it."""
    accounts = open_accounts(tmp_path / "file")
    assert accounts.transfer(branch=1, source=2, target=3, amount=1_000_000) == 0
    assert accounts.transfer(branch=1, source=2, target=3, amount=1) is None
    assert read_money(tmp_path / "file") == (ALL, 2)


def test_every_commit_is_synced(tmp_path: Path) -> None:
    """The figure is that of a store which keeps what it has answered."""
    assert open_accounts(tmp_path / "file").pragmas() == {"journal_mode": "wal", "synchronous": 2}


@pytest.mark.slow
def test_route_serves_many_clients(tmp_path: Path) -> None:
    """As a process, asked over several connections with the requests that the server gets; what it cannot do it refuses."""
    too_much = ("transfer", {"branch": 0, "source": 0, "target": 1, "amount": 1_000_000_000})
    with module_server("bench._sqlite_route", str(tmp_path / "file")) as (_, port):
        found = run_load(Target(port, call_requests([*transfers(1, 99), too_much])), connections=8, count=100)
    assert found["statuses"] == {"200": 99, "409": 1}
    money, changed = read_money(tmp_path / "file")
    assert money == ALL
    assert changed > 100
