"""Processes that are killed while a migration runs on a partition: afterwards there are the old tables, or the new ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.testing import Server
from tests.node.apps import held_migration
from tests.node.migrating.migration_gate import Gate
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
APP = "tests.node.apps.held_migration:"
PARTITIONS = 2
ROWS = 6
RUNS = 3 * PARTITIONS  # a migration that uses tx runs twice on each partition before it is logged, and then for good


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """What this test's programs pass."""
    made = Gate(tmp_path / "gate")
    monkeypatch.setenv(held_migration.GATE, str(made.folder))
    return made


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[Server]:
    """Of a node with acknowledged rows in both partitions, which does not run."""
    node = open_node(tmp_path / "data", app=held_migration.before, inline=True, partitions=PARTITIONS)
    for number in range(ROWS):
        ask(node, "put", id=number)
    node.close()
    made = Server(APP + "after", tmp_path, sites=1)
    yield made
    made.close()


def rows(*, migrated: bool) -> list[list[str]]:
    """All rows: each was changed once, or not at all."""
    return [[str(number), "2", "doubled"] if migrated else [str(number), "1"] for number in range(ROWS)]


def found(server: Server) -> list[list[str]]:
    """What the server answers."""
    return sorted(row for partition in server.client.call("show") for row in partition)


def start(*arguments: str) -> subprocess.Popen[str]:
    """A command that may not end."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "cmdlog", *arguments, "--json"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    """Exit code, the one line that a command has printed, and its standard error."""
    printed, errors = process.communicate()
    return process.returncode, orjson.loads(printed or "null"), errors


def killed_at(gate: Gate, process: subprocess.Popen[str], number: int) -> None:
    """The run has begun when the program is killed."""
    gate.wait_at(number)
    assert process.poll() is None
    process.kill()
    process.communicate()
    gate.hold()


@pytest.mark.parametrize(
    "number", [pytest.param(at, marks=[] if at in (4, 5) else pytest.mark.torture) for at in range(1, 1 + RUNS)]
)
def test_killed_command_has_migrated_all_or_nothing(server: Server, gate: Gate, number: int) -> None:
    """Before the change is logged nothing has happened, and the former program runs; after it every start completes the change.
    The command, run again, states which."""
    gate.hold(number)
    killed_at(gate, start("migrate", APP + "after", "--data", str(server.data)), number)
    logged = number > 2 * PARTITIONS
    if not logged:
        node = open_node(server.data, app=held_migration.before, inline=True)
        assert sorted(row for partition in ask(node, "show") for row in partition) == rows(migrated=False)
        node.close()
    code, answer, _ = finish(start("migrate", APP + "after", "--data", str(server.data)))
    assert (code, sorted(answer["changed"])) == (0, [] if logged else ["0", "1"])
    server.start()
    assert found(server) == rows(migrated=True)


def test_node_that_is_killed_with_its_site_completes_the_change(server: Server, gate: Gate) -> None:
    """The change is in the log when the site runs it; a later start, which was not asked to migrate, is killed there, too."""
    for number in (2 * PARTITIONS + 1, 2 * PARTITIONS + 2):
        gate.hold(number)
        migrate = ["--migrate"] if number == 2 * PARTITIONS + 1 else []
        process = start("serve", APP + "after", "--data", str(server.data), "--port=0", "--sites=1", *migrate)
        killed_at(gate, process, number)
    server.start()
    assert found(server) == rows(migrated=True)


@pytest.mark.parametrize("ended_by", ["kill", "watch"])
def test_change_that_is_logged_is_never_left_out(tmp_path: Path, server: Server, gate: Gate, ended_by: str) -> None:
    """However often a site ends at it, or is ended since it stands still: no skip of it is logged, and a later site runs it."""
    gate.hold(played := 2 * PARTITIONS + 1)
    options = ["--site-restarts-max=1", f"--call-timeout-s={100 if ended_by == 'kill' else 0.5}"]
    process = start("serve", APP + "after", "--data", str(server.data), "--port=0", "--sites=1", "--migrate", *options)
    site = gate.wait_at(played)
    if ended_by == "kill":
        os.kill(site, signal.SIGKILL)
    wait_for(lambda: gate.runs() == [0, 0, 1, 1, 0, 0, 1])
    process.terminate()
    _, errors = process.communicate()
    assert "call_skipped" not in errors
    assert {"refusing_calls", "accepting_calls"} <= {orjson.loads(line)["event"] for line in errors.splitlines()}
    if ended_by == "watch":
        assert "the change of tables made no progress for call_timeout_s=0.5" in errors
    dumped = subprocess.run([sys.executable, "-m", "cmdlog", "log", "dump", str(server.data)], capture_output=True, check=True)
    assert b'"schema"' in dumped.stdout
    assert b'"skip"' not in dumped.stdout
    server.start()
    assert found(server) == rows(migrated=True)
