"""One peer as this node knows it, and whether a process that has proved to hold the secret becomes the connection with it.

One rule: two processes are never the same peer at the same time. Copies of one directory have the same node id and the same
incarnation, so the pin does not tell them apart; each would vote, and consensus would count two votes of one node. Thus a process
that is connected stays the peer as long as it answers: another one that claims to be the same node is refused, however often it
calls. When the one that was connected is gone, a later start of the directory takes its place for good, and what then comes back
with an earlier or the same number of start is refused (`peer_book`). So two copies never take turns.

`KnownPeer` has at most one connection each way, both with the same process. A later one of that process takes the place of an
earlier one, which may be half open.

The caller's side (`PeerCaller`) never gives up and never floods: pauses double up to a limit, vary by chance so that two nodes do
not call in step, and end at once when the peer itself calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.outbox import Outbox
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRecord, PeerRefused
from cmdlog.cluster.transport.peer_link import TRAFFIC, IncomingLink, OutgoingLink, PeerLink
from cmdlog.cluster.transport.peer_transport import (
    Address,
    LinkStatus,
    NoticeKind,
    PeerNotice,
    TransportSettings,
    address_text,
    fault_text,
)
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart, RefusalReason
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Peer

Notify = Callable[[PeerNotice], None]
LinkFailed = Callable[[NodeId, Exception], None]


class KnownPeer:
    """Changed in the loop's thread alone; `outbox` and `status` are for any thread."""

    def __init__(self, node: NodeId, address: Address, outbox: Outbox, notify: Notify, link_failed: LinkFailed) -> None:
        self.node, self.address, self.outbox, self._notify, self._link_failed = node, address, outbox, notify, link_failed
        self.outgoing: OutgoingLink | None = None
        self.incoming: IncomingLink | None = None
        self.turn = asyncio.Lock()  # one process at a time is judged
        self.nudge = asyncio.Event()  # call again now
        self.last_error = ""
        self._faults: Counter[FrameFault] = Counter()  # of connections that are over, as the next
        self._traffic: Counter[str] = Counter()  # of `PeerLink.traffic`
        self._connections = 0

    @property
    def links(self) -> list[PeerLink]:
        return [link for link in (self.outgoing, self.incoming) if link is not None]

    def attach_outgoing(self, link: OutgoingLink) -> None:
        """From now on messages leave by it."""
        if self.outgoing is not None:
            self._replace(self.outgoing)
        self.outgoing, self.last_error = link, ""
        self._connections += 1
        self.outbox.open()
        link.open(lambda: self._detach(link))
        self._notify(PeerNotice(NoticeKind.CONNECTED, self.node))

    def attach_incoming(self, link: IncomingLink) -> None:
        """From now on messages come by it."""
        if self.incoming is not None:
            self._replace(self.incoming)
        self.incoming = link
        link.open(lambda: self._detach(link))
        if self.outgoing is None:
            self.nudge.set()  # who calls can be called

    def end(self, why: str) -> None:
        """Closes both connections."""
        for link in self.links:
            link.end(why)

    def call_elsewhere(self, address: Address) -> None:
        """The peer has moved."""
        if address != self.address:
            self.address = address
            if self.outgoing is not None:
                self.outgoing.end("the peer has another address")
            self.nudge.set()

    def record_error(self, error: BaseException) -> None:
        """For the status."""
        self.last_error = full_text(error) or "no answer in time"  # what a time-out has no words for

    def count_fault(self, error: BadFrame) -> None:
        """A frame that no link's own counters know."""
        self._faults[error.fault] += 1

    def _replace(self, link: PeerLink) -> None:
        link.end("replaced by a later connection")
        self._detach(link)

    def _detach(self, link: PeerLink) -> None:
        """It is over: its counters stay. One that was replaced is over since then, whenever its end is noticed."""
        if link not in self.links:
            return
        is_outgoing = link is self.outgoing
        if is_outgoing:
            self.outgoing = None
            self.outbox.close()
        else:
            self.incoming = None
        self._traffic += link.traffic
        self._faults += link.faults
        error = link.connection.error or ConnectionEnded("the peer hung up")
        self.record_error(error)
        self._link_failed(self.node, error)
        if is_outgoing:
            self._notify(PeerNotice(NoticeKind.DISCONNECTED, self.node, self.last_error))

    def status(self, record: PeerRecord | None) -> LinkStatus:
        """A view of this moment; numbers may be a moment apart."""
        outgoing, incoming = self.outgoing, self.incoming
        faults = sum((link.faults for link in self.links), self._faults)
        traffic = sum((link.traffic for link in self.links), self._traffic)
        return LinkStatus(
            node=self.node,
            address=address_text(self.address),
            incarnation=record.incarnation.hex() if record else "",
            confirmed=record.confirmed if record else False,
            met_later=record.met_later if record else False,
            connected_since_s=outgoing.since_s if outgoing else None,
            calls_since_s=incoming.since_s if incoming else None,
            round_trip_s=outgoing.round_trip_s if outgoing else None,
            connections=self._connections,
            **{name: traffic[name] for name in TRAFFIC},
            queue_bytes=self.outbox.waiting_bytes,
            queue_messages=self.outbox.waiting_messages,
            dropped_messages=self.outbox.dropped_messages,
            dropped_bytes=self.outbox.dropped_bytes,
            faults=fault_text(faults),
            last_error=self.last_error,
        )


