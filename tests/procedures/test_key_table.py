"""Idempotency keys: every rule, in order, over restarts and clocks that jump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from procedures.execution.executor import KeyPolicy, Status
from procedures.idempotency.key_table import KeyTable
from procedures.idempotency.known_outcome import NO_KEY, key_fingerprint
from procedures.storage.state import PartitionState
from snapshot.table_digest import table_digests
from tests.procedures.sites import START_MS, Site, counters, uuid7

MakeSite = Callable[..., Site]
HOUR = 3_600_000
POLICY = KeyPolicy(window_ms=HOUR, forget_ms=2 * HOUR, keys_max=50, clock_lead_max_ms=60_000)


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
    assert not list(site.executor._known.keys)
    assert site.rows("SELECT * FROM _cmdlog_keys") == []


def test_time_bearing_key_is_forgotten_and_still_refused(make_site: MakeSite) -> None:
    """A key that bears its time needs no tombstone: too old is refused without knowing it."""
    site = make_site(counters(), policy=POLICY)
    old = key_fingerprint("me", uuid7(START_MS))
    site.apply(count("a"), keys=[old])
    wait(site, HOUR + 120_000)
    assert not list(site.executor._known.keys)
    assert list(site.apply(count("a"), keys=[old]).statuses) == [Status.SESSION_EXPIRED]
    fresh = key_fingerprint("me", uuid7(site.milliseconds - HOUR + 60_000))
    assert list(site.apply(count("a"), keys=[fresh]).statuses) == [Status.OK]


def test_key_from_the_future_stays_until_its_time_has_passed(make_site: MakeSite) -> None:
    """A client whose clock is half an hour ahead cannot get its call run twice, nor that of another key in its row.

    Nor does it lock out keys that are younger than the window.
    """
    site = make_site(counters(), policy=POLICY)
    keys = [key_fingerprint("me", uuid7(START_MS + HOUR // 2)), key("opaque")]
    site.apply(count("a"), count("b"), keys=keys)
    for _ in range(40):
        wait(site, 3 * 60_000)
        assert set(site.apply(count("a"), count("b"), keys=keys).statuses) <= {Status.OK, Status.SESSION_EXPIRED}
        younger = key_fingerprint("me", uuid7(site.milliseconds - 2 * HOUR // 3))
        assert list(site.apply(count("c"), keys=[younger]).statuses) == [Status.OK]
    assert site.rows("SELECT value FROM counters") == [(1,), (1,), (40,)]


def test_clock_that_jumps_a_day_expires_nothing(make_site: MakeSite) -> None:
    """The activity clock follows at most a minute a batch, so a jump of the clock leaves outcomes in place."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    site.milliseconds += 24 * HOUR
    site.apply(count("b"))
    assert site.apply(count("a"), keys=[key("1")]).bodies == [b"1"]


JUMPS_MS = {"an hour": HOUR, "a day": 24 * HOUR, "to 2040": 2_209_000_000_000 - START_MS}


@pytest.mark.parametrize("jump", JUMPS_MS)
def test_jump_of_the_clock_expires_no_key_and_locks_nobody_out(make_site: MakeSite, jump: str) -> None:
    """After a jump outcomes are still told, keys that bear the right time still run, and what expires later is not run again."""
    site = make_site(counters(), policy=POLICY)
    before, timed = key("before"), key_fingerprint("me", uuid7(START_MS, 1))
    first = site.apply(count("a"), count("b"), keys=[before, timed])
    real, again = site.milliseconds, first
    site.milliseconds += JUMPS_MS[jump]
    for step in range(1, 40):  # three minutes each: the window passes in the middle
        wait(site, 180_000)
        new = key_fingerprint("me", uuid7(real + step * 180_000, step))
        assert list(site.apply(count(f"c{step}"), keys=[new]).statuses) == [Status.OK], step
        again = site.apply(count("a"), count("b"), keys=[before, timed])
        if step * 180_000 < HOUR - 60_000:
            assert again.bodies == first.bodies
            assert list(again.txn_ids) == list(first.txn_ids)
    assert list(again.statuses) == [Status.SESSION_EXPIRED] * 2
    assert dict(site.rows("SELECT name, value FROM counters WHERE name IN ('a', 'b')")) == {"a": 1, "b": 1}


