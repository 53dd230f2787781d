"""Whether a process that has proved to hold the secret becomes this node's connection with a peer.

One rule: two processes are never the same peer at the same time. Copies of one directory have the same node id and the same
incarnation, so the pin does not tell them apart; each would vote, and consensus would count two votes of one node. Thus a process
that is connected stays the peer as long as it answers: another one that claims to be the same node is refused, however often it
calls. When the one that was connected is gone, a later start of the directory takes its place for good, and what then comes back
with an earlier or the same number of start is refused (`peer_book`). So two copies never take turns.

The caller's side (`PeerCaller`) never gives up and never floods: pauses double up to a limit, vary by chance so that two nodes do
not call in step, and end at once when the peer itself calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.known_peer import KnownPeer, Notify
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRefused
from cmdlog.cluster.transport.peer_link import PeerLink
from cmdlog.cluster.transport.peer_transport import NoticeKind, PeerNotice, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart, RefusalReason
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Peer

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
