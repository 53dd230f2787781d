"""The log is woken for whoever places calls, and not more often than it helps."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from cmdlog.node.sequencing.log_wakeup import ALONE_BEFORE, Waker
from cmdlog.wal.errors import WalError
from tests.waiting import PATIENCE_S

WAIT_S = PATIENCE_S


class Kicks:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


def test_calls_of_one_turn_of_the_loop_wake_the_log_once() -> None:
    """Each turn that placed something wakes it, once, when the turn is over."""
    kicks = Kicks()
    waker = Waker(kicks)

    async def place() -> list[int]:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        seen = []
        for calls in (5, 1, 3):
            for _ in range(calls):
                waker.wake()
            seen.append(kicks.count)
            await asyncio.sleep(0)
        return [*seen, kicks.count]

    assert asyncio.run(place()) == [0, 1, 2, 3]


def test_other_threads_wake_it_at_once() -> None:
    """Beside a loop, and without any."""
    kicks = Kicks()
    waker = Waker(kicks)
    waker.wake()
    assert kicks.count == 1

    async def place() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        thread = threading.Thread(target=waker.wake)
        thread.start()
        thread.join()

    asyncio.run(place())
    assert kicks.count == 2


def test_a_log_that_has_failed_is_no_error_here() -> None:
    """In the turn that meets it, and in those behind: whoever was placed hears of it from the log."""
    kicks = Kicks()
    kicks.error = WalError("wedged")
    waker = Waker(kicks)
    waker.wake()

    async def place() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        for _ in range(2):
            waker.wake()
            await asyncio.sleep(0)

    asyncio.run(place())
    assert kicks.count == 3


class LoneLog:
    """Says what is asked of it; a turn ends when the test signals so."""

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.busy = False
        self.eventfd = -1
        self.turns = 0
        self.has_landed = asyncio.Event()

    def start_turn(self) -> bool:
        if self.busy:
            return False
        self.turns += 1
        return True

    def notify(self, eventfd: int) -> bool:
        self.eventfd = eventfd
        return self.able

    def land(self) -> None:
        self.has_landed.set()


async def woken(waker: Waker, times: int) -> None:
    """So many turns of the loop that each place something."""
    for _ in range(times):
        waker.wake()
        await asyncio.sleep(0)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="needs Linux")
def test_a_caller_that_stays_alone_is_served_by_the_loop() -> None:
    """After some calls in a row that were alone no thread is woken; one call beside it, and they are again."""
    kicks, log, alone = Kicks(), LoneLog(), [True]

    async def place() -> None:
        waker = Waker(kicks, log, lambda: alone[0])
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await woken(waker, ALONE_BEFORE + 3)
        assert (kicks.count, log.turns) == (ALONE_BEFORE, 3)
        log.busy = True
        await woken(waker, 1)
        assert (kicks.count, log.turns) == (ALONE_BEFORE + 1, 3), "what the log cannot take now is for its threads"
        log.busy, alone[0] = False, False
        await woken(waker, 1)
        alone[0] = True
        await woken(waker, ALONE_BEFORE)
        assert (kicks.count, log.turns) == (2 * ALONE_BEFORE + 2, 3)
        os.eventfd_write(log.eventfd, 1)
        await asyncio.wait_for(log.has_landed.wait(), WAIT_S)
        waker.close()
        await woken(waker, 2)
        assert log.turns == 3
        with pytest.raises(OSError, match="Bad file"):
            os.eventfd_write(log.eventfd, 1)

    asyncio.run(place())


def test_without_such_writes_threads_serve_everybody() -> None:
    """The system has none."""
    kicks, log = Kicks(), LoneLog(able=False)

    async def place() -> None:
        waker = Waker(kicks, log, lambda: True)
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await woken(waker, ALONE_BEFORE + 3)
        waker.close()

    asyncio.run(place())
    assert (kicks.count, log.turns) == (ALONE_BEFORE + 3, 0)