def test_strobing_clock_expires_nothing(make_site: MakeSite) -> None:
    """Transaction ids that stand still and leap in turns let the activity clock run as far as batches and a minute each allow."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    for leap in (0, 10 * HOUR) * 25:
        site.milliseconds += leap
        assert site.apply(count("a"), keys=[key("1")]).bodies == [b"1"]
    assert site.state.clock <= (25 + 2) * 60_000


def test_key_of_the_past_that_was_never_seen_runs_once(make_site: MakeSite) -> None:
    """A client whose clock is years behind is served, and told the outcome again: only what was forgotten is refused."""
    site = make_site(counters(), policy=POLICY)
    past = key_fingerprint("me", uuid7(1_000_000))
    first = site.apply(count("a"), keys=[past])
    assert list(first.statuses) == [Status.OK]
    assert site.apply(count("a"), keys=[past]).bodies == first.bodies
    wait(site, HOUR + 120_000)
    assert list(site.apply(count("a"), keys=[past]).statuses) == [Status.SESSION_EXPIRED]
    assert site.rows("SELECT value FROM counters") == [(1,)]


def test_key_of_a_far_future_locks_nobody_out(make_site: MakeSite) -> None:
    """A client whose clock is years ahead is remembered like an opaque key, and forgotten without refusing the others' keys."""
    site = make_site(counters(), policy=POLICY)
    ahead = key_fingerprint("me", uuid7(START_MS + 1000 * 24 * HOUR))
    beyond = key_fingerprint("me", uuid7((1 << 48) - 1))
    site.apply(count("a"), count("a"), keys=[ahead, beyond])
    for until, wanted in ((HOUR + 120_000, Status.SESSION_EXPIRED), (HOUR, Status.SESSION_EXPIRED)):
        wait(site, until)
        assert list(site.apply(count("a"), count("a"), keys=[ahead, beyond]).statuses) == [wanted] * 2
    wait(site, 2 * HOUR)
    assert not list(site.executor._known.keys)
    assert list(site.apply(count("b"), keys=[key_fingerprint("me", uuid7(site.milliseconds))]).statuses) == [Status.OK]
    assert site.rows("SELECT value FROM counters WHERE name = 'a'") == [(2,)]


def test_floor_survives_a_restart(make_site: MakeSite) -> None:
    """A key that was forgotten because it bears its time is refused after the file was opened again, too."""
    site = make_site(counters(), policy=POLICY, name="floor.db")
    old = key_fingerprint("me", uuid7(START_MS))
    site.apply(count("a"), keys=[old])
    wait(site, HOUR + 120_000)
    assert not list(site.executor._known.keys)
    site.close()
    reopened = make_site(counters(), policy=POLICY, name="floor.db")
    assert list(reopened.apply(count("a"), keys=[old]).statuses) == [Status.SESSION_EXPIRED]


def note(number: int) -> tuple[str, dict[str, Any]]:
    """A call on all partitions, which cannot be run twice."""
    return "add_note", {"number": number, "text": "once"}


