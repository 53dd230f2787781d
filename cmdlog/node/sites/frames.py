"""Frames between the node and a site process, over one stream socket.

One rule: a batch travels as the very bytes that are on disk; answers travel as columns and are cut once, where they are used.
Both ends are the same program on the same machine, so a malformed frame is our own bug and raises.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import orjson

from procedures.execution.failure_trace import FailureTrace

HEADER: Final = struct.Struct("<IBxHQ")  # bytes of the whole frame, kind, partition, ident
APPLIED: Final = struct.Struct("<IIQ")  # calls, 1 = transaction ids follow, rows digest; traces as JSON are at the end
READ_ANSWER: Final = struct.Struct("<QBI")  # TxnId as of which was read, status, bytes of the JSON body; it and traces follow
FRAME_BYTES_MAX: Final = 256 << 20


class FrameKind(enum.IntEnum):
    HELLO = 1  # node -> site: JSON, what to serve; ident = 0
    READY = 2  # site -> node: JSON, position of every partition
    ENTRY = 3  # node -> site: a log entry's record; ident = index
    APPLIED = 4  # site -> node: what the entry did; ident = index
    READ = 5  # node -> site: JSON list of one [procedure, params, version of its code]; ident = the node's number for it
    READ_ANSWER = 6  # site -> node
    CAPTURE = 7  # node -> site: JSON, write an image of the partition, or a delta; ident = the node's number for it
    CAPTURED = 8  # site -> node: JSON
    FAULT = 9  # site -> node: JSON, why the site ends
    STOP = 10  # node -> site: end after what was sent before
    PACE = 12  # node -> site: JSON, the share of its time that the capture under way may take
    CODE = 13  # node -> site: JSON, one more version of the code, which reads run from now on
    PREPARE = 14  # node -> site: JSON, do what leads to the tables of a version of the code, and keep it open
    PREPARED = 15  # site -> node: JSON, the change, or why there is none
    DROP = 16  # node -> site: take back what was prepared
    TRY = 17  # node -> site: JSON, before the hello: load code that is not logged yet, as a recovery will
    TRIED = 18  # site -> node: JSON, why it cannot be loaded; "" when it is
    LEAVE_OUT = 11  # node -> site: a logged skip of a call that it gets later; ident = index, payload = position as JSON


_KINDS: Final = {int(kind): kind for kind in FrameKind}
_make: Final = tuple.__new__  # half the time of the classes' own


class Frame(NamedTuple):
    kind: FrameKind
    partition: int
    ident: int
    payload: bytes


class BatchAnswer(NamedTuple):
    """What one batch did, on the node's side of the pipe."""

    rows_digest: int
    result_hashes: bytes  # [calls] little-endian uint32
    outcomes: list[tuple[int, int, bytes]]  # status, txn id of an earlier execution or 0, JSON body
    statuses: bytes | bytearray  # [calls] the same as in `outcomes`
    traces: Sequence[FailureTrace] = ()  # of calls that raised


def encode_frame(kind: FrameKind, payload: bytes = b"", *, partition: int = 0, ident: int = 0) -> bytes:
    return HEADER.pack(HEADER.size + len(payload), kind, partition, ident) + payload


def encode_applied(
    *,
    statuses: bytes | bytearray,
    earlier: Sequence[int] | None,
    result_hashes: Sequence[int],
    bodies: Sequence[bytes],
    rows_digest: int,
    traces: Sequence[FailureTrace] = (),
) -> bytes:
    """`earlier` holds the transaction ids when some call repeated a key (0 = its own); None when none did."""
    count = len(bodies)
    return b"".join((
        APPLIED.pack(count, earlier is not None, rows_digest),
        statuses,
        b"" if earlier is None else struct.pack(f"<{count}Q", *earlier),
        struct.pack(f"<{count}I", *result_hashes),
        struct.pack(f"<{count}I", *map(len, bodies)),
        *bodies,
        encode_traces(traces) if traces else b"",
    ))  # fmt: skip


def decode_applied(payload: bytes) -> BatchAnswer:
    count, has_earlier, rows_digest = APPLIED.unpack_from(payload)
    at = APPLIED.size
    statuses = payload[at : at + count]
    at += count
    earlier: Sequence[int] = bytes(count)
    if has_earlier:
        earlier = struct.unpack_from(f"<{count}Q", payload, at)
        at += 8 * count
    hashes = payload[at : at + 4 * count]
    at += 4 * count
    bounds = [*accumulate(struct.unpack_from(f"<{count}I", payload, at), initial=at + 4 * count)]
    bodies = map(payload.__getitem__, map(slice, bounds, bounds[1:]))
    traces = decode_traces(payload[bounds[-1] :]) if bounds[-1] < len(payload) else ()
    return _make(BatchAnswer, (rows_digest, hashes, list(zip(statuses, earlier, bodies, strict=True)), statuses, traces))


def encode_read_answer(as_of: int, status: int, body: bytes, traces: Sequence[FailureTrace]) -> bytes:
    return READ_ANSWER.pack(as_of, status, len(body)) + body + (encode_traces(traces) if traces else b"")


def decode_read_answer(payload: bytes) -> tuple[int, int, bytes, Sequence[FailureTrace]]:
    """TxnId as of which was read, status, body, and the trace of a call that raised."""
    as_of, status, length = READ_ANSWER.unpack_from(payload)
    end = READ_ANSWER.size + length
    return as_of, status, payload[READ_ANSWER.size : end], decode_traces(payload[end:]) if end < len(payload) else ()


def encode_traces(traces: Sequence[FailureTrace]) -> bytes:
    """One or more, as they stand in an answer; one without traces has nothing in that place."""
    return orjson.dumps([[t.txn_id, t.procedure, t.file, t.line, t.function, t.error, t.text, t.hint] for t in traces])


def decode_traces(payload: bytes) -> Sequence[FailureTrace]:
    return [FailureTrace(*parts) for parts in orjson.loads(payload)]


class FrameReader:
    """Cuts a byte stream into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`. Raises: ValueError on a length out of bounds, KeyError on an unknown kind."""
        buffer, position, frames = self._buffer, 0, list[Frame]()
        buffer += data
        while len(buffer) - position >= HEADER.size:
            size, kind, partition, ident = HEADER.unpack_from(buffer, position)
            if not HEADER.size <= size <= FRAME_BYTES_MAX:
                raise ValueError(f"frame of {size} bytes")
            end = position + size
            if end > len(buffer):
                break
            payload = bytes(buffer[position + HEADER.size : end])
            frames.append(_make(Frame, (_KINDS[kind], partition, ident, payload)))
            position = end
        del buffer[:position]
        return frames
