"""Which files of the archive may go, and which first: decisions alone, made from what `ArchiveIndex` found.

One rule: what stays keeps all that it is based on. A snapshot of the archive that one outside it depends on is never chosen.

`archive/promise.json` tells those who prune the archive of a stopped node which window it promised. A file that cannot be read
promises everything. A node that runs without a window revokes nothing, since a setting may have got lost: it records that the
promise ended. The same window given again continues it, and `cmdlog archive prune` of what it covered revokes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import decode_checked, encode_checked
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX
from snapshot.archive_layout import ARCHIVE, ArchivedSegment
from snapshot.catalog import Snapshot
from snapshot.recovery_points import Point
from snapshot.retention import Needs, needs

PROMISE_NAME: Final = "promise.json"


def write_promise(files: Files, directory: str, *, window_s: float) -> None:
    """Records the promise, which holds from now on. Durable on return; writes nothing when the file already says so."""
    if read_promise(files, directory) != window_s or promise_end(files, directory) is not None:
        _write(files, directory, {"format": 1, "window_s": window_s})


def end_promise(files: Files, directory: str, *, now_millis: int) -> None:
    """Records that the running node no longer keeps it, unless that was recorded before, or there is none. Durable on return."""
    window_s = read_promise(files, directory)
    if 0 < window_s < math.inf and promise_end(files, directory) is None:
        _write(files, directory, {"format": 1, "window_s": window_s, "ended_millis": now_millis})


def _write(files: Files, directory: str, value: dict[str, float]) -> None:
    files.write_file_atomic(os.path.join(directory, ARCHIVE, PROMISE_NAME), encode_checked(value))


def read_promise(files: Files, directory: str) -> float:
    """Seconds of the promised window; 0 = none was ever promised, infinity = the file is damaged."""
    return _read(files, directory)[0]


def promise_end(files: Files, directory: str) -> int | None:
    """Milliseconds since 1970 when a node began to run without the window; None: the one that ran last kept it."""
    return _read(files, directory)[1]


def promise_problem(files: Files, directory: str) -> str:
    """Why the promise is unknown; "" when it is known."""
    path = os.path.join(directory, ARCHIVE, PROMISE_NAME)
    return f"{path} is damaged: the promised retention is unknown" if math.isinf(read_promise(files, directory)) else ""


def _read(files: Files, directory: str) -> tuple[float, int | None]:
    try:
        path = os.path.join(directory, ARCHIVE, PROMISE_NAME)
        value = decode_checked(files.read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
        if value["format"] != 1:
            return math.inf, None
        ended = value.get("ended_millis")
        return float(value["window_s"]), int(ended) if ended is not None else None
    except FileNotFoundError:
        return 0.0, None
    except (OSError, WalError, KeyError, TypeError, ValueError, AttributeError):
        return math.inf, None


def unneeded_segments(segments: Iterable[ArchivedSegment], needed: Needs) -> list[ArchivedSegment]:
    """Those that no promise needs; what an operator put there (`foreign`) stays."""
    return [
        segment
        for segment in segments
        if not needed.log(first_block=segment.first_block, last_block=segment.last_block) and not segment.foreign
    ]


def unneeded_snapshots(snapshots: Sequence[Snapshot], needed: Needs) -> list[Snapshot]:
    """Those of the archive that no promise needs."""
    return [s for s in _free_to_go(snapshots) if (s.partition, s.name) not in needed.snapshots]


def spare_snapshot(snapshots: Sequence[Snapshot], needed: Needs) -> Snapshot | None:
    """The oldest of the archive without which every moment can still be restored, only later; None when there is none."""
    spare = [s for s in _free_to_go(snapshots) if (s.partition, s.name) not in needed.bases]
    bases = {base.path for snapshot in spare for base in snapshot.bases}
    ascending = sorted(spare, key=lambda snapshot: snapshot.manifest.log_block if snapshot.manifest else 0)
    return next((snapshot for snapshot in ascending if snapshot.path not in bases), None)


def oldest_unpinned_segment(segments: Iterable[ArchivedSegment], needed: Needs) -> ArchivedSegment | None:
    """The first that no recovery point needs: what the rule `shorten` gives up."""
    pins = needed.pins_alone()
    return next((s for s in segments if not pins.log(first_block=s.first_block, last_block=s.last_block)), None)


def useless_snapshots(
    snapshots: Sequence[Snapshot], partitions: Sequence[int], points: Sequence[Point], *, log_from: int, leaving: str = ""
) -> list[Snapshot]:
    """Snapshots of the archive, and the one at the path `leaving`, whose log after them is gone and that no point needs.

    `log_from` is the first block of the log that is there without a gap.
    """
    pinned = needs(snapshots, partitions, begin=None, points=points).snapshots
    old = [s for s in snapshots if s.archived or s.path == leaving]
    staying = [s for s in snapshots if not (s.archived or s.path == leaving)]
    staying += [s for s in old if s.manifest is not None and s.manifest.log_block >= log_from]
    relied_on = _chains(staying)
    return [s for s in old if s.path not in relied_on and (s.partition, s.name) not in pinned]


def _free_to_go(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Those of the archive that no snapshot outside it depends on."""
    relied_on = _chains(s for s in snapshots if not s.archived)
    return [s for s in snapshots if s.archived and s.path not in relied_on]


def _chains(snapshots: Iterable[Snapshot]) -> set[str]:
    """Paths of all that these need."""
    return {link.path for snapshot in snapshots for link in snapshot.chain}
