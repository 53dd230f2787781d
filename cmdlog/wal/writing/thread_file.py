"""One thread's open file of the segment that it writes.

One rule: each thread has its own. The kernel reports a failed write-back once to each open file description, so no thread's sync
can succeed because another one has consumed the error.
"""

from __future__ import annotations

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import File, Files
from cmdlog.wal.writing.tail import PlacedBlock


class ThreadFile:
    """Follows its thread from segment to segment."""

    __slots__ = ("_file", "_files", "_sequence")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._file: File | None = None
        self._sequence = 0

    def of_block(self, placed: PlacedBlock) -> File:
        """The file of the block's segment. Raises: WalError."""
        if self._file is not None and self._sequence == placed.sequence:
            return self._file
        try:
            self.close()
            self._file, self._sequence = self._files.open(placed.path), placed.sequence
        except OSError as error:
            raise WalError(f"opening {placed.path}: {error}") from error
        return self._file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
