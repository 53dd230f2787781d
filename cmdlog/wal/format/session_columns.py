"""The calls of client sessions in a batch: a dictionary of the sessions, and columns. FORMAT.md "Sessions of a batch".

A call of a session comes as 32 bytes: the session's fingerprint (16), the call's number and the floor that it brings (u64 each,
little endian). On disk each session is named once in a batch, with the highest floor of its calls; the numbers are distances from
its lowest, in as few bytes as they need. The batch of one session with numbers that count on takes 40 bytes more than one without
names.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.struct_layout import Layout

SESSIONS: Final = Layout("Sessions header", ("bytes", "I"), ("sessions", "H"), ("ordinal_bytes", "B"), ("number_bytes", "B"))
SESSION: Final = Layout("Session of a batch", ("session", "16s"), ("base", "Q"), ("floor", "Q"))
ENDED: Final = (1 << 64) - 1  # floor of a session that ends
KEY_BYTES: Final = 16
CALL_BYTES: Final = 32
_NONE: Final = bytes(KEY_BYTES)
_ORDINAL_CODES: Final = {1: "B", 2: "H"}
_CODES: Final = {**_ORDINAL_CODES, 8: "Q"}
_NAME: Final = struct.Struct("<16sQ")


@dataclass(frozen=True, slots=True)
class SessionColumns:
    """Decoded. `ordinals`: per call the position of its session, from 1; 0 for a call of none."""

    ids: Sequence[bytes]
    floors: Sequence[int]
    ordinals: Sequence[int]
    numbers: Sequence[int]

    def names(self, count: int) -> list[bytes]:
        """Session and number of each call, 24 bytes; zeros of 16 for a call of no session."""
        pack = _NAME.pack
        if len(self.ids) == 1 and len(self.numbers) == count and 0 not in self.ordinals:
            session = self.ids[0]
            return [pack(session, number) for number in self.numbers]
        ids = (_NONE, *self.ids)
        return [pack(ids[of], number) if of else _NONE for of, number in zip(self.ordinals, self.numbers, strict=True)]


def encode_sessions(keys: Sequence[bytes], ended: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The column of keys and the sessions of a batch; each is empty if the batch has none of them."""
    joined = b"".join(keys)
    if len(joined) == KEY_BYTES * len(keys) and not ended:
        return joined, b""
    if len(joined) == CALL_BYTES * len(keys):
        flat = struct.unpack("<" + "16sQQ" * len(keys), joined)
        sessions = len(set(flat[::3]))
        if sessions == 1 and not ended:
            return b"", _of_one(flat[0], flat[1::3], max(flat[2::3]))
        if sessions == len(keys) and not ended:
            return b"", _of_each(joined, len(keys))
        return b"", _of_many(list(zip(flat[::3], flat[1::3], flat[2::3], strict=True)), ended)
    calls = [struct.unpack("<16sQQ", key) if len(key) == CALL_BYTES else None for key in keys]
    plain = [_NONE if call else key for key, call in zip(keys, calls, strict=True)]
    return b"".join(plain) if any(map(any, plain)) else b"", _of_many(calls, ended)


def _of_one(session: bytes, numbers: Sequence[int], floor: int) -> bytes:
    base = min(numbers)
    if numbers[-1] - base == len(numbers) - 1 and all(map(int.__eq__, numbers, range(base, base + len(numbers)))):
        column, width = b"", 0
    else:
        column, width = _numbers([number - base for number in numbers])
    return SESSIONS.pack(SESSIONS.bytes + SESSION.bytes + len(column), 1, 0, width) + SESSION.pack(session, base, floor) + column


def _of_each(joined: bytes, count: int) -> bytes:
    """Calls of as many sessions: what a call came as is what its session's entry says, since its number is the lowest."""
    width = 1 if count < 256 else 2
    ordinals = struct.pack(f"<{count}{_ORDINAL_CODES[width]}", *range(1, count + 1))
    size = SESSIONS.bytes + len(joined) + len(ordinals) + count
    return SESSIONS.pack(size, count, width, 1) + joined + ordinals + bytes(count)


def _of_many(calls: Sequence[tuple[bytes, int, int] | None], ended: Sequence[bytes]) -> bytes:
    bases: dict[bytes, int] = {}
    floors: dict[bytes, int] = {}
    for session, number, floor in filter(None, calls):
        bases[session] = min(bases.get(session, number), number)
        floors[session] = max(floors.get(session, floor), floor)
    for session in ended:
        bases.setdefault(session, 0)
        floors[session] = ENDED
    places = {session: at for at, session in enumerate(bases, 1)}
    width = 1 if len(places) < 256 else 2
    ordinals = struct.pack(f"<{len(calls)}{_CODES[width]}", *[places[call[0]] if call else 0 for call in calls])
    column, number_bytes = _numbers([call[1] - bases[call[0]] if call else 0 for call in calls])
    heads = [SESSION.pack(session, base, floors[session]) for session, base in bases.items()]
    size = SESSIONS.bytes + SESSION.bytes * len(heads) + len(ordinals) + len(column)
    return b"".join((SESSIONS.pack(size, len(heads), width, number_bytes), *heads, ordinals, column))


def _numbers(distances: Sequence[int]) -> tuple[bytes, int]:
    highest = max(distances)
    width = 1 if highest < 1 << 8 else 2 if highest < 1 << 16 else 8
    return struct.pack(f"<{len(distances)}{_CODES[width]}", *distances), width


def decode_sessions(raw: bytes, count: int) -> SessionColumns:
    """The sessions of a batch of `count` calls. Raises: BadRecord."""
    try:
        size, sessions, ordinal_bytes, number_bytes = SESSIONS.unpack_from(raw)
        heads = struct.unpack_from("<" + "16sQQ" * sessions, raw, SESSIONS.bytes)
        at = SESSIONS.bytes + SESSION.bytes * sessions
        ordinals: Sequence[int] = (1,) * count
        if ordinal_bytes:
            ordinals = struct.unpack_from(f"<{count}{_ORDINAL_CODES[ordinal_bytes]}", raw, at)
        at += ordinal_bytes * count
        distances: Sequence[int] = range(count)
        if number_bytes:
            distances = struct.unpack_from(f"<{count}{_CODES[number_bytes]}", raw, at)
        at += number_bytes * count
    except (struct.error, KeyError):
        raise BadRecord("sessions of a batch") from None
    ids, bases, floors = heads[::3], heads[1::3], heads[2::3]
    if not len(raw) == size == at or not sessions or max(ordinals) > sessions or len(set(ids)) != sessions:
        raise BadRecord("sessions of a batch")
    # One session has every call; else an ordinal of 0 is a call of none.
    if sessions == 1 and not ordinal_bytes:
        numbers: Sequence[int] = [bases[0] + distance for distance in distances]
    else:
        numbers = [bases[of - 1] + distance if of else 0 for of, distance in zip(ordinals, distances, strict=True)]
    if max(numbers) >= ENDED:
        raise BadRecord("sessions of a batch: a number is too high")
    return SessionColumns(ids, floors, ordinals, numbers)
