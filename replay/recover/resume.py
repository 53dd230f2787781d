"""A directory with an unfinished recovery: its marker, and resuming there.

One rule: only the same plan resumes it, and only while states are replayed; anything else that is found is refused by name, or
removed when it is our own and useless.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME, LOCK_NAME, write_marker
from cmdlog.wal.errors import WrongDirectory
from cmdlog.wal.files import Files
from replay.recover.quarantine import QUARANTINE_NAME
from replay.state.trust import STATE_FOLDER
from snapshot.catalog import FOLDER as SNAPSHOTS

RECOVERY: Final = "recovery"  # what `creating.json` says has begun
MADE_NAME: Final = "made.json"  # in the folder of the states
FOLDERS: Final = (STATE_FOLDER, SNAPSHOTS)
SWEPT: Final = (SNAPSHOTS, STATE_FOLDER, "log", "archive", "faults")
OURS: Final = frozenset((*SWEPT, LOCK_NAME, CREATING_NAME, QUARANTINE_NAME, f"{QUARANTINE_NAME}.tmp", f"{CREATING_NAME}.tmp"))


@dataclass(frozen=True, slots=True)
class CreationMarker:
    """What `creating.json` says while states are replayed."""

    plan: str  # hash
    directory: str  # that is recovered from
    until: int | None
    partitions: int | None  # of the new shape

    @classmethod
    def of(cls, plan: bytes, directory: str, until: int | None, partitions: int | None) -> CreationMarker:
        """`plan` is the plan's JSON."""
        return cls(hashlib.sha256(plan).hexdigest(), directory, until, partitions)

    def write(self, files: Files, out: str) -> None:
        """Durable on return."""
        value = {"plan": self.plan, "directory": self.directory, "until": self.until, "partitions": self.partitions}
        write_marker(files, out, RECOVERY, value)

    def __str__(self) -> str:
        until = "" if self.until is None else f" up to transaction {self.until}"
        shape = "" if self.partitions is None else f" in {self.partitions} partitions"
        return f"recovery of {self.directory}{until}{shape}, plan {self.plan[:12]}"


def found_in(out: str) -> CreationMarker | None:
    """The unfinished recovery of this directory; None when there is none whose marker can be read."""
    try:
        value: Mapping[str, Any] = orjson.loads(Path(out, CREATING_NAME).read_bytes())
        return CreationMarker(value["plan"], value["directory"], value["until"], value["partitions"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def goes_on(out: str, wanted: CreationMarker) -> bool:
    """Whether the directory holds an unfinished recovery by this plan.

    Raises: WrongDirectory, when it holds one by another plan, naming both.
    """
    found = found_in(out) if os.path.isdir(out) else None
    if found is None or set(os.listdir(out)) - OURS:
        return False
    if found == wanted:
        return True
    raise WrongDirectory(
        f"{out} contains an unfinished {found}, but you asked for {wanted}. Finish it (`--apply` its plan), delete the "
        f"directory, or choose another one"
    )


def make_ready(files: Files, out: str) -> None:
    """Keeps only the states of the earlier run, with what was set aside; the rest is made again."""
    for name in SWEPT:
        if name != STATE_FOLDER:
            shutil.rmtree(os.path.join(out, name), ignore_errors=True)
    for folder in FOLDERS:
        if not files.exists(os.path.join(out, folder)):
            files.mkdir(os.path.join(out, folder))


def sweep(out: str) -> None:
    """Removes what was made: everything here is ours, since the directory was empty."""
    for name in SWEPT:
        shutil.rmtree(os.path.join(out, name), ignore_errors=True)
    for name in OURS - set(SWEPT):
        if os.path.exists(os.path.join(out, name)):
            os.unlink(os.path.join(out, name))


# -- a directory that is finished --------------------------------------------------------------------------------------------


def note(files: Files, out: str, marker: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """Records the result of the replay at its end, for the same command run again. Durable on return."""
    value = {"marker": marker, "report": report}
    files.write_file_atomic(_made_path(out), orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))


def is_made(out: str) -> bool:
    """Whether the directory is a node."""
    return os.path.exists(os.path.join(out, INSTANCE_NAME))


def noted(out: str, marker: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What was noted here by a run with the same marker; None for everything else."""
    try:
        value: Mapping[str, Any] = orjson.loads(Path(_made_path(out)).read_bytes())
        report: Mapping[str, Any] = value["report"]
        return report if value["marker"] == marker else None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def origin_of(out: str) -> str:
    """Describes what has made the finished node; "" when it does not say."""
    try:
        marker: Mapping[str, Any] = orjson.loads(Path(_made_path(out)).read_bytes())["marker"]
        until = "" if marker["until"] is None else f" up to transaction {marker['until']}"
        return f", made of {marker['directory']}{until} by a different plan or with different code"
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _made_path(out: str) -> str:
    return os.path.join(out, STATE_FOLDER, MADE_NAME)
