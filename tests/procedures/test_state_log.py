"""The write-ahead log of a state file: when its pages move, and when its room comes back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from procedures.storage import state as state_file
from procedures.storage.state import FRAME_BYTES, PartitionState, open_reader

PAD = 100 * 4096  # about a hundred pages


@pytest.fixture
def state(tmp_path: Path) -> Iterator[PartitionState]:
    """With a table of one long row."""
    opened = PartitionState.open(tmp_path / "p0.sqlite", partition=0)
    opened.connection.execute("CREATE TABLE pads (id INTEGER NOT NULL PRIMARY KEY, data BLOB)")
    assert opened.empty_log()
    yield opened
    opened.close()


def write(state: PartitionState) -> None:
    """A commit of a hundred pages."""
    state.connection.execute("REPLACE INTO pads VALUES (1, zeroblob(?))", (PAD,))


def file_bytes(state: PartitionState) -> int:
    """Of the log."""
    return os.stat(f"{state.path}-wal").st_size


@contextlib.contextmanager
def reader(state: PartitionState) -> Iterator[None]:
    """Somebody reads the state as it is now."""
    connection, _ = open_reader(state.path)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM pads").fetchall()
    try:
        yield
    finally:
        connection.close()


def test_bytes_are_those_of_commits(state: PartitionState) -> None:
    """What a transaction has not committed does not count, whatever it wrote; a log that was emptied holds nothing."""
    write(state)
    held = state.log.bytes
    assert PAD < held <= file_bytes(state)
    state.connection.execute("BEGIN IMMEDIATE")
    write(state)
    assert state.log.bytes == held
    assert not state.empty_log(), "nor is it emptied under one's own transaction"
    state.connection.execute("COMMIT")
    assert state.log.bytes > held
    assert state.empty_log()
    assert (state.log.bytes, file_bytes(state)) == (0, 0)


def test_readers_keep_the_log_and_lose_nothing(state: PartitionState) -> None:
    """It is not emptied under one, without a wait; after it, it is."""
    write(state)
    with reader(state):
        write(state)
        assert not state.empty_log()
        assert file_bytes(state) > 2 * PAD
    assert state.empty_log()
    assert file_bytes(state) == 0


def test_pages_move_by_themselves(state: PartitionState) -> None:
    """From so many pages on after each commit; then SQLite uses the file from its beginning again."""
    state.log.pages_checkpoint = 250
    for _ in range(30):
        write(state)
    assert file_bytes(state) < 500 * FRAME_BYTES


def test_room_that_a_reader_took_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps so much as is used all the time, and what it grew beyond that goes back."""
    monkeypatch.setattr(state_file, "FILE_BYTES_KEPT", 3 * PAD)
    monkeypatch.setattr(state_file, "PAGES_CHECKPOINT", 200)
    state = PartitionState.open(tmp_path / "p0.sqlite", partition=0)
    state.connection.execute("CREATE TABLE pads (id INTEGER NOT NULL PRIMARY KEY, data BLOB)")
    with reader(state):
        for _ in range(10):
            write(state)
    assert file_bytes(state) > 10 * PAD
    for _ in range(2):
        write(state)
    assert file_bytes(state) <= 3 * PAD
    state.close()
