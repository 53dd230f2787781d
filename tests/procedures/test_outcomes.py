"""Idempotency keys: every rule, in order, over restarts and clocks that jump."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procedures.errors import StateRefused
from procedures.executor import KeyPolicy, Status
from procedures.outcomes import NO_KEY, Fresh, KeyTable, key_fingerprint, key_time_ms, unpack_outcome
from procedures.state import PartitionState
from tests.procedures.sites import START_MS, Site, counters

MakeSite = Callable[..., Site]
HOUR = 3_600_000
POLICY = KeyPolicy(window_ms=HOUR, forget_ms=2 * HOUR, keys_max=50, clock_lead_max_ms=60_000)


def uuid7(milliseconds: int, tail: int = 1) -> str:
    """A UUID of version 7 with a stated time."""
    return str(uuid.UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | tail))


def key(name: str) -> bytes:
    """An opaque key of one caller."""
    return key_fingerprint("me", name)


def count(name: str, by: int = 1) -> tuple[str, dict[str, Any]]:
    """The call that counts."""
    return "count", {"name": name, "by": by}


def wait(site: Site, milliseconds: int) -> None:
    """Activity for that long: batches a minute apart, since one batch advances the activity clock by a minute at most."""
    end = site.milliseconds + milliseconds
    while site.milliseconds < end:
        site.milliseconds = min(end, site.milliseconds + 60_000) - 1
        site.apply(("refuse", {"name": "idle"}))


def test_repeat_gets_the_first_outcome_and_transaction(make_site: MakeSite) -> None:
    """The same key and request answer as the first time, and nothing runs again, also after the file was reopened."""
    site = make_site(counters(), name="keys.db")
    first = site.apply(count("a"), ("count_then_abort", {"name": "a", "by": 1}), count("b"), keys=[key("1"), key("2"), NO_KEY])
    again = site.apply(count("a"), ("count_then_abort", {"name": "a", "by": 1}), keys=[key("1"), key("2")])
    assert (again.statuses, again.bodies) == (first.statuses[:2], first.bodies[:2])
    assert list(again.txn_ids) == list(first.txn_ids[:2])
    assert again.result_hashes == first.result_hashes[:2]
    site.close()
    reopened = make_site(counters(), name="keys.db")
    third = reopened.apply(count("a"), keys=[key("1")])
    assert (third.bodies[0], third.txn_ids[0]) == (first.bodies[0], first.txn_ids[0])
    assert reopened.rows("SELECT value FROM counters WHERE name = 'a'") == [(1,)]


def test_second_of_two_equal_keys_in_a_batch_sees_the_first(make_site: MakeSite) -> None:
    """Two calls with one key in one batch run once."""
    site = make_site(counters())
    applied = site.apply(count("a"), count("a"), count("a", 2), keys=[key("1")] * 3)
    assert list(applied.statuses) == [Status.OK, Status.OK, Status.KEY_REUSED]
    assert applied.bodies[0] == applied.bodies[1] == b"1"
    assert applied.txn_ids[1] == applied.txn_ids[0]
    assert site.rows("SELECT value FROM counters") == [(1,)]


def test_key_with_another_request_is_reused(make_site: MakeSite) -> None:
    """The same key with other parameters or another procedure is refused, and the first outcome stays."""
    site = make_site(counters())
    site.apply(count("a"), keys=[key("1")])
    assert list(site.apply(count("a", 2), keys=[key("1")]).statuses) == [Status.KEY_REUSED]
    other = site.apply(("count_then_abort", {"name": "a", "by": 1}), keys=[key("1")])
    assert orjson.loads(other.bodies[0])["code"] == "key_reused"
    assert site.apply(count("a"), keys=[key("1")]).bodies == [b"1"]


def test_failure_is_stored_like_a_result(make_site: MakeSite) -> None:
    """A failure and a skip are answered again, not run again."""
    site = make_site(counters())
    calls = (("count_then_raise", {"name": "a", "by": 1}), count("b"))
    first = site.apply(*calls, keys=[key("1"), key("2")], skips=[1])
    again = site.apply(*calls, keys=[key("1"), key("2")])
    assert list(first.statuses) == [Status.FAILED, Status.FAILED]
    assert again.bodies == first.bodies
    assert site.rows("SELECT * FROM counters") == []


def test_expired_key_is_never_run_again(make_site: MakeSite) -> None:
    """After the window an opaque key is a tombstone: refused, until it is forgotten much later."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    wait(site, HOUR + 120_000)
    assert list(site.apply(count("a"), keys=[key("1")]).statuses) == [Status.SESSION_EXPIRED]
    assert site.rows("SELECT outcomes FROM _cmdlog_keys") == [(None,)]
    wait(site, 2 * HOUR + 120_000)
    assert site.executor.known_keys() == []
    assert site.rows("SELECT * FROM _cmdlog_keys") == []


