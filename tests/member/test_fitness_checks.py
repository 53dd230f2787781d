"""Whether a node should lead: what counts at once, what counts when it stays, and a take-over without an end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.cluster.leader_fitness import FIT, Unfitness
from cmdlog.member.leading.fitness_checks import STALL_S, STILL_LOOKS, STUCK_LOOKS, FitnessChecks
from cmdlog.member.leading.leadership import Standing
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.sites.site_progress import SiteStall, StallKind


class Checks:
    """A node whose parts say what the test wants."""

    def __init__(self, directory: Path) -> None:
        self.troubles = PartitionHealth(str(directory))
        self.stalls: list[SiteStall] = []
        self.full = False
        self.lineage = cast(Any, SimpleNamespace(met_later=frozenset()))
        self.leadership = cast(Any, SimpleNamespace(standing=Standing.LEADING))
        self.progress = "", 0
        self.checks = FitnessChecks(
            self.troubles, self.lineage, self.leadership, stalls=lambda _now: self.stalls, is_full=lambda: self.full,
            progress=lambda: self.progress,
        )  # fmt: skip

    def look(self, count: int = 1) -> list[Unfitness]:
        return [self.checks.find_reasons() for _ in range(count)]


@pytest.fixture
def checks(tmp_path: Path) -> Checks:
    """A node that is well."""
    return Checks(tmp_path)


def test_a_diverged_partition_counts_at_once(checks: Checks) -> None:
    """Its site being restarted changes nothing; only a majority that agrees does."""
    checks.troubles.begin_trouble([1], "diverged", "entry 7 did something else")
    assert checks.look() == [Unfitness.DIVERGED]
    checks.troubles.begin_trouble([1], "died", "again and again")
    checks.troubles.end([0, 1])
    assert checks.look() == [Unfitness.DIVERGED]
    checks.troubles.end_divergence(1)
    assert checks.look() == [FIT]


def test_other_divergences_are_seen_once(checks: Checks) -> None:
    """Between two looks: a partition that diverged is a reason at the next tick, and so is one that did not after all."""
    seen = checks.checks.has_other_divergences
    assert not seen()
    checks.troubles.begin_trouble([1], "diverged", "entry 7 did something else")
    checks.troubles.begin_trouble([0], "died", "again and again")
    assert (seen(), seen()) == (True, False)
    checks.troubles.end_divergence(1)
    assert (seen(), seen()) == (True, False)


@pytest.mark.parametrize(
    ("kind", "reasons"), [("disk_full", Unfitness.LOG_FULL), ("io", Unfitness.STUCK), ("died", Unfitness.STUCK)]
)
def test_trouble_of_a_site_counts_when_it_stays(checks: Checks, kind: str, reasons: Unfitness) -> None:
    """A second look: a site that comes back moves no leadership."""
    checks.troubles.begin_trouble([0], kind, "why")
    assert checks.look(2) == [FIT, reasons]
    checks.troubles.end([0])
    assert checks.look(2) == [FIT, FIT]


@pytest.mark.parametrize(
    ("kind", "seconds", "counts"),
    [
        ("stopped", STALL_S, True),
        ("silent", STALL_S, True),
        ("restarting", STALL_S, True),
        ("stopped", 1.0, False),
        ("running", 60.0, False),
    ],
)
def test_a_site_without_progress_counts(checks: Checks, kind: StallKind, seconds: float, counts: bool) -> None:
    """Not a call that runs long: it would on another node, too."""
    checks.stalls = [SiteStall(0, kind, seconds, [0, 1])]
    assert checks.look(2)[-1] == (Unfitness.STUCK if counts else FIT)


def test_a_full_log_counts_when_it_stays(checks: Checks) -> None:
    """A segment may come free at any moment."""
    checks.full = True
    assert checks.look(2) == [FIT, Unfitness.LOG_FULL]


def test_a_takeover_without_progress_ends(checks: Checks) -> None:
    """Another node may try, for some time; then this one is as good as any."""
    checks.leadership.standing, checks.progress = Standing.TAKING_OVER, ("executed", 5)
    assert checks.look(STILL_LOOKS + 1) == [FIT] * STILL_LOOKS + [Unfitness.STUCK]
    checks.leadership.standing = Standing.FOLLOWING
    assert checks.look(STUCK_LOOKS) == [Unfitness.STUCK] * (STUCK_LOOKS - 1) + [FIT]


def test_a_takeover_waits_for_a_site_that_works(checks: Checks) -> None:
    """A migration that takes long takes as long on every node; a site that is stopped does nothing."""
    checks.leadership.standing, checks.progress = Standing.TAKING_OVER, ("tables", 5)
    checks.stalls = [SiteStall(0, "running", 60.0, [0, 1])]
    assert checks.look(3 * STILL_LOOKS) == [FIT] * 3 * STILL_LOOKS
    checks.stalls = []
    assert checks.look(STILL_LOOKS)[-1] == Unfitness.STUCK


def test_a_takeover_with_progress_goes_on(checks: Checks) -> None:
    """Another step, or one more entry that is run."""
    checks.leadership.standing = Standing.TAKING_OVER
    for number in range(4 * STILL_LOOKS):
        checks.progress = "executed", number // 4
        assert checks.look() == [FIT]
    checks.progress = "keys", 0
    assert checks.look(STILL_LOOKS) == [FIT] * STILL_LOOKS


def test_a_leader_without_calls_is_no_takeover(checks: Checks) -> None:
    """Nothing moves, and nothing has to."""
    checks.progress = "calls", 5
    assert set(checks.look(3 * STILL_LOOKS)) == {FIT}
