"""`cmdlog serve` of a small bank as a process of its own, open to everybody on this machine."""

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = """
from sqlalchemy import Column, Integer, bindparam, insert, select, update
from procedures import Database

db = Database("bank")
columns = Column("id", Integer, primary_key=True), Column("balance", Integer, nullable=False)
accounts = db.table("accounts", *columns, partition_by="id")
OPEN = insert(accounts)
BALANCE = select(accounts.c.balance).where(accounts.c.id == bindparam("id"))
ADD = update(accounts).where(accounts.c.id == bindparam("id")).values(balance=accounts.c.balance + bindparam("amount"))


@db.procedure(partition_by="account")
def open_account(tx, account: int, amount: int) -> int:
    tx.execute(OPEN, id=account, balance=amount)
    return amount


@db.procedure(partition_by="account")
def deposit(tx, account: int, amount: int) -> int:
    balance = tx.execute(BALANCE, id=account).scalar()
    if balance is None:
        tx.abort("no_account", f"there is no account {account}")
    tx.execute(ADD, id=account, amount=amount)
    return balance + amount


@db.procedure(partition_by="account", read_only=True)
def balance(tx, account: int) -> int | None:
    return tx.execute(BALANCE, id=account).scalar()
"""


class Server:
    """`cmdlog serve` on a free port; `url` once it is ready."""

    def __init__(self, folder: Path, *options: str, files_max: int | None = None) -> None:
        self.folder = folder
        (folder / "bank_of_test.py").write_text(APPLICATION)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
        sizes = ("--partitions", "2", "--segment-bytes", "4MiB", "--segments", "8")
        command = [sys.executable, "-m", "cmdlog.cli", "serve", "bank_of_test:db", "--data", "data", "--json", *sizes, *options]
        limit = None if files_max is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files_max, files_max))
        with (folder / "errors.txt").open("a") as errors:
            self.process = subprocess.Popen(
                command,
                preexec_fn=limit,  # noqa: PLW1509
                cwd=folder,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.url = ""
        self.events: list[dict[str, Any]] = []

    def wait_ready(self) -> "Server":
        """Reads the events up to `ready`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1].get("event") == "ready":
                self.url = self.events[0]["url"]
                return self
        raise AssertionError(f"ended with {self.process.wait()} before it was ready")

    def stop(self) -> int:
        """SIGTERM and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Ends it in any case."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def committed(self) -> list[int]:
        """The log position of every partition."""
        partitions = httpx.get(self.url + "/v1/status").json()["partitions"]
        return [marks["committed"] for marks in partitions.values()]
