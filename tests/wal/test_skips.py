"""Skipped calls: added, united, and void with the entries that state them."""

from __future__ import annotations

from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.skips import Skips, SkipSet, skip_call, skips_by_partition, united_skips


def test_positions_of_a_batch_ascend_and_occur_once() -> None:
    """However often, and in whichever order, a call is skipped."""
    skips: Skips = {}
    for position in (4, 1, 4):
        skip_call(skips, 9, position)
    assert skips == {9: (1, 4)}
    assert skips_by_partition([(0, 9, 4), (1, 9, 0), (0, 9, 1)]) == {0: {9: (1, 4)}, 1: {9: (0,)}}
    assert united_skips({9: (1,), 12: (0,)}, {9: (4, 1)}) == {9: (1, 4), 12: (0,)}


def test_skip_is_in_force_as_long_as_its_own_entry() -> None:
    """What a later term replaces takes nothing out, whatever batch it concerns."""
    skips = SkipSet([Skip(10, 9, 1), Skip(11, 3, 0), Skip(12, 9, 0)])
    skips.cut(12)
    assert skips.by_batch() == {3: (0,), 9: (1,)}
    skips.add(Skip(12, 9, 2))
    assert skips.by_batch(upto=10) == {9: (1,)}
    assert skips.by_batch() == {3: (0,), 9: (1, 2)}


def test_skips_of_lost_batches_are_dropped() -> None:
    """A stream that begins again after lost entries keeps the skips of those that follow."""
    skips = SkipSet([Skip(10, 9, 1), Skip(11, 3, 0)])
    skips.drop_batches(3)
    assert list(skips) == [Skip(10, 9, 1)]
