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
from typing import Literal, Protocol

from bench._nodes import BRANCHES, CUSTOMERS

SCHEMA = """
CREATE TABLE accounts (branch int, customer int, savings bigint NOT NULL, checking bigint NOT NULL,
    PRIMARY KEY (branch, customer));
INSERT INTO accounts SELECT b, c, 10000, 1000000
    FROM generate_series(0, :branches - 1) b, generate_series(0, :customers - 1) c;
CREATE FUNCTION transfer(b int, source int, target int, amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE held bigint;
BEGIN
    SELECT checking INTO held FROM accounts WHERE branch = b AND customer = source FOR UPDATE;
    IF held < amount THEN RAISE EXCEPTION 'insufficient funds'; END IF;
    UPDATE accounts SET checking = checking - amount WHERE branch = b AND customer = source;
    UPDATE accounts SET checking = checking + amount WHERE branch = b AND customer = target;
    RETURN held - amount;
END $$;
"""
# Sources are even and targets odd, each locked in that order: as in any such application, lest pgbench measure deadlocks.
SCRIPT = f"""\\set b random(0, {BRANCHES - 1})
\\set s 2 * random(0, {CUSTOMERS // 2 - 1})
\\set t 2 * random(0, {CUSTOMERS // 2 - 1}) + 1
\\set a random(1, 9)
SELECT transfer(:b, :s, :t, :a);
"""
TOOLS = ("initdb", "pg_ctl", "psql", "pgbench", "pg_basebackup")
STANDBY = "standby"
STANDBY_S = 30.0  # for it to be level
HOST = "127.0.0.1"

Way = Literal["socket", "TCP"]


class Run(Protocol):
    """One round of pgbench; transfers per second."""

    def __call__(self, clients: int, number: int, *, way: Way = "socket") -> float: ...


@dataclass(frozen=True, slots=True)
class _Address:
    """Where the server listens: a socket in the folder, named by the port, and the port itself."""

    home: Path
    port: int

    def options(self, way: Way) -> list[str]:
        """What each client is told."""
        return ["-h", HOST if way == "TCP" else str(self.home), "-p", str(self.port), "-U", "bench"]


class _Pgbench(Protocol):
    def __call__(self, clients: int, seconds: int, seed: int, way: Way) -> float: ...


@contextmanager
def postgres(folder: Path, *, seconds: int, seed: int, standby: bool = False) -> Iterator[Run | str]:
    """A server with loaded accounts: a function that gives the transfers per second of one round; or why there is none."""
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
        address = _Address(home, _free_port())
        with _server(commands, address) as run, _standby(commands, address) if standby else nullcontext():

            def one_round(clients: int, number: int, *, way: Way = "socket") -> float:
                return run(clients, seconds, seed + number, way)

            yield one_round


@contextmanager
def _server(tools: dict[str, list[str]], address: _Address) -> Iterator[_Pgbench]:
    home, data = address.home, str(address.home / "data")
    _call([*tools["initdb"], "-D", data, "-A", "trust", "-U", "bench"])
    where = f"-c listen_addresses={HOST} -c port={address.port} -c unix_socket_directories={home}"
    options = f"{where} -c fsync=on -c synchronous_commit=on -c log_connections=on"
    _call([*tools["pg_ctl"], "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start"])
    try:
        sizes = ["-v", f"branches={BRANCHES}", "-v", f"customers={CUSTOMERS}"]
        psql = [*tools["psql"], *address.options("socket"), "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        _call([*psql, *sizes, "-f", str(home / "schema.sql")])
        script = ["-n", "-M", "prepared", "-j", "1", "-f", str(home / "script.sql")]

        def run(clients: int, seconds: int, seed: int, way: Way) -> float:
            load = ["-c", str(clients), "-T", str(seconds), f"--random-seed={seed}"]
            said = _call([*tools["pgbench"], *address.options(way), *load, *script, "postgres"])
            found = re.search(r"tps = ([\d.]+)", said)
            assert found is not None
            return float(found[1])

        yield run
    finally:
        _call([*tools["pg_ctl"], "-D", data, "-m", "immediate", "stop"])


@contextmanager
def _standby(tools: dict[str, list[str]], address: _Address) -> Iterator[None]:
    """A synchronous standby of the server in the folder; from then on that one waits for it."""
    home, where = address.home, address.options("socket")
    data = str(home / STANDBY)
    _call([*tools["pg_basebackup"], *where, "-D", data, "-c", "fast", "-R", "-d", f"application_name={STANDBY}"])
    sockets = home / "standby-socket"
    sockets.mkdir()
    shutil.chown(sockets, home.owner())
    options = f"-c listen_addresses='' -c unix_socket_directories={sockets} -c fsync=on"
    _call([*tools["pg_ctl"], "-D", data, "-w", "-l", str(home / "standby.log"), "-o", options, "start"])
    try:
        psql = [*tools["psql"], *where, "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        _call([*psql, "-c", f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'", "-c", "SELECT pg_reload_conf()"])
        _wait_until_synchronous(psql)
        yield
    finally:
        _call([*tools["pg_ctl"], "-D", data, "-m", "immediate", "stop"])


def _wait_until_synchronous(psql: list[str]) -> None:
    deadline = time.monotonic() + STANDBY_S
    while "sync" not in (said := _call([*psql, "-At", "-c", "SELECT sync_state FROM pg_stat_replication"])).split():
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
