"""The caller's end of one link: what waits to be sent, and who waits for an answer.

One rule: every call that was added is settled once: by its answer, or as lost when the link is over. A link is used for one
connection, from before it is made; what is added meanwhile leaves when it is ready.

Calls of one turn of the event loop leave in one frame. The window bounds what is under way, so nothing here grows beyond it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from cmdlog.cluster.forwarding.call_rows import (
    CALL,
    EARLY_WINDOW,
    NAMES_MAX,
    CallFrameKind,
    CallName,
    CallWindow,
    decode_answers,
    encode_calls,
)
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.sealed_frames import BODY_BYTES_MAX, FrameSession
from cmdlog.raft.wire.layout import BadFrame, FrameFault

FRAME_AIM_BYTES: Final = 1 << 20  # of parameters in one frame, unless one call has more
PARAMS_BYTES_MAX: Final = BODY_BYTES_MAX - (64 << 10)  # of one call, beside its row and names

D = TypeVar("D")
D_contra = TypeVar("D_contra", contravariant=True)


class OutgoingCall(NamedTuple, Generic[D]):
    """One call to be sent; fields as in `CallColumns`. `done` is given back with the answer."""

    name: CallName
    slot: int
    promise: int
    key: bytes
    txn: int
    params: bytes
    done: D


class AnswerTaker(Protocol[D_contra]):
    """Gets what becomes of calls. Any thread, under no lock; must not raise."""

    def answered(self, done: D_contra, status: int, txn: int, body: bytes, more: bytes) -> None:
        """The called end has answered."""
        ...

    def lost(self, done: D_contra, why: str, *, sent: bool) -> None:
        """There will be no answer; a call that was not sent was not placed either."""
        ...


class LinkOver(Exception):
    """The link takes no calls any more; nothing was added."""


class WindowFull(Exception):
    """More would be under way than the called end wants; nothing was added."""


class CallLink(Generic[D]):
    """`add` is for any thread; everything else happens in the loop's."""

    def __init__(
        self, taker: AnswerTaker[D], soon: Callable[[Callable[[], None]], None], *, called: str = "the leading node"
    ) -> None:
        """`soon` has a function called in the loop's thread, at its next turn; `called` is the other end, for people."""
        self._taker, self._soon, self._called = taker, soon, called
        self.window = EARLY_WINDOW
        self.calls = 0  # added so far
        self._lock = threading.Lock()
        self._names: dict[CallName, int] = {}
        self._new_names: list[CallName] = []  # not sent yet, as the next two
        self._rows: list[bytes] = []
        self._params: list[bytes] = []
        self._next = 1  # id of the next call
        self._unsent = 1  # id of the first call that is not sent
        self._waiting: dict[int, tuple[D, int]] = {}  # by id, with the size of the parameters
        self._bytes = 0  # of parameters of those that wait
        self._flush_is_due = False
        self._over = ""  # why it takes no more
        self._connection: FramedConnection | None = None
        self._session: FrameSession | None = None
        self._silent = self._heard_bytes = 0

    @property
    def under_way(self) -> int:
        """Calls that are not answered."""
        return len(self._waiting)

    # -- any thread ------------------------------------------------------------------------------------------------------

    def add(self, calls: Sequence[OutgoingCall[D]]) -> None:
        """Takes calls, all or none. Raises: LinkOver, WindowFull."""
        size = sum([len(call.params) for call in calls])
        with self._lock:
            self._admit(len(calls), size)
            waiting = self._waiting
            for ident, call in enumerate(calls, self._next):
                name, slot, promise, key, txn, params, done = call
                number = self._names.get(name)
                self._rows.append(
                    CALL.pack(self._declare(name) if number is None else number, slot, promise, key, txn, len(params))
                )
                self._params.append(params)
                waiting[ident] = done, len(params)
            self._next += len(calls)
            self._bytes += size
            self.calls += len(calls)
            due, self._flush_is_due = not self._flush_is_due and self._session is not None, True
        if due:
            self._soon(self.flush)

    def _admit(self, calls: int, size: int) -> None:
        if self._over:
            raise LinkOver(self._over)
        window = self.window
        if len(self._waiting) + calls > window.calls:
            raise WindowFull(f"{len(self._waiting)} calls are on their way to {self._called}, limit {window.calls}")
        if self._waiting and self._bytes + size > window.params_bytes:
            raise WindowFull(f"{self._bytes} bytes are on their way to {self._called}, limit {window.params_bytes}")

    def _declare(self, name: CallName) -> int:
        number = self._names[name] = len(self._names)
        assert number < NAMES_MAX
        self._new_names.append(name)
        return number

    # -- the loop's thread -----------------------------------------------------------------------------------------------

    def open(self, connection: FramedConnection, session: FrameSession, window: CallWindow) -> None:
        """The called end is ready: what waits leaves now."""
        with self._lock:
            self.window, self._connection, self._session = window, connection, session
        connection.deliver_to(self._take_frame, on_writable=lambda: None, on_closed=self._closed)
        if connection.closed.is_set():
            self._closed()
        self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        connection, session = self._connection, self._session
        if connection is None or session is None:
            return
        with self._lock:
            if self._over:
                return
            names, rows, params, first = self._new_names, self._rows, self._params, self._unsent
            self._new_names, self._rows, self._params = [], [], []
            self._unsent, self._flush_is_due = self._next, False
        for lo, hi in _portions(params):
            body = encode_calls(first + lo, names, rows[lo:hi], params[lo:hi])
            connection.write(session.sealer.seal(CallFrameKind.CALLS, body, hi - lo))
            names = []

    def _take_frame(self, frame: bytes) -> None:
        assert self._session is not None
        said = self._session.opener.open(frame)
        if said.kind != CallFrameKind.ANSWERS:
            return
        if said.count > len(self._waiting):
            raise BadFrame(FrameFault.MALFORMED, f"{said.count} answers to {len(self._waiting)} calls")
        rows = decode_answers(said.body, said.count)
        try:
            with self._lock:
                dones = [self._waiting.pop(row.call) for row in rows]
                self._bytes -= sum([size for _, size in dones])
        except KeyError as unknown:
            raise BadFrame(FrameFault.MALFORMED, f"an answer to call {unknown}, which waits for none") from None
        answered = self._taker.answered
        for (done, _), (_, status, txn, body, more) in zip(dones, rows, strict=True):
            answered(done, status, txn, body, more)

    def check_life(self, silence_probes: int) -> None:
        """Called at even intervals: a link whose called end is silent while calls wait is ended."""
        connection = self._connection
        if connection is None or self._session is None or not self._waiting:
            self._silent = 0
            return
        heard = connection.in_bytes != self._heard_bytes
        self._heard_bytes = connection.in_bytes
        self._silent = 0 if heard else self._silent + 1
        if self._silent >= silence_probes:
            connection.end(ConnectionEnded("no sign of life"))
        elif not heard:
            connection.write(self._session.sealer.seal(CallFrameKind.PROBE))

    def _closed(self) -> None:
        assert self._connection is not None
        self.end(str(self._connection.error or f"{self._called} hung up"))

    def end(self, why: str) -> None:
        """The link is over: callers that wait are answered so. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = why
            waiting, unsent = self._waiting, self._unsent
            self._waiting, self._rows, self._params, self._bytes = {}, [], [], 0
        for ident, (done, _) in waiting.items():
            self._taker.lost(done, why, sent=ident < unsent)
        if self._connection is not None:
            self._connection.end()


def _portions(params: Sequence[bytes]) -> list[tuple[int, int]]:
    """Ranges [lo, hi) of calls that share a frame."""
    portions, lo, size = list[tuple[int, int]](), 0, 0
    for at, text in enumerate(params):
        if size and size + len(text) > FRAME_AIM_BYTES:
            portions.append((lo, at))
            lo, size = at, 0
        size += len(text) + CALL.size
    return [*portions, (lo, len(params))] if params else []
