"""`rejoin.json` says what is to be done, whatever happens to the process; a removed node's directory says so for ever."""

from __future__ import annotations

import random

import pytest

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.member.rejoin.rejoin_record import (
    MemberRemoved,
    MemberTombstone,
    RejoinFile,
    RejoinReason,
    RejoinRecord,
    RejoinState,
    read_tombstone,
    write_tombstone,
)
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.checked_json import write_checked
from tests.wal.sim.simfiles import SimFiles

WANTED = RejoinRecord(RejoinState.WANTED, RejoinReason.DAMAGED, "a block has changed", former=b"life-one")
ENDED = MemberTombstone(3, b"life-one", {0: (2, 17), 65534: (2, 9)})


def a_disk() -> SimFiles:
    """With a node's folder."""
    files = SimFiles(1)
    files.mkdir("/node")
    files.fsync_dir("/")
    return files


@pytest.mark.parametrize(
    "record",
    [
        WANTED,
        WANTED.drawn(b"life-two", {0: (3, None), 65534: (4, 2)}),
        RejoinRecord(
            RejoinState.QUARANTINED, RejoinReason.EMPTY, "", b"", b"life-two", {},
            (MemberAddress(1, ("::1", 7001), "http://one"),), "20260101T000000Z-empty",
        ),
    ],
)  # fmt: skip
def test_a_record_survives_a_power_cut(record: RejoinRecord) -> None:
    """Every field of it."""
    files = a_disk()
    RejoinFile(files, "/node").write_record(record)
    assert RejoinFile(files.power_cut(random.Random(7)), "/node").read_record() == record


def test_without_a_file_no_copy_is_wanted() -> None:
    """Before the first record, and after it was removed."""
    file = RejoinFile(a_disk(), "/node")
    assert file.read_record() is None
    file.write_record(WANTED)
    file.remove_record()
    assert file.read_record() is None


def test_a_record_that_says_something_else_is_refused() -> None:
    """The directory may be half of one node and half of another."""
    files = a_disk()
    file = RejoinFile(files, "/node")
    write_checked(files, file.path, {**WANTED.to_json(), "state": "copied"})
    with pytest.raises(Corrupt, match="names no copy"):
        file.read_record()


def test_a_tombstone_survives_a_power_cut() -> None:
    """With the last entries of the node."""
    files = a_disk()
    assert read_tombstone(files, "/node") is None
    write_tombstone(files, "/node", ENDED)
    assert read_tombstone(files.power_cut(random.Random(7)), "/node") == ENDED


def test_a_start_of_a_removed_node_is_foreign_and_says_what_to_do() -> None:
    """Exit code 11; the last entries of each group are named."""
    error = ENDED.error("/node")
    assert isinstance(error, MemberRemoved)
    assert error.exit_code == 11
    assert "node 3 was removed" in str(error)
    assert "0: 2.17, 65534: 2.9" in str(error)
    assert "cmdlog cluster add" in error.hint


def test_a_tombstone_that_names_no_node_is_refused() -> None:
    """It is not taken for a node that is none any more, nor for one that is."""
    files = a_disk()
    write_checked(files, "/node/cluster/tombstone.json", {"node": 3})
    with pytest.raises(Corrupt, match="names no removed node"):
        read_tombstone(files, "/node")
