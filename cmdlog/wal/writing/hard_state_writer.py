"""Keeping the hard state file current while the log is written.

One rule: a vote counts as durable when its block has it and one copy of the file. Both are written at once, by two
threads, so a vote takes as long as one sync. The other copy follows when no vote has come for a while, or with the next segment.

    a vote          block by its thread | older copy by the thread of this module     together, then the block is durable
    a new segment   both copies, one after the other, then the block                  the file must name the newest segment
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.hard_state import HardStateFile
from cmdlog.wal.os_errors import wal_error

EVEN_AFTER_S: Final = 1.0  # without a vote, until the other copy is written: elections come in bursts of them


class HardStateWriter:
    """`save_votes` and `note_newest` are the turn holder's; the others are called by any thread."""

    def __init__(self, hard: HardStateFile) -> None:
        self._hard = hard
        self._writing = threading.Lock()  # who writes the file; taken before the other
        self._changed = threading.Condition()
        self._votes = dict(hard.state.votes)
        self._ordered = self._saved = 0  # votes that were to be saved, and those that are
        self._error: WalError | None = None
        self._failed: Callable[[WalError], None] = lambda error: None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, failed: Callable[[WalError], None]) -> None:
        """Votes are written beside their block from now on; without it before it, in the calling thread."""
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="cmdlog-log-votes", daemon=True)
        self._thread.start()

    def save_votes(self, groups: GroupStates) -> Callable[[], None] | None:
        """Terms and votes, which have changed, go to the file. None: they are durable there; else what waits until they are.

        Raises: WriteFailed, DiskFull.
        """
        order = self._order_save(groups)
        if self._thread is not None:
            return partial(self._await_saved, order)
        self._save_votes()
        return None

    def note_newest(self, groups: GroupStates, sequence: int) -> None:
        """The newest segment, and what has changed of terms and votes; durable on return. Raises: WriteFailed, DiskFull."""
        self._order_save(groups)
        self._save(newest=sequence)

    def _order_save(self, groups: GroupStates) -> int:
        groups.hard_state_changed = False
        with self._changed:
            self._votes = dict(groups.votes)
            self._ordered += 1
            self._changed.notify_all()
            return self._ordered

    def note_oldest(self, sequence: int) -> None:
        """The oldest segment that the log needs; durable on return."""
        self._save(oldest=sequence)

    def note_durable(self, block: int) -> None:
        """A block that is known durable; durable on return."""
        self._save(durable=block)

    def even_copies(self) -> None:
        """Writes the copy that lacks the newest votes; durable on return."""
        if self._hard.behind:
            self._save()

    def stop(self) -> None:
        """Ends the thread, and closes the file."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None and self._thread.ident is not None:  # else it could not be started
            self._thread.join()
        self._hard.close()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._saved == self._ordered and not self._stopping:
                        self._changed.wait(EVEN_AFTER_S if self._hard.behind else None)
                    if self._stopping:
                        return
                    due = self._saved != self._ordered
                if due:
                    self._save_votes()
                else:
                    self.even_copies()
        except (WalError, OSError) as error:
            with self._changed:
                self._error = wal_error(error, "writing the hard state failed")
                self._changed.notify_all()
            self._failed(self._error)

    def _await_saved(self, order: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._saved >= order or self._error is not None or self._stopping)
            if self._saved < order:
                raise self._error or WalError("the log was closed before a vote was durable")

    def _save_votes(self) -> None:
        with self._writing:
            order = self._take_votes()
            self._hard.save_votes()
            self._note_saved(order)

    def _save(self, **noted: int) -> None:
        """Both copies, with what is to be noted."""
        with self._writing:
            order = self._take_votes()
            for name, value in noted.items():
                setattr(self._hard.state, name, value)
            self._hard.save()
            self._note_saved(order)

    def _take_votes(self) -> int:
        with self._changed:
            self._hard.state.votes = self._votes
            return self._ordered

    def _note_saved(self, order: int) -> None:
        with self._changed:
            self._saved = max(self._saved, order)
            self._changed.notify_all()
