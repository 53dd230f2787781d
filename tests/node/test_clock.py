"""The hybrid clock: it only grows, follows time within its lead, and lets no jump through."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.clock import ClockAhead, HybridClock
from cmdlog.wal.ids import COUNTER_BITS, COUNTER_MAX, PARTITION_BITS, make_txn_id, txn_millis

NOW = 1_700_000_000.0
HOUR, DAY = 3600.0, 86_400.0


class Time:
    """A wall clock that can be set and a boot clock that cannot."""

    def __init__(self, wall: float = NOW, boot: float = 1000.0) -> None:
        self.wall, self.boot = wall, boot

    def clock(self, *, last: int = 0, lead_max_ms: int = 60_000) -> HybridClock:
        return HybridClock(lead_max_ms=lead_max_ms, last=last, wall=lambda: self.wall, boot=lambda: self.boot)

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


def millis(tick: int) -> int:
    """The physical part of a tick."""
    return tick >> COUNTER_BITS


@pytest.mark.parametrize("jump_s", [-DAY, -HOUR, HOUR, DAY, -NOW + 1, 10 * 365 * DAY])
def test_a_jump_is_not_followed(jump_s: float) -> None:
    """A wall clock set back or forward by more than the lead changes no tick; real time goes on by the boot clock."""
    time = Time()
    clock = time.clock()
    before = clock.reserve(1)
    time.wall += jump_s
    time.pass_s(2)
    after = clock.reserve(1)
    assert millis(after) - millis(before) == 2000
    assert (clock.jumped, clock.jumps) == (True, 1)
    time.wall -= jump_s
    time.pass_s(1)
    assert millis(clock.reserve(1)) - millis(before) == 3000
    assert not clock.jumped


def test_a_strobing_clock_is_counted_once_per_jump() -> None:
    """A clock that jumps to and fro is distrusted at each jump, and never moves the ticks back."""
    time = Time()
    clock = time.clock()
    last = 0
    for n in range(20):
        time.wall += HOUR if n % 2 else -HOUR
        time.pass_s(0.001)
        tick = clock.reserve(1)
        assert tick > last
        last = tick
    assert clock.jumps == 10


def test_small_steps_are_followed() -> None:
    """What a time service corrects within the lead is real time."""
    time = Time()
    clock = time.clock()
    time.wall += 30
    assert millis(clock.reserve(1)) == int((NOW + 30) * 1000)
    assert clock.jumps == 0


def test_a_restart_with_the_clock_an_hour_back_goes_on_after_the_last_id() -> None:
    """Ticks of the new life are greater than the last one of the log, whatever the wall clock says."""
    time = Time()
    last = time.clock().reserve(5)
    clock = Time(wall=NOW - HOUR).clock(last=last + 4)
    assert clock.reserve(1) == last + 5
    assert clock.reserve(1) == last + 6


@pytest.mark.parametrize("back_s", [HOUR, DAY, NOW - 1])
def test_after_a_restart_with_the_clock_back_time_goes_on_at_half_speed(back_s: float) -> None:
    """Ticks that lead real time by hours or years neither stand still, which would expire no key, nor run further ahead."""
    time = Time(wall=NOW - back_s)
    clock = time.clock(last=int(NOW * 1000) << COUNTER_BITS)
    before = clock.reserve(1)
    for _ in range(60):
        time.pass_s(10)
        clock.reserve(1)
    assert millis(clock.reserve(1)) - millis(before) == 300_000


def test_ticks_that_lead_are_caught_up_with() -> None:
    """An hour's lead is gone after two, and from then on ticks are real time."""
    time = Time(wall=NOW - HOUR)
    clock = time.clock(last=int(NOW * 1000) << COUNTER_BITS)
    for _ in range(125):
        time.pass_s(60)
        clock.reserve(1)
    assert millis(clock.reserve(1)) == int(time.wall * 1000)


def test_an_echo_from_the_past_is_overtaken() -> None:
    """An id that was given is below every later tick, also after a restart that lost it while the wall clock went back."""
    time = Time()
    lost = time.clock().reserve(1) << PARTITION_BITS
    time.pass_s(5)
    clock = time.clock()
    clock.observe(lost)
    time.wall -= 30
    assert clock.reserve(1) << PARTITION_BITS > lost
    clock.observe(make_txn_id(millis=1, counter=0, partition=0))
    given = clock.reserve(1) << PARTITION_BITS
    clock.observe(given)
    assert clock.reserve(1) << PARTITION_BITS > given


def test_an_echo_that_was_never_given_is_refused_without_a_trace() -> None:
    """Whatever a caller sends, the next tick is the one that it would have been: no caller sets the time of others."""
    time = Time()
    clock = time.clock()
    before = clock.reserve(1)
    for ahead_ms in (0, 1, 59_000, 61_000, 50 * 365 * 86_400_000):
        with pytest.raises(ClockAhead, match="this cluster has not given it"):
            clock.observe(make_txn_id(millis=int(NOW * 1000) + ahead_ms, counter=COUNTER_MAX, partition=0))
    assert clock.reserve(1) == before + 1


def test_more_ids_than_a_millisecond_holds_borrow_from_the_next() -> None:
    """The counter's overflow goes into the milliseconds; no tick is given twice."""
    time = Time()
    clock = time.clock()
    first = clock.reserve(3 * (COUNTER_MAX + 1))
    second = clock.reserve(1)
    assert second == first + 3 * (COUNTER_MAX + 1)
    assert millis(second) == millis(first) + 3


def test_closed_lies_below_every_later_id_of_every_partition() -> None:
    """`closed` bounds what was given, and everything given later is greater."""
    clock = Time().clock()
    given_before = clock.reserve(3) + 2
    closed = clock.closed()
    assert given_before << PARTITION_BITS | 1023 <= closed
    assert clock.reserve(1) << PARTITION_BITS > closed


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pass", "set", "reserve", "observe", "restart"]),
        st.integers(-2 * 86_400_000, 2 * 86_400_000),
    ),
    max_size=60,
)


@given(STEPS)
def test_ticks_grow_under_any_wall_clock(steps: list[tuple[str, int]]) -> None:
    """Whatever the wall clock is set to, whatever is echoed and however often the node starts, ticks grow; leads are bounded."""
    time = Time()
    clock, last = time.clock(), 0
    for what, amount in steps:
        if what == "pass":
            time.pass_s(abs(amount) / 1e6)
        elif what == "set":
            time.wall = max(1.0, time.wall + amount / 1000)
        elif what == "observe":
            physical = clock.millis()
            seen = make_txn_id(millis=max(0, physical + amount), counter=5, partition=1)
            try:
                clock.observe(seen)
            except ClockAhead:
                assert amount >= 0
                assert seen > clock.closed()
            else:
                assert txn_millis(clock.closed()) <= max(physical, millis(last))
                last = max(last, seen >> PARTITION_BITS)
        elif what == "restart":
            clock = time.clock(last=last)
        count = abs(amount) % 5000 + 1
        first = clock.reserve(count)
        assert first > last
        last = first + count - 1
        assert clock.last == last


@pytest.mark.slow
def test_threads_never_get_the_same_tick() -> None:
    """Ranges reserved by eight threads do not overlap."""
    clock = HybridClock(lead_max_ms=60_000)
    taken: list[list[tuple[int, int]]] = [[] for _ in range(8)]

    def run(mine: list[tuple[int, int]]) -> None:
        for n in range(2000):
            count = n % 7 + 1
            mine.append((clock.reserve(count), count))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ranges = sorted(entry for mine in taken for entry in mine)
    assert all(first + count <= following for (first, count), (following, _) in itertools.pairwise(ranges))
