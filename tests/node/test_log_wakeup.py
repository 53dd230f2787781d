"""The log is woken for whoever places calls, and not more often than it helps."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from cmdlog.node.sequencing import log_wakeup
from cmdlog.node.sequencing.log_wakeup import ALONE_BEFORE, Waker
from cmdlog.node.sites.busy_poll import Spinning
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
def test_the_loop_stays_awake_for_the_answer_of_a_lone_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has come, or the time is over; calls meanwhile do not multiply its turns."""
    log, alone, now, turns = LoneLog(), [True], [1.0], [0]
    spinning = Spinning(0.5, clock=lambda: now[0], give_way=lambda: turns.__setitem__(0, turns[0] + 1))
    monkeypatch.setattr(log_wakeup, "Spinning", lambda _limit_s: spinning)

    async def awake(loop_turns: int) -> int:
        """How often it looked in so many turns."""
        turns[0] = 0
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        return turns[0]

    async def place() -> None:
        waker = Waker(Kicks(), log, lambda: alone[0], busy_poll_s=0.5)
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await woken(waker, ALONE_BEFORE)
        assert await awake(5) == 0, "a thread writes these"
        await woken(waker, 1)
        assert await awake(5) == 5
        await woken(waker, 3)
        assert await awake(5) == 5
        alone[0] = False
        assert await awake(5) == 0, "it is answered"
        alone[0] = True
        await woken(waker, 1)
        assert await awake(5) == 5
        now[0] += 0.5
        assert await awake(5) == 0
        waker.close()

    asyncio.run(place())


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


def test_reads_of_a_caller_that_is_alone_keep_the_loop_awake_and_the_log_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As calls do after some in a row; a read in another thread does nothing."""
    kicks, alone, looks = Kicks(), [True], [0]
    spinning = Spinning(0.5, clock=lambda: 1.0, give_way=lambda: looks.__setitem__(0, looks[0] + 1))
    monkeypatch.setattr(log_wakeup, "Spinning", lambda _limit_s: spinning)
    waker = Waker(kicks, None, lambda: alone[0], busy_poll_s=0.5)
    waker.expect_read()

    async def read() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        for _ in range(ALONE_BEFORE):
            waker.expect_read()
            await asyncio.sleep(0)
        assert looks == [0]
        thread = threading.Thread(target=waker.expect_read)
        thread.start()
        thread.join()
        for _ in range(2):
            waker.expect_read()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert looks == [2], "one chain of turns, however many were expected"
        alone[0] = False
        await asyncio.sleep(0)
        waker.expect_read()
        await asyncio.sleep(0)
        assert looks == [2]
        alone[0] = True
        waker.expect_read()
        await asyncio.sleep(0)
        assert looks == [2], "some in a row again"

    asyncio.run(read())
    assert kicks.count == 0


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
