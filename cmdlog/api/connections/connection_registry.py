"""All open connections: how many there may be, who makes room, who has waited too long.

One rule: a connection is kept for the sake of a request. When there is no room, the one that has waited longest without one goes,
and first among the *strangers*, whose requests never passed the gate: so a flood of silent or half-sent connections only pushes
itself out, and a connection that is being answered stays. Only when all are busy is a new one rejected, with 503.

Only the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.types import ASGIApp

from cmdlog.api.connections.connection import Connection
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.request_stats import RequestStats

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from cmdlog.api.connections.http_parser import Request
    from cmdlog.api.connections.request_cycle import QuickExchange
    from cmdlog.api.connections.tls import Certificate

TURNED_AWAY_MAX: Final = 64  # connections beyond the limit that are being answered 503; further ones are closed without an answer
SWEEPS_PER_DEADLINE: Final = 20
SWEEP_MIN_S: Final = 0.01
SWEEP_MAX_S: Final = 0.25


class Quick(Protocol):
    """Answers some requests below ASGI, those that are complete at once."""

    reads: frozenset[bytes]
    """Names of the headers that mean something."""

    def takes(self, request: Request, body_bytes: int) -> bool:
        """Whether it is one of them."""

    def begin_call(self, request: Request, body: bytes, exchange: QuickExchange) -> None:
        """Serves it: the exchange is answered once, in the loop's thread. Does not raise."""


class Roster:
    """The connections of one server. `connect` is uvicorn's protocol factory.

    Invariant: an open connection is in `_strangers` or `_known` exactly while it has no request under way and is not leaving.
    """

    def __init__(
        self,
        application: ASGIApp,
        settings: Settings,
        *,
        connections_max: int,
        certificate: Certificate | None = None,
        streams: frozenset[str] = frozenset(),
        quick: Quick | None = None,
        front: RequestStats | None = None,
    ) -> None:
        self.application, self.settings = application, settings
        self.certificate = certificate  # None: plain HTTP
        self.streams = streams  # paths whose bodies have no end
        self.quick = quick  # None: everything goes through ASGI
        self.counts: Counter[str] = Counter()  # what was refused or cut here, by code
        self.leaving = False  # each connection ends with its next answer, which says so: clients find another server
        self.open: set[Any] = set()
        self.front = front or RequestStats()  # called for every error that is answered here
        self.front.show_connections(lambda: len(self.open), cut=lambda: dict(self.counts))
        self.tasks: set[asyncio.Task[None]] = set()
        self._max = connections_max
        self._state: ServerState | None = None
        self._strangers: dict[Connection, None] = {}  # the one that has waited longest first
        self._known: dict[Connection, None] = {}  # the one that has rested longest first
        self._dated: list[tuple[bytes, bytes]] = []
        self._date = b""
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, config: object, server_state: ServerState, app_state: object, _loop: object = None) -> Connection:
        """A connection that is about to be made, as uvicorn's server asks for it."""
        if self._state is not server_state:
            self._state = server_state
            self.open, self.tasks = server_state.connections, server_state.tasks  # a stopping server waits for both
        return Connection(self, asyncio.get_running_loop())

    def begin_leaving(self) -> None:
        """Clients find another server: see `leaving`."""
        self.leaving = True

    # -- who is here -----------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Takes a connection in, if need be in the place of another one. False: every one of them is at work."""
        self.open.add(connection)
        if len(self.open) > self._max:
            waiting = next(itertools.chain(self._strangers, self._known), None)
            if waiting is None:
                self.counts["too_many_connections"] += 1
                return False
            self.counts["evicted"] += 1
            waiting.evict()
        self._strangers[connection] = None
        return True

    @property
    def crowded(self) -> bool:
        """Not even a refusal can be afforded."""
        return len(self.open) > self._max + TURNED_AWAY_MAX

    def busy(self, connection: Connection) -> None:
        """A request is under way: nothing pushes the connection out."""
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)

    def rest(self, connection: Connection, *, known: bool) -> None:
        """A request was answered, and there is no other yet."""
        (self._known if known else self._strangers)[connection] = None

    def remove(self, connection: Connection) -> None:
        """The connection is gone. Idempotent."""
        self.open.discard(connection)
        self.busy(connection)

    # -- who has waited too long -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Looks at the deadlines from now on."""
        limits = self.settings
        shortest = min(limits.header_timeout_s, limits.body_timeout_s, limits.write_timeout_s, limits.keep_alive_s)
        self._sweep(max(SWEEP_MIN_S, min(SWEEP_MAX_S, shortest / SWEEPS_PER_DEADLINE)))

    def stop(self) -> None:
        """Ends what `start` began."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [one for one in self.open if one.read_deadline <= now or one.write_deadline <= now]:
            connection.overdue(now)
        self._timer = loop.call_later(every_s, self._sweep, every_s)

    # -- what answers share ----------------------------------------------------------------------------------------------

    def date(self) -> bytes:
        """The line with the date, which uvicorn sets once a second."""
        headers = self._state.default_headers if self._state is not None else []
        if headers is not self._dated:
            self._dated = headers
            self._date = b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._date
