"""Client sessions of a partition: every rule, over restarts, expiry, floors and clocks that jump; and lives against a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from procedures.execution.executor import KeyPolicy, Status
from procedures.idempotency.known_outcome import NO_KEY, key_fingerprint
from procedures.idempotency.session_calls import ENDED
from procedures.idempotency.session_row import stored_rows
from procedures.idempotency.session_table import SHRINK_AFTER
from tests.procedures.sites import START_MS, Call, Site, counters, uuid7

MakeSite = Callable[..., Site]
MINUTE = 60_000
IDLE = 10 * MINUTE
POLICY = KeyPolicy(window_ms=IDLE, forget_ms=20 * IDLE, keys_max=50, session_idle_ms=IDLE, sessions_max=8)
SEEDS = 5


def session(tail: int, born_ms: int = START_MS) -> bytes:
    """A session of one caller."""
    return key_fingerprint("me", uuid7(born_ms, tail))


def name(of: bytes, number: int) -> bytes:
    """Of a call of the session."""
    return of + number.to_bytes(8, "little")


def count(who: str, by: int = 1) -> Call:
    """The call that counts."""
    return "count", {"name": who, "by": by}


def note(of: bytes, number: int) -> Call:
    """The call on all partitions that has this number in the session."""
    return "add_note", {"number": int.from_bytes(of[:4], "little") << 20 | number, "text": ""}


def wait(site: Site, milliseconds: int) -> None:
    """Activity for that long: one batch advances the activity clock by a minute at most."""
    end = site.milliseconds + milliseconds
    while site.milliseconds < end:
        site.milliseconds = min(end, site.milliseconds + MINUTE) - 1
        site.apply(("refuse", {"name": "idle"}))


def one(site: Site, of: bytes, number: int, floor: int, call: Call) -> tuple[int, bytes, int]:
    """Status, body and transaction id of a call of a session in a batch of its own."""
    done = site.apply(call, keys=[name(of, number)], floors={of: floor})
    return done.statuses[0], done.bodies[0], done.txn_ids[0]


def test_a_repetition_gets_the_first_outcome(make_site: MakeSite) -> None:
    """Also after the file was opened again; another request under the number gets KEY_REUSED."""
    site, mine = make_site(counters(), name="s.db", policy=POLICY), session(1)
    first = one(site, mine, 1, 0, count("a"))
    assert one(site, mine, 1, 0, count("a")) == first
    site.close()
    site = make_site(counters(), name="s.db", policy=POLICY)
    assert one(site, mine, 1, 0, count("a")) == first
    assert one(site, mine, 1, 0, count("a", 2))[0] == Status.KEY_REUSED
    assert site.rows("SELECT value FROM counters") == [(1,)]


@pytest.mark.parametrize("beside", ["nothing", "the end of another session", "a call of another session"])
def test_a_repetition_in_the_same_batch_gets_the_first_outcome(make_site: MakeSite, beside: str) -> None:
    """A call that waits with its retry for one batch runs once, whatever else the batch says of sessions."""
    site, mine, other = make_site(counters(), name="s.db", policy=POLICY), session(1), session(2)
    calls, keys, floors = [count("a"), count("a")], [name(mine, 1)] * 2, {mine: 0}
    if beside != "nothing":
        floors[other] = ENDED if "end" in beside else 0
    if "call" in beside:
        calls, keys = [*calls, count("b")], [*keys, name(other, 1)]
    done = site.apply(*calls, keys=keys, floors=floors)
    assert (done.bodies[0], done.txn_ids[0]) == (done.bodies[1], done.txn_ids[1])
    assert site.rows("SELECT value FROM counters WHERE name = 'a'") == [(1,)]


def test_what_the_client_has_seen_is_dropped_and_not_run_again(make_site: MakeSite) -> None:
    """The floor takes the row away; a late copy of the call is refused, before and after a restart."""
    site, mine = make_site(counters(), name="s.db", policy=POLICY), session(1)
    for number in range(1, 6):
        one(site, mine, number, number - 1, count("a"))
    assert [row.numbers for row in stored_rows(site.state.connection)] == [(5,)]
    assert one(site, mine, 3, 2, count("a"))[0] == Status.SESSION_EXPIRED
    site.close()
    site = make_site(counters(), name="s.db", policy=POLICY)
    assert one(site, mine, 3, 2, count("a"))[0] == Status.SESSION_EXPIRED
    assert one(site, mine, 5, 2, count("a"))[0] == Status.OK
    assert one(site, session(2), 3, 3, count("a"))[0] == Status.SESSION_EXPIRED  # of a session that is not known yet
    assert site.rows("SELECT value FROM counters") == [(5,)]


def test_an_idle_session_is_forgotten_and_not_run_again(make_site: MakeSite) -> None:
    """Nothing of it stays but the time at which it was made, below which no unknown session is accepted; younger ones are."""
    site, mine = make_site(counters(), name="s.db", policy=POLICY), session(1)
    one(site, mine, 1, 0, count("a"))
    wait(site, IDLE + MINUTE)
    assert len(site.executor._known.sessions) == 0
    assert list(stored_rows(site.state.connection)) == []
    assert one(site, mine, 1, 0, count("a"))[0] == Status.SESSION_EXPIRED
    assert one(site, session(2), 1, 0, count("a"))[0] == Status.SESSION_EXPIRED  # as old: it may have been that one
    assert one(site, session(3, site.milliseconds - IDLE + 2 * MINUTE), 1, 0, count("a"))[0] == Status.OK
    assert site.rows("SELECT value FROM counters") == [(2,)]


def test_a_session_with_calls_is_never_idle(make_site: MakeSite) -> None:
    """It is known for many times the idle time, and so is an outcome that its client has not seen."""
    site, mine = make_site(counters(), name="s.db", policy=POLICY), session(1)
    first = one(site, mine, 1, 0, count("a"))
    for number in range(2, 12):
        wait(site, IDLE - 2 * MINUTE)
        assert one(site, mine, number, 0, count("b"))[0] == Status.OK
    assert one(site, mine, 1, 0, count("a")) == first


def test_sessions_of_calls_on_all_partitions_age_by_those_alone(make_site: MakeSite) -> None:
    """Whatever else the partition runs, over a restart; idle at last, they are forgotten and not run again."""
    site, mine, other = make_site(counters(), name="s.db", policy=POLICY), session(1), session(2)
    wait(site, IDLE)
    assert one(site, mine, 1, 0, note(mine, 1))[0] == Status.OK
    wait(site, 2 * IDLE)
    for number in range(1, 12):
        wait(site, MINUTE)
        if number == 5:
            site.close()
            site = make_site(counters(), name="s.db", policy=POLICY)
        assert one(site, other, number, number - 1, note(other, number))[0] == Status.OK
        known = site.executor._known.shared_sessions
        assert len(known) == (2 if number < IDLE // MINUTE else 1)
    assert one(site, mine, 1, 0, note(mine, 1))[0] == Status.SESSION_EXPIRED
    assert one(site, mine, 1, 0, count("a"))[0] == Status.OK  # that one is of another table
    assert site.rows("SELECT count(*) FROM shared") == [(12,)]


def test_a_session_of_the_future_is_remembered_until_its_time(make_site: MakeSite) -> None:
    """The floor for unknown sessions does not rise into the future, and the session is not run again meanwhile."""
    site = make_site(counters(), name="s.db", policy=POLICY)
    ahead = session(1, START_MS + 5 * IDLE)
    one(site, ahead, 1, 0, count("a"))
    for _ in range(7):
        wait(site, IDLE)
        assert one(site, ahead, 1, 0, count("a"))[0] == Status.SESSION_EXPIRED
    assert one(site, session(2, site.milliseconds), 1, 0, count("b"))[0] == Status.OK
    assert one(site, session(3, site.milliseconds + POLICY.forget_ms + MINUTE), 1, 0, count("b"))[0] == Status.SESSION_EXPIRED
    assert site.rows("SELECT value FROM counters WHERE name = 'a'") == [(1,)]


def test_an_ended_session_runs_nothing(make_site: MakeSite) -> None:
    """The floor ENDED may come without a call of the session, in a batch of others."""
    site, mine = make_site(counters(), name="s.db", policy=POLICY), session(1)
    one(site, mine, 1, 0, count("a"))
    site.apply(count("b"), keys=[NO_KEY], floors={mine: ENDED})
    assert [row.numbers for row in stored_rows(site.state.connection)] == [()]
    assert one(site, mine, 1, 0, count("a"))[0] == Status.SESSION_EXPIRED
    assert one(site, mine, 2, 1, count("a"))[0] == Status.SESSION_EXPIRED


def test_too_many_sessions_are_refused_and_none_is_evicted(make_site: MakeSite) -> None:
    """Those that are known go on."""
    site = make_site(counters(), name="s.db", policy=POLICY)
    for tail in range(8):
        assert one(site, session(tail), 1, 0, count("a"))[0] == Status.OK
    assert one(site, session(9), 1, 0, count("a"))[0] == Status.SESSIONS_FULL
    assert one(site, session(3), 2, 1, count("a"))[0] == Status.OK


def test_a_row_shrinks_to_what_is_needed(make_site: MakeSite) -> None:
    """Sessions that stopped after a large batch keep little of it."""
    site, mine, other = make_site(counters(), name="s.db", policy=POLICY), session(1), session(2)
    calls = [count(f"c{number}") for number in range(40)]
    names = [name(mine if number else other, number + 1) for number in range(40)]
    site.apply(*calls, keys=names, floors={mine: 0, other: 0})
    one(site, mine, 100, 99, count("a"))
    for _ in range(SHRINK_AFTER + 1):
        site.apply(count("x"))
    rows = list(stored_rows(site.state.connection))
    assert [row.numbers for row in rows] == [(1,), (100,)]


@dataclass
class Model:
    """What was promised: one run per number; the same answer until the floor, the end or the idle time."""

    outcomes: dict[tuple[bytes, int], tuple[int, bytes, int]] = field(default_factory=dict)
    floors: dict[bytes, int] = field(default_factory=dict)
    active: dict[bytes, int] = field(default_factory=dict)  # time of the last batch that named it while it was known

    def is_alive(self, of: bytes, now: int) -> bool:
        """It must be known: it was named less than the idle time ago."""
        return of in self.active and now - self.active[of] < IDLE

    def check(self, of: bytes, number: int, floor: int, found: tuple[int, bytes, int], now: int) -> None:
        """The answer to a call, the first of its number in its batch."""
        before, ran = max(self.floors.get(of, 0), floor), found[0] in (Status.OK, Status.ABORTED, Status.FAILED)
        if (of, number) in self.outcomes:
            repeated = found == self.outcomes[of, number]
            assert repeated or not ran, "ran twice"
            assert repeated or number <= before or not self.is_alive(of, now), "forgotten"
        elif ran:
            assert number > before, "ran below its floor"
            self.outcomes[of, number] = found
        else:
            assert found[0] != Status.SESSION_EXPIRED or number <= before or not self.is_alive(of, now), "expired early"

    def note_batch(self, floors: dict[bytes, int], ran: set[bytes], now: int) -> None:
        """A batch named these sessions; of `ran` it ran calls."""
        for of, floor in floors.items():
            if of in ran or self.is_alive(of, now):
                self.active[of] = now
                self.floors[of] = max(self.floors.get(of, 0), floor)


class Lives:
    """Random calls of some sessions on a site that stops now and then, and on one that does not."""

    def __init__(self, make_site: MakeSite, chance: random.Random) -> None:
        self.make_site, self.chance, self.model = make_site, chance, Model()
        self.site = make_site(counters(), name="stopping.db", policy=POLICY)
        self.twin = make_site(counters(), name="steady.db", policy=POLICY)
        self.sessions, self.highest = [session(tail) for tail in range(3)], dict[bytes, int]()

    def calls(self) -> tuple[list[Call], list[bytes], dict[bytes, int]]:
        """Calls, names and floors of a batch."""
        chance, calls, names, floors = self.chance, list[Call](), list[bytes](), dict[bytes, int]()
        for _ in range(chance.randint(1, 5)):
            of = chance.choice(self.sessions)
            top = self.highest.get(of, 0)
            number = max(1, chance.choice([top + 1, top + 1, top + chance.randint(1, 9), top - chance.randint(0, 6)]))
            self.highest[of] = max(top, number)
            floors[of] = max(floors.get(of, 0), self.highest[of] - chance.randint(1, 12), 0)
            kind = ("count", "count_then_raise", "count_then_abort")[number % 3]
            calls.append((kind, {"name": f"{of.hex()}/{number}", "by": 1}))
            names.append(name(of, number))
        if chance.random() < 0.3:
            calls.append(count("plain"))
            names.append(NO_KEY)
        if chance.random() < 0.05:
            floors[chance.choice(self.sessions)] = ENDED
        return calls, names, floors

    def step(self) -> None:
        """A batch on both sites."""
        calls, names, floors = self.calls()
        batch = self.site.batch(calls, keys=names, floors=floors)
        done = self.site.executor.apply(batch)
        assert done == self.twin.executor.apply(batch)
        ran: set[bytes] = set()
        for at, each in enumerate(names):
            if each != NO_KEY:
                found = (done.statuses[at], done.bodies[at], done.txn_ids[at])
                self.model.check(each[:16], int.from_bytes(each[16:], "little"), floors[each[:16]], found, self.site.milliseconds)
                ran |= {each[:16]} if found[2] == batch.txn_ids[at] and found[0] <= Status.FAILED else set()
        self.model.note_batch(floors, ran, self.site.milliseconds)

    def pause(self) -> None:
        """Time passes, sessions come and go, the site is opened again."""
        chance = self.chance
        if chance.random() < 0.1:
            wait_both(self.site, self.twin, chance.choice([MINUTE, IDLE // 2, IDLE + MINUTE, 3 * IDLE]))
        if chance.random() < 0.05:
            born = self.site.milliseconds + chance.choice([0, 0, MINUTE, 2 * IDLE])
            self.sessions[chance.randrange(3)] = session(chance.randrange(1 << 30), born)
        if chance.random() < 0.1:
            self.site.close()
            self.site = self.make_site(counters(), name="stopping.db", policy=POLICY)
        self.twin.milliseconds = self.site.milliseconds


@pytest.mark.parametrize("seed", [*range(SEEDS), *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(SEEDS, 300))])
def test_lives_of_sessions(make_site: MakeSite, seed: int) -> None:
    """Retries, floors, ends, idle times, failures and restarts: as the model says, and as in a state that never stopped."""
    lives = Lives(make_site, random.Random(seed))
    for _ in range(150):
        lives.step()
        lives.pause()
    assert lives.site.dump() == lives.twin.dump()
    assert lives.model.outcomes
    counted = lives.site.rows("SELECT value FROM counters WHERE name <> 'plain'")
    assert {value for (value,) in counted} <= {1}


def wait_both(site: Site, twin: Site, milliseconds: int) -> None:
    """The same activity in both."""
    end = site.milliseconds + milliseconds
    while site.milliseconds < end:
        site.milliseconds = min(end, site.milliseconds + MINUTE) - 1
        batch = site.batch([("refuse", {"name": "idle"})])
        assert site.executor.apply(batch) == twin.executor.apply(batch)


def test_packed_bodies_are_json(make_site: MakeSite) -> None:
    """What a refused call gets is readable."""
    site = make_site(counters(), name="s.db", policy=POLICY)
    _, body, _ = one(site, session(1), 1, ENDED, count("a"))
    found: dict[str, Any] = orjson.loads(body)
    assert found["code"] == "session_expired"
