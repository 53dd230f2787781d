"""An HTTP process: connections, checks and answers of its own, calls to the node, everything else relayed to it.

One rule: it owns nothing that lasts. It may be killed at any moment: what its clients had under way is the node's, or was never
placed. It ends when its node does, or when a link to it is over.

A call leaves as it will be logged, bound by the code that this process has loaded. A node with other code compares the digest of
the procedure's declaration, so no call is run that its caller did not mean.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from cmdlog.api.app import Api, create_app
from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.api.connections.http_parser import Headers
from cmdlog.api.connections.http_server import HttpServer, connections_allowed, leave_clients, make_config
from cmdlog.api.connections.tls import Certificate
from cmdlog.api.gate.request import PREFER
from cmdlog.api.gate.route_table import BATCH, PROCEDURES
from cmdlog.api.processes.http_process import STAGES, encode_totals
from cmdlog.api.processes.process_link import (
    LinkFrameKind,
    LinkSession,
    encode_link_frame,
    join_link,
    new_connection,
    next_turn,
    nothing,
)
from cmdlog.api.processes.relay import RelaySender
from cmdlog.api.routes.call import QuickCalls
from cmdlog.cluster.forwarding.call_link import CallLink, LinkOver, WindowFull
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.cluster.transport.sealed_frames import ChannelFrame
from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.forwarding.call_sender import CallSender, WaitingCaller, refuse_large
from cmdlog.node.forwarding.forwarded_calls import decode_reply
from cmdlog.node.outcome import CallOutcome, Done, Durability, NotReady, Overloaded, UnknownOutcome
from cmdlog.node.placing.router import Placed
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import Route, SlotMap, make_routes
from cmdlog.operator_error import full_text
from procedures import Database
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import ProceduresError
from procedures.execution.failure_trace import FailureTrace

SLOW_KEPT: Final = 256  # outcomes whose stages are kept until their callers ask for them


class NodeLink:
    """The node as this process sees it: a `CallTaker`, and what takes the answers. Only the event loop's thread."""

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
            measured = orjson.loads(more)
            if len(self._stages) >= SLOW_KEPT:
                del self._stages[next(iter(self._stages))]
            self._stages[txn] = measured["stages"]
            more = orjson.dumps(measured["trace"]) if measured["trace"] else b""
        waiting.done(decode_reply(status, txn, body, more))

    def lost(self, waiting: WaitingCaller, why: str, *, sent: bool) -> None:
        if not sent or waiting.read_only:
            waiting.done(NotReady(f"the node cannot be reached: {why}; the call is safe to repeat"))
        else:
            waiting.done(UnknownOutcome(f"the call was given to the node, which did not answer: {why}"))


TELL_S: Final = 0.25  # between two reports of what was counted
LIFE_TELLS: Final = 4  # reports without news that are left out: then one is a sign of life

logger = structlog.get_logger("cmdlog.api")


def serve_as_process(settings: Settings, *, listener: socket.socket, control: socket.socket, calls: socket.socket) -> None:
    """Serves until the node says stop, or is gone. Blocking; the main thread. Raises: BadSetting."""
    process = HttpProcessMain(settings, listener)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(process.run(control, calls))


