"""Recovery points: one transaction id at which all partitions can be restored together, and what that takes.

One rule: a point names what it needs, and what a point names is kept. It is a file `snapshots/points/<txn>.json` that pins one
snapshot per partition and the blocks of the log from the oldest of them up to the end; each snapshot lies at or before the point,
so snapshots plus the log up to the transaction id give every partition's state exactly there (`cmdlog recover --until TXN`).

The file is written last, when snapshots and log are durable. A crash before that leaves snapshots like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import decode_checked, write_checked
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX, read_document
from snapshot.manifest import parse_name

FOLDER: Final = "points"

_NAME: Final = re.compile(r"(\d{1,20})\.json")
_FIELDS: Final = {"txn_id", "created", "snapshots", "from_block", "to_block"}


@dataclass(frozen=True, slots=True)
class Point:
    """A recovery point."""

    txn_id: int  # every transaction up to this one, and none after it
    created: str  # RFC 3339; for the reader, decides nothing
    snapshots: Mapping[int, str]  # partition -> name of its snapshot
    from_block: int  # of the log: all that these snapshots do not hold, up to the point, lies in [from_block, to_block]
    to_block: int


@dataclass(frozen=True, slots=True)
class BadPoint:
    """A file that cannot be relied on. What it pins is unknown: while it exists, nothing leaves the archive."""

    name: str
    problem: str
    txn_id: int  # as its name says
    pinned: str  # what the file says of that, in words: not proved


def write_point(files: Files, directory: str, point: Point) -> str:
    """Durable on return; the file's path. Raises: DiskFull, WriteFailed."""
    value = {**asdict(point), "txn_id": str(point.txn_id), "snapshots": {str(p): name for p, name in point.snapshots.items()}}
    path = os.path.join(_folder(directory), f"{point.txn_id}.json")
    write_checked(files, path, value)
    return path


def list_points(files: Files, directory: str) -> tuple[list[Point], list[BadPoint]]:
    """Every point by transaction id, and the files that are not valid points."""
    folder = _folder(directory)
    points, bad = [], []
    for name in sorted(files.listdir(folder)) if files.exists(folder) else ():
        if (match := _NAME.fullmatch(name)) is None:
            continue  # what an operator or an interrupted write left
        data = b""
        try:
            data = files.read_file(os.path.join(folder, name), bytes_max=DOCUMENT_BYTES_MAX)
            points.append(_parse(data, int(match[1])))
        except KeyError as error:
            bad.append(BadPoint(name, f"it has no field {error}", int(match[1]), _pinned(data)))
        except (OSError, WalError, ValueError, TypeError, AttributeError) as error:
            bad.append(BadPoint(name, str(error) or type(error).__name__, int(match[1]), _pinned(data)))
    return sorted(points, key=lambda point: point.txn_id), bad


def keep_points(files: Files, directory: str, *, kept: int) -> list[Point]:
    """Removes all but the newest `kept` points, and with them what they pinned; those that went."""
    points, _ = list_points(files, directory)
    gone = points[: max(0, len(points) - kept)]
    for point in gone:
        files.unlink(os.path.join(_folder(directory), f"{point.txn_id}.json"))
    if gone:
        files.fsync_dir(_folder(directory))
    return gone


def describe_points(points: Sequence[Point], bad: Sequence[BadPoint]) -> list[dict[str, Any]]:
    """As the interfaces show them."""
    shown: list[dict[str, Any]] = [
        {**asdict(point), "txn_id": str(point.txn_id), "snapshots": [name for _, name in sorted(point.snapshots.items())]}
        for point in points
    ]
    return shown + [{"name": point.name, "problem": point.problem} for point in bad]


def _pinned(data: bytes) -> str:
    """What a damaged file says that it needs."""
    try:
        value = read_document(data)
        names = ", ".join(sorted(map(str, value["snapshots"].values())))
        return f"it says that it needs snapshots {names} and blocks {int(value['from_block'])} to {int(value['to_block'])}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "what it needs cannot be read"


def _parse(data: bytes, txn_id: int) -> Point:
    value = decode_checked(data)
    if set(value) != _FIELDS or int(value["txn_id"]) != txn_id:
        raise ValueError("its fields are not those of a recovery point, or it was renamed")
    snapshots = {int(partition): str(name) for partition, name in value["snapshots"].items()}
    for partition, name in snapshots.items():
        parsed = parse_name(name)
        if parsed is None or parsed[0] != partition:
            raise ValueError(f"it names {name!r} as the snapshot of partition {partition}")
    return Point(txn_id, str(value["created"]), snapshots, int(value["from_block"]), int(value["to_block"]))


def _folder(directory: str) -> str:
    return os.path.join(directory, "snapshots", FOLDER)
