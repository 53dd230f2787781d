"""The node as an HTTP process sees it: calls go over the link, answers come back.

One rule: a call leaves as it will be logged, bound by the code that this process has loaded. A node with other code compares the
digest of the procedure's declaration, so no call is run that its caller did not mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from cmdlog.api.processes.http_process import STAGES
from cmdlog.cluster.forwarding.call_link import CallLink, LinkOver, WindowFull
from cmdlog.node.forwarding.call_sender import CallSender, WaitingCaller, refuse_large
from cmdlog.node.forwarding.forwarded_replies import decode_reply
from cmdlog.node.outcome import CallOutcome, Done, Durability, NotReady, Overloaded, UnknownOutcome
from cmdlog.node.placing.router import Placed
from cmdlog.node.slot_map import Route, SlotMap, make_routes
from procedures import Database
from procedures.execution.failure_trace import FailureTrace

SLOW_KEPT: Final = 256  # outcomes whose stages are kept until their callers ask for them


class NodeLink:
    """`cmdlog.api.routes.service.CallTaker`, and what takes the answers. Only the event loop's thread."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], None],
        *,
        partitions: int,
        call_bytes_max: int,
        durabilities: Collection[Durability],
    ) -> None:
        """`soon` has a function called at the loop's next turn; `durabilities` are those that the node offers."""
        self.routes: Mapping[str, Route] = {}
        self.durabilities_offered = durabilities
        self.link: CallLink[WaitingCaller] = CallLink(self, soon, called="the node")
        self._sender = CallSender(SlotMap(partitions), call_bytes_max=call_bytes_max)
        self._stages: dict[int, dict[str, float]] = {}  # by transaction

    def serve_code(self, db: Database, version: int) -> None:
        """Calls are bound to this code from now on."""
        self.routes = make_routes(db, version)

    # -- cmdlog.api.routes.service.CallTaker -------------------------------------------------------------------------------

    @property
    def stale(self) -> NodeLink:
        return self

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        return self._send([(route, params, key, done, durability)], txn)[0]

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        return self._send(calls)

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        return outcome.trace

    def stages_of(self, txn_id: int) -> dict[str, float]:
        return self._stages.get(txn_id, {})

    def _send(self, calls: Sequence[Placed], txn: int | None = None) -> list[int | None]:
        bound = self._sender.encode_calls(calls, txn=txn)
        if bound.outgoing:
            try:
                self.link.add(bound.outgoing)
            except WindowFull as full:
                raise Overloaded(str(full)) from None
            except LinkOver as over:
                raise NotReady(f"the node cannot be reached: {over}") from None
        refuse_large(bound)
        return bound.partitions

    # -- cmdlog.cluster.forwarding.call_link.AnswerTaker -----------------------------------------------------------------------

    def answered(self, waiting: WaitingCaller, status: int, txn: int, body: bytes, more: bytes) -> None:
        if more.startswith(STAGES):
            told = orjson.loads(more)
            if len(self._stages) >= SLOW_KEPT:
                del self._stages[next(iter(self._stages))]
            self._stages[txn] = told["stages"]
            more = orjson.dumps(told["trace"]) if told["trace"] else b""
        waiting.done(decode_reply(status, txn, body, more))

    def lost(self, waiting: WaitingCaller, why: str, *, sent: bool) -> None:
        if not sent or waiting.read_only:
            waiting.done(NotReady(f"the node cannot be reached: {why}; the call is safe to repeat"))
        else:
            waiting.done(UnknownOutcome(f"the call was given to the node, which did not answer: {why}"))
