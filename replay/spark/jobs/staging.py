"""The folder in which a job's output is made, and how it becomes the output.

One rule: OUT does not exist until it is complete. Everything is in `OUT.unfinished`, which is renamed in the last step.

    request.json    what was asked, by which versions, and the orders that follow from it: a second run carries out these
    attempts/       a folder of each attempt at a task
    rows/           what complete attempts answered
    progress/       how far tasks are
    manifest.json   from here on it is decided which files count: they are moved to their names, and everything else is removed
    _SUCCESS        all of it is there

A second run resumes an unfinished folder if it asks for the same thing, and a finished OUT answers it; one of another job,
or that asks for something else, is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from cmdlog.file_lock import LockHeld, open_locked
from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME
from cmdlog.wal.directory.lock import refuse_link
from cmdlog.wal.errors import DiskFull, Locked, NotEmpty, WrongDirectory
from cmdlog.wal.files import Files, parent
from cmdlog.wal.reader import Recycled
from replay.errors import EntryMissing, PlanOutdated, RemoteError, ReplayError
from replay.recover.new_directory import ResumableDirectory, check_apart
from replay.spark.base.version_check import OtherVersions, versions
from replay.spark.jobs.fetched_inputs import output_path
from replay.spark.jobs.task_attempt import ATTEMPTS, PROGRESS, ROWS, TaskProgress, is_full

SUFFIX: Final = ".unfinished"
REQUEST: Final = "request.json"
MANIFEST: Final = "manifest.json"
SUCCESS: Final = "_SUCCESS"
LOCK: Final = "lock"
GONE: Final = ".gone"
FORMAT: Final = 1
OUTDATED: Final = (EntryMissing.kind, PlanOutdated.kind, Recycled.kind)  # errors of tasks
WORKING: Final = (ATTEMPTS, ROWS, PROGRESS)


TOLD_CHARS_MAX: Final = 160  # of a value that differs
TOLD_MAX: Final = 5  # values that differ


class OtherJob(ReplayError):
    """The output folder holds something else."""

    hint = "choose another output, or delete what is there"


class Staging(ResumableDirectory):
    """The unfinished output of one job. One driver at a time: it holds a lock."""

    def __init__(self, files: Files, out: str) -> None:
        """Takes the folder, made if need be. Raises: NotEmpty, Locked, WrongDirectory."""
        refuse_link(out)
        self.out = os.path.abspath(out)
        self.folder = f"{self.out}{SUFFIX}"
        super().__init__(files, self.folder, marker=REQUEST, report=MANIFEST)
        check_free(files, self.out)
        os.makedirs(self.folder, mode=0o750, exist_ok=True)
        try:
            self._lock = open_locked(self._path(LOCK))
        except LockHeld:
            raise Locked(f"another job is writing {self.folder}") from None

    def close(self) -> None:
        """Releases the folder; one in which nothing was begun is removed."""
        if os.path.isdir(self.folder) and os.listdir(self.folder) == [LOCK]:
            shutil.rmtree(self.folder)
        self._lock.close()

    # -- what is to be done ------------------------------------------------------------------------------------------------

    def begun(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The orders of an earlier run that was asked for the same thing; None when nothing was begun.

        Raises: OtherJob, OtherVersions.
        """
        if not self.files.exists(self._path(REQUEST)):
            return None
        try:
            found = self.marker() or {}
            known, of, orders = found["request"], found["versions"], list(found["orders"])
        except (KeyError, TypeError) as error:
            raise OtherJob(f"{self._path(REQUEST)} is not a request of cmdlog: {error}") from error
        _check_same(self, known, wanted)
        if of != versions():
            told = ", ".join(f"{name} {of.get(name)} (now {here})" for name, here in versions().items() if of.get(name) != here)
            raise OtherVersions(f"{self.folder} was started with {told}")
        self._remove_orphans()
        return orders

    def begin_job(self, wanted: Mapping[str, Any], orders: Sequence[Mapping[str, Any]]) -> None:
        """Durable on return. Raises: OtherJob when the folder holds what is not ours."""
        if strange := set(os.listdir(self.folder)) - {LOCK, *WORKING, f"{REQUEST}.tmp"}:
            raise OtherJob(f"{self.folder} holds {', '.join(sorted(strange)[:5])}, and no {REQUEST}")
        for name in WORKING:
            os.makedirs(self._path(name), mode=0o750, exist_ok=True)
        self.write_marker({"format": FORMAT, "request": wanted, "versions": versions(), "orders": orders})

    def _remove_orphans(self) -> None:
        """Removes what attempts of a dead driver have left: only rows count, and their files."""
        kept = {row["attempt"] for row in self.rows().values()}
        for name in set(os.listdir(self._path(ATTEMPTS))) - kept:
            shutil.rmtree(os.path.join(self._path(ATTEMPTS), name), ignore_errors=True)
        for folder in (ROWS, PROGRESS):
            for name in os.listdir(self._path(folder)):
                if name.endswith(".tmp") or folder == PROGRESS:
                    _remove(os.path.join(self._path(folder), name))

    def rows(self) -> dict[str, dict[str, Any]]:
        """Key -> row of a complete attempt whose files are there."""
        found: dict[str, dict[str, Any]] = {}
        for name in sorted(os.listdir(self._path(ROWS))):
            if name.endswith(".tmp"):
                continue
            row = orjson.loads(Path(self._path(ROWS), name).read_bytes())
            if row["key"] not in found and all(self._is_there(file) for file in row["files"]):
                found[row["key"]] = row
        return found

    def progress(self) -> dict[str, TaskProgress]:
        """Key -> what the running attempts have reported last."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._path(PROGRESS)):
                with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError):
                    told = orjson.loads(Path(self._path(PROGRESS), name).read_bytes())
                    found[name] = TaskProgress(int(told["calls"]), str(told.get("process", "")))
        return found

    @contextlib.contextmanager
    def planned_anew(self) -> Iterator[None]:
        """Orders over a log that has since moved on could never be carried out: the next run makes new ones."""
        try:
            yield
        except RemoteError as error:
            if error.kind not in OUTDATED:
                raise
            for name in (REQUEST, *WORKING):
                _remove(self._path(name))
            error.hint = "the log has moved on and removed what the plan needs; run the same command to plan again"
            raise

    # -- the end -----------------------------------------------------------------------------------------------------------

    def decided(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """The manifest of an earlier run of the same request that did not get to move its files.

        Raises: OtherJob.
        """
        return _made(self, wanted)

    def publish(self, manifest: Mapping[str, Any], moves: Iterable[tuple[str, str]]) -> None:
        """Makes OUT of the files that count; durable on return. `moves`: path in the folder -> path in OUT.

        From the manifest on it can be done again, and again.
        """
        self.write_report(manifest)
        folders = set()
        for source, name in moves:
            target = self._path(name)
            os.makedirs(parent(target), mode=0o750, exist_ok=True)
            if os.path.exists(self._path(source)):
                os.replace(self._path(source), target)
            folders |= set(_above(target, self.folder))
        for folder in sorted(folders):
            self.files.fsync_dir(folder)
        for name in (*WORKING, REQUEST, LOCK):
            _remove(self._path(name))
        self.files.write_file_atomic(self._path(SUCCESS), b"")
        self.files.fsync_dir(self.folder)
        os.rename(self.folder, self.out)  # also over an empty folder
        self.files.fsync_dir(parent(self.out))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _is_there(self, file: Mapping[str, Any]) -> bool:
        path = self._path(str(file["path"]))
        return os.path.exists(path) and os.stat(path).st_size == file["bytes"]


def check_free(files: Files, out: str) -> None:
    """Raises: NotEmpty when there is an output already."""
    if files.exists(out) and (names := files.listdir(out)):
        what = "a finished output" if SUCCESS in names else ", ".join(sorted(names)[:5])
        raise NotEmpty(f"{out} is not empty: it holds {what}")


def is_finished(out: str) -> bool:
    """Whether a job has finished there."""
    return os.path.exists(os.path.join(out, SUCCESS))


def finished(files: Files, out: str, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of a finished output of the same request; None when there is none. Raises: OtherJob."""
    return _made(ResumableDirectory(files, out, marker=REQUEST, report=MANIFEST), wanted) if is_finished(out) else None


