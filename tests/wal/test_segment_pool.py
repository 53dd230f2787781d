"""Which files the ring gives up, and who is asked before."""

from __future__ import annotations

import pytest

from cmdlog.wal.log import Log
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.writing import segment_pool
from cmdlog.wal.writing.segment_pool import READY_WANTED
from tests.waiting import wait_for
from tests.wal.logkit import LOG, SEGMENTS, ListSource, append, at, numbers_in, open_log, sim
from tests.wal.sim.simfiles import SimFiles
from tests.wal.threadkit import threaded


class Keeper:
    """Somebody who is asked before a segment goes."""

    def __init__(self) -> None:
        self.answer = False
        self.asked: list[tuple[int, int, int]] = []  # (sequence, first block, last block)

    def __call__(self, segment: SegmentFile, last_block: int) -> bool:
        self.asked.append((segment.sequence, int(segment.header.first_block), last_block))
        return self.answer


def filled(files: SimFiles) -> tuple[Log, ListSource, Keeper]:
    """A log of four segments, which no anchor needs any more."""
    log, source = open_log(files)
    keeper = Keeper()
    log.ask_before_recycling(keeper)
    number = 0
    while len(log.segments) < 4:
        append(log, source, [number], size=4000)
        number += 1
        log.run_background_work()
    return log, source, keeper


def test_nobody_is_asked_while_an_anchor_needs_the_segment() -> None:
    """The question comes after the anchors, not instead of them."""
    log, _, keeper = filled(sim())
    assert not keeper.asked
    log.anchors.set("snapshot", at(log.first_blocks()[0]))
    log.run_background_work()
    assert not keeper.asked


def test_segment_stays_until_it_may_go() -> None:
    """A "no" keeps the segment and all behind it, readable; a "yes" lets every passed one go, oldest first."""
    files = sim()
    log, _, keeper = filled(files)
    first_blocks, before = log.first_blocks(), numbers_in(log)
    log.anchors.set("snapshot", at(first_blocks[-1]))
    log.run_background_work()
    log.run_background_work()
    assert keeper.asked == [(1, first_blocks[0], first_blocks[1] - 1)] * 2
    assert (log.first_blocks(), numbers_in(log)) == (first_blocks, before)
    keeper.answer, keeper.asked = True, []
    log.look_again()
    log.run_background_work()
    assert [sequence for sequence, _, _ in keeper.asked] == [1, 2, 3]
    assert log.first_blocks() == first_blocks[-1:]


def test_ring_keeps_its_number_of_files() -> None:
    """Whatever is answered, there are never more files than the ring has; room falls while segments must stay, and comes back."""
    files = sim()
    log, source, keeper = filled(files)
    log.anchors.set("snapshot", at(log.first_blocks()[-1]))
    for answer in (False, True):
        keeper.answer = answer
        log.run_background_work()
        files_there = [name for name in files.listdir(LOG) if name.startswith(("seg-", "free-"))]
        assert len(files_there) <= SEGMENTS
        append(log, source, [1])
    assert log.room_bytes > 0
    assert log._space.ready >= READY_WANTED


def test_log_is_full_while_segments_must_stay_and_goes_on_when_they_may_go() -> None:
    """The refusal of room is the only consequence: nothing is overwritten, and nobody has to restart anything."""
    files = sim()
    log, source, keeper = filled(files)
    log.anchors.set("snapshot", at(1 << 30))
    for number in range(1000):
        append(log, source, [number], size=4000)
        log.run_background_work()
        if log.room_bytes == 0:
            break
    assert log.first_blocks()[0] == 1
    keeper.answer = True
    log.run_background_work()
    assert log.room_bytes > 0
    assert log.first_blocks()[0] > 1


def test_segment_is_not_needed_before_its_file_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for the file while it is recycled must not take its absence for damage."""
    files = sim()
    log, _, keeper = filled(files)
    keeper.answer = True
    paths = [segment.path for segment in log.segments]
    assert all(map(log.needs, paths))
    needed: list[bool] = []
    rename = files.rename

    def watched(old: str, new: str) -> None:
        if old in paths:
            needed.append(log.needs(old))
        rename(old, new)

    monkeypatch.setattr(files, "rename", watched)
    log.anchors.set("snapshot", at(log.first_blocks()[-1]))
    log.run_background_work()
    assert needed == [False] * 3
    assert [log.needs(path) for path in paths] == [False] * 3 + [True]


def test_a_full_disk_is_looked_at_again_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower takes no entries before its log has room, so nothing else would wake its log."""
    monkeypatch.setattr(segment_pool, "RETRY_S", 0.001)
    files = sim()
    files.capacity_bytes = files.disk.used_bytes()
    log, _ = threaded(files)
    try:
        wait_for(lambda: log.disk_full is not None)
        files.capacity_bytes = 1 << 30
        wait_for(lambda: log.disk_full is None and log.status()["segments"]["ready"] >= READY_WANTED)  # type: ignore[index]
    finally:
        log.close()
