"""Ticks: none is lost, none is given twice, and after a pause they come as one number."""

from __future__ import annotations

from cmdlog.cluster.transport.ticker import Ticker


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_ticks_follow_the_clock() -> None:
    """One per unit of time, however often it is asked."""
    clock, given = Clock(), list[int]()
    ticker = Ticker(0.25, given.append, now=clock)
    for _ in range(16):
        clock.now_s += 0.125
        ticker.give_due()
        ticker.give_due()
    assert given == [1] * 8


def test_missed_ticks_come_together_after_a_pause() -> None:
    """A process that was stopped for a minute has a minute's ticks at once, and then again one at a time."""
    clock, given = Clock(), list[int]()
    ticker = Ticker(0.5, given.append, now=clock)
    clock.now_s += 60.2
    ticker.give_due()
    clock.now_s += 0.3
    ticker.give_due()
    assert given == [120, 1]


def test_a_late_tick_does_not_delay_the_next() -> None:
    """The wait is until the next one is due, not a whole unit."""
    clock = Clock()
    ticker = Ticker(0.5, lambda _: None, now=clock)
    clock.now_s += 0.75
    ticker.give_due()
    assert ticker.wait_s == 0.25
    clock.now_s += 10
    assert ticker.wait_s == 0.0
