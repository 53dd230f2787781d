"""Sessions of a client: numbers, floors, and when another session begins. A model says what the floor may be."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import uuid
from collections.abc import Callable
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cmdlog.client.session import (
    AGE_S_MAX,
    DATE_STEP_S,
    ClientSessions,
    KeyGenerator,
    NumberedCall,
    check_key,
    parse_name,
    time_of,
    uuid7,
)
from cmdlog.errors import InvalidParameters
from procedures.idempotency.known_outcome import holder_of, key_fingerprint, key_time_ms

NOW_S = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # NOW_S


class Times:
    """Clocks that the test moves."""

    def __init__(self) -> None:
        self.wall, self.running = NOW_S, 0.0


def make_sessions(times: Times | None = None, *, window: int = 4, pid: Callable[[], int] = os.getpid) -> ClientSessions:
    """Sessions with a small window, whose UUIDs differ by a counter."""
    times = times or Times()
    chance = itertools.count(1)
    return ClientSessions(
        wall=lambda: times.wall,
        clock=lambda: times.running,
        entropy=lambda size: next(chance).to_bytes(size),
        pid=pid,
        window=window,
    )


class FloorModel(RuleBasedStateMachine):
    """Any calls, answers and times. `under_way` holds what is not finished, by session; `unknown` what never will be."""

    @initialize(window=st.integers(1, 6))
    def begin(self, window: int) -> None:
        self.window, self.times = window, Times()
        self.sessions = make_sessions(self.times, window=window)
        self.given: dict[str, int] = {}  # the highest number
        self.under_way: list[NumberedCall] = []
        self.unknown: list[NumberedCall] = []
        self.ended: set[str] = set()

    @rule()
    def make_call(self) -> None:
        call = self.sessions.new()
        uuid = call.session.uuid
        assert call.number == self.given.get(uuid, 0) + 1, "each number is given once"
        assert call.session.floor < call.number <= call.session.floor + self.window
        assert uuid not in self.ended
        self.given[uuid] = call.number
        self.under_way.append(call)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.sessions.finish(self._pick(data))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        call = self._pick(data)
        self.sessions.finish(call, known=False)
        self.unknown.append(call)

    @precondition(lambda self: self.unknown)
    @rule(data=st.data())
    def ask_later(self, data: st.DataObject) -> None:
        call = self.unknown.pop(data.draw(st.integers(0, len(self.unknown) - 1)))
        again = self.sessions.named(str(call))
        assert again is not None
        assert (again.session.uuid, again.number) == (call.session.uuid, call.number)
        assert again.session.floor < again.number <= again.session.floor + self.window
        self.sessions.finish(again)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        call = self._pick(data)
        other = self.sessions.better(call, DATE)
        assert other is not None
        assert other.session.uuid != call.session.uuid
        assert other.number == self.given.get(other.session.uuid, 0) + 1
        self.given[other.session.uuid] = other.number
        self.under_way.append(other)

    @rule(seconds=st.sampled_from([1.0, AGE_S_MAX / 2, AGE_S_MAX + 1]))
    def pass_time(self, seconds: float) -> None:
        self.times.running += seconds
        self.times.wall += seconds

    @rule()
    def end(self) -> None:
        self._told_ended(self.sessions.pop_drained())

    def teardown(self) -> None:
        if hasattr(self, "sessions"):
            self._told_ended(self.sessions.close())

    def _told_ended(self, uuids: list[str]) -> None:
        assert self.ended.isdisjoint(uuids), "each is ended once"
        assert len(set(uuids)) == len(uuids)
        self.ended.update(uuids)
        waiting = {call.session.uuid for call in (*self.under_way, *self.unknown)}
        assert self.ended.isdisjoint(waiting), "nobody may ask for a call of a session that is ended"

    def _pick(self, data: st.DataObject) -> NumberedCall:
        return self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @invariant()
    def floor_is_below_what_may_be_asked_for(self) -> None:
        for call in (*getattr(self, "under_way", ()), *getattr(self, "unknown", ())):
            assert call.session.floor < call.number <= call.session.floor + self.window


FloorModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFloorModel = FloorModel.TestCase


def test_numbers_follow_each_other_and_the_floor_follows_the_answers() -> None:
    """One call after the other uses one session, and the floor is always the number before."""
    sessions = make_sessions()
    calls = []
    for _ in range(100):
        calls.append(sessions.new())
        assert calls[-1].header() == f"{calls[0].session.uuid}; number={len(calls)}; floor={len(calls) - 1}"
        sessions.finish(calls[-1])
    assert sessions.close() == [calls[0].session.uuid]
    assert sessions.close() == []


def test_floor_is_read_when_it_is_sent() -> None:
    """A retry brings the floor of its own time, not of the call's first attempt."""
    sessions = make_sessions()
    first, second = sessions.new(), sessions.new()
    assert second.header().endswith("number=2; floor=0")
    sessions.finish(first)
    assert second.header().endswith("number=2; floor=1")


