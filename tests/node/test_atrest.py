"""State files that change while nobody runs: a start uses what the stop has written, or what snapshot and log say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from structlog.testing import capture_logs

import cmdlog
from replay.state.trust import STATE_FOLDER, TRUST_NAME, state_path
from tests.commands import Command
from tests.node.apps.faulty import db
from tests.node.rig import SMALL

AMOUNT = 0x1234567  # is found in the file


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
