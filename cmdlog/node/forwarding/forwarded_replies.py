"""Replies as they pass between nodes: the caller of a follower gets what the leader would have said.

One rule: a refusal keeps its kind. One that this program does not know is `outcome_unknown`: doubt promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from cmdlog.cluster.forwarding.call_link import PARAMS_BYTES_MAX
from cmdlog.cluster.forwarding.call_rows import REFUSED, AnswerRow
from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    CodeChanged,
    DiskFullRefusal,
    LogFullRefusal,
    MigratingRefusal,
    NoLeader,
    NoMajority,
    NotLeading,
    NotReady,
    Overloaded,
    Reply,
    UnknownOutcome,
)
from cmdlog.wal.format.json_reader import read_document
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import Status


class OtherDeclaration(NotReady):
    """The leader's declaration of the procedure differs from that of the node that was called, or it has none."""


class TxnAhead(CallRefused):
    """The transaction that the caller has seen is too far ahead of the leader's clock."""

    code = "invalid_parameters"
    status = 422
    retry_after_s = None

    def more(self) -> dict[str, Any]:
        return {"problems": [{"field": "Cmdlog-Txn", "problem": str(self)}]}


KINDS: Final[Mapping[str, type[CallRefused]]] = {
    kind.__name__: kind
    for kind in (
        NotReady, Overloaded, LogFullRefusal, DiskFullRefusal, CallTooLarge, UnknownOutcome, NoLeader, NotLeading,
        NoMajority, CodeChanged, MigratingRefusal,
        OtherDeclaration, TxnAhead,
    )
}  # fmt: skip


def encode_reply(call: int, reply: Reply, trace: FailureTrace | None = None) -> AnswerRow:
    """A reply as a row; `trace` is where a procedure raised."""
    if isinstance(reply, CallOutcome):
        more = b"" if trace is None else orjson.dumps(_plain(trace))
        if len(reply.body) + len(more) <= PARAMS_BYTES_MAX:
            return AnswerRow(call, reply.status, reply.txn_id, reply.body, more)
        reply = UnknownOutcome(f"the result of transaction {reply.txn_id} is too large to pass between nodes: ask the leader")
    refusal: dict[str, Any] = {"kind": _kind_of(reply), "text": str(reply)}
    if isinstance(reply, NotLeading):
        refusal |= {"leader": reply.leader, "node": reply.node}
    return AnswerRow(call, REFUSED, 0, orjson.dumps(refusal), b"")


def encode_replies(replies: Sequence[tuple[int, Reply]], encode_one: Callable[[int, Reply], AnswerRow]) -> list[AnswerRow]:
    """A row for each, in their order; `encode_one` makes those that are more than an outcome with its result."""
    make, failed = tuple.__new__, Status.FAILED  # half the time of the class's own
    return [
        make(AnswerRow, (call, reply[0], reply[1], reply[2], b""))
        if type(reply) is CallOutcome and reply[0] != failed and len(reply[2]) <= PARAMS_BYTES_MAX
        else encode_one(call, reply)
        for call, reply in replies
    ]


def decode_reply(status: int, txn: int, body: bytes, more: bytes) -> Reply:
    """The inverse. What cannot be read is doubt, too: its caller is answered all the same."""
    try:
        if status != REFUSED:
            return CallOutcome(
                status, txn, body, FailureTrace(**read_document(more, bytes_max=PARAMS_BYTES_MAX)) if more else None
            )
        refusal = read_document(body, bytes_max=PARAMS_BYTES_MAX)
        kind = KINDS.get(refusal["kind"], UnknownOutcome)
        return NotLeading(refusal["text"], refusal["leader"], refusal["node"]) if kind is NotLeading else kind(refusal["text"])
    except (ValueError, KeyError, TypeError) as error:
        return UnknownOutcome(f"the answer of the leading node cannot be read ({type(error).__name__})")


def needs_trace(reply: Reply) -> bool:
    """Whether the procedure raised."""
    return isinstance(reply, CallOutcome) and reply.status == Status.FAILED


def _plain(trace: FailureTrace) -> dict[str, Any]:
    return {**asdict(trace), "raised": None}


def _kind_of(refusal: CallRefused) -> str:
    return next(kind.__name__ for kind in type(refusal).__mro__ if kind.__name__ in KINDS)
