"""A rate that all copies share: the sum is kept, however many ask, and a pause causes no burst."""

from __future__ import annotations

import pytest

from cmdlog.cluster.copying.copy_rate import BURST_S, SharedRate


def test_no_limit_never_waits() -> None:
    """Whatever is asked for."""
    rate = SharedRate(0)
    assert [rate.take_bytes(1 << 30, 0.0) for _ in range(5)] == [0.0] * 5


def test_sum_of_all_is_the_rate() -> None:
    """Two that ask in turns get half each: after a second of waiting, a second's worth has been given."""
    rate, now, given = SharedRate(1000), 0.0, {0: 0, 1: 0}
    while now < 10.0:
        for who in given:
            now += rate.take_bytes(100, now)
            given[who] += 100
    assert sum(given.values()) == pytest.approx(10_000, rel=0.03)
    assert given[0] == pytest.approx(given[1], abs=100)


def test_pause_is_not_made_up_for() -> None:
    """After a minute without a question only `BURST_S` of it may be caught up."""
    rate = SharedRate(1000)
    rate.take_bytes(100, 0.0)
    waits = [rate.take_bytes(25, 60.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 3 * 0.025 - BURST_S])


def test_late_question_waits_no_longer_than_its_turn() -> None:
    """A piece waits for those before it, not for itself."""
    rate = SharedRate(1000)
    assert rate.take_bytes(1000, 5.0) == 0.0
    assert rate.take_bytes(1000, 5.0) == pytest.approx(1.0 - BURST_S)
