"""A directory that one request makes, over as many runs as it takes.

One rule: it is resumed by the very same request only. A marker states which request has begun, a report how it ended; whatever
else is found is refused by name, or swept away when it is our own and useless.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME, LOCK_NAME, read_marker, write_marker
from cmdlog.wal.directory.lock import DirectoryLock, refuse_link, take_ownership
from cmdlog.wal.errors import NotEmpty, WrongDirectory
from cmdlog.wal.files import Files, parent
from replay.errors import Interrupted
from replay.recover.quarantine import QUARANTINE_NAME
from replay.state.trust import STATE_FOLDER
from snapshot.catalog import FOLDER as SNAPSHOTS

MADE_NAME: Final = os.path.join(STATE_FOLDER, "made.json")
FOLDERS: Final = (STATE_FOLDER, SNAPSHOTS)
SWEPT: Final = (SNAPSHOTS, STATE_FOLDER, "log", "archive", "faults")
OURS: Final = frozenset((*SWEPT, LOCK_NAME, CREATING_NAME, QUARANTINE_NAME, f"{QUARANTINE_NAME}.tmp", f"{CREATING_NAME}.tmp"))
MADE_BY: Final = ("recovery", "fork")
FINISH: Final = "repeat the command that began it to finish it; for a recovery by a plan file, use `--apply` with that file"


APART: Final = "choose another directory for --to, outside of the inputs; nothing was written"
IN_PLACE: Final = "choose another directory for --to, or recover without --to: that repairs the directory itself"


def check_apart(out: str, names: Iterable[str], *, same: str = APART) -> None:
    """What is read stays as it is, also when the run is killed.

    `names`: paths or URIs that are read. `same`: the hint when the output is one of them. Raises: WrongDirectory.
    """
    target = os.path.realpath(out)
    for name in names:
        if not name.startswith("/"):
            continue  # no output is written elsewhere
        source = os.path.realpath(name)
        if source == target:
            raise WrongDirectory(f"{out} is one of the inputs, which are never changed", hint=same)
        if os.path.commonpath([source, target]) == source:
            raise WrongDirectory(f"{out} is inside the input {name}, which is never changed", hint=APART)
        if os.path.commonpath([source, target]) == target:
            raise WrongDirectory(f"{out} contains the input {name}, which is never changed", hint=APART)


class ResumableDirectory:
    """The marker and the report of one request; both are JSON objects, each in a file of its own."""

    def __init__(self, files: Files, path: str, *, marker: str, report: str) -> None:
        self.files, self.path = files, path
        self._marker, self._report = os.path.join(path, marker), os.path.join(path, report)

    def marker(self) -> dict[str, Any] | None:
        """Which request has begun; None when no readable marker is here."""
        return _read(self._marker)

    def report(self) -> dict[str, Any] | None:
        """How the request ended; None when no readable report is here."""
        return _read(self._report)

    def write_marker(self, value: Mapping[str, Any]) -> None:
        """Durable on return."""
        self.files.write_file_atomic(self._marker, orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))

    def write_report(self, value: Mapping[str, Any]) -> None:
        """Durable on return."""
        self.files.write_file_atomic(self._report, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))

    def refusal(
        self, found: str, wanted: str, error: type[OperatorError] = WrongDirectory, *, is_finished: bool = False
    ) -> OperatorError:
        """For another request than the one that began. `found` has no article, `wanted` has one."""
        state, advice = ("a finished", "Delete") if is_finished else ("an unfinished", "Finish it, delete")
        text = f"{self.path} contains {state} {found}, but you asked for {wanted}. {advice} the directory, or choose another one."
        return error(text, hint="" if is_finished else FINISH)


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a new node is made from; its text names it. The fields are the marker on disk."""

    by: ClassVar[str]  # what `creating.json` says has begun


@dataclass(frozen=True, slots=True)
class CreationMarker(NodeRequest):
    """A recovery to another directory."""

    by = "recovery"

    plan: str  # hash
    directory: str  # that is recovered from
    until: int | None
    partitions: int | None  # of the new shape

    @classmethod
    def of(cls, plan: bytes, directory: str, until: int | None, partitions: int | None) -> CreationMarker:
        """`plan` is the plan's JSON."""
        return cls(hashlib.sha256(plan).hexdigest(), directory, until, partitions)

    def __str__(self) -> str:
        until = "" if self.until is None else f" up to transaction {self.until}"
        shape = "" if self.partitions is None else f" in {self.partitions} partitions"
        return f"recovery of {self.directory}{until}{shape}, plan {self.plan[:12]}"


