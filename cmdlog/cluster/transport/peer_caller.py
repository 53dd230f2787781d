"""Calls one peer, as long as the node runs: connects, waits for the end of the connection, pauses, and calls again.

One rule: it never gives up and never floods. Pauses double up to a limit, vary by chance so that two nodes do not call in step,
and end at once when the peer itself calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.known_peer import KnownPeer
from cmdlog.cluster.transport.peer_admission import PeerAdmission
from cmdlog.cluster.transport.peer_book import PeerRefused
from cmdlog.cluster.transport.peer_link import PeerLink
from cmdlog.cluster.transport.peer_transport import TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import OperatorError
from cmdlog.raft.wire.layout import BadFrame

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
