"""Running the HTTP server: listen first, open the node beside, serve, drain, close.

One rule: the socket listens before the directory is touched, so a taken port changes nothing on disk; and the node is closed
after the last answer, so a clean shutdown acknowledges nothing that it does not hold. The address is printed when the directory
was opened: a printed address has a server.

While the node recovers, the server answers already: `/healthz` is alive, `/readyz` says `not_ready` with the progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop

from cmdlog.api.app import create_app
from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.api.connections.http_server import HttpServer, connections_allowed, leave_clients, listen, make_config, url_of
from cmdlog.api.connections.tls import Certificate
from cmdlog.api.gate.route_table import BATCH
from cmdlog.api.routes.query import RESERVE_TURNS
from cmdlog.api.routes.service import SLOW_THREADS, Service
from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.settings import Settings
from cmdlog.signal_handlers import stop_signals
from cmdlog.wal.directory.local_token import is_loopback

if TYPE_CHECKING:
    from cmdlog.node.node import Node

LOG_THREADS: Final = 2  # beside those that write it: the keeper, and who prepares segments
BODY_THREADS: Final = 1  # what reads large bodies
NODE_THREADS: Final = 7  # flush, watch of the sites, archive, snapshots, page checks, drills, scrub
SWITCH_INTERVAL_S: Final = 0.001  # Python's 5 ms keep the log and the sites waiting while lines of a batch are read

Open = Callable[[Callable[[Any], None]], "Node"]  # opens the node; is given what to report progress to

logger = structlog.get_logger("cmdlog.api")


@dataclass(slots=True)
class Events:
    """What the caller wants reported, in this order."""

    listening: Callable[[str], None] = field(default=lambda url: None)
    ready: Callable[[Node], None] = field(default=lambda node: None)
    stopping: Callable[[], None] = field(default=lambda: None)


def serve(open_node: Open, settings: Settings, directory: str, *, events: Events | None = None, version: str = "") -> None:
    """Serves until SIGTERM, or another signal that stops a server, then drains and closes the node. Blocking; the main thread.

    `directory` is the node's, where its owner finds the local token.

    Raises: BadSetting; what `open_node` raises; the error that wedged the node, when one did.
    """
    api = create_app(None, settings, version=version)
    service = api.service
    certificate = Certificate(settings) if settings.tls_cert_file is not None else None
    if certificate is None and not is_loopback(settings.host):
        logger.warning("not_encrypted", host=settings.host, hint="credentials and data travel unencrypted: set tls_cert_file")
    registry = ConnectionRegistry(
        api,
        settings,
        connections_max=connections_allowed(settings),
        certificate=certificate,
        streams=frozenset((BATCH,)),
        quick=api.quick,
        front=service.front,
        name_of=api.name_of,
    )
    listener = listen(settings.host, settings.port, silence_max_s=settings.write_timeout_s)
    runner = _Runner(service, registry, open_node, events or Events(), directory=directory)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            loop.run(runner.run(listener))
    except BaseException as error:
        if runner.failure is not None:  # the way down may fail for the same reason, such as a thread that it needs
            raise runner.failure from error
        raise
    if runner.failure is not None:
        raise runner.failure


def threads_of(settings: Settings) -> int:
    """How many threads a server starts at most: those of the log, of the node, of its answers and of the event loop.

    The loop's own executor has what `concurrent.futures.ThreadPoolExecutor` says.
    """
    aside = SLOW_THREADS + BODY_THREADS + settings.queries_max + RESERVE_TURNS
    return settings.log_threads + LOG_THREADS + NODE_THREADS + aside + min(32, (os.cpu_count() or 1) + 4)


class Stopped(Exception):
    """The server is asked to stop while its node recovers."""


class _Runner:
    """One run of the server."""

    def __init__(
        self, service: Service, registry: ConnectionRegistry, open_node: Open, events: Events, *, directory: str
    ) -> None:
        self._service, self._roster, self._open_node, self._events = service, registry, open_node, events
        self._directory = directory
        self._token_shown = contextlib.ExitStack()  # while this process has the directory
        self._server = HttpServer(make_config(registry))
        self.failure: BaseException | None = None  # why the server ended by itself
        self._url = ""  # until it was reported
        self._drained_by = 0.0  # on the loop's clock

    async def run(self, listener: socket.socket) -> None:
        self._loop = loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._stop)
        self._url = url_of(listener, scheme="http" if self._roster.certificate is None else "https")
        opening = asyncio.create_task(self._open())
        self._roster.start()
        try:
            await self._server.serve(sockets=[listener])
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            self._token_shown.close()
            await self._close()
            self._roster.stop()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            node = await loop.run_in_executor(None, self._open_node, self._note_progress)
            self._serve_node(node)
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - it is raised again when the server is down
            self._fail(error)

    def _serve_node(self, node: Node) -> None:
        """Serves the opened node from now on."""
        self._tell_listening()
        node.watch_failure(self._fail_later)
        if node.error is not None:
            self._fail(node.error)
        self._service.attach(node)
        if self._server.should_exit:
            node.attach(
                self._loop
            )  # what the start has logged is still under way: a node whose sites nobody reads would wait for it
            return
        settle_garbage_collection()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        node.attach(self._loop)
        self._events.ready(node)

    def _note_progress(self, progress: Any) -> None:
        """In the thread that opens the node. Raises: Stopped, which ends the opening; what it has recovered stays."""
        if self._server.should_exit:
            raise Stopped
        self._loop.call_soon_threadsafe(self._tell_listening)
        self._service.note_progress(progress if isinstance(progress, Mapping) else {"step": str(progress)})

    def _tell_listening(self) -> None:
        """Once, at the first report on the opened directory: its lock is ours."""
        url, self._url = self._url, ""
        if url:
            self._token_shown.enter_context(self._service.gatekeeper.shown_to_owner(self._directory))
            self._events.listening(url)

    async def _close(self) -> None:
        self._service.close()
        node = self._service.maybe_node
        if node is not None:
            left_s = 0.0 if self._server.force_exit else max(self._drained_by - self._loop.time(), 0.0)
            await self._loop.run_in_executor(None, partial(node.close, drain_s=left_s, hurried=self._hurried))

    def _hurried(self) -> bool:
        return self._server.force_exit

    def _stop(self) -> None:
        """First signal: orderly. Second: without waiting for requests under way, or reading the states."""
        if self._service.stopping:
            self._server.end()
            self._server.stop()
            return
        self._drained_by = self._loop.time() + self._roster.settings.drain_timeout_s  # requests and node together
        self._service.begin_stop()
        node = self._service.maybe_node
        if node is None:
            self._server.end()
        else:
            self._handing_over = self._loop.create_task(self._hand_over(node))
        self._events.stopping()  # last: whatever becomes of telling it, the end is under way

    async def _hand_over(self, node: Node) -> None:
        """Another node leads before this one takes no more requests: no client waits for an election."""
        if await self._loop.run_in_executor(None, node.hand_over):
            await leave_clients(self._server, self._roster)
        self._server.end()

    def _fail_later(self, error: BaseException) -> None:
        """`_fail` from any thread."""
        self._loop.call_soon_threadsafe(partial(self._fail, error))

    def _fail(self, error: BaseException) -> None:
        """The node cannot continue: stop acknowledging, and end the process with the error's exit code."""
        self.failure = self.failure or error
        self._service.begin_stop()
        self._server.end()
