"""The network between nodes: a thread with an event loop that carries messages and gives ticks.

One rule: the loop's thread does nothing but this, so heartbeats leave in time while the node is busy, and everything about a
connection happens in it alone. `send` only queues and wakes the loop, once for a burst.

Each node calls each of its peers, and sends by the connection that it made; what a peer says comes by the connection that the
peer made. So no two ends have to agree which of two connections stays, and a direction that is lost is noticed by its sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Final

import structlog
import uvloop

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import (
    ClusterName,
    HelloCredentials,
    PeerCredentials,
    RefusedByPeer,
    answer_peer,
    call_peer,
    naming_refusals,
    read_pinned,
)
from cmdlog.cluster.transport.outbox import Outbox
from cmdlog.cluster.transport.peer_admission import KnownPeer, PeerAdmission, PeerCaller
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRefused
from cmdlog.cluster.transport.peer_link import IncomingLink, OutgoingLink
from cmdlog.cluster.transport.peer_sockets import BACKLOG, IncomingSockets, TakeSocket, accept_sockets, connect_peer
from cmdlog.cluster.transport.peer_transport import (
    Address,
    NetworkStatus,
    PeerHandler,
    PeerNotice,
    PeerTls,
    Ticker,
    TransportSettings,
    address_text,
    fault_text,
)
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.control_frames import ControlKind
from cmdlog.raft.wire.layout import Addressed, BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Peer, Seal, Secret

STEPS_TO_CLOSE: Final = 3  # of the loop, in which uvloop closes sockets that were aborted

logger = structlog.get_logger("cmdlog.cluster")


class CannotListen(OperatorError):
    """The address for peers cannot be had."""

    hint = "check the address, and whether another process listens there"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where this node is called, and by what TLS; without it, payloads are protected by digests of their own."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    tls: PeerTls | None = None

    @property
    def seal(self) -> Seal:
        return Seal.WHOLE if self.tls is None else Seal.HEADS


class PeerNetwork:
    """The network of peers, over TCP. Made in any thread; `start` begins, `stop` ends, and it is not started twice."""

    def __init__(
        self,
        book: PeerBook,
        secret: Secret,
        endpoint: Endpoint,
        settings: TransportSettings | None = None,
        *,
        name: ClusterName | None = None,
    ) -> None:
        """`name`: of the cluster, where a forced recovery has given it another one."""
        self.book, self._endpoint, self._settings = book, endpoint, settings or TransportSettings()
        hello = HelloCredentials(name or ClusterName(book.identity.cluster_id), book.me, secret)
        self._ours = PeerCredentials(hello, book, endpoint.seal)
        self._encoder = secret.encoder(endpoint.seal)
        self._known: dict[NodeId, KnownPeer] = {}  # replaced as a whole, in the loop's thread
        self._wanted: dict[NodeId, Address] = {}
        self._callers: dict[NodeId, asyncio.Task[None]] = {}
        self._stranger_faults = Counter[FrameFault]()
        self._connections, self._woken = list[FramedConnection](), False  # made here, that are not closed
        self._quiet, self._handlers = QuietLog(), list[PeerHandler]()  # one handler, from `start` on
        self._admission = PeerAdmission(book, self._known_peer, self._notify, self._quiet, self._settings.challenge_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._incoming = IncomingSockets(
            self._answer, tls=endpoint.tls, settings=self._settings, refused=self._refuse, quiet=self._quiet
        )
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="cmdlog-peers", daemon=True)
        self._ready = threading.Event()

    # -- any thread ------------------------------------------------------------------------------------------------------

    def start(self, handler: PeerHandler) -> None:
        """Listens, and begins with the ticks, which the handler gets. Raises: CannotListen."""
        self._handlers.append(handler)
        endpoint = self._endpoint
        try:
            family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise CannotListen(f"cannot listen for peers on {endpoint.host}:{endpoint.port}: {error}") from None
        self._address: Address = self._listener.getsockname()[:2]
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Closes all connections and ends the thread; what still waits to be sent is lost. Idempotent."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
            if threading.get_ident() != self._thread.ident:
                self._thread.join()

    @property
    def address(self) -> Address:
        """Where it listens, once it is started."""
        assert self._listener is not None
        return self._address

    def send(self, parcels: Iterable[Parcel]) -> None:
        known = self._known
        for parcel in parcels:
            if (peer := known.get(parcel.receiver)) is not None:
                peer.outbox.put(parcel)
        if known and not self._woken:  # none are known before `start`: nobody would be woken
            self._woken = True
            self._in_loop(self._flush)

    def give_sockets(self, preface: bytes, take: TakeSocket) -> None:
        """Connections that begin with this byte are another channel's, from the next byte on. Before `start`."""
        self._incoming.give_away(preface, take)

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Before `start` too."""
        self._wanted = {node: address for node, address in sorted(peers.items()) if node != self.book.me.node}
        self._in_loop(self._replace_peers)

    @property
    def name(self) -> ClusterName:
        """Of the cluster, as it is said to peers."""
        return self._ours.hello.name

    def enter_epoch(self, epoch: int) -> None:
        """The cluster has another name: on return no connection of before carries anything any more, either way."""
        self.name.enter_epoch(epoch)
        self._in_loop(self._end_former)

    def status(self) -> NetworkStatus:
        known, records = self._known, self.book.records
        return NetworkStatus(
            listens_on="" if self._listener is None else address_text(self.address),
            peers=[peer.status(records.get(node)) for node, peer in known.items()],
            strangers=self._incoming.strangers,
            strangers_evicted=self._incoming.evicted,
            faults=fault_text(self._stranger_faults),
            duplicates=self._admission.duplicates,
        )

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread.ident:
            loop.call_soon(call)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended: nothing is sent any more
            loop.call_soon_threadsafe(call)

    # -- the loop's thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(_log_failure)
                runner.run(self._serve())
        finally:
            self._ready.set()  # `start` does not wait for a thread that has failed

    async def _serve(self) -> None:
        """Until `stop`."""
        assert self._listener is not None
        self._stopping = asyncio.Event()
        self._ticker = Ticker(self._settings.tick_s, self._give_ticks)
        accepting = asyncio.create_task(accept_sockets(self._listener, self._incoming.take_stranger, self._quiet))
        self._replace_peers()
        self._tick()
        self._check_lives()
        self._ready.set()
        await self._stopping.wait()
        accepting.cancel()
        under_way = [accepting, *self._incoming.cancel_all(), *self._callers.values()]
        self._replace_peers()
        await asyncio.gather(*under_way, return_exceptions=True)
        for connection in (
            *self._connections,
            *self._incoming.connections,
        ):  # also one that came about while its handshake was cancelled
            connection.end()
        for _ in range(STEPS_TO_CLOSE):  # not until each is reported: uvloop does not report one whose task was cancelled
            await asyncio.sleep(0)

    @property
    def _is_stopping(self) -> bool:
        return self._stopping is not None and self._stopping.is_set()

    def _replace_peers(self) -> None:
        peers = {} if self._is_stopping else self._wanted
        for node in self._known.keys() - peers.keys():
            self._callers.pop(node).cancel()
            self._known[node].end("the node is no peer any more")
        known = {node: self._known.get(node) or self._new_peer(node, address) for node, address in peers.items()}
        for node, peer in known.items():
            peer.call_elsewhere(peers[node])
        self._known = known
        for node in known.keys() - self._callers.keys():
            caller = PeerCaller(known[node], self._connect, self._admission, self._quiet, self._settings)
            self._callers[node] = asyncio.get_running_loop().create_task(caller.run())

    def _known_peer(self, node: NodeId) -> KnownPeer | None:
        return self._known.get(node)

    def _new_peer(self, node: NodeId, address: Address) -> KnownPeer:
        limits = self._settings
        outbox = Outbox(bytes_max=limits.queue_bytes_max, messages_max=limits.queue_messages_max)
        return KnownPeer(node, address, outbox, self._notify, self._report_link)

    def _flush(self) -> None:
        self._woken = False  # first: what is put from here on wakes the loop again
        for peer in self._known.values():
            if peer.outgoing is not None:
                peer.outgoing.flush()

    async def _connect(self, known: KnownPeer) -> OutgoingLink:
        """Calls a peer; on return its messages leave by the connection."""
        connection = FramedConnection(silence_s=self._settings.silence_s)
        self._connections = [known for known in self._connections if not known.closed.is_set()] + [connection]
        return await connect_peer(
            connection,
            known.address,
            lambda: self._introduce(connection, known),
            tls=self._endpoint.tls,
            settings=self._settings,
        )

    async def _introduce(self, connection: FramedConnection, known: KnownPeer) -> OutgoingLink:
        secret = self._ours.hello.secret
        session = await call_peer(connection, self._ours, known.node, self._admission.pin)
        start = await read_pinned(connection, session)
        link = OutgoingLink(connection, session, start, outbox=known.outbox, secret=secret, encoder=self._encoder)
        with naming_refusals(connection, session):
            await self._admission.accept(connection, session.peer, start, lambda of: of.attach_outgoing(link), takes_us=True)
        return link

    def _refuse(self, why: str, error: Exception) -> None:
        """A connection that came in has not proved who it is."""
        if isinstance(error, BadFrame):
            self._stranger_faults[error.fault] += 1
            self._quiet.log("peer_frame_refused", error.fault, reason=error.fault.value, why=why)
        elif isinstance(error, ssl.SSLError):
            self._quiet.log("peer_not_accepted", "TLS", why=why)
        elif isinstance(error, OperatorError):
            self._quiet.log("peer_not_accepted", error.kind, why=str(error))

    async def _answer(self, connection: FramedConnection) -> None:
        session, start = await answer_peer(connection, self._ours)
        node = session.peer.node

        def attach(known: KnownPeer) -> None:
            link = IncomingLink(
                connection,
                session,
                start,
                secret=self._ours.hello.secret,
                deliver=partial(self._deliver, session.peer),
            )
            known.attach_incoming(link)
            connection.write(session.controls_out.seal(ControlKind.PINNED, self.book.start.number))

        try:
            with naming_refusals(connection, session):
                await self._admission.accept(connection, session.peer, start, attach)
        except PeerRefused as error:
            self._admission.report(error, node)

    # -- what the driver is given ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._is_stopping:
            self._ticker.give_due()
            asyncio.get_running_loop().call_later(self._ticker.wait_s, self._tick)

    def _give_ticks(self, ticks: int) -> None:
        self._guarded(lambda handler: handler.on_tick(ticks))

    def _deliver(self, peer: Peer, messages: list[Addressed]) -> None:
        self._ticker.give_due()
        if self.book.records[peer.node].incarnation == peer.incarnation:  # it may have been replaced since the handshake
            self._guarded(methodcaller("on_messages", peer.node, messages))

    def _notify(self, notice: PeerNotice) -> None:
        self._guarded(lambda handler: handler.on_notice(notice))

    def _guarded(self, call: Callable[[PeerHandler], None]) -> None:
        """A defect of the handler is logged with its trace; the network still works for the others."""
        try:
            for handler in self._handlers:
                call(handler)
        except Exception:
            logger.exception("peer_handler_failed")

    def _report_link(self, node: NodeId, error: Exception) -> None:
        """A connection has ended for a reason."""
        if isinstance(error, RefusedByPeer):
            self._admission.report(error, node)
        elif isinstance(error, BadFrame):
            self._quiet.log("peer_frame_refused", node, error.fault, node=node, reason=error.fault.value, why=str(error))
        else:
            self._quiet.log("peer_connection_lost", node, level=logging.INFO, node=node, why=str(error))

    def _end_former(self) -> None:
        for peer in self._known.values():
            for link in peer.links:
                link.end_former()

    def _check_lives(self) -> None:
        for peer in self._known.values():
            for link in peer.links:
                if self.book.records[peer.node].incarnation != link.peer.incarnation:
                    link.end("another incarnation was admitted")
                else:
                    link.check_life(self._settings.silence_probes)
        if not self._is_stopping:
            asyncio.get_running_loop().call_later(self._settings.probe_s, self._check_lives)


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What no one else has caught."""
    logger.error("peer_network_failed", why=str(context.get("message")), exc_info=context.get("exception"))
