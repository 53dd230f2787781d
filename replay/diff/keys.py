"""Differences between the idempotency keys of two sides.

One rule: a side is one set of keys, whatever its partitions: a recovery into another number of partitions puts copies of a key
wherever its retry may be routed, and an old key says nothing of the partition that it ran on.

The set is kept by SQLite in a temporary file of its own, so memory does not grow with the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import apsw

from procedures.execution.idempotency import split_keys
from replay.diff.state_reader import States

_ROWS: Final = "SELECT keys FROM _cmdlog_keys WHERE idx > 0"
_MAKE: Final = "CREATE TABLE known (key BLOB PRIMARY KEY, sides INTEGER NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO known VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET sides = sides | excluded.sides"
_COUNT: Final = "SELECT sides, count(*) FROM known GROUP BY sides"


@dataclass(frozen=True, slots=True)
class KeysDiff:
    """How many keys both sides, or only one of them, have."""

    left: int
    right: int
    left_alone: int
    right_alone: int

    @property
    def equal(self) -> bool:
        return not self.left_alone and not self.right_alone


def compare_keys(left: States, right: States) -> KeysDiff:
    """Compares the keys of all partitions of both sides."""
    with closing(apsw.Connection("")) as known:
        known.execute(_MAKE)
        with known:
            for bit, side in ((1, left), (2, right)):
                known.executemany(_PUT, ((key, bit) for key in _keys(side)))
        counts = {int(str(sides)): int(str(count)) for sides, count in known.execute(_COUNT)}
    both = counts.get(3, 0)
    return KeysDiff(counts.get(1, 0) + both, counts.get(2, 0) + both, counts.get(1, 0), counts.get(2, 0))


def _keys(side: States) -> Iterator[bytes]:
    for connection in side.connections.values():
        for (keys,) in connection.execute(_ROWS):
            yield from split_keys(bytes(keys))
