"""Which files of the archive may go, and which first."""

from __future__ import annotations

from functools import partial
from typing import cast

from cmdlog.wal.ids import MILLIS_SHIFT
from snapshot.archive.archive_retention import (
    oldest_unpinned_segment,
    spare_snapshot,
    unneeded_segments,
    unneeded_snapshots,
    useless_snapshots,
)
from snapshot.archive_layout import ArchivedSegment
from snapshot.catalog import Snapshot
from snapshot.manifest import Manifest
from snapshot.retention import Needs, describe_reach

NOTHING = Needs(frozenset(), None, ())


class Held:
    """As much of a manifest as decides here."""

    def __init__(self, log_block: int) -> None:
        self.log_block = log_block


def snapshot(index: int, *, archived: bool = True, base: Snapshot | None = None) -> Snapshot:
    """A snapshot of partition 0 whose log begins at block `10 * index`."""
    folder = "archive" if archived else "snapshots"
    return Snapshot(
        f"/node/{folder}/s{index}",
        0,
        index,
        0,
        cast(Manifest, Held(10 * index)),
        bases=base.chain if base is not None else (),
        name=f"s{index}",
    )


def segment(first_block: int, *, foreign: bool = False) -> ArchivedSegment:
    """A segment of ten blocks."""
    return ArchivedSegment(f"/node/archive/{first_block}.seg", first_block, first_block + 9, None, None, foreign=foreign)


def test_what_an_operator_put_into_the_archive_stays() -> None:
    """No promise needs either segment; the foreign one is not the node's to remove."""
    own, foreign = segment(1), segment(11, foreign=True)
    assert unneeded_segments([own, foreign], NOTHING) == [own]
    assert unneeded_segments([own], Needs(frozenset(), 10, ())) == []


def test_base_of_a_living_snapshot_never_goes() -> None:
    """A delta outside the archive keeps its base in it, whatever the promises need."""
    base, other = snapshot(1), snapshot(2)
    delta = snapshot(3, archived=False, base=base)
    assert unneeded_snapshots([base, other, delta], NOTHING) == [other]
    assert spare_snapshot([base, other, delta], NOTHING) == other


def test_oldest_snapshot_is_spared_first_unless_another_needs_it() -> None:
    """Its delta goes before it, or the delta would be of no use."""
    base = snapshot(1)
    delta = snapshot(2, base=base)
    assert spare_snapshot([base, delta], NOTHING) == delta
    assert spare_snapshot([base], NOTHING) == base
    assert spare_snapshot([base], Needs(frozenset(), None, (), bases=frozenset({(0, "s1")}))) is None


def test_segment_of_a_recovery_point_is_never_given_up() -> None:
    """The window gives way when the archive is full; a point does not."""
    first, second = segment(1), segment(11)
    needed = Needs(frozenset(), 1, ((5, 8),))
    assert oldest_unpinned_segment([first, second], needed) == second
    assert oldest_unpinned_segment([first], needed) is None


def test_snapshot_before_a_hole_in_the_log_is_useless() -> None:
    """Nothing can be restored from it, unless a later snapshot is based on it."""
    old, kept = snapshot(1), snapshot(5)
    assert useless_snapshots([old, kept], [0], [], log_from=40) == [old]
    later = snapshot(6, base=old)
    assert useless_snapshots([old, kept, later], [0], [], log_from=40) == []


def test_window_longer_than_the_life_of_a_directory_is_whole() -> None:
    """Nothing was promised of what lies before its log, as of a copy; once the log's beginning is given up, something is lost."""
    of = partial(describe_reach, 9_000 << MILLIS_SHIFT, now_millis=10_000, window_s=5, unkept_s=0)
    assert of(log_from=1)["window_kept"] is True
    assert describe_reach(None, now_millis=1000, window_s=5, unkept_s=0, log_from=1)["window_kept"] is False
    assert of(log_from=2)["window_kept"] is False


def test_reach_is_whole_when_the_window_is_older_than_what_is_there() -> None:
    """Of a node without any snapshot nothing is restorable; a node whose whole life is there keeps every window."""
    assert describe_reach(None, now_millis=1000, window_s=5, unkept_s=0, log_from=7)["window_kept"] is False
    assert describe_reach(None, now_millis=1000, window_s=0, unkept_s=0, log_from=7)["window_kept"] is True
    assert describe_reach(0, now_millis=1000, window_s=5, unkept_s=0, log_from=7)["window_kept"] is True
    assert describe_reach(0, now_millis=1000, window_s=0, unkept_s=60, log_from=7)["window_kept"] is False
