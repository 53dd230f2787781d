"""The log is woken for whoever places calls, and not more often than it helps."""

from __future__ import annotations

import asyncio
import threading

from cmdlog.node.placing.local_calls import LogWakeup
from cmdlog.wal.errors import WalError


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
    waker = LogWakeup(kicks)

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
    waker = LogWakeup(kicks)
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
    waker = LogWakeup(kicks)
    waker.wake()

    async def place() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        for _ in range(2):
            waker.wake()
            await asyncio.sleep(0)

    asyncio.run(place())
    assert kicks.count == 3
