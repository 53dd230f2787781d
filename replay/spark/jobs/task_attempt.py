"""One attempt at one task, on an executor: its folders, its progress, and its result.

One rule: an attempt owns a folder that no one else writes to, and it counts only if the driver takes its row. Spark may run a
task several times at once (speculation, a lost executor), and a dead attempt leaves files; none of that can mix.

A fault of the log, the code or the plan is a result: a row with an error, since a second attempt would end the same way. A fault
of the machine is raised, and Spark tries again elsewhere. A full scratch disk is a fault of the machine; the output's disk is
shared by all, so its being full is a result.

Spark waits for ever for a worker that hangs: `StalledTasks` says which task has reported nothing for long, and where it runs.
It only looks. A task may be silent for a good reason, such as a large snapshot that is restored: people decide.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.files import RealFiles
from cmdlog.wal.os_errors import NO_ROOM
from procedures.errors import EnvironmentFault
from replay.errors import Divergence, Poison
from replay.spark.base.scratch import local_folder
from replay.spark.base.version_check import check_versions

ATTEMPTS: Final = "attempts"
ROWS: Final = "rows"
PROGRESS: Final = "progress"
PROGRESS_EVERY_S: Final = 0.5
READ_BYTES: Final = 1 << 20
MACHINE: Final = (DiskFull, WriteFailed, EnvironmentFault)  # of what is known by name; OSError and MemoryError are the others
PROBE_BYTES: Final = 1 << 18  # a disk that does not take so much is full
STALLED_S: Final = 30.0  # many times what lies between two reports of a task that replays


@dataclass(slots=True)
class Attempt:
    """Where an attempt writes and what it reports."""

    key: str  # of the task
    folder: str  # for its results, which the driver moves
    scratch: str  # on a disk of the executor; it goes at the end
    staging: str
    process: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")
    _told_at: float = field(default=0.0)
    _calls: int = field(default=0)

    def report_begin(self) -> None:
        """Reports that it runs, and where."""
        self._report_progress()

    def count_calls(self, calls: int) -> None:
        """So many calls of the task are done."""
        self._calls = calls
        if time.monotonic() - self._told_at >= PROGRESS_EVERY_S:
            self._report_progress()

    def _report_progress(self) -> None:
        self._told_at = time.monotonic()
        path = os.path.join(self.staging, PROGRESS, self.key)
        temporary = f"{path}.{os.path.basename(self.folder)}.tmp"
        Path(temporary).write_bytes(orjson.dumps({"calls": self._calls, "process": self.process}))
        os.replace(temporary, path)

    def sealed(self, path: str) -> dict[str, Any]:
        """Makes a file of the folder durable; what the driver must know about it."""
        return {"path": os.path.relpath(path, self.staging), **seal(path)}


def seal(path: str) -> dict[str, Any]:
    """Makes a file durable; its size and hash."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


Work = Callable[[Mapping[str, Any], Attempt], dict[str, Any]]


def carry_out(order: Mapping[str, Any], work: Work) -> str:
    """Does the work of an order; the row, as JSON. Raises: what Spark should try again."""
    key, staging = str(order["key"]), str(order["staging"])
    name = f"{key}.{os.urandom(6).hex()}"
    folder = os.path.join(staging, ATTEMPTS, name)
    scratch = tempfile.mkdtemp(prefix=f"cmdlog-{name}-", dir=local_folder())
    try:
        check_versions(order["versions"], f"the executor of {key}")
        os.mkdir(folder, mode=0o750)  # not its parents: a folder that is gone was published, and is no longer ours
        attempt = Attempt(key, folder, scratch, staging)
        attempt.report_begin()
        row = {"key": key, "attempt": name, **work(order, attempt)}
        _save_row(staging, name, row)
        return orjson.dumps(row).decode()
    except (OSError, *MACHINE) as error:
        full = _full_disk(staging, scratch) if is_full(error) else None
        shutil.rmtree(folder, ignore_errors=True)  # an attempt that is not answered leaves nothing
        if full is None:
            raise
        if full != staging:
            raise DiskFull(f"no space left for the scratch files of {key} in {full}") from error
        return orjson.dumps({"key": key, "error": _error_json(DiskFull(f"no space left for the output in {staging}"))}).decode()
    except OperatorError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return orjson.dumps({"key": key, "error": _error_json(error)}).decode()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_full(error: BaseException) -> bool:
    """Whether a disk has no room, or the user's share of it is used up."""
    if isinstance(error, EnvironmentFault):
        return error.kind == "disk_full"
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _full_disk(*folders: str) -> str | None:
    """The first of these folders that accepts no more data; None when all do."""
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(PROBE_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as found:
            if is_full(found):
                return folder
    return None


def _save_row(staging: str, name: str, row: Mapping[str, Any]) -> None:
    """Durable on return, with what it names: a later run of the same job need not do it again."""
    folder = os.path.join(staging, ROWS)
    for written in (os.path.join(staging, ATTEMPTS, name), os.path.join(staging, ATTEMPTS)):
        RealFiles().fsync_dir(written)
    temporary = os.path.join(folder, f"{name}.tmp")
    with open(temporary, "wb") as file:
        file.write(orjson.dumps(row))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, name))
    RealFiles().fsync_dir(folder)


def _error_json(error: OperatorError) -> dict[str, Any]:
    told = error.to_json()
    if isinstance(error, Divergence | Poison):
        told["place"] = error.place.to_json()
    return told


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """What a running attempt has reported last."""

    calls: int
    process: str = ""  # and its machine


class StalledTasks:
    """Owned by one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[str, tuple[TaskProgress, float, str]] = {}  # by task: the report, when it came, and the same for people

    def find(self, running: Mapping[str, TaskProgress]) -> str:
        """A sentence about the one that has been silent for longest, the same at each look; "" where none has for long."""
        now, clock = self._now(), time.strftime("%H:%M:%S UTC", time.gmtime())
        for key, report in running.items():
            if key not in self._seen or self._seen[key][0] != report:
                self._seen[key] = report, now, clock
        silent = [(self._seen[key][1], key) for key in running if now - self._seen[key][1] >= STALLED_S]
        if not silent:
            return ""
        report, _, since = self._seen[min(silent)[1]]
        return (
            f"task {min(silent)[1]} has reported nothing since {since}, {report.process or 'on an executor'}; "
            "if it hangs, kill that process, and Spark runs the task again"
        )
