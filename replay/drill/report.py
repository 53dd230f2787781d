"""Reports of restore drills: `drills/<UTC time>.json` in a node's directory, the newest kept, and what they say.

One rule: a report that cannot be read says nothing; it neither proves a restore nor prevents the next drill.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from cmdlog.file_lock import LockHeld, open_locked
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.errors import Locked, WalError
from cmdlog.wal.files import FILE_BYTES_MAX, Files, RealFiles
from cmdlog.wal.format.json_reader import BadJson, load_document
from replay.errors import ReplayError

FOLDER: Final = "drills"
LOCK_NAME: Final = "lock"
FORMAT: Final = 1
REPORTS_MAX: Final = 100  # kept; a daily drill's of a quarter
_TEMPORARY: Final = re.compile(r"tmp-[0-9a-f]{16}")
_REPORT: Final = re.compile(r"(\d{8}T\d{6}Z)(?:-(\d{1,4}))?\.json")


NOT_RUN: Final = "not_run"  # verdict of a drill that could not be run: no room, no moment to read, another error of its own


@dataclass(frozen=True, slots=True)
class Proof:
    """One proven path to a state."""

    snapshot: str  # "" for nothing: the log reaches back to the first entry
    from_index: int
    to_index: int
    to_txn: int
    calls: int
    digests: int  # of batches, compared with the live run's
    tables: int  # whose digests were compared
    rows: int


@dataclass(slots=True)
class DrillReport:
    """What a drill found. `error` is None when everything was proved."""

    directory: str
    seed: int
    started: datetime
    finished: datetime
    attempts: int = 1
    newest: dict[int, Proof] = field(default_factory=dict)  # by partition
    second: dict[int, Proof] = field(default_factory=dict)  # without those that have one snapshot alone
    oldest: dict[int, Proof] = field(default_factory=dict)  # without those for which nothing older is at hand
    log_begins: dict[int, int] = field(default_factory=dict)  # partition -> the index after which log and archive begin
    moment: dict[int, Proof] = field(default_factory=dict)  # of all partitions; empty where no past was promised
    moment_txn: int | None = None  # the moment that was drawn
    archive: tuple[str, ...] = ()  # files of the archive that were read for it
    members: tuple[int, ...] = ()  # the others of its cluster
    undecided: dict[int, int] = field(default_factory=dict)  # partition -> entries at its end that they decide about
    error: Exception | None = None
    path: str = ""  # of the file

    @property
    def verdict(self) -> str:
        """proven, diverged, damaged, or not_run: nothing is said about a restore."""
        code = self.exit_code
        return {0: "proven", 16: "diverged"}.get(code, "damaged" if code in (10, 11, 13, 17) else NOT_RUN)

    @property
    def uncompared(self) -> list[int]:
        """Partitions whose state was compared with nothing that the log leads to: no second or oldest proof, and no calls."""
        proofs = (self.newest, self.second, self.oldest, self.moment)
        return [] if self.error else [p for p in sorted(self.newest) if not any(p in of and of[p].calls for of in proofs)]

    @property
    def exit_code(self) -> int:
        error = self.error
        return error.exit_code if isinstance(error, OperatorError) else int(error is not None)

    def to_json(self) -> dict[str, Any]:
        error: dict[str, Any] | None = None
        if self.error is not None:
            kind = self.error.kind if isinstance(self.error, OperatorError) else type(self.error).__name__
            error = {"kind": kind, "message": full_text(self.error), "exit_code": self.exit_code}
            if isinstance(self.error, ReplayError) and self.error.place is not None:
                error["place"] = self.error.place.to_json()  # with the rows that the message leaves out
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "directory": self.directory,
            "started": _rfc3339(self.started),
            "finished": _rfc3339(self.finished),
            "seconds": round((self.finished - self.started).total_seconds(), 3),
            "seed": self.seed,
            "attempts": self.attempts,
            "error": error,
            "nothing_to_compare": self.uncompared,
            **({"members": list(self.members)} if self.members else {}),
            "moment": None if self.moment_txn is None else {"txn_id": str(self.moment_txn), "archive": list(self.archive)},
            "partitions": [
                {
                    "partition": p,
                    "newest": _proof_json(self.newest[p]),
                    "second": _proof_json(self.second.get(p)),
                    "oldest": _proof_json(self.oldest.get(p)),
                    "log_begins": self.log_begins.get(p),
                    "moment": _proof_json(self.moment.get(p)),
                    **({"undecided": self.undecided.get(p, 0)} if self.members else {}),
                }
                for p in sorted(self.newest)
            ],
        }


def last_report(directory: str) -> dict[str, Any] | None:
    """The newest report; None before the first drill."""
    return next(_reports(directory), None)


def last_proven(directory: str) -> datetime | None:
    """When a drill last proved everything."""
    times = (report["finished"] for report in _reports(directory) if report["verdict"] == "proven")
    found = next(times, None)
    return datetime.fromisoformat(found) if found is not None else None


def write_report(files: Files, folder: str, report: DrillReport) -> str:
    """Writes the report, durable on return, and removes the oldest ones beyond the limit; returns its path."""
    name = report.finished.strftime("%Y%m%dT%H%M%SZ")
    taken = set(files.listdir(folder))
    number = next(n for n in range(1, 10_000) if _report_name(name, n) not in taken)
    path = os.path.join(folder, _report_name(name, number))
    files.write_file_atomic(path, orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    for old in _report_names(folder)[REPORTS_MAX:]:
        files.unlink(os.path.join(folder, old))
    return path


def _report_name(moment: str, number: int) -> str:
    return f"{moment}.json" if number == 1 else f"{moment}-{number}.json"


def _report_names(folder: str) -> list[str]:
    """The newest first."""
    found = [match for name in os.listdir(folder) if (match := _REPORT.fullmatch(name)) is not None]
    return [match[0] for match in sorted(found, key=lambda match: (match[1], int(match[2] or 1)), reverse=True)]


def _reports(directory: str) -> Iterator[dict[str, Any]]:
    """The newest first, without those that cannot be read."""
    folder = os.path.join(directory, FOLDER)
    for name in _report_names(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError, WalError, BadJson):
            value = load_document(RealFiles(), os.path.join(folder, name), bytes_max=FILE_BYTES_MAX)
            if value.get("format") == FORMAT:
                yield value


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """One drill of a node at a time. Raises: Locked."""
    try:
        held = open_locked(os.path.join(folder, LOCK_NAME))
    except LockHeld:
        raise Locked(f"another drill of {folder} is running") from None
    with held:
        yield


def sweep(folder: str) -> None:
    """Removes what a killed drill left."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            shutil.rmtree(os.path.join(folder, name))


def _proof_json(proof: Proof | None) -> dict[str, Any] | None:
    return None if proof is None else {**asdict(proof), "to_txn": str(proof.to_txn)}


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
