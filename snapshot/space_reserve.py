"""The space reserve: room on the volume that the next image will need, held while there is some.

One rule: only a snapshot frees space in a full log, so it must not fail for want of space that others took in the
meantime. The file `snapshots/reserve` holds as many bytes as the largest image may take. When an image begins, or a node starts,
and the volume has less than that free, the file is deleted; it is made again when retention has removed what became superfluous.

The blocks are allocated, not written. On copy-on-write file systems an allocation promises nothing; the snapshot is then as
safe as it would be without.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from cmdlog.wal.os_errors import NO_ROOM

NAME: Final = "reserve"
START_BYTES: Final = 64 << 20  # what a start may need besides: pages of states, a segment
GROWTH: Final = 1.25  # of the image over the state as it is now: it grows while it is copied
BYTES_MIN: Final = 1 << 20
ALIGN_BYTES: Final = 1 << 20  # small changes of the state change nothing here


def wanted_bytes(state_bytes: int) -> int:
    """What the image of a state file of this size may take."""
    wanted = max(BYTES_MIN, int(state_bytes * GROWTH))
    return -(-wanted // ALIGN_BYTES) * ALIGN_BYTES


class Reserve:
    """The reserve of one node. Owned by the snapshot thread; `held_bytes` and `problem` may be read by any."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "snapshots", NAME)
        self.problem = ""  # why less is held than wanted
        self.held_bytes = self._size()

    def hold(self, wanted: int) -> None:
        """Reserves that many bytes. When the volume lacks them, keeps what it held and says so in `problem`."""
        if self.held_bytes == wanted:
            self.problem = ""
            return
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o640)
            try:
                if wanted < self.held_bytes:
                    os.ftruncate(descriptor, wanted)
                else:
                    os.posix_fallocate(descriptor, 0, wanted)
                self.problem = ""
            except OSError as error:
                if error.errno in NO_ROOM:
                    os.ftruncate(descriptor, self.held_bytes)  # what a partial allocation added is given back
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            self.problem = f"{wanted} bytes for the next snapshot cannot be reserved: {error.strerror}"
        self.held_bytes = self._size()

    def make_room(self, wanted: int) -> None:
        """Frees the space, unless the volume has `wanted` other bytes free."""
        if self.held_bytes and self._free() < wanted:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self.held_bytes = 0

    def _free(self) -> int:
        volume = os.statvfs(os.path.dirname(self._path))
        return volume.f_bavail * volume.f_frsize

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0
