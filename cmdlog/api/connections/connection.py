"""One client's connection, as a protocol under uvicorn's server: its phases, its deadlines, and what is refused here.

One rule: nothing waits without a deadline, and nothing is kept without a limit. A deadline is a number; the registry looks at
those of all connections a few times a second, so that a request costs no timer.

    greeting    the TLS handshake                                       header_timeout_s from the opening: cut
    head        some of a head, or nothing since the opening            header_timeout_s from the opening or its first byte: 408
    rest        between two requests                                    keep_alive_s: closed
    working     a request is being answered; what follows is held back  only for its body, see `cycle`
    draining    it is answered, and the rest of its body still comes    LINGER_S: closed
    leaving     nothing more is answered                                LINGER_S to take leave, then cut
    gone        nothing is expected any more                            none

What an event does in a phase is one row and column of `Connection.PHASES`, at its end.
Whatever is written must be taken, WRITE_BYTES within `write_timeout_s`; else the connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, cast

import structlog

from cmdlog.api.connections.http_parser import HttpParser, Request
from cmdlog.api.connections.request_cycle import CLOSE, WRITE_BYTES, CallCycle, RequestCycle, ResponseWriter, encode_head
from cmdlog.api.connections.tls import feed_protocol
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.request_trace import Trace

if TYPE_CHECKING:
    from cmdlog.api.connections.connection_registry import ConnectionRegistry, Quick

HELD_BYTES_MAX: Final = 64 << 10  # received after the request under way, or of its body before it is read: then the socket waits
LINGER_S: Final = 2.0  # a client that still sends: closing at once would reset the connection before it has read its answer
LINGER_BYTES_MAX: Final = 16 << 20
RESET: Final = struct.pack("ii", 1, 0)  # of SO_LINGER: closing discards what is not sent and resets the connection
UNAUTHENTICATED: Final = 401
RETRY_S: Final = 1  # when every connection is busy

Phase = Literal["greeting", "head", "rest", "working", "draining", "leaving", "gone"]

logger = structlog.get_logger("cmdlog.api")


class _Reactions(NamedTuple):
    """What each event does, in one phase."""

    data: Callable[[Connection, bytes], None]  # bytes came
    parsed: Callable[[Connection], None]  # they were given to the parser
    end: Callable[[Connection], bool]  # the client sends nothing more; whether the connection stays for the answer
    room: Callable[[Connection], None]  # the client takes what is written again
    stop: Callable[[Connection], None]  # the server stops
    overdue: Callable[[Connection], None]  # the read deadline has passed


class Connection(asyncio.Protocol):
    """See the module. Only the event loop's thread.

    Invariant: `_cycle` is not None exactly in phase working; `parser` is not complete in phases head, rest and draining.
    """

    __slots__ = (
        "_cycle", "_ended", "_greeting", "_held", "_last", "_left_bytes", "_reading", "_transport", "_writer",
        "client", "loop", "parser", "phase", "read_deadline", "registry", "scheme", "server",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, registry: ConnectionRegistry, loop: asyncio.AbstractEventLoop) -> None:
        self.registry, self.loop = registry, loop
        settings = registry.settings
        self.parser = HttpParser(head_bytes_max=settings.header_bytes_max, headers_max=settings.headers_max)
        self.phase: Phase = "greeting"
        self.read_deadline = inf  # the registry calls `overdue` when it or `write_deadline` has passed
        self.scheme = "http"
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self._cycle: RequestCycle | CallCycle | None = None
        self._greeting: asyncio.Task[None] | None = None
        self._held = b""  # what was received after the request under way
        self._left_bytes = 0  # that came after the last answer
        self._reading = True
        self._writer = ResponseWriter(loop, timeout_s=settings.write_timeout_s)
        self._last = False  # no further request is taken
        self._ended = False  # the client sends nothing more

    # -- coming and going ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        registry = self.registry
        self.read_deadline = self.loop.time() + registry.settings.header_timeout_s
        if not registry.admit(self):
            self._turn_away()
        elif registry.certificate is None:
            self._open()
        else:
            self._greeting = self.loop.create_task(self._greet(registry.certificate.context()))

    async def _greet(self, context: ssl.SSLContext) -> None:
        """The TLS handshake; the deadline of the head runs already."""
        timeout_s = self.registry.settings.header_timeout_s
        try:
            if self.phase != "greeting":
                return  # it had to make room, or is gone
            self.loop.call_soon(self._pass_on)  # when TLS has taken our place at the transport, and before it begins
            secure = await self.loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=LINGER_S
            )
        except OSError:  # ssl.SSLError is one: no TLS or an old one, no good certificate, too slow, gone
            self.registry.counts["tls_handshake"] += 1
            self._forget()
            return
        finally:
            self._greeting = None
        assert secure is not None
        self._transport, self.scheme = secure, "https"
        if self.phase == "greeting":
            self._open()
        else:
            secure.abort()

    def _pass_on(self) -> None:
        """What came before TLS was there to read it, is for TLS: a transport cannot be kept from its first read."""
        early, self._held = self._held, b""
        protocol: Any = self._transport.get_protocol()
        if protocol is not self:
            feed_protocol(protocol, early)

    def _open(self) -> None:
        self.phase = "head"
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self.client = self._transport.get_extra_info("peername")[:2]
        self.server = self._transport.get_extra_info("sockname")[:2]

    def _turn_away(self) -> None:
        if self.registry.certificate is not None or self.registry.crowded:
            self._cut()
        else:
            self._answer(Problem("too_many_connections", "every connection is busy", retry_after_s=RETRY_S))

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()

    def _forget(self) -> None:
        """Nothing more is expected of this connection. Idempotent."""
        if self.phase == "gone":
            return
        self._part(inf)
        self.phase = "gone"
        self.registry.remove(self)
        self._abandon()
        self.resume_writing()
        self.parser.close()

    def _abandon(self) -> None:
        """The client does not wait for its answer; the cycle that makes it is notified."""
        cycle, self._cycle = self._cycle, None
        if cycle is not None:
            cycle.disconnect()

    def _cut(self) -> None:
        """Ends the connection at once, with whatever is not sent yet."""
        self._forget()
        self._transport.abort()

    def evict(self) -> None:
        """Makes room for another connection; no request is under way, or one whose body is late."""
        if self._cycle is None or self.registry.crowded:
            self._cut()
            return
        self._refuse(Problem("body_timeout", "the body was late when the server needed the connection for another client"))

    def shutdown(self) -> None:
        """The server stops: a request under way is answered, nothing else."""
        self._last = True
        self.PHASES[self.phase].stop(self)

    def _answer_last(self) -> None:
        assert self._cycle is not None
        self._cycle.close_after()

    # -- reading ---------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.PHASES[self.phase].data(self, data)

    def eof_received(self) -> bool:
        """The client sends nothing more, but may be waiting for its answers (over TLS it cannot)."""
        self._ended = True
        return self.PHASES[self.phase].end(self)

    def _hold(self, data: bytes) -> None:
        self._held += data

    def _hold_back(self, data: bytes) -> None:
        """Not looked at before the request under way is answered, and the answer taken."""
        self._held += data
        if len(self._held) > HELD_BYTES_MAX:
            self._stop_reading()

    def _take_between(self, data: bytes) -> None:
        """No request is under way: this belongs to the next one's head."""
        if self._held or self._writer.paused:
            self._hold_back(data)
            return
        quick = self.registry.quick
        if quick is not None and (call := self.parser.take_call(data, quick.reads)) is not None:
            if quick.takes(call, self.parser.body_bytes):
                self._begin_quickly(call, quick)
                return
            self.parser.start_next()
        if self.phase == "rest":
            self._await_head()
        self._feed(data)

    def _take_working(self, data: bytes) -> None:
        """Bytes of the body of the request under way, or of what follows it."""
        if self._held or self.parser.complete:
            self._hold_back(data)
        else:
            self._feed(data)

    def _count_left(self, data: bytes) -> None:
        self._left_bytes += len(data)
        if self._left_bytes > LINGER_BYTES_MAX:
            self._cut()

    def _feed(self, data: bytes) -> None:
        parser = self.parser
        try:
            self._held = parser.feed(data)
        except Problem as problem:
            self._refuse(problem)
            return
        self.PHASES[self.phase].parsed(self)
        if parser.waiting > HELD_BYTES_MAX or len(self._held) > HELD_BYTES_MAX:
            self._stop_reading()

    def _parsed_body(self) -> None:
        assert self._cycle is not None
        self._cycle.arrived()

    def _parsed_leftover(self) -> None:
        """The request is answered: the rest of its body is only counted."""
        if self.parser.complete:
            self._rest()
        elif self.parser.body_bytes > LINGER_BYTES_MAX:
            self._close()

    def _expects(self) -> bool:
        """Whether the client may still be waiting for an answer."""
        return self.scheme == "http" and (self.parser.complete or bool(self._held))

    def _end_working(self) -> bool:
        assert self._cycle is not None
        self._cycle.arrived()  # notifies a task that waits for the client's end
        return self._expects()

    def _expects_none(self) -> bool:
        return False

    def _ignore(self) -> None:
        """The event means nothing in this phase."""

    def _await_head(self) -> None:
        self.phase, self.read_deadline = "head", self.loop.time() + self.registry.settings.header_timeout_s

    def _begin_request(self) -> None:
        """The request is served, if its head is complete."""
        registry, request = self.registry, self.parser.request
        if request is None:
            return
        quick = registry.quick
        if quick is not None and self.parser.complete and quick.takes(request, self.parser.body_bytes):
            self._begin_quickly(request, quick)
            return
        if (problem := registry.begin_request(self, request.headers)) is not None:
            self._answer(problem)
            return
        self.phase, self.read_deadline = "working", inf
        cycle = self._cycle = RequestCycle(self, request, deadline=self.body_deadline(), stream=request.path in registry.streams)
        if registry.leaving:
            cycle.close_after()
        cycle.task = self.loop.create_task(cycle.run(registry.application))
        registry.tasks.add(cycle.task)

    def _begin_quickly(self, request: Request, quick: Quick) -> None:
        """A complete request is answered without ASGI; it is at work once the gate knows its credential: see `attribute`."""
        self.phase, self.read_deadline = "working", inf
        short = self._cycle = CallCycle(self, request)
        if self.registry.leaving:
            short.close_after()
        quick.begin_call(request, self.parser.take_body(), short)

    def _stop_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    # -- what the cycle asks for --------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """The client sends nothing more."""
        return self._ended

    def body_deadline(self) -> float:
        """When a body that begins now must be complete."""
        return self.loop.time() + self.registry.settings.body_timeout_s

    def wait_until(self, cycle: RequestCycle, deadline: float) -> None:
        """The cycle waits for more of the body, or (inf) no longer."""
        if self._cycle is cycle:
            self.read_deadline = deadline
            (self.registry.busy if deadline == inf else self.registry.wait)(self)

    def read_on(self) -> None:
        """There is room for more."""
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def write_now(self, data: bytes) -> None:
        """A small answer, or part of one. When the client does not take it, no further request is looked at."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the client has taken what is written, or is gone."""
        self._writer.when_taken(tell)

    def write(self, data: bytes) -> Awaitable[None]:
        """Returns when at most WRITE_BYTES and one such part are not sent yet, or the client is gone."""
        return self._writer.write(self._transport, data)

    def answered(self, cycle: RequestCycle | CallCycle, data: bytes = b"") -> None:
        """The answer is written as a whole; of a call it is this. When a client does not take it, its next request waits."""
        if data and not self._transport.is_closing():
            self._transport.write(data)
        if self._cycle is not cycle:
            return
        self._cycle = None
        if not cycle.keep_alive:
            self._leave()
            return
        self.registry.rest(self, known=cycle.status != UNAUTHENTICATED)
        if self.parser.complete:
            self._rest()
        else:
            self.phase, self.read_deadline = "draining", self.loop.time() + LINGER_S
            self.parser.discard_body()
            self.read_on()

    def finished(self, cycle: RequestCycle) -> None:
        """The cycle's task ends."""
        self.registry.tasks.discard(cycle.task)
        self.broken(cycle)

    def broken(self, cycle: RequestCycle | CallCycle) -> None:
        """The work on the answer has ended. One that is not whole must not look whole."""
        if self._cycle is not cycle:
            return
        self._cycle = None
        if cycle.request.version == "1.0":  # whose answers may end with the connection
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._cut()
        else:
            self._close()

    # -- after the answer ------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """The request is over: what has been waiting for its end comes next."""
        self.parser.start_next()
        if self._held:
            self._next()
        elif self._ended or self._last:
            self._close()
        else:
            self.phase, self.read_deadline = "rest", self.loop.time() + self.registry.settings.keep_alive_s
            if not self._reading:
                self.read_on()

    def _next(self) -> None:
        """What has been held back has its turn, after others have had theirs."""
        self._await_head()
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.phase != "head" or self._writer.paused:
            return
        data, self._held = self._held, b""
        self._feed(data)
        if self._ended and self.phase == "head":
            self._close()  # it will never be complete
        elif len(self._held) <= HELD_BYTES_MAX:
            self.read_on()

    def _leave(self) -> None:
        """The last answer is written."""
        if self.parser.complete and not self._held:
            self._close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Takes what the client still sends, for a while, so that it reads its answer."""
        if self._ended or self.scheme == "https":  # where the shutdown of TLS does the same
            self._close()
            return
        self._part(LINGER_S)
        self._transport.write_eof()
        self.read_on()

    def _close(self) -> None:
        """Closes when the client has taken what is written."""
        self._part(self.registry.settings.write_timeout_s)
        self._transport.close()

    def _part(self, within_s: float) -> None:
        self.registry.busy(self)  # it need not be pushed out
        self.phase, self._held = "leaving" if self.phase != "gone" else "gone", b""
        self.read_deadline = self.loop.time() + within_s

    # -- refusing --------------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """A deadline has passed."""
        if self.write_deadline <= now:
            self.registry.counts["slow_reader"] += 1
            self._cut()
        else:
            self.PHASES[self.phase].overdue(self)

    def _refuse_slow(self) -> None:
        limit_s = self.registry.settings.header_timeout_s
        self._refuse(Problem("header_timeout", f"the request's head took longer than {limit_s:g} s"))

    def _expire(self) -> None:
        assert self._cycle is not None
        self.read_deadline = inf
        self._cycle.expire()

    def _refuse(self, problem: Problem) -> None:
        """What came is no request, or its body is none. Nothing that follows can be trusted either."""
        self.registry.counts[problem.code] += 1
        begun = self.phase == "draining" or (self._cycle is not None and self._cycle.started)
        self._abandon()
        if begun:
            self._close()
        else:
            self._answer(problem)

    def _answer(self, problem: Problem) -> None:
        identified = Trace.of_no_request(self.registry.front, problem)
        body = problem.body()
        head = encode_head(problem.status, [*problem.headers(body), identified, CLOSE], self.registry.shared_lines())
        self._transport.write(head + body)
        self._linger()

    # -- writing ---------------------------------------------------------------------------------------------------------

    @property
    def write_deadline(self) -> float:
        """When the client must have taken what is written."""
        return self._writer.deadline

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        self.PHASES[self.phase].room(self)

    def _resume_held(self) -> None:
        if self._held:
            self._next()

    PHASES: ClassVar[Mapping[Phase, _Reactions]] = {
        #                       data           parsed            end            room          stop          overdue
        "greeting": _Reactions(_hold,         _ignore,          _expects,      _ignore,      _cut,         _cut),
        "head":     _Reactions(_take_between, _begin_request,   _expects,      _resume_held, _close,       _refuse_slow),
        "rest":     _Reactions(_take_between, _ignore,          _expects,      _resume_held, _close,       _close),
        "working":  _Reactions(_take_working, _parsed_body,     _end_working,  _ignore,      _answer_last, _expire),
        "draining": _Reactions(_take_working, _parsed_leftover, _expects,      _ignore,      _close,       _close),
        "leaving":  _Reactions(_count_left,   _ignore,          _expects_none, _ignore,      _close,       _cut),
        "gone":     _Reactions(_count_left,   _ignore,          _expects_none, _ignore,      _close,       _cut),
    }  # fmt: skip
    """The machine. A method of it says what phase comes next."""
