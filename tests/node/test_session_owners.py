"""Numbers of sessions do not wander between partitions; floors, ends, homes, idle sessions."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from cmdlog.node.placing.session_owners import EVERYWHERE, EXPIRED, FULL, NUMBERS_SLACK, SessionOwners
from procedures.idempotency.known_outcome import KeyPolicy, key_fingerprint
from procedures.idempotency.session_calls import sent_name
from procedures.idempotency.session_row import Stage, stored_rows
from tests.procedures.sites import START_MS, Site, counters, uuid7

IDLE_S = 100.0


class Owners(SessionOwners):
    """With a clock that is set."""

    def __init__(self, *, sessions_max: int = 10) -> None:
        self.seconds = 0.0
        super().__init__(IDLE_S, sessions_max=sessions_max, clock=lambda: self.seconds)


def session(tail: int) -> bytes:
    """A session of one caller."""
    return key_fingerprint("me", uuid7(START_MS, tail))


def test_a_number_stays_where_it_was_used() -> None:
    """A claim for another partition, or for all, gets the owner."""
    owners = Owners()
    assert owners.claim(sent_name(session(1), 1, 0), 2) == 2
    assert owners.claim(sent_name(session(1), 1, 0), 2) == 2
    assert owners.claim(sent_name(session(1), 1, 0), 3) == 2
    assert owners.claim(sent_name(session(1), 1, 0), EVERYWHERE) == 2
    assert owners.claim(sent_name(session(2), 1, 0), 3) == 3
    assert owners.claim(sent_name(session(1), 2, 0), EVERYWHERE) == EVERYWHERE


def test_what_the_client_has_seen_is_not_claimed() -> None:
    """At the highest floor and below; and numbers below it do not pile up."""
    owners = Owners()
    for number in range(1, 20_000):
        assert owners.claim(sent_name(session(1), number, number - 1), 0) == 0
    assert owners.claim(sent_name(session(1), 19_998, 5), 0) == EXPIRED
    assert len(owners._sessions[session(1)].owners) <= NUMBERS_SLACK + 2


def test_a_session_holds_little_more_than_what_is_under_way() -> None:
    """Memory is bounded by live sessions, not by calls: a hundred thousand that have made thousands of calls are few."""
    owners = Owners()
    for number in range(1, 10_000):
        assert owners.claim(sent_name(session(1), number, max(0, number - 100)), 0) == 0
        assert len(owners._sessions[session(1)].owners) <= 2 * 100 + NUMBERS_SLACK + 1


@pytest.mark.parametrize("seed", range(8))
def test_calls_that_come_together_are_claimed_as_one_after_the_other(seed: int) -> None:
    """Whatever is new, known, passed, elsewhere or without room among them."""
    chance, together, alone = random.Random(seed), Owners(sessions_max=3), Owners(sessions_max=3)
    met = Counter[int]()
    for _ in range(60):
        calls = [
            (sent_name(session(chance.randrange(5)), chance.randrange(1, 9), chance.randrange(3)), chance.randrange(-1, 2))
            for _ in range(chance.randrange(1, 12))
        ]
        found = together.claim_all(*zip(*calls, strict=True))
        assert found == [alone.claim(*call) for call in calls]
        met.update(found)
    assert {EVERYWHERE, EXPIRED, FULL, 0, 1} == met.keys()


@pytest.mark.parametrize("seed", range(8))
def test_calls_of_one_session_are_claimed_together(seed: int) -> None:
    """Nearly always all are new, in whatever order: the same is known afterwards as when each is claimed by itself."""
    chance, together, alone = random.Random(seed), Owners(), Owners()
    next_number, floor = 1, 0
    for _ in range(200):
        count = chance.randrange(1, 30)
        numbers = chance.sample(range(next_number, next_number + count), count)
        if chance.random() < 0.1:
            numbers[0] = chance.choice(numbers + list(range(max(1, next_number - 3), next_number)))  # one that may be known
        floors = [chance.choice([floor, max(0, floor - 5)]) for _ in numbers]
        partition = chance.choice([0, 0, 0, 1])
        calls = [(sent_name(session(1), number, below), partition) for number, below in zip(numbers, floors, strict=True)]
        assert together.claim_all(*zip(*calls, strict=True)) == [alone.claim(*call) for call in calls]
        known, same = together._sessions[session(1)], alone._sessions[session(1)]
        assert (known.floor, known.partitions) == (same.floor, same.partitions)
        assert {n: of for n, of in known.owners.items() if n > known.floor} == {
            n: of for n, of in same.owners.items() if n > same.floor
        }
        next_number += count
        floor = max(0, next_number - chance.randrange(1, 40))


def test_an_ended_session_claims_nothing() -> None:
    """The partitions that may know it are told once."""
    owners = Owners()
    for partition in (2, 0, EVERYWHERE):
        owners.claim(sent_name(session(1), partition + 2, 0), partition)
    assert owners.end(session(1)) == [0, 2]
    assert owners.end(session(1)) == []
    assert owners.end(session(5)) == []
    assert owners.claim(sent_name(session(1), 9, 0), 0) == EXPIRED


def test_full_and_idle() -> None:
    """A new session finds no room until others were idle long enough; those in use stay."""
    owners = Owners(sessions_max=3)  # one credential gets two of them
    owners.claim(sent_name(session(1), 1, 0), 0)
    owners.claim(sent_name(session(2), 1, 0), 0)
    assert owners.claim(sent_name(session(3), 1, 0), 0) == FULL
    owners.seconds = IDLE_S - 1
    owners.claim(sent_name(session(2), 2, 0), 0)
    owners.seconds = IDLE_S + 30
    owners.tidy()
    assert owners.claim(sent_name(session(3), 1, 0), 0) == 0
    assert owners.claim(sent_name(session(2), 1, 0), 1) == 0
    assert len(owners) == 2


def test_states_say_what_was_used_where(tmp_path: Path) -> None:
    """After a start, also of numbers that several partitions know since the directory was made from one of other partitions."""
    owners = Owners()
    for partition, number in ((0, 1), (1, 2), (2, 2)):
        site = Site(tmp_path / f"{partition}.db", counters(), partition=partition)
        name = sent_name(session(1), number, 0)
        site.apply(("count", {"name": "a", "by": 1}), keys=[name[:24]], floors={session(1): 0})
        owners.load(site.state.connection, partition)
        site.close()
    assert owners.claim(sent_name(session(1), 1, 0), 1) == 0
    assert [owners.claim(sent_name(session(1), 2, 0), partition) for partition in (1, 2)] == [1, 2]
    assert owners.claim(sent_name(session(1), 2, 0), 0) in (1, 2)
    owners.clear()
    assert owners.claim(sent_name(session(1), 1, 0), 1) == 1


def test_states_say_so_of_outcomes_that_are_older_than_their_session_may_be_idle(tmp_path: Path) -> None:
    """What makes the session known is a later row: also where several partitions have a copy, each of them gets the number."""
    owners, idle_ms = Owners(), 600_000
    for partition in (0, 1):
        policy = KeyPolicy(session_idle_ms=idle_ms, clock_lead_max_ms=idle_ms)
        site = Site(tmp_path / f"{partition}.db", counters(), partition=partition, policy=policy)
        for number in (1, 2, 3):
            site.milliseconds += idle_ms // 2 + 1
            name = sent_name(session(1), number, 0)
            site.apply(("count", {"name": "a", "by": 1}), keys=[name[:24]], floors={session(1): 0})
        assert [row.stage for row in stored_rows(site.state.connection)] == [Stage.OLD, Stage.NEW, Stage.NEW]
        owners.load(site.state.connection, partition)
        site.close()
    assert [owners.claim(sent_name(session(1), 1, 0), partition) for partition in (0, 1)] == [0, 1]
    assert owners.claim(sent_name(session(1), 1, 0), 2) in (0, 1)


def test_first_call_that_is_seen_may_bring_a_floor() -> None:
    """The node has forgotten the session, or its first numbers were reads: nothing is known yet below the floor."""
    owners = Owners()
    assert owners.claim(sent_name(session(1), 900, 899), 1) == 1
    assert owners.claim(sent_name(session(1), 899, 0), 1) == EXPIRED


def a_session_of(caller: str, tail: int) -> bytes:
    """One of several callers' sessions."""
    return key_fingerprint(caller, uuid7(START_MS, tail))


