"""A server as a process of its own."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from cmdlog.api.gate.route_table import ADMIN, INVOKE, READ, ROLES
from cmdlog.api.gate.token_file import Credential, digest_of, write_line
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TOKENS = {"admin": "token-of-admin-and-so-on", "invoke": "token-of-invoke-and-so-on", "read": "token-of-read-and-so-on"}
EXPIRED = "token-that-has-expired-long-ago"
OTHER = "token-of-another-who-may-invoke"
CREDENTIALS = [
    Credential("admin", frozenset(ROLES), digest_of(TOKENS[ADMIN].encode())),
    Credential("invoke", frozenset((INVOKE,)), digest_of(TOKENS[INVOKE].encode())),
    Credential("read", frozenset((READ,)), digest_of(TOKENS[READ].encode())),
    Credential("other", frozenset((INVOKE,)), digest_of(OTHER.encode())),
    Credential("old", frozenset(ROLES), digest_of(EXPIRED.encode()), expires_s=1e9),
]


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


def token_of(name: str, *roles: str) -> Credential:
    """Whose token is the name."""
    return Credential(name, frozenset(roles), digest_of(name.encode()))


def write_tokens(folder: Path, *credentials: Credential) -> Path:
    """A token file of these, or of those above."""
    path = folder / "tokens"
    path.write_text("".join(write_line(credential) + "\n" for credential in credentials or CREDENTIALS))
    path.chmod(0o600)
    return path


def cycle(url: str, request: bytes) -> bytes:
    """Sends bytes as they are to a server and reads until it closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


SIZES = ("--partitions", "2", "--segment-bytes", "4MiB", "--segments", "8")


class Running:
    """`cmdlog serve` on a free port, behind the credentials above unless a test wants none. `options` may say otherwise."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        app: str = "tests.api.every_type:db",
        tokens: bool = True,
        waits: bool = True,
        files_max: int | None = None,
    ) -> None:
        """`waits`: it serves when this returns; else only its process has begun."""
        self.folder, self.app, self.options = folder, app, options
        if tokens:
            write_tokens(folder)
            self.options = ("--token-file", "tokens", *options)
        self._limit = None if files_max is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files_max, files_max))
        self.url = ""
        self.begin()
        if waits:
            self.wait_ready()

    def start(self) -> None:
        """Starts and waits until it serves."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Starts the process."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
        command = [sys.executable, "-m", "cmdlog", "serve", self.app, "--data", "data", "--port", "0", "--json"]
        with (self.folder / "errors.txt").open("a") as errors:
            self.process = subprocess.Popen(
                [*command, *SIZES, *self.options],
                preexec_fn=self._limit,  # noqa: PLW1509
                cwd=self.folder,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def next_event(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"ended with {self.process.wait()} before it was ready: {self.logged()[-2000:]}")
        event = json.loads(line)
        self.url = event.get("url", self.url)
        return str(event["event"])

    def wait_ready(self) -> None:
        """Until it serves."""
        while self.next_event() != "ready":
            pass
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM and the exit code."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """Ends it in any case."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if hasattr(self, "client"):
            self.client.close()

    def post(
        self, path: str, body: Any = None, *, token: str = TOKENS[ADMIN], headers: Any = (), content: Any = None
    ) -> httpx.Response:
        """A request of somebody with a token; the body as a value or as bytes."""
        given = [("Authorization", f"Bearer {token}"), *headers]
        data = json.dumps(body).encode() if content is None else content
        return self.client.post(path, content=data, headers=given)

    def get(self, path: str, *, token: str = TOKENS[ADMIN], headers: Any = ()) -> httpx.Response:
        """The same for GET."""
        return self.client.get(path, headers=[("Authorization", f"Bearer {token}"), *headers])

    def call(self, procedure: str, **params: Any) -> Any:
        """Its result."""
        answer = self.post(f"/v1/procedures/{procedure}", params)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def raw(self, request: bytes) -> bytes:
        """Sends bytes as they are and reads until the server closes."""
        return cycle(self.url, request)

    def committed(self) -> list[int]:
        """The log position of every partition."""
        return [marks["committed"] for marks in self.get("/v1/status").json()["partitions"].values()]

    def logged(self) -> str:
        """Everything that it has written about its own running."""
        return (self.folder / "errors.txt").read_text()

    def rss_bytes(self) -> int:
        """Memory of the node's process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Bank(Running):
    """The same of a small bank, open to everybody on this machine."""

    def __init__(self, folder: Path, *options: str, **more: Any) -> None:
        (folder / "bank_of_test.py").write_text(APPLICATION)
        super().__init__(folder, *options, app="bank_of_test:db", tokens=False, **more)

    def open_account(self, account: int, amount: int = 0) -> None:
        """With so much."""
        assert self.call("open_account", account=account, amount=amount) == amount