Connect = Callable[[KnownPeer], Awaitable[PeerLink]]
"""Makes the connection; it is attached on return."""


class PeerCaller:
    """Of one peer; a task of the loop runs it."""

    def __init__(
        self, known: KnownPeer, connect: Connect, admission: PeerAdmission, quiet: QuietLog, settings: TransportSettings
    ) -> None:
        self._known, self._connect, self._admission, self._quiet, self._settings = known, connect, admission, quiet, settings
        self._pause_s = settings.pause_s_min

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._call_once()
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._settings.pause_s_max)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.0)):
                    await self._known.nudge.wait()

    async def _call_once(self) -> None:
        known = self._known
        known.nudge.clear()
        try:
            link = await self._connect(known)
        except (PeerRefused, RefusedByPeer) as error:
            self._pause_s = self._settings.pause_s_max  # nothing changes by itself
            known.record_error(error)
            self._admission.report(error, known.node)
        except (OSError, BadFrame, OperatorError, UnicodeError) as error:  # TLS and time-outs are OSErrors
            if isinstance(error, BadFrame):
                known.count_fault(error)
            known.record_error(error)
            self._quiet.log("peer_unreachable", known.node, node=known.node, address=known.address, why=known.last_error)
        else:
            await link.connection.closed.wait()
            if link.answered:
                self._pause_s = self._settings.pause_s_min
            if isinstance(link.connection.error, RefusedByPeer):
                self._pause_s = self._settings.pause_s_max


COPIES = frozenset({RefusalReason.DUPLICATE, RefusalReason.EARLIER_START})
COPIES_TEXT = frozenset(reason.name.lower() for reason in COPIES)


class PeerAdmission:
    """Used in the loop's thread; the book is written in another one, so that heartbeats do not wait for the disk."""

    def __init__(
        self, book: PeerBook, known: Callable[[NodeId], KnownPeer | None], notify: Notify, quiet: QuietLog, challenge_s: float
    ) -> None:
        self._book, self._known, self._notify, self._quiet, self._challenge_s = book, known, notify, quiet, challenge_s
        self.duplicates = 0

    async def pin(self, peer: Peer) -> None:
        """Holds the incarnation of a peer that has answered our call; durable on return. Raises: PeerRefused, WalError."""
        self._member(peer)
        self._book.check(peer)
        await asyncio.to_thread(self._book.pin, peer)

    async def accept(
        self,
        connection: FramedConnection,
        peer: Peer,
        start: ProcessStart,
        attach: Callable[[KnownPeer], None],
        *,
        takes_us: bool = False,
    ) -> None:
        """Attaches the connection of a process that has pinned us; its incarnation and start are durable before that. `takes_us`:
        it has judged our start, too.

        Raises: PeerRefused, WalError, ConnectionEnded.
        """
        known = self._member(peer)
        async with known.turn:
            self._book.check(peer, start)
            await self._displace(known, peer, start)
            is_new = await asyncio.to_thread(self._book.acquaint, peer, start, takes_us=takes_us)
            if connection.is_ending or self._known(peer.node) is not known:
                raise ConnectionEnded("the connection ended during its handshake")
            attach(known)
        if is_new:
            self._notify(PeerNotice(NoticeKind.CONFIRMED, peer.node, peer.incarnation.hex()))

    def report(self, error: PeerRefused | RefusedByPeer, node: NodeId) -> None:
        """Counts and logs a refusal, by either end, and passes it on. One of ours as a copy is durable first: what follows from
        it must outlive a restart."""
        theirs = isinstance(error, RefusedByPeer)
        self._quiet.log(
            "peer_refuses_us" if theirs else "peer_refused", node, error.kind, node=node, reason=error.kind, why=str(error)
        )
        if theirs and error.kind in COPIES_TEXT:
            try:
                self._book.note_later(node)
            except OperatorError as failure:  # the next refusal tries again
                self._quiet.log("peer_not_noted", node, node=node, why=str(failure))
        kind = NoticeKind.REFUSED_BY_PEER if theirs else NoticeKind.REFUSED
        self._notify(PeerNotice(kind, node, error.kind))
        if error.kind in COPIES_TEXT:
            self.duplicates += 1
            self._notify(PeerNotice(NoticeKind.DUPLICATE, node, str(error)))

    def _member(self, peer: Peer) -> KnownPeer:
        known = self._known(peer.node)
        if known is None:
            raise PeerRefused(peer, RefusalReason.NOT_A_MEMBER, "the node is no peer of this one")
        return known

    async def _displace(self, known: KnownPeer, peer: Peer, start: ProcessStart) -> None:
        """Ends the connections with another process of the peer. Raises: PeerRefused when one of them still answers."""
        rivals = [link for link in known.links if link.start.process != start.process]
        if any(await asyncio.gather(*(rival.challenge(self._challenge_s) for rival in rivals))):
            detail = f"start {start.number} of its directory calls, while the process of start {rivals[0].start.number} answers"
            raise PeerRefused(peer, RefusalReason.DUPLICATE, detail)
        for rival in rivals:
            rival.end("another process has taken the place of this one")
