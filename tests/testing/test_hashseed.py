"""Every replay runs under the hash seed of sites, also a small one, whatever seed the command itself was started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.cli import REPLAYING, main
from cmdlog.testing import Server, StartServer
from procedures.execution.hash_seed import is_pinned
from replay.errors import Divergence
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import UNPINNED, Target, execute
from tests.replay.rig import DEPOSIT, Rig

pytestmark = pytest.mark.slow
APP = "tests.testing.apps.drift:db"
CALLS = 20


@pytest.fixture
def server(cmdlog_server: StartServer) -> Server:
    """A node that was killed after some calls whose rows hold sets of strings in the order of its sites."""
    server = cmdlog_server(APP, partitions=2)
    for number in range(CALLS):
        server.client.call("by_order", id=number)
    server.kill()
    return server


def lose_states(server: Server) -> None:
    """A replay has to run all calls."""
    for state in (server.data / "state").glob("p*"):
        state.unlink()


def run(seed: str, *arguments: object) -> str:
    """A command as an operator's shell starts it under this hash seed; what it printed."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-m", "cmdlog", *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", REPLAYING)
def test_commands_that_replay_start_again_under_the_pinned_seed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the command is imported or run."""

    class Pinned(Exception):
        """In place of the new start."""

    def pin() -> None:
        raise Pinned

    monkeypatch.setattr("procedures.execution.hash_seed.pin", pin)
    monkeypatch.setattr(sys, "argv", ["cmdlog", command])
    with pytest.raises(Pinned):
        main()


def test_small_replays_repeat_the_order_of_sets(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery in place, by a command that pins its seed, and a start without state files agree with the live run."""
    lose_states(server)
    run("random", "recover", server.data, "--app", APP)
    lose_states(server)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    server.start()
    assert server.client.query("SELECT count(*) FROM notes").rows
    server.client.call("by_order", id=CALLS)


@pytest.mark.torture
@pytest.mark.parametrize("seed", ["random", "1"])  # under 0, the pinned one, all tests run
def test_small_replays_into_another_place_repeat_the_order_of_sets(server: Server, tmp_path: Path, seed: str) -> None:
    """So do a recovery to another place and a drill, and each of them under another seed."""
    run(seed, "recover", server.data, "--to", tmp_path / "out")
    run(seed, "drill", server.data)
    lose_states(server)
    run(seed, "recover", server.data, "--app", APP)


def test_unpinned_process_replays_nothing_itself(tmp_path: Path) -> None:
    """Little to replay starts a worker where the hash seed is not the pinned one, and none where it is."""
    rig = Rig(tmp_path)
    rig.batch(0, [(DEPOSIT, [0, 5])])
    rig.close()
    report = execute(make_plan(rig.files, rig.directory, PAST), _target(rig, tmp_path / "out"))
    assert report.workers == int(not is_pinned())


def _target(rig: Rig, out: Path) -> Target:
    (out / "state").mkdir(parents=True)
    return Target(rig.files, str(out))


EMBEDDED = """
import sys
import cmdlog
from tests.testing.apps.drift import db

with cmdlog.open(sys.argv[1], db, segment_bytes=1 << 20, segments=8, log_reserve_bytes=1 << 16, call_bytes_max=1 << 16) as node:
    if len(sys.argv) > 2:
        node.call("by_order", id=1)
"""


@pytest.mark.torture
def test_embedded_divergence_names_the_hash_seed(tmp_path: Path) -> None:
    """The process that opens a directory replays with its own code and seed; if calls differ, the error says what to set."""
    assert _open_embedded("1", tmp_path / "data", "call").returncode == 0
    for state in (tmp_path / "data" / "state").glob("p*"):
        state.unlink()
    failed = _open_embedded("2", tmp_path / "data")
    assert (failed.returncode, Divergence.__name__ in failed.stderr, UNPINNED in failed.stderr) == (1, True, True), failed.stderr
    assert _open_embedded("1", tmp_path / "data").returncode == 0


def _open_embedded(seed: str, data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(
        [sys.executable, "-c", EMBEDDED, str(data), *more], env=environment, capture_output=True, text=True, check=False
    )
