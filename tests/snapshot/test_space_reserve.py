"""Space that is held for the next image."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from snapshot.space_reserve import ALIGN_BYTES, Reserve, wanted_bytes


def taken(folder: Path) -> int:
    """Bytes of the volume that the reserve takes."""
    path = folder / "snapshots" / "reserve"
    return path.stat().st_blocks * 512 if path.exists() else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node directory."""
    (tmp_path / "snapshots").mkdir()
    return tmp_path


def test_blocks_are_really_taken_and_given_back(folder: Path) -> None:
    """More, less, nothing; and a new process knows what is held."""
    reserve = Reserve(str(folder))
    for wanted in (4 << 20, 8 << 20, 2 << 20):
        reserve.hold(wanted)
        assert (reserve.held_bytes, reserve.problem) == (wanted, "")
        assert taken(folder) >= wanted
    assert Reserve(str(folder)).held_bytes == 2 << 20


def test_space_is_let_go_when_the_volume_has_not_as_much_besides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room nothing is given up and taken again for every snapshot."""
    reserve = Reserve(str(folder))
    reserve.hold(2 << 20)
    monkeypatch.setattr(Reserve, "_free", lambda _self: 1 << 20)
    reserve.make_room(1 << 20)
    assert taken(folder) >= 2 << 20
    for _ in range(2):
        reserve.make_room((1 << 20) + 1)
        assert (reserve.held_bytes, taken(folder)) == (0, 0)


def test_a_volume_without_room_is_told_and_nothing_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was held stays held, and what a broken-off allocation took goes back; it heals by itself."""
    reserve = Reserve(str(folder))
    reserve.hold(2 << 20)

    def full(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, offset + length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        reserve.hold(8 << 20)
        assert reserve.held_bytes == 2 << 20
        assert "8388608 bytes" in reserve.problem
        assert "No space left" in reserve.problem
    reserve.hold(8 << 20)
    assert (reserve.held_bytes, reserve.problem) == (8 << 20, "")


def test_a_folder_that_cannot_be_written_is_a_problem_not_an_error(tmp_path: Path) -> None:
    """Snapshots have their own word on that."""
    reserve = Reserve(str(tmp_path))
    reserve.hold(1 << 20)
    assert "cannot be reserved" in reserve.problem


def test_wanted_leaves_room_to_grow() -> None:
    """A quarter more than the state, in steps, and never nothing."""
    assert wanted_bytes(0) == ALIGN_BYTES
    assert wanted_bytes(100 << 20) == 125 << 20
    assert wanted_bytes((100 << 20) + 1) == 126 << 20
