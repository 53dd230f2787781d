"""Spark's Python daemon for a session on this machine, without a traceback for a read that ends early.

One rule: only a broken pipe is silent. `show()` and LIMIT take the rows that they need and close the socket; the Python that is
still writing then prints a traceback of Spark's own code, although nothing is wrong. Spark names this module by
`spark.python.daemon.module`.
"""

from __future__ import annotations

import sys
from typing import IO, Any

from pyspark.daemon import manager


class Stderr:
    """The stream, without what is written while a broken pipe is handled."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, except while a broken pipe is handled."""
        return len(text) if isinstance(sys.exception(), BrokenPipeError) else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.stderr = Stderr(sys.stderr)
    manager()
