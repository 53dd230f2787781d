"""A call's time by stage, out of two looks at the server's histograms."""

from __future__ import annotations

from math import inf

import pytest

from bench._stages import Look


def look(counts: tuple[int, int, int], total_s: float, *, failed: float = 0) -> Look:
    """Calls of one stage below 1 ms, from there to 2 ms, and above."""
    low, middle, high = counts
    return Look({"log": total_s}, {"log": {0.001: low, 0.002: low + middle, inf: low + middle + high}}, failed)


def test_stages_are_those_of_the_calls_between_the_looks() -> None:
    """What came before the first look does not count; what no stage explains is the rest."""
    found = look((1000, 0, 0), 0.5).until(look((1000, 100, 0), 0.65), total_ms=4.0)
    assert found["log"]["mean_ms"] == pytest.approx(1.5)
    assert found["log"]["p99_ms"] == pytest.approx(1.99)
    assert found["rest"]["mean_ms"] == pytest.approx(2.5)


def test_quantile_beyond_the_last_bound_is_that_bound() -> None:
    """A histogram cannot say more."""
    found = look((0, 0, 0), 0.0).until(look((1, 1, 98), 10.0), total_ms=100.0)
    assert found["log"]["p99_ms"] == pytest.approx(2.0)


def test_calls_without_a_result_are_an_error() -> None:
    """A batch of refusals is answered with 200, too."""
    with pytest.raises(RuntimeError, match="2 calls had no result"):
        look((1, 0, 0), 0.0).until(look((2, 0, 0), 0.0, failed=2), total_ms=1.0)


def test_nothing_in_between_leaves_everything_to_the_rest() -> None:
    """No call, no stage."""
    found = look((5, 0, 0), 0.1).until(look((5, 0, 0), 0.1), total_ms=3.0)
    assert found == {"rest": {"mean_ms": 3.0}}
