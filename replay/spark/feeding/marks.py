"""What a feed remembers about an order that has not ended: how many of its rows are answered, and which of them ended badly.

One rule: a mark covers a prefix. Answers come in the order of the rows, so the number of answered rows says which they are, and
the next attempt begins after them. Calls that were sent and not answered are sent again; the server knows their keys.

Each attempt writes a file of its own, since Spark may run two at once, and begins it as a copy of the one that goes furthest. A
file is JSON lines, each about the rows since the line before:

    {"upto": 2000, "ended": {"ok": 998, "aborted": 2}, "report": [{"row": 1003, ...}, ...]}

A torn last line is cut: then its rows count as not answered.

Beside them is the time in the keys of each part of an order, a folder that holds one name. A server refuses a key that is older
than its `key_window_s`, so a part gets its time when it is first sent: a job may take days, or rest for days. All attempts use
the same time, since another one would make other keys. The folder is renamed into place, which fails where another attempt's is.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

import orjson

from cmdlog.wal.files import RealFiles

MARKS: Final = "marks"  # folder in the staging
MARK_ROWS: Final = 1000  # between two marks; with a client's window of 4,096 calls, what is sent again after a death
KEY_ROWS: Final = 5_000  # whose keys share a time; about the client's window, since all are in doubt once it has passed
_SUFFIX: Final = ".jsonl"
_TIME: Final = ".time"


class Marks:
    """The marks of one attempt at an order."""

    def __init__(self, staging: str, key: str, attempt: str) -> None:
        """Takes over what earlier attempts have marked. Raises: FileNotFoundError when the staging is gone; OSError."""
        folder = os.path.join(staging, MARKS)
        if not os.path.isdir(folder):
            os.mkdir(folder, mode=0o750)
        found = [_whole_lines(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if _is_of(name, key)]
        data = max(found, key=_upto, default=b"")
        self._times = os.path.join(folder, key)
        self.path = os.path.join(folder, f"{attempt}{_SUFFIX}")
        self._file: IO[bytes] = open(self.path, "wb")  # noqa: SIM115 - until `close`
        self._file.write(data)
        self._file.flush()
        self.upto, self.ended = 0, Counter[str]()
        for line in map(orjson.loads, data.splitlines()):
            self.upto = int(line["upto"])
            self.ended.update(line["ended"])
        self._new, self._rows = Counter[str](), list[Mapping[str, Any]]()

    def add(self, ended: str, report: Mapping[str, Any] | None = None) -> None:
        """The next row is answered so; `report` if it did not end well."""
        self.upto += 1
        self.ended[ended] += 1
        self._new[ended] += 1
        if report is not None:
            self._rows.append(report)
        if self._new.total() >= MARK_ROWS:
            self.write()

    def write(self) -> None:
        """Marks what was added; durable on return."""
        if self._new:
            self._file.write(orjson.dumps({"upto": self.upto, "ended": self._new, "report": self._rows}) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._new, self._rows = Counter(), []

    def fix_key_time(self, row: int, now_ms: int) -> int:
        """The time in the keys of the part that begins with this row of the order: `now_ms` for the first attempt that asks.

        Durable on return. Raises: OSError.
        """
        fixed, own = f"{self._times}.{row:06d}{_TIME}", f"{self.path}{_TIME}"
        if not os.path.isdir(fixed):
            os.mkdir(own, mode=0o750)
            os.mkdir(os.path.join(own, str(now_ms)), mode=0o750)
            RealFiles().fsync_dir(own)
            try:
                os.rename(own, fixed)
            except OSError:
                shutil.rmtree(own)
                if not os.path.isdir(fixed):
                    raise
        RealFiles().fsync_dir(os.path.dirname(fixed))  # the attempt that renamed it may not have done so yet
        return int(os.listdir(fixed)[0])

    def report(self) -> Iterator[list[dict[str, Any]]]:
        """All rows that did not end well, in order, some at a time. Everything is marked."""
        with open(self.path, "rb") as file:
            for line in file:
                if rows := orjson.loads(line)["report"]:
                    yield rows

    def close(self) -> None:
        """Marks what was added, however the attempt ends."""
        try:
            self.write()
        finally:
            self._file.close()


def _is_of(name: str, key: str) -> bool:
    """The name of an attempt is its order's name, a point, and a random part."""
    return name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).rpartition(".")[0] == key


def _whole_lines(path: str) -> bytes:
    """The file up to its first damaged line."""
    with open(path, "rb") as file:
        data = file.read()
    end = 0
    for line in data.splitlines(keepends=True):
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError:
            break
        if not line.endswith(b"\n"):
            break
        end += len(line)
    return data[:end]


def _upto(data: bytes) -> int:
    return int(orjson.loads(data.splitlines()[-1])["upto"]) if data else 0
