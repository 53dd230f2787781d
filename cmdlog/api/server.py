"""Running the HTTP server: listen first, open the node beside, serve, drain, close.

One rule: the socket is bound before the directory is touched, so a taken port changes nothing on disk; and the node is closed
after the last answer, so an orderly stop acknowledges nothing that it does not hold.

While the node recovers, the server answers already: `/healthz` is alive, `/readyz` says `not_ready` with the progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from cmdlog.api.app import Api
from cmdlog.api.service import Service
from cmdlog.node.settings import BadSetting, Settings

if TYPE_CHECKING:
    from cmdlog.node.node import Node

BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75  # longer than the idle time of usual clients' pools, so that they close first
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Open = Callable[[Callable[[Any], None]], "Node"]  # opens the node; is given what to report progress to

logger = structlog.get_logger("cmdlog.api")


@dataclass(slots=True)
class Events:
    """What the caller wants to be told, in this order."""

    listening: Callable[[str], None] = field(default=lambda url: None)
    ready: Callable[[Node], None] = field(default=lambda node: None)
    stopping: Callable[[], None] = field(default=lambda: None)


def serve(open_node: Open, settings: Settings, *, events: Events | None = None, version: str = "") -> None:
    """Serves until SIGTERM or SIGINT, then drains and closes the node. Blocking; the main thread.

    Raises: BadSetting; what `open_node` raises; the error that wedged the node, when one did.
    """
    service = Service(settings)
    listener = listen(settings.host, settings.port)
    config = uvicorn.Config(
        Api(service, version=version),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
    )
    runner = _Runner(service, config, open_node, events or Events())
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as loop:
        loop.run(runner.run(listener))


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises: BadSetting."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise BadSetting("host", f"{host} is no address to listen on: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BadSetting("port", f"cannot listen on {host}:{port}: {error.strerror}; port 0 takes a free one") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which ends the process before the node is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Runner:
    """One run of the server."""

    def __init__(self, service: Service, config: uvicorn.Config, open_node: Open, events: Events) -> None:
        self._service, self._open_node, self._events = service, open_node, events
        self._server = _Server(config)
        self._progress: Mapping[str, object] = {}
        self._failure: BaseException | None = None

    async def run(self, listener: socket.socket) -> None:
        self._loop = loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        self._service.progress = lambda: self._progress
        opening = asyncio.create_task(self._open())
        url = url_of(listener)
        loop.call_soon(self._events.listening, url)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            await self._close()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            node = await loop.run_in_executor(None, self._open_node, self._note_progress)
        except BaseException as error:  # noqa: BLE001 - it is raised again when the server is down
            self._fail(error)
            return
        node.on_failure = self._fail_later
        if node.error is not None:
            self._fail(node.error)
        self._service.attach(node)
        if not self._server.should_exit:
            gc.collect()
            gc.freeze()  # modules, schemas and routes live as long as the process: later collections need not look at them
            node.attach(loop)
            self._events.ready(node)

    def _note_progress(self, progress: Any) -> None:
        self._progress = progress if isinstance(progress, Mapping) else {"step": str(progress)}

    async def _close(self) -> None:
        self._service.slow.shutdown(wait=False, cancel_futures=True)
        node = self._service.maybe_node
        if node is not None:
            await asyncio.get_running_loop().run_in_executor(None, node.close)

    def _stop(self) -> None:
        """First signal: orderly. Second: without waiting for requests under way."""
        self._server.force_exit = self._server.should_exit
        if not self._server.should_exit:
            self._service.stopping = True
            self._server.should_exit = True
            self._events.stopping()

    def _fail_later(self, error: BaseException) -> None:
        """`_fail` from any thread."""
        self._loop.call_soon_threadsafe(partial(self._fail, error))

    def _fail(self, error: BaseException) -> None:
        """The node cannot go on: stop acknowledging, and end the process with the error's exit code."""
        self._failure = self._failure or error
        self._service.stopping = True
        self._server.should_exit = True
