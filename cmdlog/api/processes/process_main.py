"""An HTTP process: connections, checks and answers of its own, calls to the node, everything else relayed to it.

One rule: it owns nothing that lasts. It may be killed at any moment: what its clients had under way is the node's, or was never
placed. It ends when its node does, or when a link to it is over.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
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
from cmdlog.api.processes.node_link import NodeLink
from cmdlog.api.processes.process_link import (
    LinkFrameKind,
    LinkSession,
    encode_link_frame,
    join_link,
    new_connection,
    next_turn,
    nothing,
)
from cmdlog.api.processes.process_stats import encode_totals
from cmdlog.api.processes.relay import RelaySender
from cmdlog.api.routes.call import QuickCalls
from cmdlog.cluster.channels.sealed_frames import ChannelFrame
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.settings import Settings
from cmdlog.operator_error import full_text
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import ProceduresError

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
        told = orjson.loads(head)
        problem = ""
        try:
            db = load_bundle(Bundle.from_bytes(bundle))
        except ProceduresError as error:
            problem = full_text(error)
            logger.error("code_not_loaded", catalog_version=told["version"], reason=problem)
            self._near.answer_by(None)
        else:
            node = self._node or self._join_node(told)
            node.serve_code(db, told["version"])
            self._near.answer_by(node)
            settle_garbage_collection()
        self._control.write(encode_link_frame(LinkFrameKind.SERVES, problem.encode(), told["version"]))

    def _join_node(self, told: Mapping[str, Any]) -> NodeLink:
        node = self._node = NodeLink(
            next_turn(), partitions=told["partitions"], call_bytes_max=self._settings.call_bytes_max,
            durabilities=told["durabilities"],
        )  # fmt: skip
        node.link.open(self._calls, self._session, CallWindow(*told["window"]))
        self._service.attach_calls(node)
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
