"""Calls placed many at a time: each goes where it would go by itself, and gets the reply that it would get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.outcome import CallOutcome, CallRefused, CodeChanged, Done, Durability, Overloaded, Reply
from cmdlog.node.placing.key_owners import make_owners
from cmdlog.node.placing.router import BoundCode, Placed, Router
from cmdlog.node.placing.session_owners import EXPIRED, FULL
from cmdlog.node.sequencing.flight import CallRow
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import Route, make_routes
from cmdlog.node.telemetry.stage_timings import StageTimings
from procedures.idempotency.known_outcome import Status
from procedures.idempotency.session_calls import sent_name
from procedures.wire.sent_request import SentParameters, call_text
from tests.node.apps.faulty import db

ROUTES = make_routes(db, 1)
OLD_ROUTES = make_routes(db, 0)
PARTITIONS = 3
SESSIONS = (b"a" * 16, b"b" * 16)


class Placings:
    """Stands for the sequencer: what was placed in each stream, in order."""

    def __init__(self) -> None:
        self.streams: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
        self.many = 0  # calls that came together
        self.refusal: CallRefused | None = None
        self.catalog = 1  # of the code that runs
        self.reads = self.intake = self

    def check(self, catalog: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        if catalog != self.catalog:
            raise CodeChanged("other code runs")

    def add(self, partition: int, procedure: int, params: bytes, key: bytes, done: Done, *, lax: bool, catalog: int) -> None:
        self.check(catalog)
        self.done = done
        self.streams[partition].append((procedure, params, key, lax))

    def add_many(self, calls: Sequence[CallRow], *, catalog: int) -> None:
        self.check(catalog)
        self.many += len(calls)
        for partition, procedure, params, key, _, lax in calls:
            self.streams[partition].append((procedure, params, key, lax))

    def add_everywhere(
        self, procedure: int, params: bytes, key: bytes, dones: Sequence[Done], *, lax: bool, catalog: int
    ) -> None:
        self.check(catalog)
        for stream in self.streams:
            stream.append((procedure, params, key, lax))

    def place(self, partition: int, ident: int, calls: bytes, done: Done, *, procedure: int, lax: bool) -> None:
        self.streams[partition].append(("read", calls, procedure, lax))


class Setting:
    """A router before such a sequencer."""

    def __init__(self) -> None:
        settings = Settings(partitions=PARTITIONS, call_bytes_max=1024)
        self.sequencer = Placings()
        sequencer: Any = self.sequencer
        keys = make_owners(settings, lambda: 0.0)
        meter = StageTimings([route.name for route in ROUTES.values()], partitions=PARTITIONS)
        self.router = Router(settings, sequencer, keys, meter, BoundCode(db, meter, catalog=1))
        self.replies: dict[int, Reply] = {}

    def call(self, number: int, fields: tuple[Route, list[Any], bytes, Durability | None]) -> Placed:
        route, params, key, durability = fields
        return route, params, key, self.done(number), durability

    def done(self, number: int) -> Callable[[Reply], None]:
        return lambda reply: self.replies.__setitem__(number, reply)

    @property
    def seen(self) -> dict[int, object]:
        """Replies, as what a caller sees of them."""
        return {
            number: reply if isinstance(reply, CallOutcome) else (type(reply), str(reply))
            for number, reply in self.replies.items()
        }


KEYS = st.sampled_from(
    [
        b"",
        b"k" * 16,
        b"l" * 16,
        *[sent_name(session, number, floor) for session in SESSIONS for number in (2, 3) for floor in (0, 1)],
    ]
)
PARAMS = st.sampled_from([[1, 1], [2, 5], [30, 1], [4, 10**15]])
ONE = st.tuples(st.just(ROUTES["bump"]), PARAMS, KEYS, st.sampled_from([None, "sync", "async"]))
KINDS = ONE | st.tuples(st.just(ROUTES["peek"]), st.just([1]), st.just(b""), st.none())


@given(st.lists(ONE, min_size=1, max_size=8) | st.lists(KINDS, min_size=1, max_size=8))
def test_calls_go_where_each_would_go_alone(calls: list[tuple[Route, list[Any], bytes, Durability | None]]) -> None:
    """In the same order, under the same names, with the same promises; names that belong to other partitions are refused."""
    alone, together = Setting(), Setting()
    for number, fields in enumerate(calls):
        route, params, key, done, durability = alone.call(number, fields)
        alone.router.place(route, params, key, done, durability)
    together.router.place_many([together.call(number, fields) for number, fields in enumerate(calls)])
    assert together.sequencer.streams == alone.sequencer.streams
    assert together.seen == alone.seen


@pytest.mark.parametrize("key", [b"", b"s"])
def test_usual_calls_come_together(key: bytes) -> None:
    """With no name, or each with a number of a session: the sequencer is asked once."""
    setting = Setting()
    calls = [setting.call(at, (ROUTES["bump"], [at, 1], key and sent_name(key * 16, at + 1, 0), None)) for at in range(9)]
    setting.router.place_many(calls)
    assert setting.sequencer.many == 9
    assert sum(map(len, setting.sequencer.streams)) == 9


@pytest.mark.parametrize("keys", [[b"", b""], [sent_name(SESSIONS[0], 1, 0), sent_name(SESSIONS[0], 2, 0)], [b"k" * 16, b""]])
def test_refusal_of_all_is_raised(keys: list[bytes]) -> None:
    """Nothing was placed, and the names may be used again."""
    setting = Setting()
    setting.sequencer.refusal = Overloaded("many")
    calls = [setting.call(at, (ROUTES["bump"], [1, 1], key, None)) for at, key in enumerate(keys)]
    with pytest.raises(Overloaded):
        setting.router.place_many(calls)
    assert len(setting.router.keys) == 0
    setting.sequencer.refusal = None
    setting.router.place_many(calls)
    assert setting.replies == {}
    assert sum(map(len, setting.sequencer.streams)) == 2


@pytest.mark.parametrize(("name", "params"), [("bump", [1, 1]), ("set_rate", ["r", 1])], ids=["one", "all"])
def test_refused_call_gives_its_key_back(name: str, params: list[Any]) -> None:
    """A flood of refusals fills no table, and the key may be used for another call."""
    setting = Setting()
    setting.sequencer.refusal = Overloaded("many")
    with pytest.raises(Overloaded):
        setting.router.place(ROUTES[name], params, b"k" * 16, setting.done(0), None)
    assert len(setting.router.keys) == 0
    setting.sequencer.refusal = None
    setting.router.place(ROUTES[name], params, b"k" * 16, setting.done(0), None)
    assert len(setting.router.keys) == 1


@pytest.mark.parametrize(("status", "kept"), [(Status.OK, 1), (Status.KEY_REUSED, 1), (Status.SESSIONS_FULL, 0)])
def test_key_of_which_nothing_was_stored_is_free(status: Status, kept: int) -> None:
    """As the answer says."""
    setting = Setting()
    setting.router.place(ROUTES["bump"], [1, 1], b"k" * 16, setting.done(0), None)
    setting.sequencer.done(CallOutcome(status, 1, b""))
    assert len(setting.router.keys) == kept


@pytest.mark.parametrize(
    ("owner", "status"), [(FULL, Status.SESSIONS_FULL), (EXPIRED, Status.SESSION_EXPIRED), (PARTITIONS, Status.KEY_REUSED)]
)
def test_name_that_is_not_free_says_why(owner: int, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full table comes free again, an expired name never does, and another partition's belongs to another call."""
    setting = Setting()
    monkeypatch.setattr(setting.router.keys, "claim", lambda *_: owner)
    setting.router.place(ROUTES["bump"], [1, 1], b"k" * 16, setting.done(0), None)
    assert isinstance(reply := setting.replies[0], CallOutcome)
    assert reply.status == status


