"""State files that change while nobody runs: a start uses what the stop has written, or what snapshot and log say."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.drill.drill import drill
from replay.state.trust import STATE_FOLDER, TRUST_NAME, state_path
from tests.api.bankserver import Server
from tests.commands import Command
from tests.node.apps.faulty import db
from tests.node.rig import SMALL
from tests.waiting import PATIENCE_S

AMOUNT = 0x1234567  # is found in the file
FILES = RealFiles()


def reopen(directory: Path) -> cmdlog.Embedded:
    """The node of one partition, in this process."""
    return cmdlog.open(directory, db, partitions=1, **SMALL)


def value_of(opened: cmdlog.Embedded, row: int) -> Any:
    """The row that a query sees."""
    return opened.query("SELECT n FROM counters WHERE id = ?", (row,), partition=0).rows[0][0]


def flip(path: str | Path) -> None:
    """One bit of the value, with size and birth as they were."""
    with open(path, "r+b") as file:
        at = file.read().index(AMOUNT.to_bytes(4, "big"))
        file.seek(at + 3)
        file.write(bytes([AMOUNT & 0xFF ^ 4]))


def bumped(directory: Path, count: int = 3) -> None:
    """A stopped node with so many rows, all of the same value."""
    with reopen(directory) as opened:
        for row in range(count):
            opened.call("bump", id=row, amount=AMOUNT)


def seals(directory: Path) -> list[str]:
    """Names of the files that a stop has sealed."""
    return list(orjson.loads((directory / STATE_FOLDER / TRUST_NAME).read_bytes())["seals"])


def rebuilt(logs: list[Any]) -> list[str]:
    """Why state files were rebuilt, in the node's log."""
    return [str(line["reason"]) for line in logs if line["event"] == "state_rebuilt"]


def test_value_that_changed_at_rest_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    """The row is what was acknowledged; log and status say which file was rebuilt, and why."""
    bumped(tmp_path)
    flip(state_path(str(tmp_path), 0))
    with capture_logs() as logs, reopen(tmp_path) as opened:
        assert [value_of(opened, row) for row in range(3)] == [AMOUNT] * 3
        (told,) = opened.status()["start"]["recovery"]
        assert (told["from"], told["replayed_calls"]) == ("empty", 3)
        assert told["passed"][0]["why"].startswith("the state file does not hold what the stop wrote")
    (why,) = rebuilt(logs)
    assert why.startswith("the state file does not hold what the stop wrote: CRC-32C ")


def test_what_was_not_changed_is_used_as_it_is(tmp_path: Path) -> None:
    """A restart after an orderly stop replays nothing, whatever looked at the states meanwhile; each stop seals anew."""
    bumped(tmp_path)
    for _ in range(2):
        assert seals(tmp_path) == ["p0000.sqlite"]
        with capture_logs() as logs, reopen(tmp_path) as opened:
            (told,) = opened.status()["start"]["recovery"]
            assert (told["from"], told["replayed_calls"]) == ("state", 0)
            assert seals(tmp_path) == [], "whoever kills the node now finds the states warm"
            opened.call("bump", id=9, amount=1)
        assert rebuilt(logs) == []


def test_recovery_in_place_and_into_a_new_directory_seal_what_they_made(tmp_path: Path, command: Command) -> None:
    """Both are served later: what changes until then is found."""
    bumped(tmp_path / "node")
    for made in (tmp_path / "node", tmp_path / "out"):
        to = () if made.name == "node" else ("--to", made)
        assert command("recover", tmp_path / "node", *to)[0] == 0
        assert seals(made) == ["p0000.sqlite"]
    flip(state_path(str(tmp_path / "out"), 0))
    with reopen(tmp_path / "out") as opened:
        assert value_of(opened, 1) == AMOUNT
    flip(state_path(str(tmp_path / "node"), 0))
    assert "does not hold what the stop wrote" in str(command("recover", tmp_path / "node", "--plan", "--json"))
    assert (command("recover", tmp_path / "node")[0], seals(tmp_path / "node")) == (0, ["p0000.sqlite"])
    with reopen(tmp_path / "node") as opened:
        assert value_of(opened, 1) == AMOUNT