@pytest.mark.parametrize("wait_ms", [HOUR // 2, HOUR + 120_000, 3 * HOUR + 240_000, 30 * HOUR])
@pytest.mark.parametrize("name", ["opaque", uuid7(START_MS)])
def test_partitions_decide_alike_about_a_call_on_all_of_them(make_site: MakeSite, wait_ms: int, name: str) -> None:
    """A busy partition and an idle one give a repeated call the same answer at any time, or their copies would drift apart."""
    busy, idle = make_site(counters(), policy=POLICY), make_site(counters(), policy=POLICY, partition=1)
    once = key_fingerprint("me", name)
    for site in (busy, idle):
        site.apply(note(1), keys=[once])
    wait(busy, wait_ms)
    for attempt in range(3):
        idle.milliseconds = busy.milliseconds = max(busy.milliseconds, idle.milliseconds) + attempt
        answers = [site.apply(note(1), keys=[once]) for site in (busy, idle)]
        assert answers[0].statuses == answers[1].statuses
        assert answers[0].bodies == answers[1].bodies
    assert busy.rows("SELECT * FROM shared") == idle.rows("SELECT * FROM shared") == [(1, "once")]


def test_keys_of_calls_on_all_partitions_expire_by_such_calls(make_site: MakeSite) -> None:
    """Their window passes as such calls pass; then they are tombstones, then forgotten, on every partition at the same call."""
    sites = [make_site(counters(), policy=POLICY, partition=partition) for partition in range(2)]
    once = key("once")
    statuses = []
    for number in range(261):
        for site in sites:
            site.milliseconds = START_MS + number * 60_000
        if number % 10 == 0:
            wait(sites[0], 30_000)  # traffic of its own
            sites[1].milliseconds = sites[0].milliseconds
        call = note(0) if number % 20 == 0 else note(number)
        keys = [once] if number % 20 == 0 else None
        applied = [site.apply(call, keys=keys) for site in sites]
        assert applied[0].statuses == applied[1].statuses
        statuses += [applied[0].statuses[0]] if keys else []
    assert statuses[:5] == [Status.OK] * 4 + [Status.SESSION_EXPIRED]
    assert Status.FAILED in statuses  # forgotten, run again, and there is such a note already
    assert sites[0].rows("SELECT * FROM shared") == sites[1].rows("SELECT * FROM shared")


@pytest.mark.parametrize("everywhere", [False, True])
def test_floor_never_falls(make_site: MakeSite, everywhere: bool) -> None:
    """Keys of earlier times that are forgotten later, or in the same row, leave those of later times refused."""
    site, makes = make_site(counters(), policy=POLICY), note if everywhere else lambda number: count(f"c{number}")
    batches = [[0], [1], [2]] if everywhere else [[0, 1], [2]]
    keys = [key_fingerprint("me", uuid7(START_MS - number * 60_000)) for number in range(3)]
    for batch in batches:
        site.apply(*[makes(number) for number in batch], keys=[keys[number] for number in batch])
    for number in range(3, 66):
        site.milliseconds += 60_000
        site.apply(makes(number))
    assert not list(site.executor._known.keys)
    for number in range(3):
        assert list(site.apply(makes(number), keys=[keys[number]]).statuses) == [Status.SESSION_EXPIRED]


def test_full_table_lets_a_call_on_all_partitions_in(make_site: MakeSite) -> None:
    """Another partition may have room: such a call is never refused by one partition alone."""
    site = make_site(counters(), policy=POLICY)
    site.apply(*[count("a")] * 60, keys=[key(str(number)) for number in range(60)])
    assert list(site.apply(note(1), keys=[key("everywhere")]).statuses) == [Status.OK]
    assert site.apply(note(1), keys=[key("everywhere")]).bodies == [b"null"]


def test_one_key_of_two_kinds_of_call_runs_alike_everywhere(make_site: MakeSite) -> None:
    """The node keeps keys from wandering; should one do so, partitions do not decide by what only one of them knows."""
    site, other = make_site(counters(), policy=POLICY), make_site(counters(), policy=POLICY, partition=1)
    site.apply(count("a"), keys=[key("1")])
    other.apply(count("b"))
    applied = [each.apply(note(1), keys=[key("1")]) for each in (site, other)]
    assert applied[0].statuses == applied[1].statuses
    assert list(site.apply(count("a"), keys=[key("1")]).statuses) == [Status.KEY_REUSED]
    wait(site, 3 * HOUR + 240_000)  # the single call's row is forgotten, the other key stays
    assert site.apply(note(1), keys=[key("1")]).bodies == [b"null"]


@pytest.mark.parametrize("reopen", [False, True])
def test_key_that_a_call_on_all_partitions_used_again_is_known_behind_it(make_site: MakeSite, reopen: bool) -> None:
    """When a shorter window forgets the later use of a key first, the earlier call still answers, with and without a restart."""
    site = make_site(counters(), name="hidden.db", policy=POLICY)
    first = site.apply(count("a"), keys=[key("both")])
    short = replace(POLICY, window_ms=1000, forget_ms=1000)
    site.executor.key_policy = short
    site.apply(("add_note", {"number": 1, "text": "later"}), keys=[key("both")])
    for number in range(2, 8):
        site.milliseconds += 1500
        site.apply(("add_note", {"number": number, "text": "time passes"}), keys=[key(f"other {number}")])
    if reopen:
        site.close()
        site = make_site(counters(), name="hidden.db", policy=short)
    again = site.apply(count("a"), keys=[key("both")])
    assert (again.bodies, list(again.txn_ids)) == (first.bodies, list(first.txn_ids))
    assert site.rows("SELECT value FROM counters") == [(1,)]


def test_states_that_differ_in_a_key_differ_in_every_later_digest(make_site: MakeSite) -> None:
    """A key that one replica lost, or that has another outcome, shows in the next batch's digest, whatever that batch does."""
    sites = [make_site(counters(), policy=POLICY) for _ in range(3)]
    firsts = [site.apply(count("a"), ("refuse", {"name": "a"}), keys=[key("1"), key("2")]) for site in sites]
    assert len({site.apply(count("b")).rows_digest for site in sites}) == 1
    assert firsts[0].rows_digest == firsts[1].rows_digest != 0
    path = sites[0].path
    sites[0].close()
    lost = PartitionState.open(path, partition=0)
    lost.connection.execute("UPDATE _cmdlog_keys SET keys = substr(keys, 1, 16)")
    lost.close()
    sites[0] = make_site(counters(), policy=POLICY, name=path.name)
    digests = [site.apply(count("b")).rows_digest for site in sites]
    assert digests[0] != digests[1] == digests[2]


def test_images_that_differ_in_a_key_differ_in_their_manifests(make_site: MakeSite) -> None:
    """What a snapshot says of its tables tells two states apart that differ in a key alone."""
    digests = []
    for name in ("1", "1", "2"):
        site = make_site(counters(), policy=POLICY)
        site.apply(count("a"), keys=[key(name)])
        digests.append(table_digests(site.state.connection))
    assert digests[0] == digests[1] != digests[2]
    assert {name for name, digest in digests[0].items() if digest != digests[2][name]} == {"_cmdlog_keys"}


def test_digest_covers_what_a_batch_stores(make_site: MakeSite) -> None:
    """The same rows with another key, or under none, give another digest."""
    sites = [make_site(counters(), policy=POLICY) for _ in range(3)]
    keys = ([key("1")], [key("2")], None)
    digests = {site.apply(count("a"), keys=given).rows_digest for site, given in zip(sites, keys, strict=True)}
    assert len(digests) == 3


def test_digest_is_that_of_the_rows_as_long_as_no_key_is_known(make_site: MakeSite) -> None:
    """A state that never saw a key, and one that has forgotten all of them, have nothing to add."""
    plain, keyed = make_site(counters(), policy=POLICY), make_site(counters(), policy=POLICY)
    keyed.apply(count("a"), keys=[key("1")])
    plain.apply(count("a"))
    assert keyed.apply(count("a")).rows_digest != plain.apply(count("a")).rows_digest
    wait(keyed, 4 * HOUR)
    plain.milliseconds = keyed.milliseconds
    assert not list(keyed.executor._known.keys)
    assert keyed.apply(count("a")).rows_digest == plain.apply(count("a")).rows_digest


def test_digest_is_the_same_after_a_restart_at_any_moment(tmp_path: Path) -> None:
    """What is kept up to date in memory is what the rows of the file give, through expiry and for both kinds of calls."""
    site = Site(tmp_path / "digest.db", counters(), policy=POLICY)
    kept = site.executor._known.keys
    for number in range(60):
        wait(site, 7 * 60_000)
        name = uuid7(site.milliseconds, number) if number % 3 else f"k{number % 11}"
        call = note(number) if number % 5 == 0 else count(name)
        site.apply(call, keys=[key_fingerprint("me", name)])
        again = KeyTable(site.state, POLICY)
        assert (again.digest, dict(again._known)) == (kept.digest, dict(kept._known)), number
        assert again._figures == kept._figures
    assert kept._figures.floor > 0
    site.close()


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
    wait(site, 2 * HOUR + 120_000)
    assert list(site.apply(count("new"), keys=[key("new")]).statuses) == [Status.OK]
    assert len(list(site.executor._known.keys)) == 1


def test_flood_of_keys_that_bear_their_time_drains_after_the_window(make_site: MakeSite) -> None:
    """A table full of UUIDv7 keys takes new ones when the window has passed; refused calls alone let time pass."""
    site = make_site(counters(), policy=POLICY)

    def flood() -> list[int]:
        calls = [count("a")] * 60
        return list(site.apply(*calls, keys=[key_fingerprint("me", uuid7(site.milliseconds, n)) for n in range(60)]).statuses)

    assert flood().count(Status.OK) == 50
    refused = 0
    while flood()[0] == Status.SESSIONS_FULL:
        site.milliseconds += 59_999
        refused += 1
    assert HOUR // 60_000 <= refused <= HOUR // 60_000 + 3


def test_refusals_are_not_stored(make_site: MakeSite) -> None:
    """KEY_REUSED, SESSION_EXPIRED and SESSIONS_FULL leave nothing behind under their keys."""
    site = make_site(counters(), policy=POLICY)
    site.apply(count("a"), keys=[key("1")])
    known = set(site.executor._known.keys)
    assert list(site.apply(count("a", 5), keys=[key("1")]).statuses) == [Status.KEY_REUSED]
    assert set(site.executor._known.keys) == known
    old = key_fingerprint("me", uuid7(START_MS))
    site.apply(count("a"), keys=[old])
    wait(site, HOUR + 120_000)
    known = set(site.executor._known.keys)
    assert list(site.apply(count("a"), count("a"), keys=[key("1"), old]).statuses) == [Status.SESSION_EXPIRED] * 2
    assert set(site.executor._known.keys) == known
    site.apply(*[count("b")] * 60, keys=[key(f"many {number}") for number in range(60)])
    known = set(site.executor._known.keys)
    assert len(known) == POLICY.keys_max
    assert list(site.apply(count("a"), keys=[key("one more")]).statuses) == [Status.SESSIONS_FULL]
    assert set(site.executor._known.keys) == known


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


@pytest.mark.slow
def test_many_keys_are_loaded(tmp_path: Path) -> None:
    """A full table is in memory soon after the file is opened."""
    state = PartitionState.open(tmp_path / "many.db", partition=0)
    rows = (
        (index, 1, 0, b"".join(number.to_bytes(16) for number in range(index * 64 + 1, index * 64 + 65)), b"x" * 2000)
        for index in range(1, 1564)
    )
    with state.connection:
        state.connection.executemany("INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, ?)", rows)
    table = KeyTable(state, KeyPolicy())
    state.close()
    assert len(table) == 100_032
