"""`quarantine/`: what a node's directory held before a copy took its place.

One rule: nothing is deleted but by an operator. `instance.json` leaves first, so that the directory is no node from then on; what
is in the folder afterwards is laid out as a node's directory, and commands that only read can look at it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from cmdlog.cluster.transport.peer_book import BOOK_NAME
from cmdlog.operator_error import OperatorError
from cmdlog.wal.directory.instance import CLUSTER_FOLDER, FOLDERS, INSTANCE_NAME
from cmdlog.wal.divergence_file import FILE_NAME as DIVERGED_NAME
from cmdlog.wal.files import Files

QUARANTINE_FOLDER: Final = "quarantine"
PARTS: Final = (
    INSTANCE_NAME, *FOLDERS, os.path.join(CLUSTER_FOLDER, BOOK_NAME), os.path.join(CLUSTER_FOLDER, DIVERGED_NAME),
)  # fmt: skip
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[a-z_]+(-\d+)?")


class NotInQuarantine(OperatorError):
    """There is no such entry."""

    exit_code = 2
    hint = "`cmdlog cluster quarantine list DIR` names what is there"


@dataclass(frozen=True, slots=True)
class QuarantinedNode:
    """One entry."""

    name: str
    reason: str
    taken: str  # UTC
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def new_quarantine_name(files: Files, directory: str, reason: str, now_s: float) -> str:
    """A name that no entry has yet: `<UTC time>-<reason>`."""
    wanted = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s)) + f"-{reason}"
    name, copies = wanted, 1
    while files.exists(os.path.join(directory, QUARANTINE_FOLDER, name)):
        copies += 1
        name = f"{wanted}-{copies}"
    return name


def quarantine_parts(files: Files, directory: str, name: str) -> list[str]:
    """Moves what a node's directory consists of into `quarantine/<name>/`; what was moved, durable on return.

    An interrupted call is repeated: what is there already stays.
    """
    moved = []
    folder = os.path.join(directory, QUARANTINE_FOLDER, name)
    for part in PARTS:
        source, target = os.path.join(directory, part), os.path.join(folder, part)
        if not files.exists(source):
            continue
        _make_folders(files, directory, os.path.dirname(target))
        files.rename(source, target)
        files.fsync_dir(os.path.dirname(target))
        files.fsync_dir(os.path.dirname(source))
        moved.append(part)
    return moved


def list_quarantine(files: Files, directory: str) -> list[QuarantinedNode]:
    """Every entry, oldest first."""
    folder = os.path.join(directory, QUARANTINE_FOLDER)
    names = files.listdir(folder) if files.exists(folder) else []
    return [_entry(folder, name) for name in names if _NAME.fullmatch(name)]


def remove_quarantined(files: Files, directory: str, name: str) -> QuarantinedNode:
    """Deletes one entry for good. Raises: NotInQuarantine."""
    folder = os.path.join(directory, QUARANTINE_FOLDER)
    found = next((entry for entry in list_quarantine(files, directory) if entry.name == name), None)
    if found is None:
        raise NotInQuarantine(f"{folder} holds no {name!r}")
    shutil.rmtree(os.path.join(folder, name))
    files.fsync_dir(folder)
    return found


def _make_folders(files: Files, directory: str, folder: str) -> None:
    """`folder` lies in `directory`, which exists. Durable on return."""
    if folder == directory or files.exists(folder):
        return
    above = os.path.dirname(folder)
    _make_folders(files, directory, above)
    files.mkdir(folder)
    files.fsync_dir(above)


def _entry(folder: str, name: str) -> QuarantinedNode:
    stamp, _, reason = name.partition("-")
    taken = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}Z"
    sizes = [os.lstat(os.path.join(at, file)).st_size for at, _, names in os.walk(os.path.join(folder, name)) for file in names]
    return QuarantinedNode(name, reason, taken, sum(sizes))
