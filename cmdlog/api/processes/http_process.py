"""One HTTP process as its node sees it: how it starts, its two links, its code, its calls, its end.

One rule: nothing here decides. The set (`process_set`) says when a process starts, stops, or is given up. Its calls are placed as
those of the node's own clients are, in the order of their frame; so a member of a cluster forwards them like any other.

A process says its totals since it began, the node adds what is new since the last time: so a scrape shows all requests, each
once. What a process counted after that is lost with it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from starlette.types import ASGIApp

from cmdlog.api.processes.process_link import (
    LinkFrameKind,
    LinkSession,
    encode_link_frame,
    join_link,
    make_pair,
    new_connection,
    next_turn,
    nothing,
)
from cmdlog.api.processes.relay import RelayReceiver
from cmdlog.child_process import ChildProcess, describe_end, encode_order
from cmdlog.cluster.forwarding.call_receiver import CallReceiver
from cmdlog.cluster.forwarding.call_rows import AnswerRow, CallColumns, CallWindow
from cmdlog.node.forwarding.forwarded_calls import ForwardedCalls, FoundCall, OtherDeclaration, Placing
from cmdlog.node.outcome import CallOutcome, CallRefused, CodeChanged, Done, Reply
from cmdlog.node.telemetry.request_stats import RecentError, RequestStats

if TYPE_CHECKING:
    from cmdlog.node.node import Node

K = TypeVar("K")


def encode_totals(front: RequestStats, *, streams: int) -> bytes:
    """What a process has counted since it began; `streams` are its batches under way."""
    return orjson.dumps({
        "requests": [[*where, count] for where, count in front.requests.items()],
        "refused": [[*where, count] for where, count in front.refused.items()],
        "latency": front.latency.counts,
        "latency_s": front.latency.total,
        "slow_calls": front.slow_calls,
        "connections": front.connections(),
        "held_bytes": front.held_bytes(),
        "cut": dict(front.cut()),
        "errors": front.errors(),
        "streams": streams,
    })  # fmt: skip


class ProcessStats:
    """The totals of one process, as its node knows them. Only the event loop's thread."""

    def __init__(self, front: RequestStats, cut: dict[str, int]) -> None:
        """`front` is the node's; `cut` has the connections that all processes have refused or ended so far, by code."""
        self._front, self._cut = front, cut
        self._cut_here: dict[str, int] = {}
        self._requests: dict[tuple[str, int], int] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._latency: list[int] = []
        self._latency_s, self._slow_calls = 0.0, 0
        self.connections = 0
        self.held_bytes: Mapping[str, int] = {}
        self.streams = 0

    def take_totals(self, body: bytes) -> None:
        """What `encode_totals` made."""
        totals = orjson.loads(body)
        front = self._front
        for route, status, count in totals["requests"]:
            _add_new(front.requests, self._requests, (route, status), count)
        for procedure, code, count in totals["refused"]:
            _add_new(front.refused, self._refused, (procedure, code), count)
        self._add_latency(totals["latency"], totals["latency_s"])
        front.add_slow(totals["slow_calls"] - self._slow_calls)
        self._slow_calls = totals["slow_calls"]
        for code, count in totals["cut"].items():
            _add_new(self._cut, self._cut_here, code, count)
        self.connections, self.streams = totals["connections"], totals["streams"]
        self.held_bytes = totals["held_bytes"]
        for error in totals["errors"]:
            self._add_error(error)

    def calls(self, where: tuple[str, int]) -> int:
        """Requests of this route and status."""
        return self._requests.get(where, 0)

    def _add_latency(self, counts: list[int], seconds: float) -> None:
        before = self._latency or [0] * len(counts)
        new = [after - known for after, known in zip(counts, before, strict=True)]
        self._front.latency.add_counts(new, seconds - self._latency_s)
        self._latency, self._latency_s = counts, seconds

    def _add_error(self, error: dict[str, Any]) -> None:
        where, count = (error["code"], error["procedure"]), error["count"]
        new = count - self._errors.get(where, 0)  # one that was forgotten in between begins again at 1
        if new:
            self._errors[where] = count
            self._front.add_error(RecentError(**{**error, "count": new if new > 0 else count}))


def _add_new(into: dict[K, int], known: dict[K, int], where: K, count: int) -> None:
    into[where] = into.get(where, 0) + count - known.get(where, 0)
    known[where] = count


END_S: Final = 5.0  # for a process whose links are closed: it has nothing left to do


@dataclass(frozen=True, slots=True)
class ProcessGround:
    """What every process is started with. `module` is its program; `order` the first thing that it reads."""

    application: ASGIApp  # of the node, for what is relayed
    front: RequestStats
    module: str
    order: Mapping[str, Any]
    window: CallWindow  # of calls under way on one link


@dataclass(slots=True)
class ServedCode:
    """The version that a process was given, and the one that it uses."""

    given: int = 0
    loaded: int = 0
    problem: str = ""  # why the given one cannot be used
    known: asyncio.Event = field(default_factory=asyncio.Event)  # set when the process has said which

    def give(self, version: int) -> None:
        """The process is sent this version."""
        self.given = version
        self.known.clear()

    def note_answer(self, version: int, problem: str) -> None:
        """The process uses this version, or says why not."""
        if version == self.given:
            self.loaded, self.problem = (0, problem) if problem else (version, "")
            self.known.set()


