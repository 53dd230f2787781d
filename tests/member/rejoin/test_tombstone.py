"""A removed node's directory says so for ever."""

from __future__ import annotations

import random

import pytest

from cmdlog.member.rejoin.tombstone import MemberRemoved, MemberTombstone, read_tombstone, write_tombstone
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.checked_json import write_checked
from tests.member.rejoin.test_rejoin_record import a_disk

ENDED = MemberTombstone(3, b"life-one", {0: (2, 17), 65534: (2, 9)})


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
