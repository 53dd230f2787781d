"""Pace: a share of a busy site's time, and no more than a millisecond of an idle one's."""

from __future__ import annotations

import pytest

from snapshot.capture.capture import CapturePacing


def paced(unit_s: float) -> CapturePacing:
    """A pace behind a step that ended at 100 s, at index 0."""
    pace = CapturePacing(unit_s=unit_s, units_max=4096)
    pace.units(100.0, 0)
    pace.stepped(1, began=100.0 - unit_s, now=100.0)
    return pace


def test_step_is_a_share_of_a_busy_site_and_bounded_on_an_idle_one() -> None:
    """Behind a batch of 4 ms a step may take 0.4 ms; behind a long one, or with nothing to do, STEP_SECONDS and no more."""
    pace = paced(10e-6)
    assert pace.units(100.0, 0) == pytest.approx(100, abs=1), "idle: the position has not moved"
    assert pace.units(100.004, 1) == pytest.approx(40, abs=1)
    assert pace.units(101.0, 2) == pytest.approx(100, abs=1)


def test_slow_disk_still_makes_progress() -> None:
    """One unit at least, however long it takes."""
    assert paced(1.0).units(101.0, 1) == 1


def test_step_never_exceeds_its_most() -> None:
    """What costs next to nothing is bounded in number."""
    assert paced(1e-9).units(101.0, 0) == 4096


def test_share_can_be_raised_while_the_copy_runs() -> None:
    """Whoever sees that the log fills may give the copy more of the site's time."""
    pace = paced(10e-6)
    pace.share = 0.25
    assert pace.units(100.002, 1) == pytest.approx(50, abs=1)


def test_time_of_a_unit_follows_what_is_measured() -> None:
    """A fifth of each step's measure enters."""
    pace = paced(10e-6)
    pace.stepped(10, began=100.0, now=100.0002)
    assert pace.unit_s == pytest.approx(12e-6)
