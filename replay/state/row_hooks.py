"""What each call of a batch did to which row: the row before the batch, and after every call that touched it.

One rule: like `replay.state.touched_rows`, it is not part of an ordinary replay. It serves the comparison of two replays.

SQLite reports changes as they happen, also those of a statement that then fails within a call that continues. So the notes show
when rows began to differ, but do not prove what they hold. That is read from the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from replay.state.touched_rows import CallHook, Key, Row


class Steps:
    """The versions of one row through a batch."""

    __slots__ = ("before", "behind")

    def __init__(self, before: Row | None) -> None:
        self.before = before
        self.behind: list[tuple[int, Row | None]] = []  # position of the call -> the row after it; ascending

    def add_step(self, position: int, row: Row | None) -> None:
        if self.behind and self.behind[-1][0] == position:
            self.behind[-1] = position, row
        else:
            self.behind.append((position, row))


Trails = dict[Key, Steps]


class RowTrail(CallHook):
    """The versions of every row."""

    HOOK = "trail"

    def take_rows(self, statuses: Sequence[int], positions: Sequence[int]) -> Trails:
        """The rows that the calls of the batch that has just ended touched; forgets them.

        `positions` are the positions in the batch of the calls that were run, in order. A call that failed has changed nothing.
        """
        rows, self._at = self._rows, -1
        self._forget()
        found = {}
        for key, steps in rows.items():
            steps.behind = [(positions[at], row) for at, row in steps.behind if not statuses[at]]
            if steps.behind:
                found[key] = steps
        return found

    def _note_update(self, update: apsw.PreUpdate) -> None:
        name = update.table_name
        if name not in self.tables:
            return
        old, new = update.old, update.new
        before = (name, self.tables.key(name, old)) if old is not None else None
        if new is None:
            self._step(before, old, None)
            return
        key = name, self.tables.key(name, new)
        if before is not None and before != key:  # the row moves to another key
            self._step(before, old, None)
            old = None
        self._step(key, old, new)

    def _step(self, key: Key | None, before: Row | None, behind: Row | None) -> None:
        if key is None:
            return
        steps = self._rows.get(key)
        if steps is None:
            steps = self._rows[key] = Steps(before)
        steps.add_step(self._at, behind)

    def _forget(self) -> None:
        self._rows: Trails = {}
