"""Partitions that diverged are known after every restart, and after every crash of the write that says so."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.divergence_file import DivergenceFile, PartitionDivergence
from cmdlog.wal.errors import Corrupt
from tests.wal.sim.simfiles import SimFiles

FOLDER = "/cluster"
FIRST, SECOND = PartitionDivergence(7, "other rows"), PartitionDivergence(9, "other results")


@pytest.fixture
def files() -> SimFiles:
    """An empty folder."""
    made = SimFiles(1)
    made.mkdir(FOLDER)
    made.fsync_dir("/")
    return made


def test_what_diverged_survives_a_power_cut(files: SimFiles) -> None:
    """Durable when the call returns; what a majority agrees with is gone again."""
    kept = DivergenceFile(files, "/")
    assert kept.by_partition() == {}
    kept.add_divergence(1, FIRST)
    kept.add_divergence(0, SECOND)
    files = files.power_cut(random.Random(1))
    kept = DivergenceFile(files, "/")
    assert kept.by_partition() == {0: SECOND, 1: FIRST}
    kept.remove_divergence(1)
    assert DivergenceFile(files.power_cut(random.Random(2)), "/").by_partition() == {0: SECOND}


def test_a_directory_of_no_member_names_none(files: SimFiles) -> None:
    """It has no such folder; one with the folder says what its file says."""
    assert DivergenceFile(files, "/other").by_partition() == {}
    DivergenceFile(files, "/").add_divergence(1, FIRST)
    assert DivergenceFile(files, "/").by_partition() == {1: FIRST}


def test_bytes_that_say_nothing_are_refused(files: SimFiles) -> None:
    """A node that may have diverged does not start as one that has not."""
    for content in (b"", b"[]", b'{"0": {}}', b'{"x": {"index": 1, "reason": ""}}'):
        files.write_file_atomic(f"{FOLDER}/diverged.json", content)
        with pytest.raises(Corrupt, match="names no partitions"):
            DivergenceFile(files, "/")
