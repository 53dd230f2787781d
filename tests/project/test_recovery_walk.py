"""A recovery is read straight on: the figures of `tests.project.recovery_walk` only fall."""

from __future__ import annotations

from typing import Final

import pytest

from tests.project.recovery_walk import FirstCall, Visit, Walk, walk_of, watch_recovery

LEADING_MAX: Final = (17, 4, 0)  # stations, returns, climbs of the functions that lead on to another module
ALL_MAX: Final = (39, 40, 1)  # … of all functions


@pytest.fixture(scope="module")
def calls() -> list[FirstCall]:
    """Of one recovery."""
    return watch_recovery()


@pytest.mark.slow
@pytest.mark.parametrize(("walk_all", "figures_max"), [(False, LEADING_MAX), (True, ALL_MAX)])
def test_recovery_wanders_no_further_than_it_did(
    walk_all: bool, figures_max: tuple[int, int, int], calls: list[FirstCall]
) -> None:
    """From the command to its table a reader visits no more modules, and comes back no more often, than the budget says."""
    walk = walk_of(calls, walk_all=walk_all)
    figures = (walk.stations, walk.returns, walk.climbs)
    assert all(found <= most for found, most in zip(figures, figures_max, strict=True)), walk.shown()


def test_visits_are_counted_by_module() -> None:
    """A module that is visited twice is one station and one return."""
    walk = Walk((Visit("a.py", ("f",), False), Visit("b.py", ("g", "h"), False), Visit("a.py", ("back",), True)))
    assert (walk.stations, walk.returns, walk.climbs) == (2, 1, 1)
    assert walk.shown().splitlines()[-1] == "2 stations, 1 returns, 1 climbs"