class HttpProcess:
    """One life of a process. Only the event loop's thread."""

    def __init__(self, number: int, ground: ProcessGround, cut: dict[str, int]) -> None:
        self.number, self._ground = number, ground
        self._session = LinkSession()
        self._control = new_connection()
        self._calls = new_connection()
        self._relay = RelayReceiver(ground.application, self._control.write)
        self._receiver: CallReceiver[FoundCall, Reply] | None = None
        self._child: ChildProcess | None = None
        self._asked: dict[int, asyncio.Future[None]] = {}  # for its counts, by number
        self._asks = 0
        self._others = (0, 0)
        self.stats = ProcessStats(ground.front, cut)
        self.code = ServedCode()
        self.heard_s = time.monotonic()
        self.began_s = self.heard_s

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def live(self, listener: socket.socket) -> str:
        """Starts it, and returns when it has ended: why, for people. Raises: OSError, when it cannot be started."""
        loop = asyncio.get_running_loop()
        ours, theirs = zip(make_pair(), make_pair(), strict=True)
        try:
            self._child = await loop.run_in_executor(None, self._spawn, listener, theirs)
        finally:
            for sock in theirs:
                sock.close()
        try:
            self._control.deliver_to(self._take_frame, on_writable=nothing, on_closed=nothing)
            for connection, sock in zip((self._control, self._calls), ours, strict=True):
                await join_link(connection, sock)
            await self._control.closed.wait()
            return await loop.run_in_executor(None, self._await_end)
        finally:
            self._let_go()

    def _spawn(self, listener: socket.socket, links: tuple[socket.socket, ...]) -> ChildProcess:
        descriptors = [listener.fileno(), *[sock.fileno() for sock in links]]
        order = encode_order(self._ground.order)
        return ChildProcess(self._ground.module, *map(str, descriptors), pass_fds=descriptors, stdin=order)

    def _await_end(self) -> str:
        assert self._child is not None
        code = self._child.end(after_s=END_S)
        return self._child.last_error() or (describe_end(code) if code else "")

    def _let_go(self) -> None:
        self._relay.end()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self.code.known.set()
        self._control.end()
        self._calls.end()
        if self._child is not None:
            self._child.close()

    def kill(self) -> None:
        """Ends it at once."""
        self.heard_s = time.monotonic()
        if self._child is not None:
            self._child.kill()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    # -- what it gets -------------------------------------------------------------------------------------------------------

    @property
    def is_linked(self) -> bool:
        """Whether anything can be sent to it."""
        return self._control.delivers and not self._control.is_ending

    def serve_code(self, node: Node, version: int, bundle: str) -> None:
        """Calls of this process are bound to this code, as soon as it has loaded it."""
        if self._receiver is None:
            self._receiver = CallReceiver(self._calls, self._session, self._ground.window, ProcessCalls(node), next_turn())
            self._receiver.open(nothing)
        self.code.give(version)
        window = self._ground.window
        told = {
            "version": version,
            "partitions": node.settings.partitions,
            "window": [window.calls, window.params_bytes],
            "durabilities": node.durabilities_offered,
        }
        self._control.write(encode_link_frame(LinkFrameKind.CODE, orjson.dumps(told) + b"\n" + bundle.encode()))

    def ask_counts(self) -> asyncio.Future[None]:
        """Done when it has reported what it counted, or has ended."""
        self._asks += 1
        asked = self._asked[self._asks] = asyncio.get_running_loop().create_future()
        self._control.write(encode_link_frame(LinkFrameKind.ASK, count=self._asks))
        return asked

    def show_others(self, calls: int, streams: int) -> None:
        """Single calls that the other processes have answered, and their batches under way."""
        if (calls, streams) != self._others:
            self._others = calls, streams
            self._control.write(encode_link_frame(LinkFrameKind.OTHERS, orjson.dumps(calls), streams))

    def stop(self, *, leaving: bool) -> None:
        """It answers what is under way and ends; `leaving`: its clients find another server."""
        self._control.write(encode_link_frame(LinkFrameKind.STOP, count=int(leaving)))

    # -- what it says --------------------------------------------------------------------------------------------------------

    def _take_frame(self, frame: bytes) -> None:
        said = self._session.open(frame)
        self.heard_s = time.monotonic()
        if said.kind == LinkFrameKind.COUNTS:
            self.stats.take_totals(said.body)
            if (asked := self._asked.pop(said.count, None)) is not None and not asked.done():
                asked.set_result(None)
        elif said.kind == LinkFrameKind.SERVES:
            self.code.note_answer(said.count, said.body.decode())
        else:
            self._relay.take_frame(said)


STAGES: Final = b'{"stages":'
"""Begins what is said beside an outcome whose stages are known: of a slow call, or with spans."""


class ProcessCalls(ForwardedCalls):
    """The calls of one link."""

    def __init__(self, node: Node) -> None:
        placing = Placing(node.call_encoded, lambda confirmed: confirmed(True), node.clock.observe, node.trace_of)
        super().__init__(placing, lambda: node.routes, node.slots.partition_by_slot)
        self._meter, self._stages_of = node.meter, node.stages_of

    def place(self, names: Sequence[FoundCall], calls: CallColumns, dones: Sequence[Done]) -> None:
        if bound := self.bind_calls(names, calls, dones):
            self.place_bound(bound)

    def refuse_other(self, other: OtherDeclaration) -> CallRefused:
        return CodeChanged("the procedure was deployed with another declaration; look at it and call again")

    def encode(self, replies: Sequence[tuple[int, Reply]]) -> list[AnswerRow]:
        if self._meter.slow:
            return [self.encode_one(call, reply) for call, reply in replies]
        return super().encode(replies)

    def encode_one(self, call: int, reply: Reply) -> AnswerRow:
        row = super().encode_one(call, reply)
        if isinstance(reply, CallOutcome) and (stages := self._stages_of(reply.txn_id)):
            return row._replace(more=b'%b%b,"trace":%b}' % (STAGES, orjson.dumps(stages), row.more or b"null"))
        return row
