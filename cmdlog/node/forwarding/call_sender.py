"""Calls that this node was asked for and another one places: bound here, sent to the leader, answered here.

One rule: a call leaves as it will be logged: parameters encoded, key as a fingerprint, slot computed. What was not sent is
refused as `no_quorum`; what was sent and is not answered is `outcome_unknown`, or for a read `no_quorum`: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import orjson

from cmdlog.cluster.forwarding.call_link import PARAMS_BYTES_MAX, LinkOver, OutgoingCall, WindowFull
from cmdlog.cluster.forwarding.call_rows import NO_KEY, CallName
from cmdlog.node.forwarding.forwarded_calls import decode_reply, name_of
from cmdlog.node.outcome import CallRefused, CallTooLarge, Done, Durability, NoLeader, NotLeading, Overloaded, UnknownOutcome
from cmdlog.node.placing.router import Placed, encode_sent
from cmdlog.node.slot_map import Route, SlotMap

PROMISES: Final[dict[Durability | None, int]] = {None: 0, "sync": 1, "async": 2}


class WaitingCaller(NamedTuple):
    """Who waits for the answer of a call."""

    done: Done
    read_only: bool


class BoundCalls(NamedTuple):
    """Calls as they leave: `partitions` of all of them, and those that are too large to."""

    partitions: list[int | None]
    outgoing: list[OutgoingCall[WaitingCaller]]
    too_large: list[tuple[Done, CallRefused]]


Send = Callable[[int, Sequence[OutgoingCall[WaitingCaller]]], None]
"""Sends calls to a node, all or none; each is settled once. Raises: LinkOver, WindowFull."""


class CallSender:
    """Any thread. Takes what becomes of calls, too: `cmdlog.cluster.forwarding.call_link.AnswerTaker`."""

    def __init__(self, slots: SlotMap, *, call_bytes_max: int) -> None:
        self._slots, self._call_bytes_max = slots, min(call_bytes_max, PARAMS_BYTES_MAX)
        self._names: dict[str, tuple[Route, CallName]] = {}

    def send(self, where: NotLeading, calls: Sequence[Placed], send: Send, *, txn: int | None = None) -> list[int | None]:
        """Sends calls to the node that a refusal names; their partitions. Each `done` is called once. Raises: CallRefused."""
        bound = self.encode_calls(calls, txn=txn)
        if bound.outgoing:
            try:
                send(where.node, bound.outgoing)
            except WindowFull as full:
                raise Overloaded(str(full)) from None
            except LinkOver as over:
                raise NoLeader(f"node {where.node} leads, and this node cannot reach it: {over}") from None
        refuse_large(bound)
        return bound.partitions

    def encode_calls(self, calls: Sequence[Placed], *, txn: int | None = None) -> BoundCalls:
        """The calls as they are sent."""
        partitions: list[int | None] = []
        outgoing: list[OutgoingCall[WaitingCaller]] = []
        too_large: list[tuple[Done, CallRefused]] = []
        for route, params, key, done, durability in calls:
            slot = 0 if route.everywhere else self._slots.slot_of(route.procedure, params)
            partitions.append(None if route.everywhere else self._slots.partition_by_slot[slot])
            body = orjson.dumps(params) if type(params) is list else encode_sent(route, params, key)
            if len(body) > self._call_bytes_max:
                limit = f"limit call_bytes_max={self._call_bytes_max}"
                too_large.append((done, CallTooLarge(f"the parameters take {len(body)} bytes, {limit}")))
                continue
            waiting = WaitingCaller(done, route.read_only)
            outgoing.append(OutgoingCall(self._name(route), slot, PROMISES[durability], key or NO_KEY, txn or 0, body, waiting))
        return BoundCalls(partitions, outgoing, too_large)

    def _name(self, route: Route) -> CallName:
        known = self._names.get(route.name)
        if known is None or known[0] is not route:  # the code that calls are bound to may change
            known = self._names[route.name] = route, name_of(route)
        return known[1]

    # -- cmdlog.cluster.forwarding.call_link.AnswerTaker -----------------------------------------------------------------------

    def answered(self, waiting: WaitingCaller, status: int, txn: int, body: bytes, more: bytes) -> None:
        waiting.done(decode_reply(status, txn, body, more))

    def lost(self, waiting: WaitingCaller, why: str, *, sent: bool) -> None:
        if not sent:
            waiting.done(NoLeader(f"the call could not be sent to the leading node: {why}"))
        elif waiting.read_only:
            waiting.done(NoLeader(f"the leading node did not answer: {why}; the read is safe to repeat"))
        else:
            waiting.done(UnknownOutcome(f"the call was sent to the leading node, which did not answer: {why}"))


def refuse_large(bound: BoundCalls) -> None:
    """After the others were sent. Raises: CallRefused, when the only call is too large."""
    if len(bound.partitions) == 1 and bound.too_large:
        raise bound.too_large[0][1]
    for done, refusal in bound.too_large:
        done(refusal)
