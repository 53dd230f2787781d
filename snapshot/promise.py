"""`archive/promise.json`: which window a node promised when it ran last, for those who prune its archive while it does not.

One rule: a file that cannot be read promises everything, so that nothing is pruned because of it.
"""

from __future__ import annotations

import math
import os
from typing import Final

import orjson

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from snapshot.archived import ARCHIVE
from snapshot.selfchecked import checksum

PROMISE_NAME: Final = "promise.json"


def write_promise(files: Files, directory: str, *, window_s: float) -> None:
    """Durable on return; writes nothing when the file says so already."""
    if read_promise(files, directory) == window_s:
        return
    value = {"format": 1, "window_s": window_s}
    data = orjson.dumps({**value, "crc32c": checksum(value)}, option=orjson.OPT_APPEND_NEWLINE)
    files.write_file_atomic(os.path.join(directory, ARCHIVE, PROMISE_NAME), data)


def read_promise(files: Files, directory: str) -> float:
    """Seconds of the promised window; 0 = none was ever promised, infinity = the file is damaged."""
    try:
        value = orjson.loads(files.read_file(os.path.join(directory, ARCHIVE, PROMISE_NAME)))
        if value.pop("crc32c") != checksum(value) or value["format"] != 1:
            return math.inf
        return float(value["window_s"])
    except FileNotFoundError:
        return 0.0
    except (OSError, WalError, orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return math.inf
