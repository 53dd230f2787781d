"""The rows of `_cmdlog_sessions`: what one batch brought to the sessions of a partition.

Row: `idx`, the batch; `clock`, the activity time at which it came, or -1 minus that for a call on all partitions; `stage`
(`Stage`); `calls` and `outcomes`, little endian:

    calls     u32 sessions, u32 calls; per session 16 bytes of fingerprint, u64 floor; with several sessions u32 per call, the
              number of its session above, from 0; u64 number per call
    outcomes  those of the calls (`packed_outcomes.py`)

Rows 0 and -1 hold a `Forgotten` in `calls`: of single-partition calls, and of calls on all partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, Final

import apsw

from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import KnownOutcome
from procedures.idempotency.packed_outcomes import unpack_outcome_at
from procedures.storage.state import rows_of

TABLE: Final = "_cmdlog_sessions"
SINGLE_FIGURES: Final = 0
SHARED_FIGURES: Final = -1
_HEAD: Final = struct.Struct("<II")
_MENTION: Final = struct.Struct("<16sQ")
_ROWS: Final = f"SELECT idx, clock, stage, calls FROM {TABLE} WHERE idx > ? ORDER BY idx LIMIT ?"  # noqa: S608 - one of ours
_PUT: Final = f"INSERT OR REPLACE INTO {TABLE} VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - as above
_DELETE: Final = f"DELETE FROM {TABLE} WHERE idx = ?"  # noqa: S608 - as above


class Stage(IntEnum):
    """What has become of a row since its batch."""

    NEW = 0
    SHRUNK = 1  # it was looked at once, and holds what was needed then
    OLD = 2  # older than a session may be idle: it holds outcomes of sessions that were active later, and is nobody's latest


@dataclass(slots=True)  # not frozen: one is made per batch, and freezing costs 1.5 us
class SessionRow:
    """A row without its outcomes."""

    idx: int
    clock: int
    stage: int
    sessions: tuple[bytes, ...]
    floors: tuple[int, ...]  # of each session, after the batch
    ordinals: tuple[int, ...]  # of each call: its session's position above
    numbers: tuple[int, ...]  # of each call

    @property
    def shared(self) -> bool:
        """Whether it is of a call on all partitions."""
        return self.clock < 0

    def pack(self) -> bytes:
        """`calls`."""
        mentions, count = len(self.sessions), len(self.numbers)
        ordinals = self.ordinals if mentions > 1 else ()
        form = "<II" + "16sQ" * mentions + f"{len(ordinals)}I{count}Q"
        named = chain.from_iterable(zip(self.sessions, self.floors, strict=True))
        return struct.pack(form, mentions, count, *named, *ordinals, *self.numbers)

    def position(self, session: bytes, number: int) -> int:
        """Where the call is in the columns. Raises: ValueError, if it is not there."""
        ordinal, at = self.sessions.index(session), -1
        while True:
            at = self.numbers.index(number, at + 1)
            if self.ordinals[at] == ordinal:
                return at


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What is remembered of sessions that are no longer known."""

    born: int = 0  # sessions made before this millisecond may be among them

    def pack(self) -> bytes:
        return struct.pack("<Q", self.born)


def unpack_row(idx: int, clock: int, stage: int, calls: bytes) -> SessionRow:
    """Raises: StateRefused, when the row is shorter or longer than it says."""
    try:
        mentions, count = _HEAD.unpack_from(calls)
        flat = struct.unpack_from("<" + "16sQ" * mentions, calls, _HEAD.size)
        at = _HEAD.size + _MENTION.size * mentions
        ordinals: tuple[int, ...] = (0,) * count
        if mentions > 1:
            ordinals = struct.unpack_from(f"<{count}I", calls, at)
            at += 4 * count
        numbers = struct.unpack_from(f"<{count}Q", calls, at)
        if at + 8 * count != len(calls):
            raise struct.error("length")
    except struct.error:
        raise StateRefused(f"{TABLE}: row {idx} of {len(calls)} bytes does not hold what it says") from None
    return SessionRow(idx, clock, stage, flat[::2], flat[1::2], ordinals, numbers)


def stored_rows(connection: apsw.Connection, *, after: int = 0, rows: int = -1) -> Iterator[SessionRow]:
    """The rows of a state file after index `after`, at most so many."""
    return (unpack_row(*row) for row in connection.execute(_ROWS, (after, rows)))


def known_floors(rows: Iterable[SessionRow]) -> dict[bytes, int]:
    """The sessions that these rows make known, with their highest floors."""
    floors: dict[bytes, int] = {}
    for row in rows:
        for session, floor in zip(row.sessions, row.floors, strict=True) if row.stage != Stage.OLD else ():
            floors[session] = max(floor, floors.get(session, 0))
    return floors


def count_rows(connection: apsw.Connection) -> int:
    """How many rows of batches a state file has."""
    return int(rows_of(connection, f"SELECT count(*) FROM {TABLE} WHERE idx > 0")[0][0])  # noqa: S608 - ours


def forgotten_of(connection: apsw.Connection, figures: int) -> Forgotten:
    """What row `figures` holds."""
    rows = rows_of(connection, f"SELECT calls FROM {TABLE} WHERE idx = ?", (figures,))  # noqa: S608 - ours
    return Forgotten(*struct.unpack("<Q", rows[0][0])) if rows else Forgotten()


def put_row(connection: apsw.Connection, row: SessionRow, outcomes: bytes) -> bytes:
    """Writes the row, in place of the one of its index; its `calls`."""
    calls: bytes = row.pack()
    connection.execute(_PUT, (row.idx, row.clock, row.stage, calls, outcomes))
    return calls


def put_forgotten(connection: apsw.Connection, figures: int, forgotten: Forgotten) -> None:
    connection.execute(_PUT, (figures, 0, 0, forgotten.pack(), b""))


def delete_row(connection: apsw.Connection, idx: int) -> None:
    connection.execute(_DELETE, (idx,))


def outcomes_of(connection: apsw.Connection, idx: int) -> tuple[SessionRow, bytes]:
    """A row with its outcomes. Raises: StateRefused."""
    sql = f"SELECT idx, clock, stage, calls, outcomes FROM {TABLE} WHERE idx = ?"  # noqa: S608 - ours
    found: list[tuple[Any, ...]] = rows_of(connection, sql, (idx,))
    if len(found) != 1:
        raise StateRefused(f"{TABLE}: outcomes of batch {idx} are missing")
    return unpack_row(*found[0][:4]), found[0][4]


def stored_outcome(connection: apsw.Connection, idx: int, session: bytes, number: int) -> KnownOutcome:
    """The outcome of a call that the row of batch `idx` holds. Raises: StateRefused."""
    row, outcomes = outcomes_of(connection, idx)
    try:
        at = row.position(session, number)
    except ValueError:
        raise StateRefused(f"{TABLE}: row {idx} lacks number {number} of session {session.hex()}") from None
    return unpack_outcome_at(outcomes, at)
