"""Calls that another node has sent: placed by this one, or refused as it refuses its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from cmdlog.api.gate.problem import of_outcome, of_refused
from cmdlog.cluster.forwarding.call_rows import REFUSED, AnswerRow, CallColumns, CallName
from cmdlog.node.clock import ClockAhead
from cmdlog.node.forwarding.forwarded_calls import (
    KINDS,
    ForwardedCalls,
    OtherDeclaration,
    Placing,
    TxnAhead,
    decode_reply,
    encode_reply,
    name_of,
)
from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    CodeChanged,
    DiskFullRefusal,
    LogFullRefusal,
    MigratingRefusal,
    NoLeader,
    NotLeading,
    NotReady,
    Overloaded,
    Reply,
    UnknownOutcome,
)
from cmdlog.node.placing.router import Encoded
from cmdlog.node.slot_map import SlotMap, make_routes
from cmdlog.wal.errors import WalError
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import Status
from procedures.wire.result_json import RESULT_BYTES_MAX
from tests.node.apps.faulty import db

TRACE = FailureTrace(7, "bump", "shop.py", 12, "bump", "LookupError: gone", "Traceback ...", "look elsewhere")
REFUSALS = [
    NotReady("starting"), Overloaded("too many"), LogFullRefusal("full"), DiskFullRefusal("full"), CallTooLarge("large"),
    UnknownOutcome("gone"), NoLeader("none"), NotLeading("other", "http://there", 2), NotLeading("stopping"),
    OtherDeclaration("other code"), TxnAhead("transaction id 9 is 8 ms ahead"), CodeChanged("deployed"),
    MigratingRefusal("tables change"),
]  # fmt: skip


def passed(reply: Reply, trace: FailureTrace | None = None) -> Reply:
    """As it arrives."""
    row = encode_reply(1, reply, trace)
    return decode_reply(*row[1:])


@pytest.mark.parametrize("status", list(Status))
def test_every_outcome_passes(status: Status) -> None:
    """Status, transaction, and the body as the bytes that it is."""
    outcome = CallOutcome(status, 2**62, b'{"some": "bytes"}')
    assert encode_reply(1, outcome) == AnswerRow(1, status, 2**62, outcome.body, b"")
    assert passed(outcome) == outcome


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
def test_every_refusal_passes(refusal: CallRefused) -> None:
    """Its class, and so code, status, retry and members of the problem."""
    arrived = passed(refusal)
    assert type(arrived) is type(refusal)
    assert isinstance(arrived, CallRefused)
    ours, theirs = of_refused(refusal), of_refused(arrived)
    assert (ours.members(), ours.retry_after_s) == (theirs.members(), theirs.retry_after_s)
    assert str(arrived.again()) == str(refusal)


def test_no_kind_of_refusal_is_forgotten() -> None:
    """Every class that a node refuses with is in the table."""

    def below(kind: type[CallRefused]) -> set[type[CallRefused]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    assert {kind for kind in below(CallRefused) if kind.__module__.startswith("cmdlog.")} - {CallRefused} == set(KINDS.values())


def test_refusal_of_a_newer_program_is_an_unknown_outcome() -> None:
    """Its promise is not known here, so none is made."""
    arrived = decode_reply(REFUSED, 0, orjson.dumps({"kind": "FromTheFuture", "text": "why"}), b"")
    assert type(arrived) is UnknownOutcome


def test_place_of_a_failure_passes() -> None:
    """So the problem that a caller reads has the same file, line and hint."""
    outcome = CallOutcome(Status.FAILED, 7, b'{"type":"LookupError","message":"gone"}')
    arrived = passed(outcome, TRACE)
    assert isinstance(arrived, CallOutcome)
    assert arrived.trace == TRACE
    assert of_outcome(arrived, arrived.trace).members() == of_outcome(outcome, TRACE).members()


def test_result_that_no_frame_holds_is_an_unknown_outcome() -> None:
    """Of many partitions together; one partition's largest passes."""
    assert passed(CallOutcome(0, 7, bytes(RESULT_BYTES_MAX))) == CallOutcome(0, 7, bytes(RESULT_BYTES_MAX))
    arrived = passed(CallOutcome(0, 7, bytes(2 * RESULT_BYTES_MAX)))
    assert type(arrived) is UnknownOutcome
    assert "transaction 7" in str(arrived)


ROUTES, SLOTS = make_routes(db), SlotMap(4)
AHEAD = 1000


def columns(procedures: list[int], **row: Any) -> CallColumns:
    """Calls of these procedures that are alike otherwise."""
    return CallColumns(procedures, *[[value] * len(procedures) for value in row.values()])


class Leader:
    """What a node gives; remembers what it is asked."""

    def __init__(self) -> None:
        self.placed: list[Encoded] = []
        self.observed: list[int] = []
        self.asked: list[Callable[[bool], None]] = []
        self.error: Exception | None = None
        self.routes = ROUTES
        gives = Placing(self.place, self.asked.append, self.observe, lambda outcome: TRACE if outcome.txn_id == 7 else None)
        self.calls = ForwardedCalls(gives, lambda: self.routes, SLOTS.partition_by_slot)

    def place(self, calls: Sequence[Encoded]) -> None:
        if self.error is not None:
            raise self.error
        self.placed += calls

    def observe(self, txn: int) -> None:
        if txn >= AHEAD:
            raise ClockAhead(f"transaction id {txn} is ahead")
        self.observed.append(txn)

    def take(self, *names: str, **fields: Any) -> list[Reply]:
        """One frame; the replies that were given at once."""
        replies: list[Reply] = []
        row = {"slot": 9, "promise": 0, "key": b"", "txn": 0, "params": b"[1,2]", **fields}
        found = [self.calls.find(name_of(ROUTES[name])) for name in names]
        self.calls.place(found, columns(list(range(len(names))), **row), [replies.append] * len(names))
        return replies


