"""A real server of a test: `cmdlog serve` as a process that may be killed, stopped, started again, and lose its disk."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from cmdlog.child_process import PIPE, ChildProcess, without_settings
from cmdlog.client import Client
from cmdlog.testing.machine import SettableClock, SharedWord
from cmdlog.wal.directory.local_token import find_local_token
from procedures import Database
from procedures.code.bundle import capture_bundle

START_S_MAX: Final = 240.0
STOP_S_MAX: Final = 30.0
MAIN: Final = "cmdlog.testing.server_main"
SMALL: Final[Mapping[str, Any]] = {
    "segment_bytes": 1 << 20,
    "segments": 16,
    "log_reserve_bytes": 64 << 10,
    "call_bytes_max": 256 << 10,
}
"""A log that is made quickly; every setting can be changed."""
DEFAULTS: Final[Mapping[str, Any]] = {**SMALL, "clock_lead_max_ms": 10 * 365 * 86_400_000}
"""Of the fixtures: a day that a test skips expires what a day does; outside of tests such a step is a wrong clock."""


class Server:
    """`cmdlog serve` on a free port of loopback. The port stays the same from `start` to `start`."""

    def __init__(self, app: str | Database, folder: Path, *, clock: SettableClock | None = None, **settings: Any) -> None:
        self.app = app if isinstance(app, str) else capture_bundle(app).target
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.url = ""
        self._settings = {**DEFAULTS, "host": "127.0.0.1", "port": 0, **settings}
        self._clock = clock or SettableClock()
        self._disk = SharedWord()  # 0 while it works
        self._process: ChildProcess | None = None
        self._client: Client | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def client(self) -> Client:
        """A client without a token, which may read and call. It may be kept over restarts."""
        if self._client is None:
            self._client = Client(self.url, token="")
        return self._client

    @property
    def token(self) -> str:
        """What admits to everything, until the server stops: `Client(server.url, token=server.token).take_snapshot()`."""
        return find_local_token(self.url)

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Starts the process; returns when it serves. Raises: RuntimeError with the process's last words."""
        if self._process is not None:
            raise RuntimeError("the server is already running")
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        shared = self._clock.share(), self._disk.fd
        arguments = (*map(str, shared), "serve", self.app, f"--data={self.data}", "--json", "--log-format=json", *options)
        self._disk.value = 0
        with self.log.open("ab") as errors:
            self._process = ChildProcess(
                MAIN, *arguments, environment=without_settings(), pass_fds=shared, stdout=PIPE, stderr=errors
            )
        self.url = self._wait_ready()
        self._settings["port"] = self.url.rpartition(":")[2]

    def stop(self) -> None:
        """The orderly end, by SIGTERM. Raises: RuntimeError when the process says that something was wrong."""
        process = self._running()
        process.terminate()
        if (code := process.end_within(STOP_S_MAX)) is None:
            raise RuntimeError(f"the server did not stop within {STOP_S_MAX:g} s: {self._last_words()}")
        self._gone()
        if code:
            raise RuntimeError(f"the server ended with exit code {code}: {self._last_words()}")

    def kill(self) -> None:
        """SIGKILL to the node and its sites, as a crash would: nothing is flushed, nothing is reported."""
        self._running().kill()
        self._gone()

    def fail_disk(self) -> None:
        """From now on every write and sync of the server's log fails, as on a dead device; `kill` and `start` give it a new one.

        The first call that is to be durable wedges the log: it and all later ones that write are refused (503 `log_failed`),
        until the process has been replaced. Everything acknowledged before is there then.
        """
        self._disk.value = 1

    def close(self) -> None:
        """Ends the process, if it runs, and the client."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self.kill()
        self._disk.close()

    def _wait_ready(self) -> str:
        process, deadline, held = self._running(), time.monotonic() + START_S_MAX, b""
        assert process.stdout is not None
        while b'"ready"' not in held:
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(process.stdout.fileno(), 1 << 16) if readable else b""
            held += data
            if not data:
                self.kill()
                raise RuntimeError(f"the server did not start: {held.decode(errors='replace')}{self._last_words()}")
        url: str = orjson.loads(held.partition(b"\n")[0])["url"]
        return url

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _gone(self) -> None:
        process, self._process = self._running(), None
        process.close()

    def _last_words(self) -> str:
        return self.log.read_bytes()[-2000:].decode(errors="replace").strip()
