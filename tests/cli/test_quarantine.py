"""`cmdlog cluster quarantine`: what was put aside is listed, and removed by its name alone."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.member.rejoin.quarantine_folder import NotInQuarantine
from tests.cli.member_server import run

NAME = "20260131T120000Z-damaged"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A node's directory with one entry of five bytes."""
    (tmp_path / "quarantine" / NAME / "log").mkdir(parents=True)
    (tmp_path / "quarantine" / NAME / "log" / "segment").write_bytes(b"12345")
    return tmp_path


def test_entries_are_listed_with_reason_time_and_size(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for programs."""
    run("cluster", "quarantine", "list", str(directory))
    printed = capsys.readouterr().out
    assert NAME in printed
    run("cluster", "quarantine", "list", str(directory), "--json")
    entry = {"name": NAME, "reason": "damaged", "taken": "2026-01-31T12:00:00Z", "bytes": 5}
    assert orjson.loads(capsys.readouterr().out) == {"entries": [entry]}


def test_directory_without_entries_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No error: most nodes never had one."""
    run("cluster", "quarantine", "list", str(tmp_path))
    assert capsys.readouterr().out == "the quarantine is empty\n"


def test_entry_is_removed_by_name(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For good, and nothing else with it."""
    (directory / "log").mkdir()
    with pytest.raises(CommandFailed, match="needs --yes"):
        run("cluster", "quarantine", "remove", str(directory), NAME)
    run("cluster", "quarantine", "remove", str(directory), NAME, "--yes")
    assert capsys.readouterr().out == f"removed {NAME}: 5 bytes\n"
    assert sorted(path.name for path in directory.rglob("*")) == ["log", "quarantine"]


@pytest.mark.parametrize("name", ["../log", "x", "", ".", NAME + "/log"])
def test_other_names_remove_nothing(directory: Path, name: str) -> None:
    """Also not those that lead elsewhere."""
    (directory / "log").mkdir()
    with pytest.raises(NotInQuarantine):
        run("cluster", "quarantine", "remove", str(directory), name, "--yes")
    assert (directory / "log").is_dir()
    assert (directory / "quarantine" / NAME / "log" / "segment").exists()


def test_directory_has_to_exist(tmp_path: Path) -> None:
    """A misspelt one is no node without entries."""
    with pytest.raises(CommandFailed, match="is not a directory"):
        run("cluster", "quarantine", "list", str(tmp_path / "none"))
