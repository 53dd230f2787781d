"""uvicorn's server over our sockets and our protocol: listening, accepting, the end.

One rule: it decides nothing about requests. Clients never use up the file descriptors that the node itself needs: a log that
cannot open its next segment is worse than a rejected client.

Whatever `accept` says, the socket keeps listening and the loop does not spin. A process without free descriptors cannot take a
connection, and as long as one waits the socket stays readable: asked again at once, the loop would do nothing else. Thus a
*spare* descriptor is kept. It is given up to take the connection, and had again when that is closed: the client learns at once
that there is no room. Where another thread was quicker to take it, new connections wait for `PAUSE_S` in the kernel's queue.
uvloop's own server has the spare, but spins without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import structlog
import uvicorn

from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.node.settings import BadSetting, Settings

ACCEPTS_AT_ONCE: Final = 32  # then those who are connected have their turn
PAUSE_S: Final = 0.25
QUIET_S: Final = 60.0  # between two lines of the log about it
GONE: Final = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM))  # this one connection; the next may be had at once
BACKLOG: Final = 2048
LATE_S: Final = 0.15  # for a connection that was accepted last to be made, and its request to be read
LEAVE_S: Final = 1.0  # at most, for clients of a node that no longer leads to get an answer that ends their connection
LEAVE_LOOK_S: Final = 0.05  # between two looks at whether all have left
RESERVED: Final = 256  # for log, snapshots, sites, queries and Python itself
RESERVED_PER_PARTITION: Final = 16
CONNECTIONS_LEAST: Final = 16  # with fewer a server is of no use

logger = structlog.get_logger("cmdlog.api")


class Acceptor:
    """What `asyncio.Server` is to uvicorn. `make` is called once per connection. Only the event loop's thread."""

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._listener, self._make = listener, make
        self._loop = asyncio.get_running_loop()
        self._taking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = -QUIET_S  # when it was last logged that descriptors ran out
        self._closed = False
        self._spare = _spare()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Takes those that wait, and no further connection. Idempotent."""
        if self._closed:
            return
        # A client that is connected may have sent a request: with the socket it would be lost without an answer.
        self._accept()
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        self._give_up_spare()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Returns when nothing of it is left."""
        while self._taking:
            await asyncio.wait(self._taking)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in GONE:
                    continue
                if not self._shed(error):
                    self._pause()
                    return
            else:
                task = self._loop.create_task(self._serve_client(client))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)

    async def _serve_client(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make, client)
        except OSError:  # it is gone already
            client.close()

    def _shed(self, error: OSError) -> bool:
        """Ends one connection that there is no descriptor for; False when that cannot be done."""
        now = self._loop.time()
        if now - self._told_s >= QUIET_S:
            self._told_s = now
            logger.warning("accept_failed", problem=error.strerror, hint="ulimit -n: new connections are rejected until then")
        if self._spare is None:
            return False
        self._give_up_spare()
        try:
            self._listener.accept()[0].close()
        except OSError:
            return False
        finally:
            self._spare = _spare()
        return True

    def _give_up_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._spare = _spare() if self._spare is None else self._spare
        self._loop.add_reader(self._listener, self._accept)


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def make_config(registry: ConnectionRegistry) -> uvicorn.Config:
    """uvicorn's server with our protocol; of its middleware none, since headers of a proxy prove no address."""
    return uvicorn.Config(
        registry.application,
        http=registry.connect,  # type: ignore[arg-type]  # it is called as a class of protocols would be
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(registry.settings.drain_timeout_s)),
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What was accepted when the sockets were closed has its request answered, and is then ended as the others are."""
        late = asyncio.get_running_loop().call_later(LATE_S, self._end_late_connections)
        await super().shutdown(sockets)
        late.cancel()

    def _end_late_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.shutdown()

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


async def leave_clients(server: HttpServer, registry: ConnectionRegistry) -> None:
    """Another node takes the calls: clients are given time to leave before their connections end.

    A request that meets a connection which the server is just closing has no answer.
    """
    registry.begin_leaving()
    await _until_all_left(registry, LEAVE_S)
    for acceptor in server.servers:
        acceptor.close()
    await _until_all_left(registry, LEAVE_S / 4)


async def _until_all_left(registry: ConnectionRegistry, within_s: float) -> None:
    """Every client has had its last answer on this connection, or has asked nothing for so long."""
    for _ in range(max(1, round(within_s / LEAVE_LOOK_S))):
        await asyncio.sleep(min(LEAVE_LOOK_S, within_s))
        if not registry.open:
            return


def connections_allowed(settings: Settings) -> int:
    """`connections_max`, or fewer where the process may not open as many files. Raises: BadSetting.

    Raises the soft limit of open files as far as this needs.
    """
    reserved = RESERVED + RESERVED_PER_PARTITION * settings.partitions
    wanted = settings.connections_max + reserved
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (wanted if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    if soft < wanted and soft < hard:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    allowed = min(settings.connections_max, soft - reserved)
    if allowed < min(CONNECTIONS_LEAST, settings.connections_max):
        least = reserved + min(CONNECTIONS_LEAST, settings.connections_max)
        raise BadSetting(
            "connections_max",
            f"the process may open {soft} files (ulimit -n), and {reserved} are kept for the node",
            hint=f"raise the limit: `ulimit -n {wanted}`, or {least} at least",
        )
    if allowed < settings.connections_max:
        logger.warning("connections_limited", connections_max=allowed, open_files_max=soft, kept_for_the_node=reserved)
    return allowed
