"""All links for calls of one process: those that it makes to other nodes, and those that come in.

One rule: it knows addresses and bytes. Who leads, and what a call is, are its user's affair; so the same channel serves an HTTP
process that is no node.

Everything about a connection happens in one event loop: that of the HTTP server, or one of its own thread where there is none.
A link is made when the first call wants it. When that fails, calls are refused for a pause; the next one after it tries again.

A link begins as every channel, and READY says the called end's window. An end is a number and a random name of its process, not
a life of a disk: what comes by the link decides nothing in consensus.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import uvloop

from cmdlog.cluster.forwarding.call_link import AnswerTaker, CallLink, LinkOver, OutgoingCall
from cmdlog.cluster.forwarding.call_receiver import CallPlacer, CallReceiver
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallWindow, decode_window
from cmdlog.cluster.transport.channel_session import answer_session, call_session
from cmdlog.cluster.transport.framed_connection import LINGER_S, FramedConnection
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_sockets import IncomingSockets, connect_peer
from cmdlog.cluster.transport.peer_transport import Address, PeerTls, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame

D = TypeVar("D")
H = TypeVar("H")
R = TypeVar("R")


@dataclass(slots=True)
class _Target(Generic[D]):
    """A node that calls are sent to."""

    link: CallLink[D] | None = None
    pause_s: float = 0.0  # after the next failure
    paused_until_s: float = 0.0
    why: str = ""  # it could not be reached


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """What is shown to people."""

    sent: int = 0  # calls, since the start
    waiting: int = 0  # of them, those that are not answered
    taken: int = 0
    placed: int = 0  # of them, those that are not answered
    links: dict[int, str] = field(default_factory=dict)  # by node: "" while it works, else why not


class CallChannel(Generic[D, H, R]):
    """Made in any thread; `start` begins, `stop` ends, and it is not started twice."""

    def __init__(
        self,
        ours: HelloCredentials,
        address_of: Callable[[int], Address],
        taker: AnswerTaker[D],
        placer: CallPlacer[H, R],
        *,
        window: CallWindow,
        tls: PeerTls | None = None,
        settings: TransportSettings | None = None,
    ) -> None:
        """`window` is what one link that comes in may have under way."""
        self._ours, self._address_of, self._taker, self._placer, self._window = ours, address_of, taker, placer, window
        self._tls, self._settings, self._quiet = tls, settings or TransportSettings(), QuietLog()
        self._lock = threading.Lock()
        self._targets: dict[int, _Target[D]] = {}
        self._receivers: dict[CallReceiver[H, R], None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # connections that are being made
        self._incoming = IncomingSockets(
            self._welcome, tls=tls, settings=self._settings, refused=self._refuse_link, quiet=self._quiet
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_thread: threading.Thread | None = None
        self._thread = 0
        self._stopped = False
        self._sent = self._taken = 0  # by links that are over

    # -- any thread ------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Works in this loop from now on; None: in a thread of its own."""
        if loop is None:
            loop = uvloop.new_event_loop()
            self._own_thread = threading.Thread(target=loop.run_forever, name="cmdlog-calls", daemon=True)
            self._own_thread.start()
        self._loop = loop
        loop.call_soon_threadsafe(self._begin_checks)

    def stop(self) -> None:
        """Sends the answers that are there, ends all links, and reports that to callers that wait. Idempotent."""
        loop, self._stopped = self._loop, True
        if loop is not None and threading.get_ident() != self._thread:
            closing = self._close()
            try:
                asyncio.run_coroutine_threadsafe(closing, loop).result(2 * LINGER_S)
            except RuntimeError:  # the loop has ended
                closing.close()
            except TimeoutError:
                pass
        for target in list(self._targets.values()):
            if target.link is not None:
                target.link.end("the node is stopping")
        if self._own_thread is not None and loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            self._own_thread.join()
            if not loop.is_closed():
                loop.close()

    def send(self, node: int, calls: Sequence[OutgoingCall[D]]) -> None:
        """Sends calls to a node, all or none; each is settled once. Raises: LinkOver, WindowFull."""
        with self._lock:
            target = self._targets.get(node) or self._targets.setdefault(node, _Target())
            if (link := target.link) is None:
                link = self._begin_link(node, target)
        link.add(calls)

    def take_socket(self, sock: socket.socket) -> None:
        """A connection that came in, from its preface on."""
        self._incoming.take_socket(None if self._stopped else self._loop, sock)

    def status(self) -> ChannelStatus:
        """A view of this moment."""
        targets, receivers = dict(self._targets), list(self._receivers)
        links = [target.link for target in targets.values() if target.link is not None]
        return ChannelStatus(
            sent=self._sent + sum(link.calls for link in links),
            waiting=sum(link.under_way for link in links),
            taken=self._taken + sum(receiver.calls for receiver in receivers),
            placed=sum(receiver.under_way for receiver in receivers),
            links={node: target.why for node, target in sorted(targets.items())},
        )

    def _soon(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            self._loop.call_soon(call)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the links with it
                self._loop.call_soon_threadsafe(call)

    def _begin_link(self, node: int, target: _Target[D]) -> CallLink[D]:
        """Under the lock. Raises: LinkOver."""
        if self._loop is None or self._stopped:
            raise LinkOver("the node is stopping" if self._stopped else "the node is starting")
        if time.monotonic() < target.paused_until_s:
            raise LinkOver(target.why)
        target.link = link = CallLink(self._taker, self._soon)
        self._soon(lambda: self._spawn(self._keep_link(node, target, link)))
        return link

    # -- the loop's thread: links that are made ------------------------------------------------------------------------------

    def _begin_checks(self) -> None:
        self._thread = threading.get_ident()
        self._check_lives()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _keep_link(self, node: int, target: _Target[D], link: CallLink[D]) -> None:
        """Makes the connection of a link, and waits for its end."""
        connection = FramedConnection(silence_s=self._settings.silence_s)
        why = "the node is stopping"
        try:
            await self._connect(connection, node, link)
            target.why, target.pause_s = "", 0.0
            await connection.closed.wait()
            why = full_text(connection.error) if connection.error is not None else "the leading node hung up"
        except (OSError, BadFrame, UnicodeError) as error:  # TLS and time-outs are OSErrors
            why = full_text(error) or "no answer in time"
            target.pause_s = min(max(2 * target.pause_s, self._settings.pause_s_min), self._settings.pause_s_max)
            target.paused_until_s = time.monotonic() + target.pause_s
            self._quiet.log("calls_not_forwarded", node, node=node, why=why)
        finally:
            with self._lock:
                target.link, target.why = None, why
                self._sent += link.calls
            link.end(why)
            connection.drop()

    async def _connect(self, connection: FramedConnection, node: int, link: CallLink[D]) -> None:
        session, ready = await connect_peer(
            connection,
            self._address_of(node),
            lambda: call_session(CALL_CHANNEL, connection, self._ours, NodeId(node)),
            preface=CALL_CHANNEL.preface,
            tls=self._tls,
            settings=self._settings,
        )
        link.open(connection, session, decode_window(ready))

    # -- links that come in ------------------------------------------------------------------------------------------------

    async def _welcome(self, connection: FramedConnection) -> None:
        session = await answer_session(CALL_CHANNEL, connection, self._ours, self._window.encode())
        receiver = CallReceiver(connection, session, self._window, self._placer, self._soon)
        self._receivers[receiver] = None
        receiver.open(lambda: self._forget(receiver, session.peer.node))

    def _refuse_link(self, why: str, error: Exception) -> None:
        self._quiet.log("call_link_refused", type(error), why=why)

    def _forget(self, receiver: CallReceiver[H, R], node: int) -> None:
        if self._receivers.pop(receiver, self) is None:
            self._taken += receiver.calls
        error = receiver.connection.error
        if isinstance(error, BadFrame):
            self._quiet.log("call_link_refused", type(error), node=node, why=str(error))

    # -- both ----------------------------------------------------------------------------------------------------------------

    def _check_lives(self) -> None:
        if self._stopped:
            return
        for target in list(self._targets.values()):
            if target.link is not None:
                target.link.check_life(self._settings.silence_probes)
        asyncio.get_running_loop().call_later(self._settings.probe_s, self._check_lives)

    async def _close(self) -> None:
        """Flushes what is answered, and hangs up everywhere."""
        receivers = list(self._receivers)
        for receiver in receivers:
            receiver.flush()
            receiver.connection.hang_up()
        tasks = [*self._tasks, *self._incoming.cancel_all()]
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                for receiver in receivers:
                    await receiver.connection.closed.wait()
