"""Differences between the named calls of two sides: idempotency keys, and numbers of client sessions.

One rule: a side is one set of names, whatever its partitions: a recovery into another number of partitions puts copies of a name
wherever its retry may be routed, and an old name says nothing of the partition that it ran on. Of a session those numbers count
that are above its highest floor: their outcomes are known.

The set is kept by SQLite in a temporary file of its own, so memory does not grow with the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import apsw

from procedures.idempotency.known_outcome import split_keys
from procedures.idempotency.session_calls import ENDED, call_names
from procedures.idempotency.session_row import known_floors, stored_rows
from replay.diff.state_reader import States

_ROWS: Final = "SELECT keys FROM _cmdlog_keys WHERE idx > 0"
_MAKE: Final = "CREATE TABLE known (key BLOB PRIMARY KEY, sides INTEGER NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO known VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET sides = sides | excluded.sides"
_COUNT: Final = "SELECT sides, count(*) FROM known GROUP BY sides"


@dataclass(frozen=True, slots=True)
class NamesDiff:
    """How many names both sides, or only one of them, have."""

    left: int
    right: int
    left_alone: int
    right_alone: int

    @property
    def equal(self) -> bool:
        return not self.left_alone and not self.right_alone


def compare_keys(left: States, right: States) -> NamesDiff:
    """Compares the keys of all partitions of both sides."""
    return _compare(_keys(left), _keys(right))


def compare_sessions(left: States, right: States) -> NamesDiff:
    """Compares the numbers above their floors of the sessions that all partitions of both sides know."""
    return _compare(_numbers(left), _numbers(right))


def _compare(left: Iterable[bytes], right: Iterable[bytes]) -> NamesDiff:
    with closing(apsw.Connection("")) as known:
        known.execute(_MAKE)
        with known:
            for bit, side in ((1, left), (2, right)):
                known.executemany(_PUT, ((name, bit) for name in side))
        counts = {int(str(sides)): int(str(count)) for sides, count in known.execute(_COUNT)}
    both = counts.get(3, 0)
    return NamesDiff(counts.get(1, 0) + both, counts.get(2, 0) + both, counts.get(1, 0), counts.get(2, 0))


def _keys(side: States) -> Iterator[bytes]:
    for connection in side.connections.values():
        for (keys,) in connection.execute(_ROWS):
            yield from split_keys(bytes(keys))


def _numbers(side: States) -> Iterator[bytes]:
    floors: dict[bytes, int] = {}
    for connection in side.connections.values():
        for session, floor in known_floors(stored_rows(connection)).items():
            floors[session] = max(floor, floors.get(session, 0))
    for connection in side.connections.values():
        for row in stored_rows(connection):
            calls = [(row.sessions[ordinal], number) for ordinal, number in zip(row.ordinals, row.numbers, strict=True)]
            yield from call_names(call for call in calls if call[1] > floors.get(call[0], ENDED))
