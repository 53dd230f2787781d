"""All open connections: how many there may be, who makes room, who has waited too long.

One rule: a connection is kept for the sake of a request. When there is no room, one that waits for its client goes:

    1  of the *strangers*, whose requests never passed the gate, the one that has waited longest: so a flood of silent or
       half-sent connections only pushes itself out
    2  of a credential that has more than an even share of all, the one that has rested longest without a request; if all have
       one, the one whose body is latest
    3  where no credential has more, the same among all

A connection that is being answered stays. Of these, no credential can have all: the more it has at work, the more stay free for
others (as in `placing/shares.py`), and beyond that its requests are refused. Only when all are at work is a new connection
rejected, with 503.

Only the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.types import ASGIApp

from cmdlog.api.connections.connection import RETRY_S, Connection
from cmdlog.api.gate.problem import Problem
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.request_stats import RequestStats

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from cmdlog.api.connections.http_parser import Headers, Request
    from cmdlog.api.connections.request_cycle import CallCycle
    from cmdlog.api.connections.tls import Certificate

TURNED_AWAY_MAX: Final = 64  # connections beyond the limit that are being answered 503; further ones are closed without an answer
WORK_SHARE: Final = 7  # connections that a credential may have at work for each that nobody has: alone it gets 7 in 8
SHARED_MIN: Final = 8  # fewer connections are not shared out
EVERY_ANSWER: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Whatever is answered, no cache keeps it, and no browser takes it for something else. No route has these by itself."""
SWEEPS_PER_DEADLINE: Final = 20
SWEEP_MIN_S: Final = 0.01
SWEEP_MAX_S: Final = 0.25


class Quick(Protocol):
    """Answers some requests below ASGI, those that are complete at once."""

    reads: frozenset[bytes]
    """Names of the headers that mean something."""

    def takes(self, request: Request, body_bytes: int) -> bool:
        """Whether it is one of them."""

    def begin_call(self, request: Request, body: bytes, cycle: CallCycle) -> None:
        """Serves it: the cycle is answered once, in the loop's thread. Does not raise."""


class Holder:
    """The connections of one credential, or of all strangers."""

    __slots__ = ("name", "open", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}  # for their clients, the one that has waited longest first

    @property
    def working(self) -> int:
        """How many have a request under way, whose body is there, or are leaving."""
        return len(self.open) - len(self.waiting)

    def remove(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.waiting.pop(connection, None)


class ConnectionRegistry:
    """The connections of one server. `connect` is uvicorn's protocol factory.

    Invariant: an open connection is among those of its holder that wait exactly while it has no request under way, or waits for
    the body of one, and is not leaving.
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
        name_of: Callable[[Headers], str] | None = None,
    ) -> None:
        """`name_of` names the credential of a request, and raises Problem where it has none that serves; None: all are one."""
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
        self._name_of = name_of
        self._strangers = Holder("")
        self._holders: dict[str, Holder] = {}  # by name of the credential
        self._holder_of: dict[Connection, Holder] = {}
        self._tight = False  # so many are open that shares have to be looked at
        self._dated: list[tuple[bytes, bytes]] = []
        self._lines = b""
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
        self._assign(connection, self._strangers)
        self._tight = self._name_of is not None and 2 * len(self.open) > self._max >= SHARED_MIN
        if len(self.open) > self._max:
            spared = self._spared()
            if spared is None:
                self.counts["too_many_connections"] += 1
                return False
            self.counts["evicted"] += 1
            spared.evict()
        self.wait(connection)
        return True

    def _spared(self) -> Connection | None:
        """Who makes room, see the module; None: every connection is at work."""
        if self._strangers.waiting:
            return next(iter(self._strangers.waiting))
        payers = sorted((holder for holder in self._holders.values() if holder.waiting), key=lambda holder: -len(holder.open))
        if payers and len(payers[0].open) * len(self._holders) > self._max:
            del payers[1:]
        waiting = [holder.waiting for holder in payers]
        at_rest = next((connection for connection in chain.from_iterable(waiting) if connection.phase != "working"), None)
        return at_rest or min(chain.from_iterable(waiting), key=lambda connection: connection.read_deadline, default=None)

    def begin_request(self, connection: Connection, headers: Headers) -> Problem | None:
        """A request is under way, see `busy`; why it is not served, if its credential has too many at work."""
        self.busy(connection)
        try:
            name = "" if self._name_of is None else self._name_of(headers)
        except Problem:
            return None  # the gate refuses it
        try:
            self.attribute(connection, name)
        except Problem as problem:
            return problem
        return None

    def attribute(self, connection: Connection, name: str) -> None:
        """The request at hand is under way, by the credential of this name. Raises: Problem, when that has too many at work."""
        holder = self._holder_of[connection]
        if holder.name != name or holder is self._strangers:
            holder = self._holders.setdefault(name, Holder(name))
            self._assign(connection, holder)
        holder.waiting.pop(connection, None)
        if not self._tight:
            return
        working, free = holder.working, self._max - sum(holder.working for holder in self._holders.values())
        if working > 1 and working > WORK_SHARE * free:
            raise Problem(
                "too_many_connections", f"{working} requests of this credential are being answered", retry_after_s=RETRY_S
            )

    def _assign(self, connection: Connection, holder: Holder | None) -> None:
        """Whose the connection is from now on; None: it is gone."""
        former = self._holder_of.pop(connection, self._strangers)
        former.remove(connection)
        if not former.open and former is not self._strangers:
            del self._holders[former.name]
        if holder is not None:
            holder.open.add(connection)
            self._holder_of[connection] = holder

    @property
    def crowded(self) -> bool:
        """Not even a refusal can be afforded."""
        return len(self.open) > self._max + TURNED_AWAY_MAX

    def busy(self, connection: Connection) -> None:
        """A request is under way: nothing pushes the connection out."""
        if (holder := self._holder_of.get(connection)) is not None:
            holder.waiting.pop(connection, None)

    def wait(self, connection: Connection) -> None:
        """What comes next is the client's affair: the connection may have to make room."""
        self._holder_of[connection].waiting[connection] = None

    def rest(self, connection: Connection, *, known: bool) -> None:
        """A request was answered, and there is no other yet."""
        if not known:
            self._assign(connection, self._strangers)
        waiting = self._holder_of[connection].waiting
        waiting.pop(connection, None)  # of a request that was refused at the gate: it has waited from now on
        waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """The connection is gone. Idempotent."""
        self.open.discard(connection)
        self._assign(connection, None)
        self._tight = self._tight and 2 * len(self.open) > self._max

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

    def shared_lines(self) -> bytes:
        """Headers of every answer: the date, which uvicorn sets once a second, and EVERY_ANSWER."""
        headers = self._state.default_headers if self._state is not None else []
        if headers is not self._dated:
            self._dated = headers
            self._lines = b"".join(b"%b: %b\r\n" % header for header in (*headers, *EVERY_ANSWER))
        return self._lines
