"""What frames of calls and answers hold: rows of fixed size, then the texts that they count, in the same order.

One rule: parameters, keys and results pass as the bytes that they are; nothing is encoded again. WIRE.md has the layout.

What arrives is laid open as columns: a loop in Python over the calls of a frame costs more than all else that is done with them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

from cmdlog.cluster.transport.sealed_frames import ChannelName
from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout

CALL_CHANNEL: Final = ChannelName("call", b"\xca", b"CF")


class CallFrameKind(enum.IntEnum):
    """Numbers for ever."""

    OPEN = 1  # the caller's first frame: it knows the session
    READY = 2  # the called end's answer: its window
    CALLS = 3
    ANSWERS = 4
    PROBE = 5  # asks for a sign of life
    RECEIPT = 6  # is one


KEY_BYTES: Final = 16
NAME_BYTES: Final = 32
NO_KEY: Final = bytes(KEY_BYTES)
_NO_NAME: Final = bytes(NAME_BYTES)
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


class CallColumns(NamedTuple):
    """Calls as they arrive, in their order: one value for each in every column."""

    procedures: Sequence[int]  # positions among the names of the link
    slots: Sequence[int]  # hash slots; 0 where the call goes to all partitions
    promises: Sequence[int]  # of durability: 0 as the node has it, 1 sync, 2 async
    keys: Sequence[bytes]  # [16] fingerprint, b"" without one; [32] session, number and floor
    txns: Sequence[int]  # that the caller has seen; 0 without one
    params: Sequence[bytes]  # JSON, as it will be in the log; then maybe 16 digits of what was sent

    def pick(self, positions: Sequence[int]) -> CallColumns:
        """Those at these positions."""
        picked: list[Any] = [[column[at] for at in positions] for column in self]
        return CallColumns(*picked)


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


EARLY_WINDOW: Final = CallWindow(calls=1024, params_bytes=4 << 20)  # before the called end has stated its own


@dataclass(frozen=True, slots=True)
class CallBatch:
    """The body of a frame of calls. `names` are those that no earlier frame of the link had."""

    first: int  # id of the first call; the others count on
    names: Sequence[CallName]
    calls: CallColumns


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
    procedures, slots, promises, named, txns, sizes = _columns(CALL, body, at, count)
    if count and (max(slots) >= SLOTS or max(promises) >= PROMISES):
        raise BadFrame(FrameFault.MALFORMED, f"slots up to {max(slots)}, promises up to {max(promises)}")
    if named.count(_NO_NAME) == count:
        keys: Sequence[bytes] = (b"",) * count
    else:
        keys = [_key_of(name) for name in named]
    ends = list(accumulate(sizes, initial=at + count * CALL.size))
    _check_end(body, ends[-1])
    params = [body[start:end] for start, end in pairwise(ends)]
    return CallBatch(first, names, CallColumns(procedures, slots, promises, keys, txns, params))


def _key_of(name: bytes) -> bytes:
    if name.endswith(NO_KEY):  # numbers of a session begin with 1
        return b"" if name == _NO_NAME else name[:KEY_BYTES]
    return name


def encode_answers(rows: Sequence[AnswerRow]) -> bytes:
    """The body."""
    pack = ANSWER.pack
    heads = [pack(call, status, txn, len(body), len(more)) for call, status, txn, body, more in rows]
    return b"".join((*heads, *chain.from_iterable([row[3:] for row in rows])))


def decode_answers(body: bytes, count: int) -> list[AnswerRow]:
    """Raises: BadFrame."""
    calls, statuses, txns, body_sizes, more_sizes = _columns(ANSWER, body, 0, count)
    sizes = chain.from_iterable(zip(body_sizes, more_sizes, strict=True))
    ends = list(accumulate(sizes, initial=count * ANSWER.size))
    _check_end(body, ends[-1])
    texts = [body[start:end] for start, end in pairwise(ends)]
    return list(map(AnswerRow, calls, statuses, txns, texts[::2], texts[1::2]))


def _columns(row: struct.Struct, body: bytes, at: int, count: int) -> Sequence[Sequence[Any]]:
    """The fields of `count` rows."""
    end = at + count * row.size
    if end > len(body):
        raise _malformed("rows")
    return tuple(zip(*row.iter_unpack(memoryview(body)[at:end]), strict=True)) or ((),) * len(row.unpack(bytes(row.size)))


def _check_end(body: bytes, end: int) -> None:
    if end != len(body):
        raise BadFrame(FrameFault.MALFORMED, f"texts of {end} bytes in a body of {len(body)}")


def _malformed(what: str) -> BadFrame:
    return BadFrame(FrameFault.MALFORMED, f"{what} that end early")
