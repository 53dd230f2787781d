"""The turn: one thread has it, and a waiting one is woken when there is something to take."""

from __future__ import annotations

import threading

import pytest

from cmdlog.wal.writing.sync_window import SyncTimes
from cmdlog.wal.writing.turn import BLOCK_BYTES_TARGET, PACE_MIN_S, Gate, GroupCommit, Turn
from tests.waiting import PATIENCE_S, wait_for


def test_what_is_announced_during_a_turn_is_for_the_next_one() -> None:
    """A kick before the turn is taken is answered by it; one after that wakes a waiting thread when the turn is passed on."""
    lock = threading.Lock()
    turn, order = Turn(lock, Gate(lock)), list[str]()

    def serve() -> None:
        with lock:
            while turn.held or not turn.wanted:
                order.append("waits")
                turn.wait()
            turn.acquire()
            order.append("takes")
        turn.pass_on()

    with lock:
        turn.kick()
        turn.acquire()
    assert (turn.held, turn.wanted) == (True, False)
    thread = threading.Thread(target=serve)
    thread.start()
    wait_for(lambda: order == ["waits"])
    with lock:
        turn.kick()
    assert order == ["waits"], "a thread has the turn"
    turn.pass_on()
    thread.join(PATIENCE_S)
    assert order == ["waits", "takes"]
    assert (turn.held, turn.wanted) == (False, False)


def test_passing_it_on_opens_the_gate_of_those_who_wait_for_quiet() -> None:
    """A thread that waits until no thread has the turn looks again."""
    lock = threading.Lock()
    quiet = Gate(lock)
    turn, seen = Turn(lock, quiet), list[bool]()

    def wait_for_quiet() -> None:
        with lock:
            seen.append(turn.held)
            while turn.held:
                quiet.wait()
            seen.append(turn.held)

    turn.acquire()
    thread = threading.Thread(target=wait_for_quiet)
    thread.start()
    wait_for(lambda: seen == [True])
    turn.pass_on()
    thread.join(PATIENCE_S)
    assert seen == [True, False]


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
    group = GroupCommit(threads=threads, times=times, clock=clock)
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
