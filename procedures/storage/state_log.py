"""SQLite's write-ahead log of a state file, as its writer sees it (https://www.sqlite.org/wal.html).

One rule: pages move into the state file after a commit, never during one. They move up to the oldest reader's view. SQLite
starts at the log's beginning again when all of it has moved and no reader is left. Readers that overlap leave no such moment,
and the log grows for as long as they come. `cmdlog.node.sites.site_executor` makes the moment, `empty` uses it.
"""

from __future__ import annotations

import contextlib
from typing import Final

import apsw

PAGE_BYTES: Final = 4096  # the block size of the file systems below; a fixed one keeps snapshot images comparable
FRAME_BYTES: Final = PAGE_BYTES + 24  # of a page in the log, with its header
PAGES_CHECKPOINT: Final = 4000  # 16 MB: a checkpoint costs as much as the distinct pages in it, so larger is cheaper per call
FILE_BYTES_KEPT: Final = 32 << 20  # of a log that is used again; what it grew beyond that goes back


class StateLog:
    """What the open state's log holds, and when its pages move; owned by the state's thread.

    Attributes:
        pages_checkpoint: pages from which on they move after each commit.
    """

    __slots__ = ("_pages", "pages_checkpoint")

    def __init__(self, connection: apsw.Connection) -> None:
        """From now on the connection's commits are counted here."""
        self.pages_checkpoint = PAGES_CHECKPOINT
        self._pages = 0  # committed since SQLite started at its beginning
        connection.pragma("journal_size_limit", FILE_BYTES_KEPT)
        connection.set_wal_hook(self._committed)

    @property
    def bytes(self) -> int:
        """Bytes of the commits in the log."""
        return self._pages * FRAME_BYTES

    def empty(self, connection: apsw.Connection) -> bool:
        """Moves all pages and, without readers, cuts the file to nothing; whether it did."""
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:  # a reader; or the volume, which the next batch meets as well
            return False
        self._pages = 0
        return True

    def _committed(self, connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        if pages >= self.pages_checkpoint:
            with contextlib.suppress(apsw.Error):  # it is committed; SQLite's own checkpoint ignores errors as well
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK
