"""How a call is named, so that a retry of it is known: by a key of its own, or by its number in a session.

| bytes | name |
|---|---|
| 16 | fingerprint of an idempotency key (`procedures.idempotency.outcomes`); all zeros: the call has no name |
| 24 | fingerprint of a session, and the call's number in it |
| 32 | the same on the way to the log, with the floor that the call brings: its client has seen all outcomes up to there |

Numbers are little endian. A session's fingerprint is that of its UUIDv7 in the scope of its caller's credential, and carries the
time at which the session was made.

The model is the client session of the Raft dissertation (6.3) and of RIFL (Lee et al., SOSP 2015): a number belongs to one call
for ever, and what is at or below the floor may be forgotten, since nobody asks for it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, overload

SESSION_BYTES: Final = 16
NAME_BYTES: Final = 24  # of a call in a session
ENDED: Final = (1 << 64) - 1  # the floor of a session that its client has ended: no number lies above
NUMBER_MAX: Final = ENDED - 1
SENT: Final = struct.Struct("<16sQQ")
_NAME: Final = struct.Struct("<16sQ")


def sent_name(session: bytes, number: int, floor: int) -> bytes:
    """What a call of a session brings along."""
    return SENT.pack(session, number, floor)


def call_names(calls: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """The names of these calls: session and number."""
    return [_NAME.pack(session, number) for session, number in calls]


class NumberedNames(Sequence[bytes]):
    """The names of calls that all have a number in a session, in columns; a name is made when it is asked for."""

    __slots__ = ("numbers", "sessions")

    def __init__(self, sessions: Sequence[bytes], numbers: Sequence[int]) -> None:
        self.sessions, self.numbers = tuple(sessions), tuple(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> NumberedNames: ...
    def __getitem__(self, at: int | slice) -> bytes | NumberedNames:
        if isinstance(at, slice):
            return NumberedNames(self.sessions[at], self.numbers[at])
        return _NAME.pack(self.sessions[at], self.numbers[at])


def split_names(names: Sequence[bytes]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Sessions and numbers of calls that all have names of 24 bytes."""
    if type(names) is NumberedNames:
        return names.sessions, names.numbers
    flat = struct.unpack("<" + "16sQ" * len(names), b"".join(names))
    return flat[::2], flat[1::2]
