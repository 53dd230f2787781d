"""Replies between nodes: whoever asks a follower reads what the leader says, word for word."""

from __future__ import annotations

import orjson
import pytest

from cmdlog.api.gate.problem import of_outcome, of_refused
from cmdlog.cluster.forwarding.call_rows import REFUSED, AnswerRow
from cmdlog.node.forwarding.forwarded_replies import KINDS, OtherDeclaration, TxnAhead, decode_reply, encode_reply
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
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import Status
from procedures.wire.result_json import RESULT_BYTES_MAX

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
