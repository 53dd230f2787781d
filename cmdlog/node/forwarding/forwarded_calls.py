"""Calls that another node has sent, placed here: by the node that leads, and by no other.

One rule: a call that came by a link is placed or refused, never sent on. Its refusals are those that a caller of this node would
get, and say whether it is safe to repeat.

The caller of a follower gets what the leader would have said: a refusal keeps its kind. One that this program does not know is
`outcome_unknown`: doubt promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from cmdlog.cluster.forwarding.call_link import PARAMS_BYTES_MAX
from cmdlog.cluster.forwarding.call_rows import REFUSED, SHAPE_BYTES, AnswerRow, CallColumns, CallName
from cmdlog.node.clock import ClockAhead
from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    CodeChanged,
    DiskFullRefusal,
    Done,
    Durability,
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
from cmdlog.node.placing.router import Encoded
from cmdlog.node.slot_map import Route
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import WalError
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


def _plain(trace: FailureTrace) -> dict[str, Any]:
    return {**asdict(trace), "raised": None}


def _kind_of(refusal: CallRefused) -> str:
    return next(kind.__name__ for kind in type(refusal).__mro__ if kind.__name__ in KINDS)


DURABILITIES: Final[tuple[Durability | None, ...]] = (None, "sync", "async")


def name_of(route: Route) -> CallName:
    """What both ends must agree on to mean the same call: its name, and a digest of what its caller has to know."""
    procedure = route.procedure
    shape = [procedure.json_schema(), procedure.partition_by, procedure.each, route.read_only]
    return CallName(route.name.encode(), blake2b(orjson.dumps(shape), digest_size=SHAPE_BYTES, person=b"call shape").digest())


@dataclass(slots=True)
class FoundCall:
    """What a name of a link means here; looked up again when calls are bound to other code."""

    name: CallName
    routes: Mapping[str, Route]  # among which it was looked up
    route: Route | OtherDeclaration

    def route_in(self, routes: Mapping[str, Route]) -> Route | OtherDeclaration:
        """Its route among these."""
        if self.routes is not routes:
            self.routes, self.route = routes, _look_up(self.name, routes)
        return self.route


@dataclass(frozen=True, slots=True)
class Placing:
    """What a node gives."""

    place: Callable[[Sequence[Encoded]], None]  # all or none; raises CallRefused
    confirm_leads: Callable[[Callable[[bool], None]], None]  # asks a majority whether this node leads; raises CallRefused
    observe_txn: Callable[[int], None]  # later calls are ordered after this one; raises ClockAhead
    trace_of: Callable[[CallOutcome], FailureTrace | None]  # where a procedure raised


class ForwardedCalls:
    """`cmdlog.cluster.forwarding.call_receiver.CallPlacer` of a node."""

    def __init__(self, node: Placing, routes: Callable[[], Mapping[str, Route]], partition_by_slot: Sequence[int]) -> None:
        """`routes`: of the code that calls are bound to now."""
        self._node, self._routes, self._partition_by_slot = node, routes, partition_by_slot

    def find(self, name: CallName) -> FoundCall:
        routes = self._routes()
        return FoundCall(name, routes, _look_up(name, routes))

    def place(self, names: Sequence[FoundCall], calls: CallColumns, dones: Sequence[Done]) -> None:
        bound = self.bind_calls(names, calls, dones)
        if logged := [call for call in bound if not call[0].read_only]:
            self.place_bound(logged)
        if reads := [call for call in bound if call[0].read_only]:
            self._confirm(reads)

    def bind_calls(self, names: Sequence[FoundCall], calls: CallColumns, dones: Sequence[Done]) -> list[Encoded]:
        """Those that can be placed; the others are answered."""
        now = self._routes()
        found = {at: names[at].route_in(now) for at in set(calls.procedures)}
        known = {at: of for at, of in found.items() if isinstance(of, Route)}
        if any(calls.txns) or len(known) < len(found):
            rows = enumerate(zip(calls.procedures, calls.txns, dones, strict=True))
            placed = [position for position, (at, txn, done) in rows if self._may_place(found[at], txn, done)]
            calls, dones = calls.pick(placed), [dones[position] for position in placed]
        routes = [known[at] for at in calls.procedures]
        where, promises = self._partition_by_slot, DURABILITIES
        partitions = [-1 if route.everywhere else where[slot] for route, slot in zip(routes, calls.slots, strict=True)]
        return list(
            zip(routes, partitions, calls.params, calls.keys, dones, [promises[at] for at in calls.promises], strict=True)
        )

    def _may_place(self, found: Route | OtherDeclaration, txn: int, done: Done) -> bool:
        if isinstance(found, OtherDeclaration):
            done(found.again())
            return False
        if txn:
            try:
                self._node.observe_txn(txn)
            except ClockAhead as error:
                done(TxnAhead(str(error)))
                return False
        return True

    def busy(self, why: str) -> Reply:
        return Overloaded(why)

    def encode(self, replies: Sequence[tuple[int, Reply]]) -> list[AnswerRow]:
        return encode_replies(replies, self.encode_one)

    def encode_one(self, call: int, reply: Reply) -> AnswerRow:
        """A reply as a row, with what is known of its failure."""
        trace = self._node.trace_of(reply) if isinstance(reply, CallOutcome) and reply.status == Status.FAILED else None
        return encode_reply(call, reply, trace)

    def _confirm(self, reads: Sequence[Encoded]) -> None:
        """One question to a majority for all reads of a frame."""

        def confirmed(leads: bool) -> None:
            if leads:
                self.place_bound(reads)
            else:
                _refuse_all(reads, NoLeader("another node may lead by now; the read is safe to repeat"))

        try:
            self._node.confirm_leads(confirmed)
        except CallRefused as refusal:
            _refuse_all(reads, refusal)

    def place_bound(self, calls: Sequence[Encoded]) -> None:
        """Places calls, or refuses all of them."""
        try:
            self._node.place(calls)
        except CallRefused as refusal:
            _refuse_all(calls, refusal)
        except WalError as error:
            _refuse_all(calls, UnknownOutcome(f"the log failed while the calls were under way: {full_text(error)}"))


def _refuse_all(calls: Sequence[Encoded], refusal: CallRefused) -> None:
    for call in calls:
        call[4](refusal.again())


def _look_up(name: CallName, routes: Mapping[str, Route]) -> Route | OtherDeclaration:
    text = name.name.decode(errors="replace")
    route = routes.get(text)
    if route is None:
        return OtherDeclaration(f"the leading node has no procedure {text[:80]!r}: its code is another one")
    if name_of(route) != name:
        return OtherDeclaration(f"the leading node declares procedure {text!r} otherwise: its code is another one")
    return route