def test_call_with_a_name_bears_the_hash_of_what_its_caller_sent() -> None:
    """Where the code has added to that, such as a default that is made: by the hash a retry is known again."""
    params = SentParameters("bump", ["id", "amount"], {"id": 1}, [1, 1])
    for key, text in ((b"k" * 16, call_text(params)), (b"", b"[1,1]")):
        setting = Setting()
        setting.router.place(ROUTES["bump"], params, key, setting.done(0), None)
        setting.router.place_many([setting.call(1, (ROUTES["bump"], params, key, None))])
        assert [logged for stream in setting.sequencer.streams for _, logged, *_ in stream] == [text, text]


def test_calls_of_replaced_code_are_bound_once_more() -> None:
    """Where both versions declare the procedure alike."""
    setting = Setting()
    calls = [setting.call(at, (OLD_ROUTES["bump"], [1, at], sent_name(SESSIONS[0], at + 1, 0), None)) for at in range(3)]
    setting.router.place_many(calls)
    assert setting.replies == {}
    assert sum(map(len, setting.sequencer.streams)) == 3


def test_no_calls_are_placed_as_none() -> None:
    """A frame all of whose calls were answered before."""
    setting = Setting()
    assert setting.router.place_many([]) == []
    assert sum(map(len, setting.sequencer.streams)) == 0