class NewNodeDirectory(ResumableDirectory):
    """A node directory in the making. It can be resumed only while states are replayed."""

    def __init__(self, files: Files, path: str, wanted: NodeRequest) -> None:
        refuse_link(path)
        super().__init__(files, path, marker=CREATING_NAME, report=MADE_NAME)
        self._wanted = wanted

    @property
    def by(self) -> str:
        """What makes it."""
        return self._wanted.by

    def can_resume(self) -> bool:
        """Whether this very request has begun here. Raises: WrongDirectory, when another one has, naming both; NotEmpty."""
        found = self._found()
        if found is None or self._is_node:
            return False
        if strange := sorted(set(os.listdir(self.path)) - OURS):
            raise NotEmpty(f"{self.path} is not empty: in addition to an unfinished {found.by} it holds {', '.join(strange[:5])}")
        if found == self._wanted:
            return True
        if str(found) == str(self._wanted):
            changed = "but the log has changed for the calls up to there. Delete the directory"
            raise WrongDirectory(f"{self.path} contains an unfinished {found}, {changed}, or choose another one.", hint=FINISH)
        raise self.refusal(str(found), f"a {self._wanted}")

    def create(self, sources: Iterable[str]) -> None:
        """Makes the empty directory. Raises: WrongDirectory when it lies in a source, or holds one; NotEmpty."""
        names = list(sources)
        check_apart(self.path, names, same=IN_PLACE if self._wanted.by == "recovery" and len(names) == 1 else APART)
        if not self.files.exists(self.path):
            os.makedirs(self.path, mode=0o750)
            self.files.fsync_dir(parent(self.path))
        if self._is_node:
            raise NotEmpty(f"{self.path} already holds a node{self._origin()}")
        names = self.files.listdir(self.path)
        by = (read_marker(self.files, self.path) or {}).get("by", "")
        if by in MADE_BY and OURS.issuperset(names):
            raise NotEmpty(f"{self.path} contains an unfinished {by}. Delete the directory, or choose another one.")
        if names:
            raise NotEmpty(f"{self.path} is not empty: it holds {', '.join(names[:5])}")

    @contextlib.contextmanager
    def owned(self, resumable: tuple[type[BaseException], ...]) -> Iterator[DirectoryLock]:
        """Holds the directory while it is made, and empties it after an error that the same request could not resume from."""
        owner = take_ownership(self.files, self.path)
        try:
            yield owner
        except BaseException as error:
            owner.close()
            kept = isinstance(error, resumable) and self._found() is not None
            if not kept:
                self._sweep()
            if isinstance(error, KeyboardInterrupt) and kept:
                where = filter(None, map(str, error.args))
                raise Interrupted(" ".join([f"the {self._wanted.by} to {self.path} was interrupted", *where])) from None
            raise
        owner.close()

    def begin_request(self) -> None:
        """The marker, durable; of an earlier run only the states stay, with what was set aside. The rest is made again."""
        write_marker(self.files, self.path, self._wanted.by, asdict(self._wanted))
        for name in SWEPT:
            if name != STATE_FOLDER:
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        for folder in FOLDERS:
            if not self.files.exists(os.path.join(self.path, folder)):
                self.files.mkdir(os.path.join(self.path, folder))

    def forbid_resuming(self) -> None:
        """From here on the states are no longer those of the request. Durable on return."""
        write_marker(self.files, self.path, self._wanted.by)

    def note_replayed(self, report: Mapping[str, Any]) -> None:
        """How the replay ended, for a run of the same request. Durable on return."""
        self.write_report({"marker": asdict(self._wanted), "report": report})

    def replayed(self) -> Mapping[str, Any] | None:
        """What a run of this very request has noted."""
        noted = self.report() or {}
        found: Mapping[str, Any] | None = noted.get("report")
        return found if noted.get("marker") == asdict(self._wanted) else None

    def finished(self) -> Mapping[str, Any] | None:
        """The same, of a directory that is a node."""
        return self.replayed() if self._is_node else None

    @property
    def _is_node(self) -> bool:
        return os.path.exists(os.path.join(self.path, INSTANCE_NAME))

    def _found(self) -> NodeRequest | None:
        marker = self.marker() or {}
        try:
            return type(self._wanted)(**marker) if marker.pop("by", "") == self._wanted.by else None
        except TypeError:
            return None

    def _origin(self) -> str:
        """Describes what has made the finished node; "" when it does not say."""
        try:
            marker = (self.report() or {})["marker"]
            until = "" if marker["until"] is None else f" up to transaction {marker['until']}"
            return f", made of {marker['directory']}{until} by a different plan or with different code"
        except (KeyError, TypeError):
            return ""

    def _sweep(self) -> None:
        """Removes what was made: everything here is ours, since the directory was empty."""
        for name in SWEPT:
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        for name in OURS - set(SWEPT):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))


def _read(path: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