def test_calls_beyond_the_window_use_another_session_until_there_is_room() -> None:
    """Ten calls at once in windows of four are in three sessions; as many later need no new one."""
    sessions = make_sessions()
    for _ in range(5):
        calls = [sessions.new() for _ in range(10)]
        for call in reversed(calls):
            sessions.finish(call)
    assert len(sessions._open) == 3
    assert len(sessions.close()) == 3


def test_unknown_outcome_holds_the_floor_and_is_left_behind() -> None:
    """Its session is used up to the window and then left, not ended, until the call was asked for again."""
    sessions = make_sessions()
    lost = sessions.new()
    sessions.finish(lost, known=False)
    calls = [sessions.new() for _ in range(8)]
    for call in calls:
        sessions.finish(call)
    assert lost.session.floor == 0
    assert len({call.session.uuid for call in calls}) == 3, "3 calls, then 4, then 1 in a session that is not full"
    assert sessions.pop_drained() == []
    again = sessions.named(f"session {lost.session.uuid}; number=1; floor=0")
    assert again == lost
    sessions.finish(lost)
    assert sessions.pop_drained() == [lost.session.uuid]


def test_session_of_fifteen_minutes_is_followed_by_another() -> None:
    """Calls under way keep their numbers; the old one is ended when the last of them is over."""
    times = Times()
    sessions = make_sessions(times)
    old = sessions.new()
    times.running += AGE_S_MAX + 1
    assert sessions.new().session is not old.session
    assert sessions.pop_drained() == []
    sessions.finish(old)
    assert sessions.has_drained
    assert sessions.pop_drained() == [old.session.uuid]
    assert not sessions.has_drained


@pytest.mark.parametrize("hours", [-1, 1])
def test_new_session_follows_the_clock_of_the_server(hours: int) -> None:
    """A session that expired at once is followed by one of the server's time, whether our clock is behind or ahead."""
    times = Times()
    times.wall += 3600 * hours
    sessions = make_sessions(times)
    refused = sessions.new()
    assert abs(time_of(refused.session.uuid) - NOW_S) == 3600
    moved = sessions.better(refused, DATE)
    assert moved is not None
    assert moved.session is not refused.session
    assert 0 <= time_of(moved.session.uuid) - NOW_S <= 2
    assert sessions.close() == [], "one has expired, the other has a call under way"


@pytest.mark.parametrize("date", ["", "no date", DATE])
def test_expired_session_is_followed_by_another_without_a_reason(date: str) -> None:
    """The server has forgotten it, whatever its clock says: calls of it that surely did not run go on in one new session."""
    sessions = make_sessions()
    first, second = sessions.new(), sessions.new()
    moved = [sessions.better(call, date) for call in (first, second)]
    assert all(call is not None for call in moved)
    assert len({call.session.uuid for call in moved if call is not None}) == 1
    assert sessions.better("a key", date) is None


def test_fork_begins_new_sessions() -> None:
    """The child neither uses nor ends its parent's, also if a thread of the parent held the lock."""
    pids = [1]
    sessions = make_sessions(pid=lambda: pids[0])
    call = sessions.new()
    sessions.finish(call)
    sessions._lock.acquire()
    pids[0] = 2
    assert sessions.close() == []
    assert sessions.new().session.uuid != call.session.uuid


def test_threads_never_share_a_number_nor_pass_one_that_is_open() -> None:
    """Eight threads switch as often as they can: at each moment the floor is below every open number of its session."""
    sessions, taken, wrong = make_sessions(window=16), list[tuple[str, int]](), list[str]()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def run() -> None:
        for at in range(400):
            call = sessions.new()
            taken.append((call.session.uuid, call.number))
            if not call.session.floor < call.number <= call.session.floor + 16:
                wrong.append(str(call))
            if at % 97 != 0:
                sessions.finish(call)
                continue
            sessions.finish(call, known=False)
            if not call.session.floor < call.number:
                wrong.append(str(call))

    try:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(set(taken)) == len(taken) == 3200


