"""`cmdlog serve --reload`: real servers that follow the files of a program, through errors, to an end in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.client.client import Client
from tests.commands import Command
from tests.processes import is_gone
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
APP = """
from sqlalchemy import Column, Integer, Text
from cmdlog import Database
from parts.prices import FEE

db = Database("shop")
db.table("t", Column("id", Integer, primary_key=True), Column("n", {kind}), partition_by="id")


@db.procedure(partition_by="item", read_only=True)
def fee(tx, item: int) -> int:
    return FEE
"""


class Reloading:
    """A server of `shop:db` in a folder, with its output in files."""

    def __init__(self, folder: Path, *options: str, fee: str = "1") -> None:
        self.folder = folder
        (folder / "parts").mkdir()
        (folder / "parts" / "__init__.py").touch()
        self.write_app()
        self.write_fee(fee)
        self._out, self._errors = folder / "out", folder / "errors"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            arguments = ["serve", "shop:db", "--reload", "--port", "0", "--partitions", "1", "--json", *options]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cmdlog.cli", *arguments],
                cwd=folder, env={**environment, "PYTHONPATH": str(ROOT)}, stdout=out, stderr=errors,
            )  # fmt: skip

    def write_app(self, kind: str = "Integer", more: str = "") -> None:
        """The application's own file."""
        self._write("shop.py", APP.format(kind=kind) + more)

    def write_fee(self, fee: str) -> None:
        """A module of it in another folder."""
        self._write("parts/prices.py", f"FEE = {fee}\n")

    def _write(self, name: str, text: str) -> None:
        """At once: a watch that wakes while half of it is written would see another program."""
        written = self.folder / "written"
        written.write_text(text)
        written.replace(self.folder / name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What was printed, whole lines alone."""
        lines = self._out.read_text().rpartition("\n")[0].splitlines()
        return [event for event in map(json.loads, lines) if event.get("event") == kind or kind in event]

    def notes(self) -> list[str]:
        """Notes of the process that watches."""
        lines = self._errors.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line)["note"] for line in lines if line.startswith('{"note"')]

    def wait_ready(self, times: int) -> None:
        """Until so many servers were ready."""
        wait_for(lambda: len(self.events("ready")) >= times, why=self.said)

    def said(self) -> str:
        """For a test that fails."""
        return self._out.read_text() + self._errors.read_text()

    def end(self) -> None:
        """Kills what is left; servers follow."""
        self.process.kill()
        self.process.wait()
        servers = [event["pid"] for event in self.events("listening")]
        wait_for(lambda: all(map(is_gone, servers)))

    def fee(self) -> Any:
        """A call of the server that listens now."""
        with Client(self.events("listening")[-1]["url"]) as client:
            return client.call("fee", item=1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Reloading]]:
    """Starts them; all that they started is gone at the end."""
    started: list[Reloading] = []

    def make(*options: str, **more: Any) -> Reloading:
        started.append(Reloading(tmp_path, *options, **more))
        return started[-1]

    yield make
    for reloading in started:
        reloading.end()


@pytest.mark.slow
def test_a_change_starts_the_server_again_at_its_address(start: Callable[..., Reloading]) -> None:
    """In a folder of another module too; the one before ended in order, and Ctrl-C ends both processes."""
    reloading = start()
    reloading.wait_ready(1)
    assert reloading.fee() == 1
    (reloading.folder / "notes.txt").write_text("no Python file")
    reloading.write_fee("2")
    reloading.wait_ready(2)
    assert reloading.fee() == 2
    first, second = reloading.events("listening")
    assert first["url"] == second["url"]
    assert len(reloading.events("stopping")) == 1
    assert reloading.notes() == [f"{Path('parts', 'prices.py')} changed: the server starts again"]
    reloading.process.send_signal(signal.SIGINT)
    assert reloading.process.wait() == 0
    assert len(reloading.events("stopping")) == 2
    assert is_gone(second["pid"])


@pytest.mark.slow
@pytest.mark.torture
def test_a_program_that_does_not_start_is_waited_for(start: Callable[..., Reloading]) -> None:
    """One with a syntax error from the beginning, then one whose tables differ from the state's, each until it is repaired."""
    reloading = start(fee="")
    wait_for(lambda: len(reloading.notes()) == 1, why=reloading.said)
    assert "starts again when a file changes" in reloading.notes()[0]
    assert "cannot be imported: SyntaxError" in reloading.events("error")[0]["error"]["message"]
    reloading.write_fee("3")
    reloading.wait_ready(1)
    assert reloading.fee() == 3
    reloading.write_app(kind="Integer, nullable=False")
    wait_for(lambda: len(reloading.events("error")) == 2, why=reloading.said)
    assert "table 't'" in reloading.events("error")[1]["error"]["message"]
    reloading.write_app()
    reloading.wait_ready(2)
    assert reloading.fee() == 3
    reloading.process.send_signal(signal.SIGTERM)
    assert reloading.process.wait() == 0


@pytest.mark.slow
def test_the_server_ends_with_the_process_that_watches(start: Callable[..., Reloading]) -> None:
    """Killed, that one runs not a line; and a server that somebody ends in order ends the watch."""
    reloading = start()
    reloading.wait_ready(1)
    reloading.process.kill()
    server = reloading.events("listening")[0]["pid"]
    wait_for(lambda: is_gone(server))
    wait_for(lambda: len(reloading.events("stopping")) == 1)


def test_a_node_of_a_cluster_is_refused(command: Command, tmp_path: Path) -> None:
    """Its nodes get new code one after the other."""
    code, said = command("serve", "shop:db", "--reload", "--join", tmp_path / "cluster.toml", "--json")
    assert code == 2
    assert "--reload is for a node of its own" in said["error"]["message"]


def test_a_port_that_is_taken_is_refused_at_once(command: Command, tmp_path: Path) -> None:
    """Before a file is watched."""

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = command("serve", "shop:db", "--reload", "--port", port, "--data", tmp_path, "--json")
    assert code != 0
    assert "cannot listen" in said["error"]["message"]
