"""For each row that ever differed between two histories, the first call that made it differ; on disk.

One rule: the first note of a row stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import apsw

from replay.state.touched_rows import Key, Row

_FIRSTS: Final = (
    "CREATE TABLE first (name TEXT, key TEXT, txn_id INTEGER, position INTEGER, procedure TEXT, PRIMARY KEY (name, key))"
    " WITHOUT ROWID"
)


@dataclass(frozen=True, slots=True)
class First:
    """The call after which a row was not the same on both sides for the first time."""

    txn_id: int
    procedure: str


class FirstDifferences:
    """The calls that made rows differ, in a file of its own."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(_FIRSTS)

    def add_calls(self, found: Iterable[tuple[Key, int, int, str]]) -> None:
        """(row, transaction, position in its batch, procedure); what is already known of a row stays."""
        rows = [(key[0], repr(key[1]), txn_id, position, name) for key, txn_id, position, name in found]
        if rows:
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO first VALUES (?, ?, ?, ?, ?)", rows)

    def of(self, table: str, key: Row) -> First | None:
        rows = self._connection.execute(
            "SELECT txn_id, procedure FROM first WHERE name = ? AND key = ?", (table, repr(tuple(key)))
        ).fetchall()
        return First(int(str(rows[0][0])), str(rows[0][1])) if rows else None

    def close(self) -> None:
        self._connection.close()
