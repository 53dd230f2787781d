"""Batches that share a transaction, as replay runs them: the same effects, at a lower price."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from procedures.errors import EnvironmentFault
from procedures.idempotency.known_outcome import key_fingerprint
from tests.procedures.sites import Call, Site, counters

MakeSite = Callable[..., Site]


def batches(seed: int, count: int) -> list[list[Call]]:
    """Batches in which some calls fail, before and after they have changed rows."""
    chance = random.Random(seed)

    def call() -> Call:
        name, by = chance.choice("abc"), chance.randrange(9)
        procedure = chance.choice(("count", "count", "count_then_raise", "refuse"))
        return (procedure, {"name": name}) if procedure == "refuse" else (procedure, {"name": name, "by": by})

    return [[call() for _ in range(chance.randrange(1, 6))] for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_group_has_the_effects_of_its_batches_one_by_one(make_site: MakeSite, seed: int) -> None:
    """Outcomes, digests and the whole file are the same, with keys, failures and aborts among the calls."""
    one, other = make_site(counters()), make_site(counters())
    told = []
    for site in (one, other):
        if site is other:
            site.executor.begin_group()
        applied = []
        for number, calls in enumerate(batches(seed, 12)):
            keys = [key_fingerprint("me", f"{number % 7}-{at}") for at in range(len(calls))] if number % 2 else None
            done = site.apply(*calls, keys=keys)
            applied.append((bytes(done.statuses), done.bodies, done.result_hashes, done.rows_digest, list(done.txn_ids)))
        site.executor.end_group()
        told.append((applied, site.dump()))
    assert told[0] == told[1]


def test_group_that_is_not_ended_leaves_the_file_where_it_began(make_site: MakeSite, tmp_path: Path) -> None:
    """A killed replay stands at a batch boundary, position and rows together."""
    site = make_site(counters(), name="killed.db")
    site.apply(("count", {"name": "a", "by": 1}))
    before = site.dump()
    site.executor.begin_group()
    site.apply(("count", {"name": "a", "by": 5}))
    site.apply(("count", {"name": "b", "by": 5}))
    assert site.state.position.index == 4
    site.close()
    again = make_site(counters(), name="killed.db")
    assert (again.state.position.index, again.dump()) == (2, before)


def test_fault_in_a_group_applies_nothing_of_its_batch(make_site: MakeSite) -> None:
    """The batches before it in the group stand; the next one may be tried again."""
    site = make_site(counters())
    site.executor.begin_group()
    site.apply(("count", {"name": "a", "by": 1}))
    site.state.connection.pragma("max_page_count", site.state.connection.pragma("page_count"))
    with pytest.raises(EnvironmentFault):
        site.apply(*[("count", {"name": f"{number:0500}", "by": 1}) for number in range(200)])
    site.state.connection.pragma("max_page_count", 1 << 20)
    assert site.rows("SELECT count(*) FROM counters WHERE length(name) > 1") == [(0,)]


def test_end_without_a_group_does_nothing(make_site: MakeSite) -> None:
    """Whoever ends need not know whether one was begun."""
    site = make_site(counters())
    site.executor.end_group()
    assert site.call("count", name="a", by=1) == (0, 1)
