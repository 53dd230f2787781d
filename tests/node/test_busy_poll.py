"""Waiting without sleep: only behind a short wait, only for a caller that is alone, and not for long."""

from __future__ import annotations

import pytest

from cmdlog.node.settings import Settings
from cmdlog.node.sites import busy_poll
from cmdlog.node.sites.busy_poll import CALM_RESTS, REST_MAX_S, REST_MIN_S, STOLEN_S, BusyPoll, Spinning, busy_poll_s

LIMIT_S = 0.0005
LOOK_S = 0.0001  # by the clock here


class Input:
    """Something that comes after so many seconds, by a clock that each look moves."""

    def __init__(self, poll_s: float = LIMIT_S) -> None:
        self.now = self.comes_at = 0.0
        self.looks = self.sleeps = self.gave_way = 0
        self.poll = BusyPoll(Spinning(poll_s, clock=lambda: self.now, give_way=self._give_way))

    def wait(self, seconds: float, *, alone: bool = True) -> tuple[int, int]:
        """Looks and sleeps of one wait."""
        self.comes_at, self.looks, self.sleeps = self.now + seconds, 0, 0
        assert self.poll.wait(self._look, self._sleep, alone=alone) == "input"
        return self.looks, self.sleeps

    def _give_way(self) -> None:
        self.gave_way += 1

    def _look(self) -> str | None:
        self.looks += 1
        self.now += LOOK_S
        return "input" if self.now >= self.comes_at else None

    def _sleep(self) -> str:
        self.sleeps += 1
        self.now = max(self.now, self.comes_at)
        return "input"


def test_first_wait_sleeps_and_those_behind_a_short_one_do_not() -> None:
    """And each look that found nothing offers the processor."""
    source = Input()
    assert source.wait(0.0003) == (0, 1)
    assert source.wait(0.0003) == (3, 0)
    assert source.wait(0.0002) == (2, 0)
    assert source.gave_way == 3, "each look that found nothing offers the processor"


def test_input_that_is_late_is_slept_for_and_so_is_what_comes_behind_it() -> None:
    """The caller makes pauses."""
    source = Input()
    source.wait(0.0001)
    assert source.wait(0.1) == (5, 1), "looks for as long as the limit, and no longer"
    assert source.wait(0.0001) == (0, 1)
    assert source.wait(0.0001) == (1, 0)


def test_nobody_looks_for_several_callers() -> None:
    """What they bring needs the processor."""
    source = Input()
    source.wait(0.0001)
    assert source.wait(0.0001, alone=False) == (0, 1)
    assert source.wait(0.0001) == (1, 0)


def test_without_a_limit_every_wait_sleeps() -> None:
    """The setting is 0."""
    source = Input(0.0)
    assert [source.wait(0.0) for _ in range(3)] == [(0, 1)] * 3


class Machine:
    """A clock, and others that have the processor for so long when it is offered."""

    def __init__(self) -> None:
        self.now = self.others_take_s = 0.0
        self.spinning = Spinning(LIMIT_S, clock=lambda: self.now, give_way=self._give_way)

    def _give_way(self) -> None:
        self.now += self.others_take_s

    def rest_after(self, others_take_s: float) -> float:
        """How long nobody looks once others have had the processor for so long; in steps of half the shortest rest."""
        assert self.spinning.start()
        self.others_take_s = others_take_s
        looks_on, offered = self.spinning.give_way(), self.now
        while not self.spinning.start():
            assert not looks_on
            self.now += REST_MIN_S / 2
        return self.now - offered


def test_nobody_looks_for_a_while_when_others_want_the_processor() -> None:
    """For twice as long each time that is found again soon, up to a second; after a calm time as shortly as at first."""
    machine = Machine()
    machine.now = 5.0
    assert machine.rest_after(STOLEN_S / 2) == 0
    rests = [machine.rest_after(2 * STOLEN_S) for _ in range(13)]
    expected = [min(REST_MIN_S * 2**time, REST_MAX_S) for time in range(13)]
    assert rests == pytest.approx(expected, abs=REST_MIN_S)
    machine.now += (CALM_RESTS - 1) * REST_MAX_S
    assert machine.rest_after(2 * STOLEN_S) == pytest.approx(REST_MAX_S, abs=REST_MIN_S)
    machine.now += (CALM_RESTS + 1) * REST_MAX_S
    assert machine.rest_after(2 * STOLEN_S) == pytest.approx(REST_MIN_S, abs=REST_MIN_S / 2)


@pytest.mark.parametrize(("processors", "seconds"), [(2.0, 0.0005), (1.0, 0.0), (1.5, 0.0)])
def test_one_processor_is_left_to_who_brings_something(
    processors: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it by affinity or by quota."""
    monkeypatch.setattr(busy_poll, "usable_processors", lambda: processors)
    assert busy_poll_s(Settings(busy_poll_us=500)) == seconds
    assert busy_poll_s(Settings(busy_poll_us=0)) == 0
