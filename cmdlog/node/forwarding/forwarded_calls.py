"""Calls that another node has sent, placed here: by the node that leads, and by no other.

One rule: a call that came by a link is placed or refused, never sent on. Its refusals are those that a caller of this node would
get, and say whether it is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.cluster.forwarding.call_rows import AnswerRow, CallColumns, CallName
from cmdlog.node.clock import ClockAhead
from cmdlog.node.forwarding.call_sender import name_of
from cmdlog.node.forwarding.forwarded_replies import (
    OtherDeclaration,
    TxnAhead,
    encode_replies,
    encode_reply,
    needs_trace,
)
from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Durability, NoLeader, Overloaded, Reply, UnknownOutcome
from cmdlog.node.placing.router import Encoded
from cmdlog.node.slot_map import Route
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import WalError
from procedures.execution.failure_trace import FailureTrace

DURABILITIES: Final[tuple[Durability | None, ...]] = (None, "sync", "async")


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
            done(self.refuse_other(found))
            return False
        if txn:
            try:
                self._node.observe_txn(txn)
            except ClockAhead as error:
                done(TxnAhead(str(error)))
                return False
        return True

    def refuse_other(self, other: OtherDeclaration) -> CallRefused:
        """The refusal of a call whose procedure is declared differently here."""
        return other.again()

    def busy(self, why: str) -> Reply:
        return Overloaded(why)

    def encode(self, replies: Sequence[tuple[int, Reply]]) -> list[AnswerRow]:
        return encode_replies(replies, self.encode_one)

    def encode_one(self, call: int, reply: Reply) -> AnswerRow:
        """A reply as a row, with what is known of its failure."""
        trace = self._node.trace_of(reply) if isinstance(reply, CallOutcome) and needs_trace(reply) else None
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