def test_call_is_placed_as_it_came() -> None:
    """On the slot's partition, with its parameters, key and promise; a call on all has none."""
    leader = Leader()
    assert leader.take("bump", "set_rate", key=b"k" * 16, promise=2) == []
    one, everywhere = leader.placed
    assert one[:4] == (ROUTES["bump"], SLOTS.partition_by_slot[9], b"[1,2]", b"k" * 16)
    assert one[5] == "async"
    assert everywhere[1] == -1
    leader.take("bump")
    assert leader.placed[-1][3] == b"", "no key"


def test_transaction_seen_is_observed_first() -> None:
    """One that is too far ahead refuses its own call alone, as `Cmdlog-Txn` does at the leader."""
    leader = Leader()
    leader.take("bump", txn=5)
    assert leader.observed == [5]
    (refusal,) = leader.take("bump", txn=AHEAD)
    assert isinstance(refusal, TxnAhead)
    assert refusal.code == "invalid_parameters"
    assert refusal.more()["problems"][0]["field"] == "Cmdlog-Txn"
    assert len(leader.placed) == 1


def test_reads_of_a_frame_are_confirmed_together() -> None:
    """And placed after that; if another node may lead, they are refused as safe to repeat."""
    leader = Leader()
    assert leader.take("peek", "bump", "peek") == []
    assert [call[0].name for call in leader.placed] == ["bump"]
    (confirmed,) = leader.asked
    confirmed(True)
    assert [call[0].name for call in leader.placed] == ["bump", "peek", "peek"]
    refused = leader.take("peek", "peek")
    leader.asked[-1](False)
    assert [type(reply) for reply in refused] == [NoLeader] * 2


def test_reads_that_may_not_even_wait_are_refused() -> None:
    """A node bounds how many reads wait for a majority: each caller hears of it, and the link lives on."""
    leader = Leader()

    def too_many(_read: Callable[[bool], None]) -> None:
        raise Overloaded("reads wait to be confirmed")

    gives = Placing(leader.place, too_many, leader.observe, lambda _outcome: None)
    leader.calls = ForwardedCalls(gives, lambda: leader.routes, SLOTS.partition_by_slot)
    assert [type(reply) for reply in leader.take("peek", "bump", "peek")] == [Overloaded] * 2
    assert [call[0].name for call in leader.placed] == ["bump"]


@pytest.mark.parametrize("error", [NotLeading("other", "http://there", 3), LogFullRefusal("full"), Overloaded("many")])
def test_refusal_of_the_node_is_the_caller_s(error: Exception) -> None:
    """Each gets one of its own; a node that does not lead sends nothing on."""
    leader = Leader()
    leader.error = error
    replies = leader.take("bump", "bump")
    assert [(type(reply), str(reply)) for reply in replies] == [(type(error), str(error))] * 2
    assert replies[0] is not replies[1]


def test_log_that_fails_leaves_the_outcome_unknown() -> None:
    """As it does for callers of the leader."""
    leader = Leader()
    leader.error = WalError("the disk is gone")
    assert [type(reply) for reply in leader.take("bump")] == [UnknownOutcome]


def test_other_code_is_refused_by_name() -> None:
    """A procedure that the leader lacks, or declares otherwise; the next call of a known one is placed."""
    leader = Leader()
    lacking = leader.calls.find(CallName(b"nobody_s", bytes(8)))
    otherwise = leader.calls.find(CallName(b"bump", bytes(8)))
    damaged = leader.calls.find(CallName(b"\xff\xfe", bytes(8)))
    for found, word in ((lacking, "nobody_s"), (otherwise, "otherwise"), (damaged, "no procedure")):
        replies: list[Reply] = []
        leader.calls.place([found], CallColumns([0], [0], [0], [b""], [0], [b"[]"]), [replies.append])
        assert isinstance(replies[0], OtherDeclaration)
        assert replies[0].code == "not_ready"
        assert word in str(replies[0])
    assert leader.placed == []
    leader.take("bump")
    assert len(leader.placed) == 1


def test_failure_leaves_with_its_place() -> None:
    """As long as the leader knows it."""
    leader = Leader()
    outcomes = [CallOutcome(Status.FAILED, 7, b"{}"), CallOutcome(Status.FAILED, 8, b"{}"), CallOutcome(Status.OK, 7, b"{}")]
    rows = leader.calls.encode(list(enumerate(outcomes)))
    assert [(row.call, row.status, row.txn, row.body) for row in rows] == [(at, *of[:3]) for at, of in enumerate(outcomes)]
    assert [bool(row.more) for row in rows] == [True, False, False]
    assert isinstance(leader.calls.busy("many"), Overloaded)