@given(st.integers(1, 2**64 - 2), st.integers(0, 2**64 - 2))
def test_text_of_a_call_names_it(number: int, floor: int) -> None:
    """What an error says stands for the call, with and without a floor; a foreign session is read as well."""
    uuid = "01890a5d-ac96-774b-bcce-b302099a8057"
    for text, expected in (
        (f"session {uuid}; number={number}", 0),
        (f"session {uuid.upper()}; number={number}; floor={floor}", floor),
    ):
        named = make_sessions().named(text)
        assert named is not None
        assert (named.session.uuid, named.number, named.session.floor) == (uuid, number, expected)


@pytest.mark.parametrize("text", ["order-1", "session", "session x; number=1", "session 01890a5d-ac96-774b-bcce-b302099a8057"])
def test_other_texts_are_keys(text: str) -> None:
    """Only the whole form is a call of a session."""
    assert parse_name(text) is None


def test_keys_of_their_own_need_no_end() -> None:
    """With `keys="single"` each call has another key; one of the past is followed by a better one."""
    names = KeyGenerator(wall=lambda: NOW_S - 7200)
    first = names.new()
    names.finish(first)
    better = names.better(first, DATE)
    assert better is not None
    assert len({first, better, names.new()}) == 3
    assert abs(time_of(better) - NOW_S) < 2


def test_new_key_is_a_uuid_of_version_7_that_bears_its_time() -> None:
    """The standard library and the server's own table both read the time in it; no two are alike."""
    keys = KeyGenerator(wall=lambda: 1_700_000_000.123)
    made = {keys.new() for _ in range(1000)}
    assert len(made) == 1000
    for key in made:
        assert (uuid.UUID(key).version, uuid.UUID(key).variant) == (7, uuid.RFC_4122)
        assert key_time_ms(key_fingerprint("", key)) == 1_700_000_000_123


def test_every_bit_of_chance_counts() -> None:
    """74 of the 80 bits are in the key: flipping any of them makes another one."""
    chance = bytes(10)
    flipped = {uuid7(1, (1 << bit).to_bytes(10)) for bit in range(80)} - {uuid7(1, chance)}
    assert len(flipped) == 74


def test_key_follows_the_servers_clock_when_ours_is_behind() -> None:
    """A machine two hours behind makes keys of the server's time from the first `Date` on; one that is ahead stays."""
    now = 1_700_000_000.0
    keys = KeyGenerator(wall=lambda: now)
    old, older = keys.new(), keys.new()
    assert keys.better(old, formatdate(now - 7200, usegmt=True)) is None
    assert keys.better(old, formatdate(now + 2, usegmt=True)) is None
    better = keys.better(old, formatdate(now + 7200, usegmt=True))
    also_better = keys.better(older, formatdate(now + 7200, usegmt=True))
    for key in (better, also_better, keys.new()):
        assert key is not None
        assert key_time_ms(key_fingerprint("", key)) == (now + 7200 + DATE_STEP_S) * 1000
        assert keys.better(key, formatdate(now + 7200, usegmt=True)) is None, "a second refusal is not the clock's fault"


@pytest.mark.parametrize("date", ["", "yesterday", "Tue, 99 Foo 2026 00:00:00 GMT"])
def test_date_that_is_none_teaches_nothing(date: str) -> None:
    """A header that cannot be read leaves the keys as they are."""
    keys = KeyGenerator()
    assert keys.better(keys.new(), date) is None


@pytest.mark.parametrize("key", ["", "ä", "a\nb", "a b", "x" * 256, "\x7f"])
def test_key_that_no_header_can_carry_is_refused(key: str) -> None:
    """It is the caller's mistake, found before anything is sent."""
    with pytest.raises(InvalidParameters):
        check_key(key)
    assert check_key("order-17!~") == "order-17!~"


def test_fingerprint_says_whose_it_is() -> None:
    """All of one credential's, dated or not, and of sessions; another one has another holder, and no key of the first."""
    keys = ["order-1", "order-2", uuid7(1_700_000_000_123, bytes(10)), str(uuid.uuid4())]
    holders = {scope: {holder_of(key_fingerprint(scope, key)) for key in keys} for scope in ("", "shop", "till")}
    assert [len(found) for found in holders.values()] == [1, 1, 1]
    assert len(set.union(*holders.values())) == 3
