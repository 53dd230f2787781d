"""When the next block closes."""

from __future__ import annotations

import threading

import pytest

from cmdlog.wal.writing.group_commit import BLOCK_BYTES_TARGET, PACE_MIN_S, GroupCommit
from cmdlog.wal.writing.sync_window import SyncTimes


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def group_of(*, sync_s: float, threads: int, clock: Hand) -> GroupCommit:
    """A block has just begun, and syncs take so long."""
    times = SyncTimes(lambda seconds: None)
    times.smoothed_s = sync_s
    group = GroupCommit(threading.Lock(), threads=threads, times=times, clock=clock)
    group.begin_block()
    return group


def test_block_of_an_idle_log_closes_at_once() -> None:
    """With nothing in flight there is nothing to wait for."""
    group = group_of(sync_s=1.0, threads=4, clock=Hand())
    assert group.delay_s(in_flight=0, pending_bytes=1) == 0


def test_full_block_closes_at_once() -> None:
    """Beyond the target more bytes make the sync no cheaper."""
    group = group_of(sync_s=1.0, threads=4, clock=Hand())
    assert group.delay_s(in_flight=1, pending_bytes=BLOCK_BYTES_TARGET) == 0
    assert group.delay_s(in_flight=1, pending_bytes=BLOCK_BYTES_TARGET - 1) > 0


@pytest.mark.parametrize(("sync_s", "threads", "spacing_s"), [(0.008, 4, 0.002), (0.008, 1, 0.008), (0.0001, 4, PACE_MIN_S)])
def test_syncs_are_spread_evenly(sync_s: float, threads: int, spacing_s: float) -> None:
    """With so many threads, each begins one sync per latency; Python's own cost per block is the least distance."""
    clock = Hand()
    group = group_of(sync_s=sync_s, threads=threads, clock=clock)
    assert group.delay_s(in_flight=1, pending_bytes=1) == pytest.approx(spacing_s)
    clock.now_s += spacing_s
    assert group.delay_s(in_flight=1, pending_bytes=1) == pytest.approx(0.0, abs=1e-9)