def test_time_bearing_key_is_forgotten_and_still_refused(make_site: MakeSite) -> None:
    """A key that bears its time needs no tombstone: too old is refused without knowing it."""
    site = make_site(counters(), policy=POLICY)
    old = key_fingerprint("me", uuid7(START_MS))
    site.apply(count("a"), keys=[old])
    wait(site, HOUR + 120_000)
    assert site.executor.known_keys() == []
    assert list(site.apply(count("a"), keys=[old]).statuses) == [Status.SESSION_EXPIRED]
    fresh = key_fingerprint("me", uuid7(site.milliseconds - HOUR + 60_000))
    assert list(site.apply(count("a"), keys=[fresh]).statuses) == [Status.OK]


def test_key_from_the_future_stays_until_its_time_has_passed(make_site: MakeSite) -> None:
    """A client whose clock is half an hour ahead cannot get its call run twice."""
    site = make_site(counters(), policy=POLICY)
    ahead = key_fingerprint("me", uuid7(START_MS + HOUR // 2))
    site.apply(count("a"), keys=[ahead])
    for _ in range(40):
        wait(site, 3 * 60_000)
        assert site.apply(count("a"), keys=[ahead]).statuses[0] in (Status.OK, Status.SESSION_EXPIRED)
    assert site.rows("SELECT value FROM counters") == [(1,)]


def test_clock_that_jumps_a_day_expires_nothing(make_site: MakeSite) -> None:
    """The activity clock follows at most a minute a batch, so a jump of the clock leaves outcomes in place."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    site.milliseconds += 24 * HOUR
    site.apply(count("b"))
    assert site.apply(count("a"), keys=[key("1")]).bodies == [b"1"]


def test_full_table_refuses_new_keys_and_evicts_none(make_site: MakeSite) -> None:
    """Live keys and tombstones count; a full table refuses, answers known keys, and runs calls without a key."""
    site = make_site(counters(), policy=POLICY)
    calls = [count(f"n{number}") for number in range(60)]
    first = site.apply(*calls, keys=[key(str(number)) for number in range(60)])
    assert list(first.statuses) == [Status.OK] * 50 + [Status.SESSIONS_FULL] * 10
    assert len(site.rows("SELECT * FROM counters")) == 50
    again = site.apply(calls[3], calls[55], count("free"), keys=[key("3"), key("55"), NO_KEY])
    assert list(again.statuses) == [Status.OK, Status.SESSIONS_FULL, Status.OK]
    wait(site, HOUR + 120_000)
    assert list(site.apply(count("new"), keys=[key("new")]).statuses) == [Status.SESSIONS_FULL]


def test_refusals_are_not_stored(make_site: MakeSite) -> None:
    """KEY_REUSED, SESSION_EXPIRED and SESSIONS_FULL leave nothing behind under their keys."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    known = set(site.executor.known_keys())
    stale = key_fingerprint("me", uuid7(START_MS - 2 * HOUR))
    applied = site.apply(count("a", 5), count("a"), keys=[key("1"), stale])
    assert list(applied.statuses) == [Status.KEY_REUSED, Status.SESSION_EXPIRED]
    assert set(site.executor.known_keys()) == known


def test_answer_too_long_to_keep_fails_and_is_undone(make_site: MakeSite) -> None:
    """A keyed call whose answer cannot be kept fails with that reason; without a key it runs."""
    site = make_site(counters(), policy=KeyPolicy(stored_result_bytes_max=2))
    site.apply(count("a", 90))
    applied = site.apply(count("a", 5), count("a", 10), count("a", 1), keys=[key("1"), key("2"), NO_KEY])
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.OK]
    assert orjson.loads(applied.bodies[1])["type"] == "ResultTooLarge"
    assert site.rows("SELECT value FROM counters") == [(96,)]


@pytest.mark.slow
def test_restart_at_any_moment_changes_no_decision(tmp_path: Path) -> None:
    """A site that is closed and opened before every batch decides like one that runs on."""
    steady = Site(tmp_path / "steady.db", counters(), policy=POLICY)
    names = [f"k{number % 7}" for number in range(40)]
    histories: list[list[tuple[bytes, bytes]]] = [[], []]
    for name in names:
        wait(steady, 11 * 60_000)
        applied = steady.apply(count(name), keys=[key(name)])
        histories[0].append((bytes(applied.statuses), applied.bodies[0]))
    for position, name in enumerate(names):
        restarting = Site(tmp_path / "restarting.db", counters(), policy=POLICY)
        restarting.milliseconds = START_MS if position == 0 else restarting.state.position.txn_id >> 21
        wait(restarting, 11 * 60_000)
        applied = restarting.apply(count(name), keys=[key(name)])
        histories[1].append((bytes(applied.statuses), applied.bodies[0]))
        restarting.close()
    assert histories[0] == histories[1]
    again = PartitionState.open(tmp_path / "restarting.db", partition=0)
    assert again.connection.execute("SELECT * FROM _cmdlog_keys").fetchall() == steady.rows("SELECT * FROM _cmdlog_keys")
    again.close()
    steady.close()


@settings(max_examples=50, deadline=None)
@given(scope=st.text(max_size=20), text=st.text(max_size=40))
def test_fingerprints_are_never_empty_and_opaque_ones_say_so(scope: str, text: str) -> None:
    """Sixteen bytes, never all zeros; a key that is no UUIDv7 bears no time."""
    try:
        found = key_fingerprint(scope, text)
    except UnicodeEncodeError:
        return
    assert len(found) == 16
    assert found != NO_KEY
    assert key_time_ms(found) is None or "-7" in text


@given(milliseconds=st.integers(0, (1 << 43) - 1), tail=st.integers(0, (1 << 62) - 1))
def test_time_of_a_uuid7_is_in_its_fingerprint(milliseconds: int, tail: int) -> None:
    """The milliseconds of a UUIDv7 come out of its fingerprint, whatever its case."""
    text = uuid7(milliseconds, tail)
    assert key_time_ms(key_fingerprint("me", text)) == milliseconds
    assert key_time_ms(key_fingerprint("me", text.upper())) == milliseconds


def test_scopes_keep_keys_apart() -> None:
    """The same key of two credentials gives two fingerprints, and no join of scope and key is ambiguous."""
    assert key_fingerprint("a", "b") != key_fingerprint("b", "b")
    assert key_fingerprint("a", "bc") != key_fingerprint("ab", "c")


@given(outcomes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, (1 << 63) - 1), st.binary(max_size=50)), min_size=1))
def test_packed_outcomes_come_back(outcomes: list[tuple[int, int, bytes]]) -> None:
    """Every outcome of a packed row is found again at its position; a cut row is refused."""
    fresh = Fresh()
    for number, (status, txn_id, body) in enumerate(outcomes):
        fresh.add(b"%016d" % number, number * 7, status, txn_id, body)
    packed = fresh.pack()
    for number, (status, txn_id, body) in enumerate(outcomes):
        found = unpack_outcome(packed, len(outcomes), number)
        assert (found.status, found.txn_id, found.body, found.request) == (status, txn_id, body, number * 7)
    with pytest.raises(StateRefused):
        unpack_outcome(packed[: 20 * len(outcomes)], len(outcomes), 0)


@pytest.mark.slow
def test_a_million_keys_load_within_a_second_or_so(tmp_path: Path) -> None:
    """A full table is in memory soon after the file is opened."""
    state = PartitionState.open(tmp_path / "many.db", partition=0)
    rows = (
        (index, 1, 0, b"".join(number.to_bytes(16) for number in range(index * 64 + 1, index * 64 + 65)), b"x" * 2000)
        for index in range(1, 15_626)
    )
    with state.connection:
        state.connection.executemany("INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, ?)", rows)
    start = time.perf_counter()
    table = KeyTable(state, KeyPolicy())
    spent = time.perf_counter() - start
    state.close()
    assert len(table) == 1_000_000
    assert spent < 5, f"{spent:.2f} s; about 0.6 s on an idle machine"