def _made(found: ResumableDirectory, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    if not os.path.exists(os.path.join(found.path, MANIFEST)):
        return None
    manifest = found.report()
    if manifest is None or not isinstance(manifest.get("request"), dict):
        raise OtherJob(f"{found.path}/{MANIFEST} does not contain the request")
    _check_same(found, manifest["request"], wanted)
    return manifest


def _check_same(found: ResumableDirectory, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises: OtherJob, which names what differs, when the earlier request was a different one."""
    wanted = orjson.loads(orjson.dumps(wanted))
    if known == wanted:
        return
    asked = f"a {wanted['job']}"
    if known.get("job") == wanted["job"]:
        names = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
        told = list(_differences(known, wanted))
        more = f" and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
        asked = f"one with other {', '.join(names)} ({'; '.join(told[:TOLD_MAX])}{more})"
    raise found.refusal(str(known.get("job")), asked, OtherJob, is_finished=is_finished(found.path))


def _differences(known: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in sorted({*known, *wanted}):
        then, now = known.get(name), wanted.get(name)
        if isinstance(then, dict) and isinstance(now, dict):
            yield from _differences(then, now, f"{prefix}{name}: ")
        elif then != now:
            yield f"{prefix}{name}: then {_text(then)}, now {_text(now)}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) and value else orjson.dumps(value).decode()
    return text if len(text) <= TOLD_CHARS_MAX else f"{text[:TOLD_CHARS_MAX]}…"


@contextlib.contextmanager
def staging(files: Files, out: str) -> Iterator[Staging]:
    """The folder, held until the end."""
    found = Staging(files, output_path(out))
    try:
        yield found
    except (OSError, DiskFull) as error:
        if not is_full(error):
            raise
        raise DiskFull(f"no space left for the output in {found.folder}") from error
    finally:
        found.close()


def _above(path: str, top: str) -> Iterator[str]:
    while path != top:
        path = parent(path)
        yield path


def _remove(path: str) -> None:
    """Removes a folder, first its name: an attempt that Spark has given up, and that still runs, then cannot write more."""
    gone = f"{path}{GONE}"
    if os.path.isdir(path):
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def check_output(out: str, names: Iterable[str]) -> None:
    """`names` are the inputs, paths or URIs. Raises: WrongDirectory."""
    check_apart(out, names)
    folder = os.path.realpath(out)
    while folder != os.path.dirname(folder):
        if any(os.path.exists(os.path.join(folder, name)) for name in (INSTANCE_NAME, CREATING_NAME)):
            raise WrongDirectory(f"{out} is inside {folder}, the directory of a node, which must not be changed")
        folder = os.path.dirname(folder)


def tables_of(found: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], folder: str) -> dict[str, Any]:
    """Table -> rows, columns and files, of (row, file of it); `folder` comes between a table's name and its files."""
    tables: dict[str, Any] = {}
    for row, file in sorted(found, key=lambda pair: (pair[1]["table"], pair[0]["partition"])):
        table = tables.setdefault(file["table"], {"rows": 0, "columns": dict(file["columns"]), "files": []})
        table["rows"] += file["rows"]
        name = "/".join(part for part in (file["table"], folder, f"{row['key']}.parquet") if part)
        kept = {key: file[key] for key in ("rows", "bytes", "sha256", "digest") if key in file}
        table["files"].append({"path": name, "partition": row["partition"], "from": file["path"], **kept})
    return tables
