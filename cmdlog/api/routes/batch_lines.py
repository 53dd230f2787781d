"""The lines of a batch: cut out of a stream of chunks, and answered in groups.

One rule: memory is bounded by one chunk, one line and the room that a group holds, whatever the peer sends; a line over the limit
is skipped to its end, and a result without room is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cmdlog.api.gate.problem import Problem, of_outcome, of_refused
from cmdlog.api.gate.request_trace import Trace
from cmdlog.api.routes.call import result_body, result_dropped
from cmdlog.node.outcome import CallOutcome, Durability, Reply
from cmdlog.node.placing.router import Placed
from cmdlog.node.placing.shares import Shares

if TYPE_CHECKING:
    from cmdlog.node.node import Node
    from cmdlog.node.slot_map import Route

LINE_BYTES: Final = 256  # that the answer of a line takes beside its result
PART_BYTES: Final = 256 << 10  # of answers, sent in one piece

LineCall = tuple["Route", list[Any], bytes, Durability | None]
"""Where a line's call goes, with what: bound parameters, key or number of a session, promise."""


class LineSplitter:
    """Chunks in, lines out; blank lines are left out.

    Invariant: `len(_rest) <= limit`; while `_skipping`, `_rest` is empty.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._rest = bytearray()
        self._skipping = False

    @property
    def rest_bytes(self) -> int:
        """Bytes of the line that has no end yet."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """Lines that end in this chunk, without their newline; None stands for one over the limit."""
        first, *others = chunk.split(b"\n")
        self._keep_piece(first)
        if not others:
            return []
        lines = [self._take_line(), *self._within(others[:-1])]
        self._keep_piece(others[-1])
        return [line for line in lines if line is None or (line and not line.isspace())]

    def finish(self) -> list[bytes | None]:
        """The last line, when nothing ended it."""
        return self.feed(b"\n")

    def _within(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        limit = self.limit_bytes
        return (piece if len(piece) <= limit else None for piece in pieces)

    def _take_line(self) -> bytes | None:
        line = None if self._skipping else bytes(self._rest)
        self._rest.clear()
        self._skipping = False
        return line

    def _keep_piece(self, piece: bytes) -> None:
        if not self._skipping and len(self._rest) + len(piece) <= self.limit_bytes:
            self._rest += piece
            return
        self._skipping = True
        self._rest.clear()


class Group:
    """Consecutive lines of one chunk. `slots` holds a line's answer once it is known, in the order of the lines.

    Invariant: `room_bytes` of `unread` are held from `hold` until the answers are sent, or all are there and not wanted.
    """

    def __init__(
        self, lines: Sequence[LineCall | bytes], began: float, unread: Shares, caller: str, ended: Callable[[Group], None]
    ) -> None:
        """`lines`: their calls, or the answers to those that are none; `ended` is called once, when all answers are there."""
        self._lines = lines
        self.began = began  # when the lines were complete
        self._unread, self._caller, self._ended = unread, caller, ended
        self.slots: list[bytes | Reply | None] = [None] * len(lines)
        self.partitions: list[int | None] = [None] * len(lines)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._missing = len(lines)
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._room_bytes = 0  # that is held
        self._bytes = LINE_BYTES * len(lines)  # that the answers take so far
        self.longest, self.longest_at = 0, 0  # result, and its line
        self._unwanted = False
        self.calls: list[Placed] = []
        self.places: list[int] = []  # of these calls among the lines
        for place, line in enumerate(lines):
            if not isinstance(line, bytes):
                route, params, key, durability = line
                self.calls.append((route, params, key, partial(self.settle_line, place), durability))
                self.places.append(place)

    @property
    def names(self) -> set[str]:
        """Names of the procedures that it calls."""
        return {call[0].name for call in self.calls}

    def hold(self, room_bytes: int) -> None:
        """Takes so much room for the answers, which there is; answers the lines that are no calls."""
        self._unread.take_share(self._caller, room_bytes)
        self._room_bytes = room_bytes
        for place, line in enumerate(self._lines):
            if isinstance(line, bytes):
                self.settle_line(place, line)

    def settle_line(self, place: int, answer: bytes | Reply) -> None:
        """The answer of one line; any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.settle_line, place, answer)
            return
        if type(answer) is CallOutcome:
            size = len(answer.body)
            self._bytes += size
            if self._bytes > self._room_bytes:
                answer = self._find_room(place, answer, size)
            if size > self.longest:
                self.longest, self.longest_at = size, place
        self.slots[place] = answer
        self._missing -= 1
        if not self._missing:
            self._keep_room(0 if self._unwanted else self._bytes)
            if not self.complete.done():  # it is cancelled with the task that waits for it
                self.complete.set_result(None)
                self._ended(self)

    def _find_room(self, place: int, answer: CallOutcome, size: int) -> Reply:
        """The answer, or what is left of it when it is not wanted or there is no room."""
        if size <= LINE_BYTES:
            return answer
        if not self._unwanted and self._unread.take_share(self._caller, more := self._bytes - self._room_bytes):
            self._room_bytes += more
            return answer
        self._bytes -= size
        line = self._lines[place]
        assert not isinstance(line, bytes), "only a call has an outcome"
        return result_dropped(self._unread, self._caller, answer, read_only=line[0].read_only)

    def _keep_room(self, room_bytes: int) -> None:
        spare = max(0, self._room_bytes - room_bytes)
        self._room_bytes -= spare
        self._unread.give_back(self._caller, spare)

    def end(self) -> None:
        """The answers are sent, or not wanted."""
        self._unwanted = True
        if not self._missing:
            self._keep_room(0)

    def encode(self, node: Node, trace: Trace) -> Iterator[bytes]:
        """The answers as lines, in pieces; none is kept."""
        parts: list[bytes] = []
        size = 0
        for place, slot in enumerate(self.slots):
            if isinstance(slot, CallOutcome) and slot.status == 0:
                line = result_body(slot, self.partitions[place])
            elif isinstance(slot, bytes):
                line = slot
            else:
                assert slot is not None, "the group is complete"
                problem = of_outcome(slot, node.trace_of(slot)) if isinstance(slot, CallOutcome) else of_refused(slot)
                line = error_line(trace.note_problem(problem, self.name_of(place)))
            parts.append(line)
            self.slots[place] = None
            size += len(line)
            if size > PART_BYTES:
                parts.append(b"")
                yield b"\n".join(parts)
                parts.clear()
                size = 0
        if parts:
            parts.append(b"")
            yield b"\n".join(parts)

    def name_of(self, place: int) -> str:
        """The procedure that the line calls, "" where it is no call."""
        line = self._lines[place]
        return "" if isinstance(line, bytes) else line[0].name

    def tell_slow(self, node: Node, trace: Trace, seconds: float) -> None:
        """Logs its calls as slow: they were answered together."""
        for place, slot in enumerate(self.slots):
            if slot is not None and not isinstance(slot, bytes):
                trace.slow(node, seconds, self.name_of(place), self.partitions[place], slot)


def error_line(problem: Problem) -> bytes:
    """The error object in place of a result."""
    return b'{"error":%b}' % problem.body()
