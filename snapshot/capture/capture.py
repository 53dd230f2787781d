"""What every copy of a partition's state has in common, whole image or delta: how it begins, ends, fails and reports.

One rule: the copy only touches a file of its own. It is made here, exclusively; a copy that fails or is interrupted removes it,
and a file that existed before is not changed. A failure is reported, not raised: the partition itself is unharmed and continues.

The site never waits for a copy (`CapturePacing`): after a batch a step takes a share of the time that the batch took, and an idle
site rests after each step. One that went from step to step held up the syncs of the log that it waited for, by 200 to 350 ms
(why: `snapshot.background_io`).
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import apsw

from procedures.storage.state import PartitionState, Position
from snapshot.errors import SnapshotDamaged

STEP_SECONDS: Final = 0.001  # of an idle site: as long as the next batch may have to wait
IDLE_PAUSE_S: Final = 0.0001  # between two steps of an idle site; any sleep lets others in
BUSY_SHARE: Final = 0.1  # of a busy site's time: 1 GB takes about 20 s; carrying changed pages over costs as much again
_WEIGHT: Final = 0.2  # of the newest step in the smoothed time of one unit


@dataclass(frozen=True, slots=True)
class Wish:
    """What a capture may write instead of a whole image, if it knows what changed since the base."""

    path: str
    base: Position | None  # None: the image has to be whole
    keys_max: int  # more changed keys than this, and the whole image is cheaper
    keep: tuple[int, ...]  # indexes of the snapshots that later deltas may be based on, besides this one

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Wish:
        """From what `as_json` made of one."""
        base = value["base"]
        return cls(value["path"], Position(*base) if base is not None else None, value["keys_max"], tuple(value["keep"]))

    def as_json(self) -> dict[str, object]:
        """For the site's process."""
        return {"path": self.path, "base": self.base and list(self.base), "keys_max": self.keys_max, "keep": self.keep}


class CapturePacing:
    """Sizes the steps of one copy.

    Attributes:
        share: of a busy site's time.
        unit_s: smoothed time of one page or row.
    """

    __slots__ = ("_index", "_stepped_at", "_units_max", "share", "unit_s")

    def __init__(self, *, unit_s: float, units_max: int) -> None:
        self.share = BUSY_SHARE
        self.unit_s = unit_s
        self._units_max = units_max
        self._index, self._stepped_at = -1, 0.0  # of the step before

    def set_share(self, share: float) -> None:
        """From now on a busy site gives this share of its time."""
        self.share = share

    def units(self, now: float, index: int) -> int:
        """Pages or rows of the step that begins now. The position shows a busy site: it has moved since the step before."""
        busy, self._index = index != self._index, index
        allowed_s = min(self.share * (now - self._stepped_at), STEP_SECONDS) if busy else STEP_SECONDS
        return min(max(int(allowed_s / self.unit_s), 1), self._units_max)

    def stepped(self, units: int, *, began: float, now: float) -> None:
        """Ends the step, and measures it."""
        self._stepped_at = now
        self.unit_s += _WEIGHT * ((now - began) / units - self.unit_s)


class Capture(abc.ABC):
    """A copy in progress. Owned by the site's thread."""

    kind: ClassVar[str]

    def __init__(self, state: PartitionState, path: str, pace: CapturePacing) -> None:
        self._state, self._path, self.pace = state, path, pace
        self._error = ""
        self._done = False
        self._ours = False  # the file at `path` was made here, so it may be removed here
        self._target: apsw.Connection | None = None
        self._position: Position | None = None  # position of the copy; known when it is complete at the latest

    def step(self) -> bool:
        """Copies some pages or rows; True when the copy is complete or has failed: `report` says which."""
        if self._done:
            return True
        began = time.perf_counter()
        units = self.pace.units(began, self._state.position.index)
        try:
            if not self._copy_some(units):
                return False
        except (apsw.Error, OSError, SnapshotDamaged) as error:
            self._fail(error)
        self.pace.stepped(units, began=began, now=time.perf_counter())
        return self._done

    @abc.abstractmethod
    def _copy_some(self, units: int) -> bool:
        """Copies so many pages or rows, and ends the copy after the last ones; False when it must wait for the next step.

        Raises: apsw.Error, OSError, SnapshotDamaged.
        """

    @abc.abstractmethod
    def _begin_capture(self) -> None:
        """Makes the file. Raises: apsw.Error, OSError."""

    def _begin_or_fail(self) -> None:
        try:
            self._begin_capture()
        except (apsw.Error, OSError) as error:
            self._fail(error)

    def report(self) -> dict[str, Any]:
        """What it is, and its position: kind, partition, index, term, checksum, txn_id, path; `error` when it failed."""
        if not self._done:
            raise RuntimeError(f"the capture to {self._path} is still in progress")
        if self._error or self._position is None:
            return {"partition": self._state.partition, "path": self._path, "error": self._error or "interrupted"}
        position = self._position
        return {
            "kind": self.kind,
            "partition": self._state.partition,
            "index": position.index,
            "term": position.term,
            "checksum": position.checksum,
            "txn_id": position.txn_id,
            "path": self._path,
        }

    def abort(self) -> None:
        """Ends the copy and removes what there is of it."""
        self._done = True
        self._close()
        if self._ours:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _create(self, *, cache_kib: int) -> apsw.Connection:
        """Makes the file and opens it, unsynced: `snapshot.capture.seal` checks and syncs it. Raises: OSError, apsw.Error."""
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
        self._ours = True
        self._target = apsw.Connection(self._path)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{cache_kib}"):
            self._target.execute(f"PRAGMA {pragma}").fetchall()
        return self._target

    def _fail(self, error: Exception) -> None:
        self._error = f"{type(error).__name__}: {error}"
        self.abort()

    def _close(self) -> None:
        if self._target is not None:
            self._target.close(True)
            self._target = None
