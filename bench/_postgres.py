"""PostgreSQL with the bank's transfer in PL/pgSQL, in a folder of its own; skipped where its server is not installed.

Its fsync is on. It listens on a socket in the folder and on a port of the loopback interface: the first is its fastest way, the
second that of an application on another machine. With a standby, which is synchronous, a transfer is answered when both have
synced it. The server refuses to run as root, so a root user needs the account `postgres` and `setpriv`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench._nodes import ACCOUNTS, Accounts

# The account with the lower number is locked first, as in any such application: else this would measure deadlocks.
SCHEMA = """
CREATE TABLE accounts (branch int, customer int, savings bigint NOT NULL, checking bigint NOT NULL,
    PRIMARY KEY (branch, customer));
INSERT INTO accounts SELECT b, c, 10000, :checking
    FROM generate_series(0, :branches - 1) b, generate_series(0, :customers - 1) c;
CREATE FUNCTION transfer(b int, source int, target int, amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE held bigint;
BEGIN
    IF target < source THEN UPDATE accounts SET checking = checking + amount WHERE branch = b AND customer = target; END IF;
    SELECT checking INTO held FROM accounts WHERE branch = b AND customer = source FOR UPDATE;
    IF held < amount THEN RAISE EXCEPTION 'insufficient funds'; END IF;
    UPDATE accounts SET checking = checking - amount WHERE branch = b AND customer = source;
    IF target > source THEN UPDATE accounts SET checking = checking + amount WHERE branch = b AND customer = target; END IF;
    RETURN held - amount;
END $$;
"""
SCRIPT = """\\set b random(0, :branches - 1)
\\set s random(0, :customers - 1)
\\set t (:s + random(1, :customers - 1)) % :customers
\\set a random(1, 9)
SELECT transfer(:b, :s, :t, :a);
"""
TOOLS = ("initdb", "pg_ctl", "psql", "pgbench", "pg_basebackup")
STANDBY = "standby"
STANDBY_S = 30.0  # for it to be level
HOST = "127.0.0.1"

Way = Literal["socket", "TCP"]


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server, which listens on a socket in its folder, named by the port, and on the port itself."""

    home: Path
    port: int
    seconds: int  # of a round
    seed: int
    accounts: Accounts
    commands: dict[str, list[str]]  # of each tool, as the account that may run it

    @property
    def pid(self) -> int:
        return int((self.home / "data" / "postmaster.pid").read_text().split()[0])

    def options(self, flag: str) -> list[str]:
        """The sizes, for psql or pgbench."""
        return [part for name, value in self.accounts._asdict().items() for part in (flag, f"{name}={value}")]

    def address(self, way: Way) -> list[str]:
        """What each client is told."""
        return ["-h", HOST if way == "TCP" else str(self.home), "-p", str(self.port), "-U", "bench"]

    def __call__(self, clients: int, number: int, *, way: Way = "socket") -> float:
        """One round of pgbench; transfers per second."""
        load = ["-c", str(clients), "-T", str(self.seconds), f"--random-seed={self.seed + number}"]
        script = ["-n", "-M", "prepared", "-j", "1", *self.options("-D"), "-f", str(self.home / "script.sql")]
        said = _call([*self.commands["pgbench"], *self.address(way), *load, *script, "postgres"])
        found = re.search(r"tps = ([\d.]+)", said)
        assert found is not None
        return float(found[1])

    def psql(self, *options: str) -> str:
        return _call([*self.commands["psql"], *self.address("socket"), "-d", "postgres", "-v", "ON_ERROR_STOP=1", *options])

    def query(self, statement: str) -> str:
        """The only value of the only row."""
        return self.psql("-At", "-c", statement).strip()


@contextmanager
def postgres(
    folder: Path, *, seconds: int, seed: int, standby: bool = False, accounts: Accounts = ACCOUNTS
) -> Iterator[PostgresServer | str]:
    """A server with loaded accounts; or why there is none."""
    tools = {name: found for name in TOOLS if (found := _find(name))}
    prefix, home = _as_somebody_else(), folder / "postgres"
    if len(tools) < len(TOOLS):
        missing = ", ".join(name for name in TOOLS if name not in tools)
        yield f"{missing} not installed: apt-get install postgresql"
    elif prefix is None:
        yield "running as root, and there is no account postgres to run it as"
    elif prefix and not all(parent.stat().st_mode & 1 for parent in folder.parents):
        yield f"the account postgres cannot reach {folder}"
    else:
        home.mkdir()
        if prefix:
            shutil.chown(home, "postgres")
            folder.chmod(0o755)
        (home / "schema.sql").write_text(SCHEMA)
        (home / "script.sql").write_text(SCRIPT)
        commands = {name: [*prefix, path] for name, path in tools.items()}
        server = PostgresServer(home, _free_port(), seconds, seed, accounts, commands)
        with _running(server), _standby(server) if standby else nullcontext():
            yield server


@contextmanager
def _running(server: PostgresServer) -> Iterator[None]:
    tools, home, data = server.commands, server.home, str(server.home / "data")
    _call([*tools["initdb"], "-D", data, "-A", "trust", "-U", "bench"])
    where = f"-c listen_addresses={HOST} -c port={server.port} -c unix_socket_directories={home}"
    options = f"{where} -c fsync=on -c synchronous_commit=on -c log_connections=on"
    _call([*tools["pg_ctl"], "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start"])
    try:
        server.psql(*server.options("-v"), "-f", str(home / "schema.sql"))
        yield
    finally:
        _call([*tools["pg_ctl"], "-D", data, "-m", "immediate", "stop"])


@contextmanager
def _standby(server: PostgresServer) -> Iterator[None]:
    """A synchronous standby of the server in the folder; from then on that one waits for it."""
    tools, home, where = server.commands, server.home, server.address("socket")
    data = str(home / STANDBY)
    _call([*tools["pg_basebackup"], *where, "-D", data, "-c", "fast", "-R", "-d", f"application_name={STANDBY}"])
    sockets = home / "standby-socket"
    sockets.mkdir()
    shutil.chown(sockets, home.owner())
    options = f"-c listen_addresses='' -c unix_socket_directories={sockets} -c fsync=on"
    _call([*tools["pg_ctl"], "-D", data, "-w", "-l", str(home / "standby.log"), "-o", options, "start"])
    try:
        server.psql("-c", f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'", "-c", "SELECT pg_reload_conf()")
        _wait_until_synchronous(server)
        yield
    finally:
        _call([*tools["pg_ctl"], "-D", data, "-m", "immediate", "stop"])


def _wait_until_synchronous(server: PostgresServer) -> None:
    deadline = time.monotonic() + STANDBY_S
    while (said := server.query("SELECT sync_state FROM pg_stat_replication")) != "sync":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the standby did not become synchronous in {STANDBY_S:g} s: {said!r}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def _call(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=120).stdout


def _find(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _as_somebody_else() -> list[str] | None:
    """Command prefix to run as `postgres` when we are root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return None
    setpriv = shutil.which("setpriv")
    return [setpriv, "--reuid=postgres", "--regid=postgres", "--clear-groups"] if setpriv else None