def test_hurried_stop_leaves_the_states_as_a_kill_does(tmp_path: Path) -> None:
    """Who sends a second signal does not wait for files to be read; the next start is warm all the same."""
    opened = reopen(tmp_path)
    opened.call("bump", id=1, amount=AMOUNT)
    opened.node.close(hurried=lambda: True)
    assert seals(tmp_path) == []
    with reopen(tmp_path) as again:
        assert again.status()["start"]["recovery"][0]["from"] == "state"


def rot(directory: Path, *, snapshots: int) -> None:
    """A value changes while the node runs, and gets into so many snapshots; the calls behind it do not meet it."""
    with reopen(directory) as opened:
        for row in range(3):
            opened.call("bump", id=row, amount=AMOUNT)
    trust = directory / STATE_FOLDER / TRUST_NAME
    trust.write_bytes(orjson.dumps({**orjson.loads(trust.read_bytes()), "seals": {}}))  # as while the node runs
    flip(state_path(str(directory), 0))
    with reopen(directory) as opened:
        for n in range(snapshots):
            opened.call("bump", id=10 + n, amount=1)
            opened.node.take_snapshot()


@pytest.mark.parametrize("snapshots", [1, 2])
def test_drill_finds_snapshots_of_a_state_that_had_rotted(tmp_path: Path, command: Command, snapshots: int) -> None:
    """They agree with each other and with their checksums; the log, which reaches back to the first entry, does not.

    What the drill then advises brings the row back.
    """
    node = tmp_path / "node"
    rot(node, snapshots=snapshots)
    report = drill(FILES, str(node), seed=1)
    assert (report.verdict, report.exit_code) == ("diverged", 16)
    taken = sorted((node / "snapshots").glob("p0000-*"))
    assert len(taken) == snapshots
    assert f"snapshot {taken[0].name} does not hold what the log says" in str(report.error)
    assert "replayed from the first entry" in str(report.error)
    assert "differ in counters" in str(report.error)
    for path in taken:
        path.rename(tmp_path / path.name)
    assert command("recover", node, "--to", tmp_path / "out")[0] == 0
    with reopen(tmp_path / "out") as opened:
        assert [value_of(opened, row) for row in range(3)] == [AMOUNT] * 3


@pytest.mark.torture
def test_server_seals_at_one_signal_and_at_no_other_end(tmp_path: Path) -> None:
    """An orderly stop states what the sites' files hold; a kill and a second signal leave them as they are, and trusted."""

    def stopped(*signals: signal.Signals) -> list[str]:
        """The files that are sealed after a life of the server that these end; the balance was right in it."""
        server = Server(tmp_path, "--port", "0")
        try:
            server.wait_ready()
            if not (balance := httpx.post(server.url + "/v1/procedures/balance", json={"account": 1}).json()["result"]):
                httpx.post(server.url + "/v1/procedures/open_account", json={"account": 1, "amount": AMOUNT})
            assert balance in (AMOUNT, None)
            recovery.append([part["from"] for part in httpx.get(server.url + "/v1/status").json()["start"]["recovery"]])
            for number in signals:
                server.process.send_signal(number)
            assert server.process.wait(PATIENCE_S) == (-signal.SIGKILL if signal.SIGKILL in signals else 0)
        finally:
            server.kill()
        return seals(tmp_path / "data")

    recovery: list[list[str]] = []
    assert stopped(signal.SIGTERM) == ["p0000.sqlite", "p0001.sqlite"]
    (holding,) = [
        path for path in (tmp_path / "data" / "state").glob("*.sqlite") if AMOUNT.to_bytes(4, "big") in path.read_bytes()
    ]
    flip(holding)
    assert stopped(signal.SIGKILL) == []
    assert sorted(recovery[-1]) == ["empty", "state"]
    assert stopped(signal.SIGTERM, signal.SIGINT) == []
    assert stopped(signal.SIGTERM) == ["p0000.sqlite", "p0001.sqlite"]
    assert recovery[-2:] == [["state", "state"]] * 2
