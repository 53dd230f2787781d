"""A small file of one JSON object proves itself intact."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.checked_json import read_checked, remove_checked, write_checked
from tests.wal.sim.simfiles import SimFiles

PATH = "/node/cluster/some.json"


@pytest.fixture
def files() -> SimFiles:
    """A disk with a node's folder."""
    made = SimFiles(1)
    made.mkdir("/node")
    made.fsync_dir("/")
    return made


def test_what_was_written_is_read_after_a_power_cut(files: SimFiles) -> None:
    """Content, name and folder are durable on return."""
    write_checked(files, PATH, {"a": 1})
    assert read_checked(files.power_cut(random.Random(7)), PATH) == {"a": 1}


def test_a_missing_file_says_nothing(files: SimFiles) -> None:
    """It is removed, durably, and removing it again does nothing."""
    write_checked(files, PATH, {"a": 1})
    remove_checked(files, PATH)
    remove_checked(files, PATH)
    assert read_checked(files.power_cut(random.Random(7)), PATH) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 2, "checksum": "00000001"}\n', b"[]"])
def test_a_changed_file_is_refused(files: SimFiles, content: bytes) -> None:
    """It is never read as what it might say."""
    write_checked(files, PATH, {"a": 1})
    files.write_file_atomic(PATH, content)
    with pytest.raises(Corrupt, match=r"some\.json"):
        read_checked(files, PATH)
