"""One peer as this node knows it: its address, what waits for it, and its connections.

One rule: at most one connection each way, and both with the same process of the peer. A later one of that process takes the place
of an earlier one, which may be half open; another process has to be admitted first (`peer_admission`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from cmdlog.cluster.transport.framed_connection import ConnectionEnded
from cmdlog.cluster.transport.outbox import Outbox
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.cluster.transport.peer_link import IncomingLink, OutgoingLink, PeerLink
from cmdlog.cluster.transport.peer_transport import Address, LinkStatus, NoticeKind, PeerNotice, address_text, fault_text
from cmdlog.operator_error import full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault

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
        self._faults: Counter[FrameFault] = Counter()  # of connections that are over, as the next six
        self._out_bytes = self._out_frames = self._out_messages = 0
        self._in_bytes = self._in_frames = self._in_messages = 0
        self._connections = 0

    @property
    def links(self) -> list[PeerLink]:
        return [link for link in (self.outgoing, self.incoming) if link is not None]

    def attach_outgoing(self, link: OutgoingLink) -> None:
        """From now on messages leave by it."""
        if self.outgoing is not None:
            self.outgoing.end("replaced by a later connection")
            self._detach_outgoing(self.outgoing)
        self.outgoing, self.last_error = link, ""
        self._connections += 1
        self.outbox.open()
        link.open(lambda: self._detach_outgoing(link))
        self._notify(PeerNotice(NoticeKind.CONNECTED, self.node))

    def attach_incoming(self, link: IncomingLink) -> None:
        """From now on messages come by it."""
        if self.incoming is not None:
            self.incoming.end("replaced by a later connection")
            self._detach_incoming(self.incoming)
        self.incoming = link
        link.open(lambda: self._detach_incoming(link))
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

    def _detach_outgoing(self, link: OutgoingLink) -> None:
        if self.outgoing is not link:
            return
        self.outgoing = None
        self.outbox.close()
        self._out_frames += link.frames
        self._out_messages += link.messages
        self._out_bytes += link.connection.out_bytes
        self._settle_link(link)
        self._notify(PeerNotice(NoticeKind.DISCONNECTED, self.node, self.last_error))

    def _detach_incoming(self, link: IncomingLink) -> None:
        if self.incoming is not link:
            return
        self.incoming = None
        self._in_frames += link.frames
        self._in_messages += link.messages
        self._in_bytes += link.connection.in_bytes
        self._settle_link(link)

    def _settle_link(self, link: PeerLink) -> None:
        self._faults += link.faults
        error = link.connection.error or ConnectionEnded("the peer hung up")
        self.record_error(error)
        self._link_failed(self.node, error)

    def status(self, record: PeerRecord | None) -> LinkStatus:
        """A view of this moment; numbers may be a moment apart."""
        outgoing, incoming = self.outgoing, self.incoming
        faults = self._faults + (outgoing.faults if outgoing else Counter()) + (incoming.faults if incoming else Counter())
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
            out_bytes=self._out_bytes + (outgoing.connection.out_bytes if outgoing else 0),
            out_frames=self._out_frames + (outgoing.frames if outgoing else 0),
            out_messages=self._out_messages + (outgoing.messages if outgoing else 0),
            in_bytes=self._in_bytes + (incoming.connection.in_bytes if incoming else 0),
            in_frames=self._in_frames + (incoming.frames if incoming else 0),
            in_messages=self._in_messages + (incoming.messages if incoming else 0),
            queue_bytes=self.outbox.waiting_bytes,
            queue_messages=self.outbox.waiting_messages,
            dropped_messages=self.outbox.dropped_messages,
            dropped_bytes=self.outbox.dropped_bytes,
            faults=fault_text(faults),
            last_error=self.last_error,
        )
