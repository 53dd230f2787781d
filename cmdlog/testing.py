"""For the tests of applications: throw-away databases, a real server to kill, and the proof that what was done replays.

Enable the fixtures in the topmost conftest.py:

    pytest_plugins = ["cmdlog.testing"]

    def test_reserving_takes_from_stock(cmdlog_embedded):
        shop = cmdlog_embedded(shop_db)                  # cmdlog.Embedded, in a folder of its own
        shop.call("put", item=1, count=10)
        assert shop.call("reserve", item=1, count=3) == 7
        assert_replays(shop)

    def test_an_order_survives_a_crash(cmdlog_server):
        server = cmdlog_server(shop_db)                  # `cmdlog serve` as a process, on a free port of loopback
        server.client.call("put", item=1, count=10)
        server.kill()
        server.start()
        assert server.client.call("reserve", item=1, count=3) == 7

One rule: whatever a test does, its databases are closed and its processes are gone when it is over, also when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import pytest

from cmdlog.child_process import PIPE, ChildProcess, without_settings
from cmdlog.client import Client
from cmdlog.node.embedded import Embedded, open_embedded
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.bundle import capture_bundle
from procedures.hash_seed import PINNED, is_pinned
from replay.plan.planner import make_plan
from replay.recover.to_directory import rebuild
from replay.state.trust import STATE_FOLDER
from snapshot.table_digest import TableDigest, open_image, table_digests

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
OTHER_SEED: Final = "1"  # of a replay, where this process has the pinned one
SMALL: Final[Mapping[str, Any]] = {
    "segment_bytes": 1 << 20,
    "segments": 16,
    "log_reserve_bytes": 64 << 10,
    "call_bytes_max": 256 << 10,
}
"""A log that is made quickly; every setting can be changed."""


class OpenEmbedded(Protocol):
    """What `cmdlog_embedded` is."""

    def __call__(self, db: Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Embedded: ...


class StartServer(Protocol):
    """What `cmdlog_server` is."""

    def __call__(self, app: str | Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Server: ...


@pytest.fixture
def cmdlog_embedded(tmp_path: Path) -> Iterator[OpenEmbedded]:
    """Opens throw-away databases in this process; `folder` (below tmp_path) opens the same one again."""
    opened: list[Embedded] = []

    def open_one(db: Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Embedded:
        directory = tmp_path / (folder or f"embedded-{len(opened)}")
        opened.append(open_embedded(directory, db, **{**SMALL, **settings}))
        return opened[-1]

    try:
        yield open_one
    finally:
        for database in opened:
            database.close()


@pytest.fixture
def cmdlog_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts `cmdlog serve` processes; of a Database, or of `module:attribute`."""
    servers: list[Server] = []

    def start(app: str | Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Server:
        servers.append(Server(app, tmp_path / (folder or f"server-{len(servers)}"), **settings))
        servers[-1].start()
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


class Server:
    """`cmdlog serve` on a free port of loopback. The port stays the same from `start` to `start`."""

    def __init__(self, app: str | Database, folder: Path, **settings: Any) -> None:
        self.app = app if isinstance(app, str) else capture_bundle(app).target
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.url = ""
        self._settings = {**SMALL, "host": "127.0.0.1", "port": 0, **settings}
        self._process: ChildProcess | None = None
        self._client: Client | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def client(self) -> Client:
        """A client without a token. It may be kept over restarts."""
        if self._client is None:
            self._client = Client(self.url, token="")
        return self._client

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Starts the process; returns when it serves. Raises: RuntimeError with the process's last words."""
        if self._process is not None:
            raise RuntimeError("the server is already running")
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        arguments = ("serve", self.app, f"--data={self.data}", "--json", "--log-format=json", *options)
        with self.log.open("ab") as errors:
            self._process = ChildProcess("cmdlog.cli", *arguments, environment=without_settings(), stdout=PIPE, stderr=errors)
        self.url = self._wait_ready()
        self._settings["port"] = self.url.rpartition(":")[2]

    def stop(self) -> None:
        """The orderly end, by SIGTERM. Raises: RuntimeError when the process says that something was wrong."""
        process = self._running()
        process.terminate()
        try:
            code = process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the server did not stop within {STOP_S_MAX:g} s: {self._last_words()}") from None
        self._gone()
        if code:
            raise RuntimeError(f"the server ended with exit code {code}: {self._last_words()}")

    def kill(self) -> None:
        """SIGKILL to the node and its sites, as a crash would: nothing is flushed, nothing is reported."""
        self._running().kill()
        self._gone()

    def close(self) -> None:
        """Ends the process, if it runs, and the client."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self.kill()

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


def assert_replays(database: Embedded) -> None:
    """Closes the database and rebuilds its state from its log, in another process under another hash seed; then compares.

    The log is replayed from the first call on, or from the newest snapshot if one was taken. The directory stays as it is.
    Raises: Divergence, naming the first call whose result or rows differ; AssertionError, naming the tables that do; BundleError,
    when the procedures are in no module.
    """
    directory = database.node.directory
    database.node.sequencer.flush_notes()  # the last calls' digests: an idle node logs them a moment later
    database.close()
    lived = _digests(Path(directory))
    files = RealFiles()
    with tempfile.TemporaryDirectory(prefix="cmdlog-replay-") as folder:
        plan = make_plan(files, directory, use_state="never")
        rebuild(plan, files, folder, workers=1, hash_seed=OTHER_SEED if is_pinned() else PINNED)
        replayed = _digests(Path(folder))
    differing = sorted(name for name in lived.keys() | replayed.keys() if lived.get(name) != replayed.get(name))
    if differing:
        raise AssertionError(f"the replay differs from the live run in {', '.join(differing)}")


def _digests(directory: Path) -> dict[str, TableDigest]:
    """Every table of every partition, as `partition file: table`."""
    found: dict[str, TableDigest] = {}
    for path in sorted((directory / STATE_FOLDER).glob("p*.sqlite")):
        with contextlib.closing(open_image(path)) as image:
            found |= {f"{path.stem}: {name}": digest for name, digest in table_digests(image).items()}
    return found
