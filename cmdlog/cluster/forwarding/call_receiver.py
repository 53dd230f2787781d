"""The called end of one link: calls go to a placer, answers leave in columns.

One rule: a call is given on once, in its order, and answered once. The next frame counts on where the last one ended; anything
else ends the link. Answers of one turn of the event loop leave in one frame; a caller that does not read them loses the link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Final, Generic, Protocol, TypeVar

from cmdlog.cluster.forwarding.call_rows import (
    ANSWER,
    EARLY_WINDOW,
    NAMES_MAX,
    AnswerRow,
    CallBatch,
    CallColumns,
    CallFrameKind,
    CallName,
    CallWindow,
    decode_calls,
    encode_answers,
)
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.sealed_frames import FrameSession
from cmdlog.raft.wire.layout import BadFrame, FrameFault

FRAME_AIM_BYTES: Final = 1 << 20  # of answers in one frame, unless one answer has more
UNSENT_BYTES_MAX: Final = 64 << 20  # of answers that the caller does not read

H = TypeVar("H")
R = TypeVar("R")

NumberedReply = tuple[int, R]
"""Id of a call, and its reply."""


class CallPlacer(Protocol[H, R]):
    """What places calls, in the loop's thread. Must not raise."""

    def find(self, name: CallName) -> H:
        """What a name stands for, from now on."""
        ...

    def place(self, names: Sequence[H], calls: CallColumns, dones: Sequence[Callable[[R], None]]) -> None:
        """Places one call or more, whose procedures are positions in `names`. Each `done` gets a reply once, in any thread."""
        ...

    def busy(self, why: str) -> R:
        """The refusal of a call beyond the window."""
        ...

    def encode(self, replies: Sequence[NumberedReply[R]]) -> list[AnswerRow]:
        """A row for each reply, in their order."""
        ...


class CallReceiver(Generic[H, R]):
    """Used in the loop's thread, but for replies."""

    def __init__(
        self,
        connection: FramedConnection,
        session: FrameSession,
        window: CallWindow,
        placer: CallPlacer[H, R],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """`soon` has a function called in the loop's thread, at its next turn."""
        self.connection, self.session, self.window = connection, session, window
        self._placer, self._soon = placer, soon
        self.calls = 0  # taken so far
        self._names: list[H] = []
        self._next = 1  # id of the next call
        self._open: dict[int, int] = {}  # calls under way, with the size of their parameters
        self._bytes = 0  # of their parameters
        self._replies: deque[NumberedReply[R]] = deque()
        self._flush_is_due = False

    @property
    def under_way(self) -> int:
        """Calls that are not answered."""
        return len(self._open)

    def open(self, on_closed: Callable[[], None]) -> None:
        """From now on frames are taken as they come."""
        self.connection.deliver_to(self._take_frame, on_writable=lambda: None, on_closed=on_closed)
        if self.connection.closed.is_set():
            on_closed()

    def _take_frame(self, frame: bytes) -> None:
        said = self.session.opener.open(frame)
        if said.kind == CallFrameKind.CALLS:
            if said.count > max(self.window.calls, EARLY_WINDOW.calls):
                raise BadFrame(FrameFault.MALFORMED, f"{said.count} calls in a frame")
            self._take_calls(decode_calls(said.body, said.count))
        elif said.kind == CallFrameKind.PROBE and self.connection.writable:  # one that does not read gets no more
            self.connection.write(self.session.sealer.seal(CallFrameKind.RECEIPT))

    def _take_calls(self, batch: CallBatch) -> None:
        if batch.first != self._next:
            raise BadFrame(FrameFault.MALFORMED, f"call {batch.first} where {self._next} comes next")
        if len(self._names) + len(batch.names) > NAMES_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"more than {NAMES_MAX} names")
        self._names += [self._placer.find(name) for name in batch.names]
        calls, count = batch.calls, len(batch.calls.params)
        if not count:
            return
        if max(calls.procedures) >= len(self._names):
            raise BadFrame(FrameFault.MALFORMED, f"name {max(calls.procedures)} of {len(self._names)}")
        idents: Sequence[int] = range(batch.first, batch.first + count)
        self._next += count
        self.calls += count
        sizes = list(map(len, calls.params))
        size = sum(sizes)
        if len(self._open) + count <= self.window.calls and self._bytes + size <= self.window.params_bytes:
            self._open.update(zip(idents, sizes, strict=True))
            self._bytes += size
        else:
            taken = self._take_up_to_window(idents, sizes)
            calls, idents = calls.pick(taken), [idents[at] for at in taken]
        if idents:
            self._placer.place(self._names, calls, list(map(partial, repeat(self._answer), idents)))

    def _take_up_to_window(self, idents: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Positions of the calls that the window admits; the others are answered."""
        window, under_way, taken = self.window, self._open, []
        for at, (ident, size) in enumerate(zip(idents, sizes, strict=True)):
            admitted = len(under_way) < window.calls and (not under_way or self._bytes + size <= window.params_bytes)
            under_way[ident] = size
            self._bytes += size
            if admitted:
                taken.append(at)
            else:
                why = f"{len(under_way)} calls of this link are under way, limit {window.calls}"
                self._answer(ident, self._placer.busy(why))
        return taken

    # -- answers -----------------------------------------------------------------------------------------------------------

    def _answer(self, ident: int, reply: R) -> None:
        """Any thread."""
        self._replies.append((ident, reply))
        if not self._flush_is_due:  # two threads may both see it: the second flush finds nothing
            self._flush_is_due = True
            self._soon(self.flush)

    def flush(self) -> None:
        """Sends the answers that are there."""
        self._flush_is_due = False  # before the look: what comes after it has a flush of its own
        replies = [self._replies.popleft() for _ in range(len(self._replies))]
        self._bytes -= sum([self._open.pop(ident) for ident, _ in replies])
        rows = self._placer.encode(replies)
        sizes = [ANSWER.size + len(row.body) + len(row.more) for row in rows]
        begin = size = 0
        for at, bytes_ in enumerate(sizes if sum(sizes) > FRAME_AIM_BYTES else ()):
            if size and size + bytes_ > FRAME_AIM_BYTES:
                self._send(rows[begin:at])
                begin, size = at, 0
            size += bytes_
        if rows:
            self._send(rows[begin:])

    def _send(self, rows: Sequence[AnswerRow]) -> None:
        connection = self.connection
        if connection.unsent_bytes > UNSENT_BYTES_MAX:
            connection.end(ConnectionEnded("the caller does not read its answers"))
        connection.write(self.session.sealer.seal(CallFrameKind.ANSWERS, encode_answers(rows), len(rows)))
