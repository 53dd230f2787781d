"""`POST /v1/batch`: calls as lines of JSON in, outcomes as lines of JSON out, in the same order.

One rule: memory is bounded, whatever the peer sends and however slowly it reads: by `stream_calls_max` calls, and by the share of
`Service.unread` that its credential has for results, those of calls that are not answered yet included.

The lines that one chunk of the body completes form a *group*: parsed together, given to the node in one `call_many`, awaited as
one future. A reader task makes groups, a writer task sends their answers in order; between them is a count of calls in flight. A
peer that sends without reading stops the writer, which stops the reader at once: calls whose answers are not read are not placed.
`body_timeout_s` ends such a standstill. How many calls wait in the node at a time is `pace`'s affair: streams share it with
clients that send one call and wait.

A call is placed when there is room for a result as long as the longest of its procedure of late. One that is longer takes what
room is left; without any it is dropped, and the answer says that the call was executed: a repetition under its key gets it.
Blank lines are skipped; a line that is no call gets an error object in its place and the rest continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import orjson
from starlette.types import Receive, Send

from cmdlog.api.gate.auth import scope_of
from cmdlog.api.gate.problem import Problem, invalid, line_too_long, preference_applied, unknown_procedure
from cmdlog.api.gate.request import IDEMPOTENCY_KEY, PREFER, SESSION, Incoming, idempotency_key, preferred_durability
from cmdlog.api.gate.session_numbers import NAMES, line_names, named_line, window_of_lines
from cmdlog.api.gate.strict_json import NotStrict, loads_strict
from cmdlog.api.native import steps
from cmdlog.api.routes.batch_lines import LINE_BYTES, Group, LineCall, LineSplitter, error_line
from cmdlog.api.routes.batch_window import BatchWindow
from cmdlog.api.routes.service import LARGE_BODY_BYTES, Service
from cmdlog.node.outcome import CallRefused, Durability, Overloaded, UnknownOutcome
from cmdlog.node.placing.router import Placed
from cmdlog.node.placing.shares import UNCOUNTED_BYTES
from cmdlog.node.telemetry.request_stats import CALLED
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import WalError
from procedures import InvalidParameters
from procedures.idempotency.known_outcome import key_fingerprint

ENVELOPE_BYTES: Final = 1024  # of a line, beside its parameters; names and keys take less
GROUP_CALLS_MAX: Final = 1024
OVERLOAD_WAIT_S: Final = 10.0  # then the calls of the group get `not_ready`
OVERLOAD_PAUSE_S: Final = 0.005
NDJSON: Final = [(b"content-type", b"application/x-ndjson")]


class BatchStream:
    """One request on /v1/batch."""

    def __init__(self, service: Service, incoming: Incoming, receive: Receive, send: Send) -> None:
        self._service = service
        self._node = service.node()
        self._gatekeeper, self._caller = service.gatekeeper, incoming.caller
        self._unread = service.unread
        self._unsent: dict[Group, None] = {}
        self._scope = scope_of(incoming.caller)
        self._settings = service.settings
        self._front, self._trace = service.front, incoming.trace
        self._preferred = preferred_durability(incoming.headers.get(PREFER), self._node.durabilities_offered)
        session = incoming.headers.get(SESSION)
        if IDEMPOTENCY_KEY in incoming.headers:
            raise invalid([("Idempotency-Key", "names a single call; in a batch each line has its own `key`")])
        self._session = None if session is None else window_of_lines(self._scope, session)  # of lines that do not say themselves
        self._name_line = line_names(self._session or (b"", 0), self._settings.session_window)
        self._receive, self._send = receive, send
        self._groups: asyncio.Queue[Group | None] = asyncio.Queue()
        self._under_way = 0  # calls of groups that are not sent yet
        self._open = 0  # of them, calls that are not answered yet
        self._traffic = service.traffic
        self._span = (
            None if service.spans is None else service.spans.begin_batch(incoming.headers, request_id=incoming.trace.request_id)
        )
        self._pace = BatchWindow(service.traffic, self._settings.stream_calls_max)
        self._stuck = False  # the client takes less than is written
        self._room = asyncio.Event()
        self._started, self._more = False, True
        self._ending = False  # the server stops: no more lines are read
        self._receiving: asyncio.Task[Any] | None = None  # the reader, while it waits for the client

    async def run(self) -> None:
        """Serves the request to its end. Raises: Problem before the first answer; ConnectionError when the client is gone."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        self._service.streams.add(self._end_reading)
        self._traffic.note_stream(1)
        with self._span or contextlib.nullcontext():
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_EXCEPTION)
                if writer.done():
                    writer.result()
                if reader.done():
                    reader.result()
            finally:
                self._traffic.note_stream(-1)
                self._service.streams.discard(self._end_reading)
                reader.cancel()
                writer.cancel()
                for group in self._unsent:
                    group.end()
                del reader, writer  # their errors know this frame: together they would stay, with half a line

    def _end_reading(self) -> None:
        """What was read is answered, and the answer ends as a whole; a line that is not complete was not read."""
        self._ending = True
        if self._receiving is not None:
            self._receiving.cancel()

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        splitter = LineSplitter(self._settings.call_bytes_max + ENVELOPE_BYTES)
        try:
            while (chunk := await self._next_chunk()) is not None:
                await self._take_lines(splitter.feed(chunk))
                if splitter.rest_bytes > UNCOUNTED_BYTES:
                    await self._take_long_line(splitter)
            if not self._ending:
                await self._take_lines(splitter.finish())
        except Problem as problem:
            self._add_group([error_line(self._trace.note_problem(problem, ""))], self._front.now(), 0)
        self._groups.put_nowait(None)

    async def _take_long_line(self, splitter: LineSplitter) -> None:
        async with self._service.holding_body(self._caller.name, splitter.limit_bytes):
            while splitter.rest_bytes > UNCOUNTED_BYTES and (chunk := await self._next_chunk()) is not None:
                await self._take_lines(splitter.feed(chunk))

    async def _next_chunk(self) -> bytes | None:
        """None at the end. Raises: Problem; ConnectionError."""
        if not self._more or self._ending:
            return None
        self._receiving = reader = asyncio.current_task()
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                message = await self._receive()
        except TimeoutError:
            raise Problem("body_timeout", "the stream was silent for longer than body_timeout_s") from None
        except asyncio.CancelledError:
            if not self._ending or reader is None:
                raise
            reader.uncancel()
            return None
        finally:
            self._receiving = reader = None  # as in `run`
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its stream was complete")
        self._more = message.get("more_body", False)
        self._gatekeeper.check(self._caller)  # a stream may outlive its credential
        chunk: bytes = message.get("body", b"")
        return chunk

    async def _take_lines(self, lines: list[bytes | None]) -> None:
        start = 0
        while start < len(lines):
            part = lines[start : start + min(GROUP_CALLS_MAX, self._pace.window)]
            if self._has_room(len(part)):
                await self._submit_lines(part)
                start += len(part)
            else:
                self._room.clear()
                await self._room.wait()

    def _has_room(self, calls: int) -> bool:
        in_time = not self._open or self._open + calls <= self._pace.window
        return in_time and not self._stuck and self._under_way + calls <= self._settings.stream_calls_max

    def _answered(self, group: Group) -> None:
        self._open -= len(group.slots)
        if group.calls:
            self._traffic.note_results(group.names, group.name_of(group.longest_at), group.longest)
            beside = self._front.requests.get(CALLED, 0)
            self._pace.answered(len(group.slots), placed_s=group.began, now_s=self._front.now(), beside=beside)
        self._room.set()

    async def _submit_lines(self, lines: list[bytes | None]) -> None:
        """Places them, as many at a time as there is room for their results."""
        began = self._front.now()
        read = await self._read_lines(lines)
        start = 0
        while start < len(read):
            end, room_bytes = await self._find_room(read, start)
            group = self._add_group(read[start:end], began, room_bytes)
            if group.calls:
                await self._submit(group)
            start = end

    def _add_group(self, lines: Sequence[LineCall | bytes], began: float, room_bytes: int) -> Group:
        group = Group(lines, began, self._unread, self._caller.name, self._answered)
        self._under_way += len(lines)
        self._open += len(lines)
        self._unsent[group] = None
        self._groups.put_nowait(group)
        group.hold(room_bytes)
        return group

    async def _read_lines(self, lines: list[bytes | None]) -> list[LineCall | bytes]:
        """The call of each line, or the answer to one that is none."""
        read: list[LineCall | bytes] = []
        routes: Any = self._node.routes
        preferred, name_line, in_session = self._preferred, self._name_line, self._session is not None
        for line in lines:
            try:
                # Three cases: a plain line, which the step in C has read and bound; a long one, which is read aside; any other.
                plain = None if steps is None else steps.read_line(line, routes, orjson.loads)
                if plain is not None and (plain[2] is None or in_session):
                    route, params, number = plain
                    read.append((route, params, b"" if number is None else name_line(number), preferred))
                elif line is not None and len(line) > LARGE_BODY_BYTES:
                    read.append(await self._service.read_aside(line, self._parse, self._caller.name))
                else:
                    read.append(self._parse(line))
            except Problem as problem:
                read.append(error_line(self._trace.note_problem(problem, problem.procedure)))
        return read

    async def _find_room(self, lines: Sequence[LineCall | bytes], start: int) -> tuple[int, int]:
        """Up to which line there is room for results, at least for one; waits for that. And the bytes.

        A group takes half of the room at most: calls of a slow procedure, whose results are unknown, leave some.
        """
        unread, name, bytes_of = self._unread, self._caller.name, self._traffic.bytes_of
        while True:
            half, end, held = unread.room(name) // 2, start, 0
            for line in lines[start:]:
                more = LINE_BYTES if isinstance(line, bytes) else LINE_BYTES + bytes_of(line[0].name)
                if held + more > half and not (end == start and unread.allows(name, more)):
                    break
                held, end = held + more, end + 1
            if end > start:
                return end, held
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._unread.on_room[self._room.set] = None
        try:
            await self._room.wait()
        finally:
            del self._unread.on_room[self._room.set]

    def _parse(self, line: bytes | None) -> LineCall:
        """Raises: Problem."""
        if line is None:
            raise line_too_long(self._settings.call_bytes_max)
        try:
            entry = loads_strict(line, around=2)  # the line and `params`
        except NotStrict as error:
            raise invalid([("line", str(error))]) from None
        if type(entry) is not dict:
            raise invalid([("line", "must be a JSON object")])
        name, params, key = entry.pop("procedure", None), entry.pop("params", None), entry.pop("key", None)
        sent = b"" if entry.keys().isdisjoint(NAMES) else self._number(entry, key)
        durability = self._durability(entry) if entry else self._preferred
        route = self._node.routes.get(name) if type(name) is str else None
        if route is None:
            raise unknown_procedure(name) if type(name) is str else invalid([("procedure", "must name a procedure")])
        if key is not None and type(key) is not str:
            raise invalid([("key", "must be a string")])
        if key is not None:
            key = idempotency_key(key.encode())
        try:
            bound = route.procedure.bind({} if params is None else params)
        except InvalidParameters as error:
            problems = [(f"params.{field}" if field else "params", problem) for field, problem in error.problems]
            raise invalid(problems).of_procedure(route.name) from None
        return route, bound, key_fingerprint(self._scope, key) if key else sent, durability

    def _number(self, entry: dict[str, Any], key: object) -> bytes:
        """What a line of a session brings. Raises: Problem."""
        if key is not None:
            raise invalid([("key", "a line has either `key`, or `number` with `session` and `floor`")])
        return named_line(self._scope, entry, self._session, self._settings.session_window)

    def _durability(self, rest: dict[str, Any]) -> Durability | None:
        """The line's own promise: `rest` is what else the line says. Raises: Problem."""
        wish = rest.pop("durability", None)
        if rest:
            raise invalid([(field, "unknown field") for field in sorted(rest)])
        if wish not in (None, "sync", "async"):
            raise invalid([("durability", "must be `sync` or `async`")])
        return wish or self._preferred

    # -- the node --------------------------------------------------------------------------------------------------------

    async def _submit(self, group: Group) -> None:
        """Gives its calls to the node in order. What it cannot take in one piece is split and waited for."""
        calls = group.calls
        waiting = _runs(calls)
        deadline = self._now() + OVERLOAD_WAIT_S
        while waiting:
            start, end = waiting.popleft()
            try:
                partitions = self._place(calls[start:end])
            except CallRefused as refused:
                if end - start > 1 and isinstance(refused, Overloaded):
                    middle = (start + end) // 2
                    waiting.extendleft([(middle, end), (start, middle)])
                elif isinstance(refused, Overloaded) and self._now() < deadline:
                    waiting.appendleft((start, end))
                    await asyncio.sleep(OVERLOAD_PAUSE_S)
                else:
                    _refuse_all(calls[start:end], refused)
            except WalError as error:
                why = f"the log failed while the calls were under way: {full_text(error)}"
                _refuse_all(calls[start:end], UnknownOutcome(why))
            else:
                for place, partition in zip(group.places[start:end], partitions, strict=True):
                    group.partitions[place] = partition

    def _place(self, part: Sequence[Placed]) -> list[int | None]:
        """All or none. Raises: CallRefused."""
        if len(part) > 1:
            return self._node.call_many(part)
        route, params, key, done, durability = part[0]
        return [self._node.call(route, params, key=key, done=done, durability=durability)]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- writing ---------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while (group := await self._groups.get()) is not None:
            await group.complete
            if self._trace.took(elapsed := self._front.now() - group.began, len(group.slots)):
                group.tell_slow(self._node, self._trace, elapsed)
            if self._span is not None:
                self._span.add_group(group.slots, elapsed, self._node)
            self._stuck = True  # seen by the reader only if the writing has to wait
            for part in group.encode(self._node, self._trace):
                await self._send_part(part, more=True)
            self._stuck = False
            group.end()
            self._unsent.pop(group)
            self._under_way -= len(group.slots)
            self._room.set()
        await self._send_part(b"", more=False)

    async def _send_part(self, data: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._settings.body_timeout_s):
            if not self._started:
                self._started = True
                headers = NDJSON if self._preferred is None else [*NDJSON, preference_applied(self._preferred)]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _runs(calls: Sequence[Placed]) -> deque[tuple[int, int]]:
    """Cuts the calls into runs that the node takes as a whole: logged calls of one partition each; others one by one."""
    alone = [at for at, (route, *_) in enumerate(calls) if route.read_only or route.everywhere]
    cuts = sorted({0, len(calls), *alone, *(at + 1 for at in alone)})
    return deque(pairwise(cuts))


def _refuse_all(calls: Sequence[Placed], refused: CallRefused) -> None:
    for _, _, _, done, _ in calls:
        done(refused)
