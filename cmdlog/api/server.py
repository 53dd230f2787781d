"""Running the HTTP server: listen first, open the node beside, serve, drain, close.

One rule: the socket listens before the directory is touched, so a taken port changes nothing on disk; and the node is closed
after the last answer, so a clean shutdown acknowledges nothing that it does not hold. The address is printed when the directory
was opened: a printed address has a server.

While the node recovers, the server answers already: `/healthz` is alive, `/readyz` says `not_ready` with the progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn
import uvloop

from cmdlog.api.app import create_app
from cmdlog.api.connections.acceptor import Acceptor
from cmdlog.api.connections.connection_registry import Roster
from cmdlog.api.connections.descriptor_limit import connections_allowed
from cmdlog.api.connections.tls import Certificate
from cmdlog.api.fast_path import QuickCalls
from cmdlog.api.gate.route_table import TABLE
from cmdlog.api.routes.app_state import SLOW_THREADS, Service
from cmdlog.node.settings import BadSetting, Settings, is_loopback

if TYPE_CHECKING:
    from cmdlog.node.node import Node

BACKLOG: Final = 2048
LOG_THREADS: Final = 2  # beside those that write it: the keeper, and who prepares segments
NODE_THREADS: Final = 6  # flush, watch of the sites, archive, snapshots, page checks, drills
LEAVE_S: Final = 1.0  # at most, for clients of a node that leads no more to get an answer that ends their connection
LEAVE_LOOK_S: Final = 0.05  # between two looks at whether all have left
STREAMS: Final = frozenset(entry.path for entry in TABLE if entry.kind == "batch")
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Open = Callable[[Callable[[Any], None]], "Node"]  # opens the node; is given what to report progress to

logger = structlog.get_logger("cmdlog.api")


@dataclass(slots=True)
class Events:
    """What the caller wants reported, in this order."""

    listening: Callable[[str], None] = field(default=lambda url: None)
    ready: Callable[[Node], None] = field(default=lambda node: None)
    stopping: Callable[[], None] = field(default=lambda: None)


def serve(open_node: Open, settings: Settings, *, events: Events | None = None, version: str = "") -> None:
    """Serves until SIGTERM or SIGINT, then drains and closes the node. Blocking; the main thread.

    Raises: BadSetting; what `open_node` raises; the error that wedged the node, when one did.
    """
    api = create_app(None, settings, version=version)
    service = api.service
    certificate = Certificate(settings) if settings.tls_cert_file is not None else None
    if certificate is None and not is_loopback(settings.host):
        logger.warning("not_encrypted", host=settings.host, hint="credentials and data travel unencrypted: set tls_cert_file")
    roster = Roster(
        api,
        settings,
        connections_max=connections_allowed(settings),
        certificate=certificate,
        streams=STREAMS,
        quick=QuickCalls(api),
        front=service.front,
    )
    listener = listen(settings.host, settings.port, silence_max_s=settings.write_timeout_s)
    runner = _Runner(service, roster, open_node, events or Events())
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
    """How many threads a server starts at most: those of the log, of the node, of its answers and of the event loop."""
    return settings.log_threads + LOG_THREADS + NODE_THREADS + SLOW_THREADS + settings.queries_max + loop_threads()


def loop_threads() -> int:
    """How many the event loop's own executor may have, see `concurrent.futures.ThreadPoolExecutor`."""
    return min(32, (os.cpu_count() or 1) + 4)


def make_config(roster: Roster) -> uvicorn.Config:
    """uvicorn's server with our protocol; of its middleware none, since headers of a proxy prove no address."""
    return uvicorn.Config(
        roster.application,
        http=roster.connect,  # type: ignore[arg-type]  # it is called as a class of protocols would be
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(roster.settings.drain_timeout_s)),
    )


