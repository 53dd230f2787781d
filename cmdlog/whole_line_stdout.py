"""Standard output on which nothing is cut short.

With `PYTHONUNBUFFERED`, as container images set it, Python's `sys.stdout` is a bare file: it writes once and drops what the
system did not take, and into a pipe a write that any signal meets takes a part. A buffer over it writes until all is taken.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

import orjson

LINE_BYTES: Final = 64 << 20
"""The longest line that an exception of a signal's handler cannot cut: what fits is kept until a flush has written it.

Memory is taken by what a line fills of it.
"""


def answer(data: bytes) -> None:
    """Writes all of it to the parent process, and returns when it is written. Raises: OSError."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream:
        stream.write(data)


def find_answer(output: bytes, *members: str) -> dict[str, Any] | None:
    """What a child gave to `answer` last, after whatever its application printed: an object with these members, or None."""
    lines = output.splitlines()
    try:
        found = orjson.loads(lines[-1]) if lines else None
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and found.keys() == set(members) else None


def keep_lines_whole() -> None:
    """Makes `sys.stdout` write whole lines, unless somebody has put another stream in its place.

    A flush that an exception interrupts keeps what is left of the line; the next one continues with it.
    """
    given = sys.stdout
    if given is not sys.__stdout__ or not isinstance(given, io.TextIOWrapper):
        return
    given.flush()
    buffer = io.BufferedWriter(io.FileIO(given.fileno(), "w", closefd=False), LINE_BYTES)
    sys.stdout = io.TextIOWrapper(buffer, encoding=given.encoding, errors=given.errors, line_buffering=given.isatty())