class NearApp:
    """The ASGI application of an HTTP process, and its calls below ASGI (`quick`).

    What is answered here are calls that need nothing of the node but to be run; everything else is relayed.
    """

    def __init__(self, api: Api, relay: ASGIApp) -> None:
        self._api, self._relay = api, relay
        self._node: NodeLink | None = None  # while there is code
        self.quick = QuickCalls(api.service, api.admit_call, self.answers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        near = self.answers(scope["method"], scope["path"], scope["query_string"], scope["headers"])
        await (self._api if near else self._relay)(scope, receive, send)

    def answer_by(self, node: NodeLink | None) -> None:
        """Calls go by this link from now on; None: the node answers them as well."""
        self._node = node

    def answers(self, method: str, path: str, query: bytes, headers: Headers) -> bool:
        """Whether this process answers the request; else the node does."""
        node = self._node
        if node is None or method != "POST" or query:
            return False
        known = path[len(PROCEDURES) :] in node.routes if path.startswith(PROCEDURES) else path == BATCH
        return known and not any(name == PREFER and b"redirect" in value.lower() for name, value in headers)


class HttpProcessMain:
    """One process, in its own event loop."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings, self._listener = settings, listener
        self._api = create_app(None, settings)
        self._service = self._api.service
        self._session = LinkSession()
        self._control, self._calls = new_connection(), new_connection()
        self._relay = RelaySender(self._control.write)
        self._near = NearApp(self._api, self._relay)
        self._roster = ConnectionRegistry(
            self._near,
            settings,
            connections_max=connections_allowed(settings),
            certificate=Certificate(settings) if settings.tls_cert_file is not None else None,
            streams=frozenset((BATCH,)),
            quick=self._near.quick,
            front=self._service.front,
            name_of=self._api.name_of,
        )
        self._server = HttpServer(make_config(self._roster), accepts_at_once=1)
        self._node: NodeLink | None = None
        self._told = b""
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, control: socket.socket, calls: socket.socket) -> None:
        """Serves to the end."""
        self._control.deliver_to(self._take_frame, on_writable=nothing, on_closed=self._link_over)  # something may wait there
        await join_link(self._calls, calls)
        await join_link(self._control, control)
        self._roster.start()
        telling = asyncio.get_running_loop().create_task(self._keep_telling())
        await self._server.serve(sockets=[self._listener])
        telling.cancel()
        self._roster.stop()
        self._tell_counts(0)
        self._control.hang_up()
        await self._control.closed.wait()
        self._service.close()

    def _link_over(self) -> None:
        """No request can be answered any longer; those that wait are ended."""
        if (error := self._control.error) is not None:
            logger.error("link_over", why=full_text(error))
        self._relay.end()
        if self._node is not None:
            self._node.link.end("the node hung up")
        self._server.end()

    # -- what the node says --------------------------------------------------------------------------------------------------

    def _take_frame(self, frame: bytes) -> None:
        said = self._session.open(frame)
        if said.kind == LinkFrameKind.CODE:
            self._take_code(said)
        elif said.kind == LinkFrameKind.ASK:
            self._tell_counts(said.count)
        elif said.kind == LinkFrameKind.OTHERS:
            self._service.traffic.note_elsewhere(orjson.loads(said.body), said.count)
        elif said.kind == LinkFrameKind.STOP:
            self._stop(leaving=bool(said.count))
        else:
            self._relay.take_frame(said)

    def _take_code(self, said: ChannelFrame) -> None:
        """Loads it, which takes the loop as long as an import does: a deploy waits for it."""
        head, _, bundle = said.body.partition(b"\n")
        served = orjson.loads(head)
        problem = ""
        try:
            db = load_bundle(Bundle.from_bytes(bundle))
        except ProceduresError as error:
            problem = full_text(error)
            logger.error("code_not_loaded", catalog_version=served["version"], reason=problem)
            self._near.answer_by(None)
        else:
            node = self._node or self._join_node(served)
            node.serve_code(db, served["version"])
            self._near.answer_by(node)
            settle_garbage_collection()
        self._control.write(encode_link_frame(LinkFrameKind.SERVES, problem.encode(), served["version"]))

    def _join_node(self, served: Mapping[str, Any]) -> NodeLink:
        node = self._node = NodeLink(
            next_turn(), partitions=served["partitions"], call_bytes_max=self._settings.call_bytes_max,
            durabilities=served["durabilities"],
        )  # fmt: skip
        node.link.open(self._calls, self._session, CallWindow(*served["window"]))
        self._service.attach_link(node)
        return node

    def _stop(self, *, leaving: bool) -> None:
        """What is under way is answered, and nothing else."""
        self._service.begin_stop()
        if leaving:
            self._leaving = asyncio.get_running_loop().create_task(self._leave())
        else:
            self._server.end()

    async def _leave(self) -> None:
        await leave_clients(self._server, self._roster)
        self._server.end()

    # -- what it says --------------------------------------------------------------------------------------------------------

    async def _keep_telling(self) -> None:
        unsaid = 0
        while True:
            await asyncio.sleep(TELL_S)
            unsaid += 1
            if self._totals() != self._told or unsaid >= LIFE_TELLS:
                self._tell_counts(0)
                unsaid = 0

    def _totals(self) -> bytes:
        return encode_totals(self._service.front, streams=self._service.traffic.streams)

    def _tell_counts(self, number: int) -> None:
        self._told = self._totals()
        self._control.write(encode_link_frame(LinkFrameKind.COUNTS, self._told, number))
