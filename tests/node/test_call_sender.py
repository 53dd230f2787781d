"""Calls on their way to the leader: what leaves, and what becomes of them when the link does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest

from cmdlog.cluster.forwarding.call_link import LinkOver, OutgoingCall, WindowFull
from cmdlog.cluster.forwarding.call_rows import NO_KEY
from cmdlog.node.forwarding.call_sender import CallSender, WaitingCaller
from cmdlog.node.forwarding.forwarded_calls import name_of
from cmdlog.node.outcome import CallOutcome, CallTooLarge, Durability, NoLeader, NotLeading, Overloaded, Reply, UnknownOutcome
from cmdlog.node.placing.router import Placed
from cmdlog.node.slot_map import SlotMap, make_routes
from procedures import Database, Transaction
from procedures.wire.sent_request import SentParameters, call_text
from tests.node.apps.faulty import db

ROUTES, SLOTS = make_routes(db), SlotMap(4)
LEADER = NotLeading("node 2 leads", "http://node2", 2)


class Line:
    """A link that keeps what it is given, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.sent = error, list[OutgoingCall[WaitingCaller]]()

    def send(self, node: int, calls: Sequence[OutgoingCall[WaitingCaller]]) -> None:
        assert node == 2
        if self.error is not None:
            raise self.error
        self.sent += calls


def a_call(replies: list[Reply], name: str = "bump", durability: Durability | None = None, /, **params: object) -> Placed:
    """As the HTTP layer has bound it."""
    route = ROUTES[name]
    return route, route.procedure.bind(params or {"id": 5, "amount": 1}), b"k" * 16, replies.append, durability


def test_call_leaves_as_it_will_be_logged() -> None:
    """Parameters as JSON, the slot that every node computes, the key, the promise, the transaction seen."""
    line, sender = Line(), CallSender(SLOTS, call_bytes_max=1000)
    replies: list[Reply] = []
    given = [a_call(replies), a_call(replies, "set_rate", "async", name="x", value=1)]
    (partition, nowhere) = sender.send(LEADER, given, line.send, txn=77)
    route, params = given[0][:2]
    assert (partition, nowhere) == (SLOTS.partition_of(route.procedure, params), None)
    one, two = line.sent
    assert (one.name, one.params, one.key, one.txn, one.promise) == (name_of(route), orjson.dumps(params), b"k" * 16, 77, 0)
    assert SLOTS.partition_by_slot[one.slot] == partition
    assert (two.slot, two.promise) == (0, 2)
    sender.answered(one.done, 0, 9, b"3", b"")
    assert replies == [CallOutcome(0, 9, b"3")]


def test_call_with_a_key_bears_the_hash_of_what_its_caller_sent() -> None:
    """As it will be logged: a retry is known by it, at whichever node."""
    line, sender = Line(), CallSender(SLOTS, call_bytes_max=1000)
    params = SentParameters("bump", ["id", "amount"], {"id": 1}, [1, 1])
    sender.send(LEADER, [(ROUTES["bump"], params, b"k" * 16, list[Reply]().append, None)], line.send)
    assert line.sent[0].params == call_text(params)


def test_call_without_a_key_has_none() -> None:
    """And without a transaction 0."""
    line = Line()
    route, params, _, done, durability = a_call([])
    CallSender(SLOTS, call_bytes_max=1000).send(LEADER, [(route, params, b"", done, durability)], line.send)
    assert (line.sent[0].key, line.sent[0].txn) == (NO_KEY, 0)


@pytest.mark.parametrize(("error", "refusal", "code"), [
    (WindowFull("full"), Overloaded, "not_ready"), (LinkOver("gone"), NoLeader, "no_quorum"),
])  # fmt: skip
def test_call_that_cannot_leave_is_refused(error: Exception, refusal: type[Exception], code: str) -> None:
    """Raised, so that a stream of calls waits or goes on; nobody is told besides."""
    replies: list[Reply] = []
    with pytest.raises(refusal) as raised:
        CallSender(SLOTS, call_bytes_max=1000).send(LEADER, [a_call(replies)] * 2, Line(error).send)
    assert raised.value.code == code  # type: ignore[attr-defined]
    assert raised.value.retry_after_s  # type: ignore[attr-defined]
    assert replies == []


def test_name_follows_the_code_that_calls_are_bound_to() -> None:
    """A procedure that is declared otherwise from now on is another name, on the same link."""
    line, sender = Line(), CallSender(SLOTS, call_bytes_max=1000)
    route, params, key, done, durability = a_call([])
    later = replace(route, read_only=True)
    for bound in (route, later, route):
        sender.send(LEADER, [(bound, params, key, done, durability)], line.send)
    assert [call.name for call in line.sent] == [name_of(route), name_of(later), name_of(route)]


def test_call_that_is_too_large_stays_here() -> None:
    """Alone it is raised; beside others only its caller is told."""
    line, sender = Line(), CallSender(SLOTS, call_bytes_max=40)
    replies: list[Reply] = []
    large = a_call(replies, "set_rate", name="x" * 100, value=1)
    with pytest.raises(CallTooLarge):
        sender.send(LEADER, [large], line.send)
    sender.send(LEADER, [a_call([]), large], line.send)
    assert len(line.sent) == 1
    assert [type(reply) for reply in replies] == [CallTooLarge]
    sender.send(LEADER, [large, large], line.send)
    assert [type(reply) for reply in replies] == [CallTooLarge] * 3


@pytest.mark.parametrize(("name", "sent", "kind"), [
    ("bump", True, UnknownOutcome), ("bump", False, NoLeader), ("peek", True, NoLeader), ("peek", False, NoLeader),
])  # fmt: skip
def test_lost_call_is_unknown_only_if_it_was_sent_and_writes(name: str, sent: bool, kind: type[Reply]) -> None:
    """Everything else is safe to repeat, and says so."""
    line, sender = Line(), CallSender(SLOTS, call_bytes_max=1000)
    replies: list[Reply] = []
    params = {"id": 5, "amount": 1} if name == "bump" else {"id": 5}
    sender.send(LEADER, [a_call(replies, name, **params)], line.send)
    sender.lost(line.sent[0].done, "the link was cut", sent=sent)
    assert [type(reply) for reply in replies] == [kind]


def test_declaration_names_what_a_caller_has_to_know() -> None:
    """Another parameter, another type, another partitioning or another kind of call: another name. Another body: the same."""

    def declared(**options: object) -> bytes:
        made = Database("made")
        add = {"by": "id", "kind": int, "read_only": False, **options}

        def act(tx: Transaction, id: int, other: int) -> int:  # noqa: A002 - a column's name
            return 0

        act.__annotations__["other"] = add["kind"]
        made.procedure(partition_by=add["by"], read_only=add["read_only"])(act)  # type: ignore[call-overload]
        return name_of(make_routes(made)["act"]).shape

    shapes = [declared(), declared(kind=str), declared(by="other"), declared(by=None), declared(read_only=True)]
    assert len(set(shapes)) == len(shapes)
    assert declared() == shapes[0]
