"""Named anchors: who still needs the log from where on. (The idea is Apache Kudu's log anchor registry.)

One rule: a segment is recycled only when every anchor is beyond its last record; without any anchor nothing is recycled, so a
node that has not yet said what it needs loses nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cmdlog.wal.ids import Lsn


@dataclass(frozen=True, slots=True)
class Anchor:
    """Everything from `lsn` on is needed."""

    lsn: Lsn
    since: float  # seconds since 1970, for the operator who asks what holds the log back


class Anchors:
    """Thread-safe. `moved` is called after every change, outside the lock."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self._lock = threading.Lock()
        self._anchors: dict[str, Anchor] = {}

    def set(self, name: str, lsn: Lsn) -> None:
        """Needs everything from `lsn` on. Moving an anchor back is the caller's claim that the log still reaches there."""
        with self._lock:
            before = self._anchors.get(name)
            if before is not None and before.lsn == lsn:
                return
            self._anchors[name] = Anchor(lsn, time.time())
        self._moved()

    def release(self, name: str) -> None:
        """Forgets the anchor; one that is not there is no error."""
        with self._lock:
            self._anchors.pop(name, None)
        self._moved()

    def oldest(self) -> Lsn | None:
        """The oldest position that anyone needs; None without any anchor."""
        with self._lock:
            return min((anchor.lsn for anchor in self._anchors.values()), default=None)

    def status(self) -> dict[str, dict[str, float]]:
        with self._lock:
            return {
                name: {"block": anchor.lsn.block, "offset": anchor.lsn.offset, "since": anchor.since}
                for name, anchor in sorted(self._anchors.items())
            }
