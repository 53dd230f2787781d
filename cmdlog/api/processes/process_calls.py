"""Calls of an HTTP process, placed by its node: `cmdlog.cluster.forwarding.call_receiver.CallPlacer`.

One rule: they are placed as calls of the node's own clients are, in the order of their frame; so a member of a cluster forwards
them like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson

from cmdlog.cluster.forwarding.call_rows import AnswerRow, CallColumns
from cmdlog.node.forwarding.forwarded_calls import ForwardedCalls, FoundCall, Placing
from cmdlog.node.forwarding.forwarded_replies import OtherDeclaration
from cmdlog.node.outcome import CallOutcome, CallRefused, CodeChanged, Done, Reply

if TYPE_CHECKING:
    from cmdlog.node.node import Node

STAGES: Final = b'{"stages":'
"""Begins what is said beside an outcome whose stages are known: of a slow call, or with spans."""


class ProcessCalls(ForwardedCalls):
    """Of one link."""

    def __init__(self, node: Node) -> None:
        placing = Placing(node.call_encoded, lambda confirmed: confirmed(True), node.clock.observe, node.trace_of)
        super().__init__(placing, lambda: node.routes, node.slots.partition_by_slot)
        self._meter, self._stages_of = node.meter, node.stages_of

    def place(self, names: Sequence[FoundCall], calls: CallColumns, dones: Sequence[Done]) -> None:
        if bound := self.bind_calls(names, calls, dones):
            self.place_bound(bound)

    def refuse_other(self, other: OtherDeclaration) -> CallRefused:
        return CodeChanged("the procedure was deployed with another declaration; look at it and call again")

    def encode(self, replies: Sequence[tuple[int, Reply]]) -> list[AnswerRow]:
        if self._meter.slow:
            return [self.encode_one(call, reply) for call, reply in replies]
        return super().encode(replies)

    def encode_one(self, call: int, reply: Reply) -> AnswerRow:
        row = super().encode_one(call, reply)
        if isinstance(reply, CallOutcome) and (stages := self._stages_of(reply.txn_id)):
            return row._replace(more=b'%b%b,"trace":%b}' % (STAGES, orjson.dumps(stages), row.more or b"null"))
        return row
