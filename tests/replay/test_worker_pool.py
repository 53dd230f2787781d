"""Worker processes seen from outside: shares of work, and when one hangs."""

from __future__ import annotations

import mmap
from typing import cast

from cmdlog.child_process import ChildProcess
from replay.recover.partition_replay import IDLE, IN_BATCH
from replay.recover.worker_pool import CELL, CLOSER_LOOK_S, ReplayWorker


def worker(*, careful: bool) -> ReplayWorker:
    """A worker without a process."""
    process = cast("ChildProcess", None)
    return ReplayWorker([0], process, mmap.mmap(-1, mmap.PAGESIZE), careful)


def test_long_batch_gets_a_closer_look_long_before_a_call_is_given_up() -> None:
    """A batch may run a minute, then it is run call by call; a call may run as long as the terms say."""
    one = worker(careful=False)
    CELL.pack_into(one.cell, 0, 3, 17, IN_BATCH)
    assert not one.hangs(100.0, 3600.0)
    assert not one.hangs(100.0 + CLOSER_LOOK_S, 3600.0)
    assert one.hangs(101.0 + CLOSER_LOOK_S, 3600.0)
    other = worker(careful=True)
    CELL.pack_into(other.cell, 0, 3, 17, 5)
    assert not other.hangs(100.0, 3600.0)
    assert not other.hangs(101.0 + CLOSER_LOOK_S, 3600.0)
    assert other.hangs(3701.0, 3600.0)


def test_every_new_call_begins_a_new_time() -> None:
    """Many calls that each take less than the limit never add up."""
    one = worker(careful=True)
    for position in range(10):
        CELL.pack_into(one.cell, 0, 3, 17, position)
        assert not one.hangs(100.0 + 9 * position, 10.0)


def test_what_is_not_a_call_may_take_its_time() -> None:
    """Restoring a snapshot, reading the log and looking for live rows are never taken for a hanging call."""
    one = worker(careful=False)
    assert not one.hangs(0.0, 1.0)
    assert not one.hangs(1e6, 1.0)
    CELL.pack_into(one.cell, 0, 3, 17, IDLE)
    assert not one.hangs(2e6, 1.0)
    assert not one.hangs(3e6, 1.0)
    assert one.running() is None
    CELL.pack_into(one.cell, 0, 0, 17, IN_BATCH)
    assert one.running() == (0, 17, IN_BATCH)
