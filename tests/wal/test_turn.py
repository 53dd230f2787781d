"""The turn: one thread has it, and a waiting one is woken when there is something to take."""

from __future__ import annotations

import threading

import pytest

from cmdlog.wal.writing.turn import BLOCK_BYTES_TARGET, PACE_MIN_S, Gate, Turn, delay_s
from tests.waiting import PATIENCE_S, wait_for
from tests.wal.logkit import append, open_log, sim


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
    with lock:
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
    with lock:
        turn.pass_on()
    thread.join(PATIENCE_S)
    assert seen == [True, False]


def test_a_waiter_that_was_not_woken_waits_again() -> None:
    """An opening that comes as its patience ends is not kept for its next wait, nor for another thread's."""
    lock = threading.Lock()
    gate = Gate(lock)

    class Late:
        """A lock whose wait ends just before it is released."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.lock.acquire()
            self.release = self.lock.release

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not blocking:
                return self.lock.acquire(blocking=False)
            with lock:
                gate.open_one()
            return False

    late = Late()
    gate._spare.append(late)  # type: ignore[arg-type]
    with lock:
        gate.wait(0.01)
    assert late.lock.locked()
    assert gate.parked == []


def test_block_of_an_idle_log_closes_at_once() -> None:
    """With nothing in flight there is nothing to wait for, however long syncs take."""
    log, source = open_log(sim())
    ring = log._running
    ring._count, ring._writes.times.smoothed_s = 4, 1e9
    source.put(1)
    assert ring._delay_s() == 0
    ring._marks.in_flight = 1
    assert ring._delay_s() > 0


def test_full_block_closes_at_once() -> None:
    """Beyond the target more bytes make the sync no cheaper."""
    assert delay_s(1.0, threads=4, pending_bytes=BLOCK_BYTES_TARGET, begun_s=0) == 0
    assert delay_s(1.0, threads=4, pending_bytes=BLOCK_BYTES_TARGET - 1, begun_s=0) > 0


@pytest.mark.parametrize(("sync_s", "threads", "spacing_s"), [(0.008, 4, 0.002), (0.008, 1, 0.008), (0.0001, 4, PACE_MIN_S)])
def test_syncs_are_spread_evenly(sync_s: float, threads: int, spacing_s: float) -> None:
    """With so many threads, each begins one sync per latency; Python's own cost per block is the least distance."""
    assert delay_s(sync_s, threads=threads, pending_bytes=1, begun_s=0) == pytest.approx(spacing_s)
    assert delay_s(sync_s, threads=threads, pending_bytes=1, begun_s=spacing_s) == pytest.approx(0.0, abs=1e-9)


def test_the_keeper_sleeps_while_a_turn_is_wanted() -> None:
    """A block that is about to be taken is no idle log: it looks again later, not over and over until a thread has the turn."""
    log, source = open_log(sim())
    append(log, source, [1])
    ring = log._running
    ring._writes.last_done -= 3600
    assert ring._keeper_wait() <= 0, "there is a seal to be written"  # type: ignore[operator]
    ring._turn.wanted = True
    assert ring._keeper_wait() > 0  # type: ignore[operator]
