"""The called end of one link: calls go to a placer, answers leave in columns.

One rule: a call is given on once, in its order, and answered once. The next frame counts on where the last one ended; anything
else ends the link. Answers of one turn of the event loop leave in one frame; a caller that does not read them loses the link.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from cmdlog.cluster.channels.sealed_frames import FrameSession
from cmdlog.cluster.forwarding.call_frames import CallFrameKind
from cmdlog.cluster.forwarding.call_rows import (
    ANSWER,
    NAMES_MAX,
    AnswerRow,
    CallBatch,
    CallName,
    CallRow,
    CallWindow,
    decode_calls,
    encode_answers,
)
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.raft.wire.layout import BadFrame, FrameFault

FRAME_AIM_BYTES: Final = 1 << 20  # of answers in one frame, unless one answer has more
UNSENT_BYTES_MAX: Final = 64 << 20  # of answers that the caller does not read

H = TypeVar("H")
R = TypeVar("R")

IncomingCall = tuple[H, CallRow, Callable[[R], None]]
"""A call with what its name stands for, and who gets its reply."""


class CallPlacer(Protocol[H, R]):
    """What places calls, in the loop's thread. Must not raise."""

    def find(self, name: CallName) -> H:
        """What a name stands for, from now on."""
        ...

    def place(self, calls: Sequence[IncomingCall[H, R]]) -> None:
        """Each call's reply is given once, in any thread."""
        ...

    def busy(self, why: str) -> R:
        """The refusal of a call beyond the window."""
        ...

    def encode(self, call: int, reply: R) -> AnswerRow:
        """A reply as a row."""
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
        self._lock = threading.Lock()
        self._replies: list[tuple[int, R]] = []
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
            self._take_calls(decode_calls(said.body, said.count))
        elif said.kind == CallFrameKind.PROBE and self.connection.writable:  # one that does not read gets no more
            self.connection.write(self.session.sealer.seal(CallFrameKind.RECEIPT))

    def _take_calls(self, batch: CallBatch) -> None:
        if batch.first != self._next:
            raise BadFrame(FrameFault.MALFORMED, f"call {batch.first} where {self._next} comes next")
        if len(self._names) + len(batch.names) > NAMES_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"more than {NAMES_MAX} names")
        self._names += [self._placer.find(name) for name in batch.names]
        names, known, answer = self._names, len(self._names), self._answer
        calls: list[IncomingCall[H, R]] = []
        window, under_way, size = self.window, self._open, self._bytes
        for ident, row in enumerate(batch.rows, batch.first):
            if row.procedure >= known:
                raise BadFrame(FrameFault.MALFORMED, f"name {row.procedure} of {known}")
            bytes_ = len(row.params)
            if len(under_way) >= window.calls or (under_way and size + bytes_ > window.params_bytes):
                under_way[ident] = bytes_
                size += bytes_
                answer(ident, self._placer.busy(f"{len(under_way)} calls of this link are under way, limit {window.calls}"))
                continue
            under_way[ident] = bytes_
            size += bytes_
            calls.append((names[row.procedure], row, partial(answer, ident)))
        self._bytes = size
        self._next += len(batch.rows)
        self.calls += len(batch.rows)
        if calls:
            self._placer.place(calls)

    # -- answers -----------------------------------------------------------------------------------------------------------

    def _answer(self, ident: int, reply: R) -> None:
        """Any thread."""
        with self._lock:
            self._replies.append((ident, reply))
            due, self._flush_is_due = not self._flush_is_due, True
        if due:
            self._soon(self.flush)

    def flush(self) -> None:
        """Sends the answers that are there."""
        with self._lock:
            replies, self._replies, self._flush_is_due = self._replies, [], False
        encode = self._placer.encode
        rows: list[AnswerRow] = []
        size = 0
        for ident, reply in replies:
            self._bytes -= self._open.pop(ident)
            row = encode(ident, reply)
            bytes_ = ANSWER.size + len(row.body) + len(row.more)
            if size and size + bytes_ > FRAME_AIM_BYTES:
                self._send(rows)
                rows, size = [], 0
            rows.append(row)
            size += bytes_
        if rows:
            self._send(rows)

    def _send(self, rows: Sequence[AnswerRow]) -> None:
        connection = self.connection
        if connection.unsent_bytes > UNSENT_BYTES_MAX:
            connection.end(ConnectionEnded("the caller does not read its answers"))
        connection.write(self.session.sealer.seal(CallFrameKind.ANSWERS, encode_answers(rows), len(rows)))
