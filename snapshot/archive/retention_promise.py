"""`archive/promise.json`: which window a node promised when it ran last, for those who prune its archive while it does not.

One rule: a file that cannot be read promises everything, so that nothing is pruned because of it.

A node that runs without a window does not revoke what an earlier run had promised, since a setting may have got lost; it records
that the promise ended (`end_promise`), so that the archive's commands can report it. The same window given again continues the
promise, and `cmdlog archive prune` of what it covered revokes it.
"""

from __future__ import annotations

import math
import os
from typing import Final

import orjson

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.json_reader import load_document
from snapshot.archive_layout import ARCHIVE
from snapshot.checksummed_json import checksum

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
    data = orjson.dumps({**value, "crc32c": checksum(value)}, option=orjson.OPT_APPEND_NEWLINE)
    files.write_file_atomic(os.path.join(directory, ARCHIVE, PROMISE_NAME), data)


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
        value = load_document(files, os.path.join(directory, ARCHIVE, PROMISE_NAME))
        if value.pop("crc32c") != checksum(value) or value["format"] != 1:
            return math.inf, None
        ended = value.get("ended_millis")
        return float(value["window_s"]), int(ended) if ended is not None else None
    except FileNotFoundError:
        return 0.0, None
    except (OSError, WalError, KeyError, TypeError, ValueError, AttributeError):
        return math.inf, None