def fill(owners: Owners, caller: str, partition: int) -> int:
    """How many sessions the caller begins before one is refused."""
    names = (sent_name(a_session_of(caller, tail), partition + 2, 0) for tail in itertools.count())
    return next(n for n, name in enumerate(names) if owners.claim(name, partition) == FULL)


def test_a_caller_gets_its_share_of_sessions_and_leaves_one_to_others() -> None:
    """On each partition, and of those for calls on all; a session that goes to another partition takes some there."""
    owners = Owners(sessions_max=100)
    assert [fill(owners, caller, 0) for caller in ("one", "two", "three")] == [80, 16, 3]
    assert [fill(owners, "one", place) for place in (1, EVERYWHERE)] == [80, 80]
    assert owners.claim(sent_name(a_session_of("one", 3), 50, 0), 0) == 0, "a session that is known goes on"
    fill(owners, "two", 2)
    assert owners.claim_all([sent_name(a_session_of("two", 200), n, 0) for n in (1, 2, 3)], [1, 2, 1]) == [1, FULL, 1]
    owners.seconds = 2 * IDLE_S
    owners.tidy()
    assert (len(owners), {table.total for table in owners.shares.values()}) == (0, {0})
    assert fill(owners, "two", 0) == 80


def test_shares_of_sessions_are_counted_from_the_states(tmp_path: Path) -> None:
    """After a start, or where another node begins to lead: what a credential had it still has."""
    owners = Owners(sessions_max=100)
    sites = [Site(tmp_path / f"{partition}.db", counters(), partition=partition) for partition in range(2)]
    sessions = [a_session_of(caller, tail) for caller, count in (("one", 30), ("two", 5)) for tail in range(count)]
    for site in sites:
        for each in sessions:
            site.apply(("count", {"name": "a", "by": 1}), keys=[sent_name(each, 1, 0)[:24]], floors={each: 0})
    for _ in range(2):
        owners.clear()
        for partition, site in enumerate(sites):
            owners.load(site.state.connection, partition)
        assert [sorted(table.held.values()) for _, table in sorted(owners.shares.items())] == [[5, 30]] * 2
        assert owners.claim(sent_name(a_session_of("one", 0), 2, 0), 1) == 1
    for site in sites:
        site.close()
    assert (
        owners.claim_all([sent_name(a_session_of("one", tail), 1, 0) for tail in range(30, 79)], [0] * 49)
        == [0] * 46 + [FULL] * 3
    )
