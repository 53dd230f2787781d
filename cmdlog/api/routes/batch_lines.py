"""Cutting a stream of chunks into lines, with a limit per line.

One rule: memory is bounded by one chunk and one line, whatever the peer sends; a line over the limit is skipped to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class LineSplitter:
    """Chunks in, lines out; blank lines are left out.

    Invariant: `len(_rest) <= limit`; while `_skipping`, `_rest` is empty.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """Lines that end in this chunk, without their newline; None stands for one over the limit."""
        first, *others = chunk.split(b"\n")
        self._keep_piece(first)
        if not others:
            return []
        lines = [self._take_line(), *self._within(others[:-1])]
        self._keep_piece(others[-1])
        return [line for line in lines if line is None or (line and not line.isspace())]

    def finish(self) -> list[bytes | None]:
        """The last line, when nothing ended it."""
        return self.feed(b"\n")

    def _within(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        limit = self._limit_bytes
        return (piece if len(piece) <= limit else None for piece in pieces)

    def _take_line(self) -> bytes | None:
        line = None if self._skipping else bytes(self._rest)
        self._rest.clear()
        self._skipping = False
        return line

    def _keep_piece(self, piece: bytes) -> None:
        if not self._skipping and len(self._rest) + len(piece) <= self._limit_bytes:
            self._rest += piece
            return
        self._skipping = True
        self._rest.clear()
