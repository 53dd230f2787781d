"""A small file of one JSON object proves itself intact."""

from __future__ import annotations

import random

import pytest

from cmdlog.member.rejoin.checked_json import read_checked_json, remove_checked_json, write_checked_json
from cmdlog.wal.errors import Corrupt
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
    write_checked_json(files, PATH, {"a": 1})
    assert read_checked_json(files.power_cut(random.Random(7)), PATH) == {"a": 1}


def test_a_missing_file_says_nothing(files: SimFiles) -> None:
    """It is removed, durably, and removing it again does nothing."""
    write_checked_json(files, PATH, {"a": 1})
    remove_checked_json(files, PATH)
    remove_checked_json(files, PATH)
    assert read_checked_json(files.power_cut(random.Random(7)), PATH) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 2, "manifest_crc32c": 1}\n', b"[]"])
def test_a_changed_file_is_refused(files: SimFiles, content: bytes) -> None:
    """It is never read as what it might say."""
    write_checked_json(files, PATH, {"a": 1})
    files.write_file_atomic(PATH, content)
    with pytest.raises(Corrupt, match=r"some\.json"):
        read_checked_json(files, PATH)
