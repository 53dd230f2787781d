"""What a directory held before a copy took its place is kept, listed, and removed by an operator alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.member.rejoin.quarantine_folder import (
    NotInQuarantine,
    list_quarantine,
    new_quarantine_name,
    quarantine_parts,
    remove_quarantined,
)
from tests.member.rejoin.copykit import FILES


def a_node(directory: Path) -> Path:
    """Files as a node has them."""
    for name in ("log/seg-1", "state/p0000.sqlite", "cluster/peers.json", "cluster/rejoin.json", "instance.json", "cmdlog.toml"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return directory


def test_parts_of_a_node_are_moved_and_nothing_else(tmp_path: Path) -> None:
    """Its settings stay, and so does what says that it is copied; a second call finds nothing to do."""
    directory = a_node(tmp_path / "n")
    moved = quarantine_parts(FILES, str(directory), "20260102T030405Z-damaged")
    assert moved == ["instance.json", "log", "state", "cluster/peers.json"]
    folder = directory / "quarantine" / "20260102T030405Z-damaged"
    assert (folder / "log" / "seg-1").read_text() == "log/seg-1"
    assert (folder / "cluster" / "peers.json").exists()
    assert sorted(path.name for path in directory.iterdir()) == ["cluster", "cmdlog.toml", "quarantine"]
    assert quarantine_parts(FILES, str(directory), "20260102T030405Z-damaged") == []


def test_entries_are_listed_with_time_reason_and_size(tmp_path: Path) -> None:
    """Other folders are not entries."""
    directory = a_node(tmp_path / "n")
    quarantine_parts(FILES, str(directory), "20260102T030405Z-too_far_back")
    (directory / "quarantine" / "notes").mkdir()
    (entry,) = list_quarantine(FILES, str(directory))
    assert entry.to_json() == {
        "name": "20260102T030405Z-too_far_back", "reason": "too_far_back", "taken": "2026-01-02T03:04:05Z", "bytes": 58,
    }  # fmt: skip


def test_an_entry_is_removed_by_its_name_alone(tmp_path: Path) -> None:
    """A name that leads elsewhere is not one."""
    directory = a_node(tmp_path / "n")
    quarantine_parts(FILES, str(directory), "20260102T030405Z-damaged")
    for name in ("..", "20260102T030405Z-other", ""):
        with pytest.raises(NotInQuarantine):
            remove_quarantined(FILES, str(directory), name)
    remove_quarantined(FILES, str(directory), "20260102T030405Z-damaged")
    assert list_quarantine(FILES, str(directory)) == []
    assert list_quarantine(FILES, str(tmp_path)) == []


def test_two_copies_within_a_second_have_two_names(tmp_path: Path) -> None:
    """Nothing in quarantine is overwritten."""
    first = new_quarantine_name(FILES, str(tmp_path), "damaged", 0.0)
    (tmp_path / "quarantine" / first).mkdir(parents=True)
    second = new_quarantine_name(FILES, str(tmp_path), "damaged", 0.0)
    assert (first, second) == ("19700101T000000Z-damaged", "19700101T000000Z-damaged-2")
