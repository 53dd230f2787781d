"""What frames of calls and answers hold: rows of fixed size, then the texts that they count, in the same order.

One rule: parameters, keys and results pass as the bytes that they are; nothing is encoded again. WIRE.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout

KEY_BYTES: Final = 16
NAME_BYTES: Final = 32
NO_KEY: Final = bytes(KEY_BYTES)
SHAPE_BYTES: Final = 8
NAMES_MAX: Final = 1 << 16  # of one link: rows count them in 16 bits
SLOTS: Final = 1 << 14
PROMISES: Final = 3
REFUSED: Final = 255  # status of an answer that is no outcome

CALL_FIELDS: Final = (
    ("procedure", "H"), ("slot", "H"), ("promise", "B"), ("key", f"{NAME_BYTES}s"), ("txn", "Q"), ("params_bytes", "I"),
)  # fmt: skip
ANSWER_FIELDS: Final = (("call", "Q"), ("status", "B"), ("txn", "Q"), ("body_bytes", "I"), ("more_bytes", "I"))
CALLS_FIELDS: Final = (("first", "Q"), ("names", "H"), ("reserved", "2x"))
NAME_FIELDS: Final = (("shape", f"{SHAPE_BYTES}s"), ("name_bytes", "H"))
WINDOW_FIELDS: Final = (("calls", "I"), ("params_bytes", "Q"))
CALL: Final = layout(CALL_FIELDS)
ANSWER: Final = layout(ANSWER_FIELDS)
CALLS: Final = layout(CALLS_FIELDS)
NAME: Final = layout(NAME_FIELDS)
WINDOW: Final = layout(WINDOW_FIELDS)


class CallName(NamedTuple):
    """A procedure as both ends must declare it."""

    name: bytes  # UTF-8
    shape: bytes  # [8] digest of its declaration


class CallRow(NamedTuple):
    """One call as it arrives."""

    procedure: int  # position among the names of the link
    slot: int  # hash slot; 0 where the call goes to all partitions
    promise: int  # of durability: 0 as the node has it, 1 sync, 2 async
    key: bytes  # [16] fingerprint, `NO_KEY` without one; [32] session, number and floor
    txn: int  # that the caller has seen; 0 without one
    params: bytes  # JSON, as it will be in the log


class AnswerRow(NamedTuple):
    """One answer."""

    call: int
    status: int  # of an outcome, or `REFUSED`
    txn: int  # that decided
    body: bytes  # JSON: the result, or what the refusal says
    more: bytes  # JSON about an outcome, for people


@dataclass(frozen=True, slots=True)
class CallWindow:
    """What may be under way on one link: calls, and bytes of their parameters."""

    calls: int
    params_bytes: int

    def encode(self) -> bytes:
        return WINDOW.pack(self.calls, self.params_bytes)


@dataclass(frozen=True, slots=True)
class CallBatch:
    """The body of a frame of calls. `names` are those that no earlier frame of the link had."""

    first: int  # id of the first call; the others count on
    names: Sequence[CallName]
    rows: Sequence[CallRow]


def decode_window(body: bytes) -> CallWindow:
    """Raises: BadFrame."""
    try:
        return CallWindow(*WINDOW.unpack_from(body))
    except struct.error:
        raise _malformed("window") from None


def encode_calls(first: int, names: Sequence[CallName], rows: Sequence[bytes], params: Sequence[bytes]) -> bytes:
    """The body; `rows` are packed already, by `CALL`."""
    texts = [NAME.pack(shape, len(name)) + name for name, shape in names]
    return b"".join((CALLS.pack(first, len(names)), *texts, *rows, *params))


def decode_calls(body: bytes, count: int) -> CallBatch:
    """Raises: BadFrame."""
    try:
        first, names_count = CALLS.unpack_from(body)
        names, at = [], CALLS.size
        for _ in range(names_count):
            shape, size = NAME.unpack_from(body, at)
            at += NAME.size
            names.append(CallName(body[at : at + size], shape))
            at += size
    except struct.error:
        raise _malformed("calls") from None
    rows: list[CallRow] = []
    end = at + count * CALL.size
    for procedure, slot, promise, key, txn, size in _rows(CALL, body, at, count):
        if slot >= SLOTS or promise >= PROMISES:
            raise BadFrame(FrameFault.MALFORMED, f"slot {slot}, promise {promise}")
        name = key if any(key[KEY_BYTES:]) else key[:KEY_BYTES]  # numbers of a session begin with 1
        rows.append(CallRow(procedure, slot, promise, name, txn, body[end : end + size]))
        end += size
    _check_end(body, end)
    return CallBatch(first, names, rows)


def encode_answers(rows: Sequence[AnswerRow]) -> bytes:
    """The body."""
    heads = [ANSWER.pack(call, status, txn, len(body), len(more)) for call, status, txn, body, more in rows]
    return b"".join((*heads, *[text for row in rows for text in (row.body, row.more)]))


def decode_answers(body: bytes, count: int) -> list[AnswerRow]:
    """Raises: BadFrame."""
    rows: list[AnswerRow] = []
    end = count * ANSWER.size
    for call, status, txn, body_bytes, more_bytes in _rows(ANSWER, body, 0, count):
        middle = end + body_bytes
        rows.append(AnswerRow(call, status, txn, body[end:middle], body[middle : middle + more_bytes]))
        end = middle + more_bytes
    _check_end(body, end)
    return rows


def _rows(row: struct.Struct, body: bytes, at: int, count: int) -> Iterator[tuple[Any, ...]]:
    end = at + count * row.size
    if end > len(body):
        raise _malformed("rows")
    return row.iter_unpack(memoryview(body)[at:end])


def _check_end(body: bytes, end: int) -> None:
    if end != len(body):
        raise BadFrame(FrameFault.MALFORMED, f"texts of {end} bytes in a body of {len(body)}")


def _malformed(what: str) -> BadFrame:
    return BadFrame(FrameFault.MALFORMED, f"{what} that end early")
