"""Commands in a process whose address space is limited: they work, or name the limit; they neither hang nor show a traceback."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from cmdlog.testing import SMALL
from cmdlog.wal.process_limits import ADDRESS_BYTES_MIN
from tests.node.apps.faulty import db
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
SECONDS_MAX = PATIENCE_S


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory with some calls."""
    import cmdlog

    folder = tmp_path_factory.mktemp("limits") / "data"
    with cmdlog.open(folder, db, partitions=2, **SMALL) as node:
        for number in range(10):
            node.call("bump", id=number, amount=1)
    return folder


def run(limit_bytes: int, *arguments: object) -> tuple[int, str]:
    """Exit code and output of a command under RLIMIT_AS."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    command = [sys.executable, "-m", "cmdlog", *map(str, arguments)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "mib"),
    [
        *(("serve", 64), ("serve", 255), ("recover", 128), ("drill", 255)),
        *(
            pytest.param(command, mib, marks=pytest.mark.torture)
            for command, mib in itertools.product(("serve", "recover", "drill"), (64, 128, 192, 255))
        ),
    ],
)
def test_too_small_address_space_is_named(data: Path, tmp_path: Path, command: str, mib: int) -> None:
    """Which limit, its value and what is needed, and exit code 1, before anything is done; all pairs by `make torture`."""
    more: list[object] = ["procedures.samples.bank:db", "--data", tmp_path / "new", "--port", 0] if command == "serve" else [data]
    code, text = run(mib << 20, command, *more)
    assert (code, "Traceback" in text) == (1, False), text
    assert f"RLIMIT_AS (`ulimit -v`) is {mib << 20:,} bytes" in text
    assert f"{ADDRESS_BYTES_MIN:,}" in text
    assert os.listdir(tmp_path) == []


def test_limit_is_an_error_in_json(data: Path) -> None:
    """With --json it is a value like any failure."""
    code, text = run(128 << 20, "recover", data, "--json")
    assert (code, json.loads(text)["error"]["kind"]) == (1, "LimitReached")


@pytest.mark.parametrize("command", ["recover", pytest.param("drill", marks=pytest.mark.torture)])
def test_smallest_address_space_is_enough(data: Path, tmp_path: Path, command: str) -> None:
    """What the error asks for is enough for a small directory, worker processes included."""
    more: list[object] = ["--to", tmp_path / "out"] if command == "recover" else []
    code, text = run(ADDRESS_BYTES_MIN, command, data, *more)
    assert code == 0, text


def serve(limit_bytes: int, data: Path) -> tuple[bool, int, str]:
    """Whether a server under RLIMIT_AS became ready, its exit code (after SIGTERM, when it did), and its output."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    command = [sys.executable, "-m", "cmdlog", "serve", "procedures.samples.bank:db", "--data", str(data), "--port", "0"]
    said = data.with_suffix(".output")
    with (
        said.open("wb") as output,
        subprocess.Popen(command, preexec_fn=limit, stdout=output, stderr=subprocess.STDOUT) as server,  # noqa: PLW1509
    ):
        try:
            wait_for(lambda: server.poll() is not None or "\nready:" in "\n" + said.read_text())
            server.terminate()
            code = server.wait(SECONDS_MAX)
        finally:
            server.kill()
    text = said.read_text()
    return "\nready:" in "\n" + text, code, text


@pytest.mark.parametrize("mib", [390, *(pytest.param(mib, marks=pytest.mark.torture) for mib in (257, 293, 342, 440, 488, 640))])
def test_server_is_ready_or_names_the_limit(tmp_path: Path, mib: int) -> None:
    """Under any limit of address space a server becomes ready, or ends with the limit, its value and what it needs.

    Here one that is enough for some servers; the test below has too little and enough, `make torture` all of them.
    """
    ready, code, text = serve(mib << 20, tmp_path / "new")
    assert "Traceback" not in text
    assert (ready, code) in ((True, 0), (False, 1)), text
    assert ready or f"RLIMIT_AS (`ulimit -v`) is {mib << 20:,} bytes" in text


@pytest.mark.torture
def test_address_space_that_a_server_asks_for_is_enough(tmp_path: Path) -> None:
    """What the refused start says is needed in all lets the next one become ready."""
    ready, code, text = serve(300 << 20, tmp_path / "new")
    assert (ready, code, "Traceback" in text) == (False, 1, False), text
    assert f"RLIMIT_AS (`ulimit -v`) is {300 << 20:,} bytes" in text
    asked = re.search(r"([0-9,]+) in all", text)
    assert asked is not None, text
    ready, code, text = serve(int(asked[1].replace(",", "")), tmp_path / "new")
    assert (ready, code) == (True, 0), text


@pytest.mark.parametrize("step", ["open", "attach"])
def test_thread_that_cannot_be_started_ends_the_server(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A start that fails for want of a thread, at whatever step, ends the server with that error; it does not hang."""
    from cmdlog.api.server import Events
    from cmdlog.api.server import serve as serve_http
    from cmdlog.node.node import Node
    from cmdlog.node.settings import Settings
    from procedures.samples.bank import db as bank

    start, refused = threading.Thread.start, {"open": "archive", "attach": "snapshots"}[step]

    def refuse(self: threading.Thread) -> None:
        if self.name == refused:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr("cmdlog.api.server.stop_signals", list)
    settings = Settings(port=0, partitions=1, sites=1, **SMALL)
    told: list[str] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        serve_http(
            lambda progress: Node.open(
                str(tmp_path / "n"), bank, settings, target="procedures.samples.bank:db", progress=progress
            ),
            settings,
            str(tmp_path / "n"),
            events=Events(ready=lambda node: told.append("ready")),
        )
    assert told == []


@pytest.mark.parametrize("command", ["serve new", "serve", "recover"])
def test_limit_of_file_sizes_is_named(data: Path, tmp_path: Path, command: str) -> None:
    """A file size limit below a segment is refused by its name, value and remedy; the volume is not blamed."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (102_400, 102_400))
    folder = tmp_path / "new" if command == "serve new" else data
    serve = ["serve", "tests.node.apps.faulty:db", "--data", folder, "--port", 0]
    arguments = ["recover", data, "--to", tmp_path / "out"] if command == "recover" else serve
    line = [sys.executable, "-m", "cmdlog", *map(str, arguments)]
    done = subprocess.run(line, preexec_fn=limit, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 14, text
    assert "102,400 bytes (RLIMIT_FSIZE, `ulimit -f`)" in text
    assert "raise the limit" in text
    assert "has not got" not in text