def listen(host: str, port: int, *, silence_max_s: float) -> socket.socket:
    """A socket that clients can reach, whose connections end when the other machine takes nothing for `silence_max_s`.

    They wait to be accepted until a server takes the socket over. It listens before the address is printed: who reads a port and
    connects at once is not refused, and of two servers that start at once on one port only one gets it (`bind` allows both).

    Raises: BadSetting.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise BadSetting("host", f"{host} is not an address to listen on: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # this and what follows is passed on to connections
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silence_max_s * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BadSetting("port", f"cannot listen on {host}:{port}: {error.strerror}; port 0 picks a free one") from error
    return listener


def url_of(listener: socket.socket, *, scheme: str) -> str:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handling, which ends the process before the node is closed, and accepting as we do."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        connect: Any = self.config.http_protocol_class
        make = partial(connect, config=self.config, server_state=self.server_state, app_state={})
        self.servers = [Acceptor(listener, make) for listener in sockets or ()]  # type: ignore[misc]  # it is used like one

    def end(self) -> None:
        """Serves what is under way, then returns."""
        self.should_exit = True

    def stop(self) -> bool:
        """`end`, or, where that was said before, without waiting for what is under way; whether this is the first time."""
        self.force_exit = self.should_exit
        self.end()
        return not self.force_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Stopped(Exception):
    """The server is asked to stop while its node recovers."""


class _Runner:
    """One run of the server."""

    def __init__(self, service: Service, roster: Roster, open_node: Open, events: Events) -> None:
        self._service, self._roster, self._open_node, self._events = service, roster, open_node, events
        self._server = HttpServer(make_config(roster))
        self._progress: Mapping[str, object] = {}
        self.failure: BaseException | None = None  # why the server ended by itself
        self._url = ""  # until it was reported
        self._drained_by = 0.0  # on the loop's clock

    async def run(self, listener: socket.socket) -> None:
        self._loop = loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        self._service.show_progress(lambda: self._progress)
        self._url = url_of(listener, scheme="http" if self._roster.certificate is None else "https")
        opening = asyncio.create_task(self._open())
        self._roster.start()
        try:
            await self._server.serve(sockets=[listener])
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await opening
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
        gc.collect()
        gc.freeze()  # modules, schemas and routes live as long as the process: later collections need not look at them
        node.attach(self._loop)
        self._events.ready(node)

    def _note_progress(self, progress: Any) -> None:
        """In the thread that opens the node. Raises: Stopped, which ends the opening; what it has recovered stays."""
        if self._server.should_exit:
            raise Stopped
        self._loop.call_soon_threadsafe(self._tell_listening)
        self._progress = progress if isinstance(progress, Mapping) else {"step": str(progress)}

    def _tell_listening(self) -> None:
        """Once, at the first report on the opened directory."""
        url, self._url = self._url, ""
        if url:
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
        self._events.stopping()
        node = self._service.maybe_node
        if node is None:
            self._server.end()
        else:
            self._handing_over = self._loop.create_task(self._hand_over(node))

    async def _hand_over(self, node: Node) -> None:
        """Another node leads before this one takes no more requests: no client waits for an election.

        Then clients are given time to leave: a request that meets a connection which the server is just closing has no answer.
        """
        if await self._loop.run_in_executor(None, node.hand_over):
            self._roster.begin_leaving()
            await self._until_all_left(LEAVE_S)
            for acceptor in self._server.servers:
                acceptor.close()
            await self._until_all_left(LEAVE_S / 4)
        self._server.end()

    async def _until_all_left(self, within_s: float) -> None:
        """Every client has had its last answer on this connection, or has asked nothing for so long."""
        for _ in range(max(1, round(within_s / LEAVE_LOOK_S))):
            await asyncio.sleep(min(LEAVE_LOOK_S, within_s))
            if not self._roster.open:
                return

    def _fail_later(self, error: BaseException) -> None:
        """`_fail` from any thread."""
        self._loop.call_soon_threadsafe(partial(self._fail, error))

    def _fail(self, error: BaseException) -> None:
        """The node cannot continue: stop acknowledging, and end the process with the error's exit code."""
        self.failure = self.failure or error
        self._service.begin_stop()
        self._server.end()
