"""The answer of /v1/batch, chunk by chunk: one attempt per line that was sent, in order, whatever happens on the way.

One rule: an answer belongs to the line of its position, so nothing after a line that cannot be read is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cmdlog.client.response import Attempt, Lost, Response, line_answer

NDJSON: Final = "application/x-ndjson"
LINE_BYTES_MAX: Final = 256 << 20  # a result takes up to 8 MiB, and a call on all partitions gives as many as there are


def is_stream(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer's body is lines of results."""
    return status == 200 and headers.get("content-type", "").partition(";")[0].strip().lower() == NDJSON


def no_stream(answer: Attempt) -> Attempt:
    """An answer that stands for all lines; one JSON object is the result of no line."""
    if isinstance(answer, Response) and answer.status == 200:
        return Response(200, None, about=f"the answer of /v1/batch is not {NDJSON}")
    return answer


class AnswerLines:
    """Chunks in, attempts out. `left` counts the lines that have none yet."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._parts: list[bytes] = []  # of the line that is not complete
        self._size = 0
        self._broken = ""

    def feed(self, chunk: bytes, *, date: str) -> Iterator[Attempt]:
        """Answers of the lines that end in this chunk; `date` is the server's clock."""
        first, *others = chunk.split(b"\n")
        self._keep_part(first)
        if others:
            yield from self._read(b"".join(self._parts), date)
            for line in others[:-1]:
                yield from self._read(line, date)
            self._parts, self._size = [], 0
            self._keep_part(others[-1])

    def end(self, rest: Attempt) -> Iterator[Attempt]:
        """The request is over; `rest` is the result of every line that has no answer."""
        if self._broken:
            rest = Lost(reached=True, reason=self._broken)
        while self.left:
            self.left -= 1
            yield rest

    @property
    def broken(self) -> bool:
        """Reading on is pointless."""
        return bool(self._broken)

    def _keep_part(self, part: bytes) -> None:
        if part and not self._broken:
            self._parts.append(part)
            self._size += len(part)
            if self._size > LINE_BYTES_MAX:
                self._broken = f"a line of the answer has more than {LINE_BYTES_MAX} bytes"

    def _read(self, line: bytes, date: str) -> Iterator[Attempt]:
        if self._broken or not self.left or not line or line.isspace():
            return
        answer = line_answer(line, date)
        if answer is None:
            self._broken = "a line of the answer is neither a result nor an error"
            return
        self.left -= 1
        yield answer
