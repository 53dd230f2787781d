"""A batch under way: which calls are out, which are answered, what is sent next. Pure but for the clock it is given.

One rule: at most CALLS_MAX calls are held, answered or not; they leave in the order in which they came, each with a result or
an error.

They are executed in that order too, except that a call which was refused on its own (503) is sent again after others. Calls that
were lost or refused together are sent again together, and nothing that came later goes before them. So are the calls of a stream
whose server stopped to lead: each of them says so on its own, and all go to the next leader in their order.

A request that breaks is sent again in halves: whatever the calls of it were too many for (a proxy's buffer, the time of one
attempt) gets smaller until it fits, and grows again when it works.

`AnswerLines` reads the answer of /v1/batch: one attempt per line that was sent, in order. An answer belongs to the line of its
position, so nothing after a line that cannot be read is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.client.request import Ask, Effect
from cmdlog.client.response import Attempt, AttemptFailure, Lost, Response, judge, line_answer
from cmdlog.client.retry import CallTries, RetryWorld
from cmdlog.errors import CmdlogError
from cmdlog.results import Result

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


CALLS_MAX: Final = 4096
BYTES_MAX: Final = 1 << 20
TAKEN_PER_ANSWER: Final = 2  # calls that come in while one leaves: the window fills up, and no answer waits for long
FILL_S: Final = 0.01  # how long a source that gives slowly may hold back what it has given

NOTHING: Final = Ask("", "", Effect.READS)  # of a call that cannot be sent

Answered = Result[Any] | CmdlogError
Decode = Callable[[Ask, Any], Result[Any]]


@dataclass(slots=True, kw_only=True)
class BatchLine(CallTries):
    """One call of the batch."""

    due: float = 0.0
    alone: bool = False  # it was refused on its own: others may go before it
    deadline: float | None = None  # set by the first failure: time that the reader of the answers takes is not counted
    answer: Answered | None = None


class RunningBatch:
    """The calls that came in and have not left. Owned by one thread or task."""

    def __init__(self, world: RetryWorld, *, timeout_s: float, decode: Decode) -> None:
        self._world, self._timeout_s, self._decode = world, timeout_s, decode
        self._servers, self._clock = world.servers, world.clock
        self._lines: deque[BatchLine] = deque()
        self._bytes = 0
        self._sent_max = CALLS_MAX  # lines of the next request
        self._broke = False  # the request under way did not come to its end
        self._filling_since: float | None = None
        self._due_together: float | None = None  # when what the request under way lost is due

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def room(self) -> bool:
        """Whether another call fits in."""
        return len(self._lines) < CALLS_MAX and self._bytes < BYTES_MAX

    @property
    def waits(self) -> bool:
        """Whether another call should be taken in before the next request goes out."""
        since = self._filling_since
        return self.room and (since is None or self._clock() - since < FILL_S)

    def add(self, ask: Ask | CmdlogError, *, renames: bool) -> None:
        """The next call, or why there is none in its place."""
        if self._filling_since is None:
            self._filling_since = self._clock()
        if isinstance(ask, CmdlogError):
            self._lines.append(BatchLine(ask=NOTHING, renames=False, answer=ask))
            return
        self._bytes += len(ask.body)
        mark = self._servers.mark()
        self._lines.append(BatchLine(ask=ask, renames=renames, began=mark, mark=mark))

    def due(self) -> list[BatchLine]:
        """The lines of the next request, in order."""
        self._filling_since = self._due_together = None
        self._broke = False
        now = self._clock()
        return [line for line in self._sendable(now) if line.due <= now][: self._sent_max]

    def wait_s(self) -> float:
        """Time until a line is due."""
        now = self._clock()
        return max(0.0, min((line.due - now for line in self._sendable(now)), default=0.0))

    def _sendable(self, now: float) -> Iterator[BatchLine]:
        """Lines without an answer, up to the first that nothing may pass before it is due."""
        for line in self._lines:
            if line.answer is None:
                yield line
                if line.due > now and not line.alone:
                    return

    def settle_line(self, line: BatchLine, attempt: Attempt) -> None:
        """The result of a line's attempt."""
        found = judge(attempt)
        if not isinstance(found, AttemptFailure):
            self._succeed(line, found)
            return
        self._broke = self._broke or (isinstance(attempt, Lost) and attempt.reached)
        now = self._clock()
        if line.deadline is None:
            line.deadline = now + self._timeout_s
        step = line.after(found, self._world, left_s=line.deadline - now)
        # Its last attempt, or one that says for certain what became of it.
        if isinstance(step, CmdlogError):
            line.answer = step
            self._finish(line)
            return
        if not line.hurries:
            line.mark = self._servers.mark()
        line.alone = not found.elsewhere and isinstance(attempt, Response) and attempt.of_line
        # Again: by itself where the server judged this line, else with all that the same failure met.
        if line.alone:
            line.due = now + step
            return
        if self._due_together is None:
            self._due_together = now + step
        line.due = self._due_together

    def _succeed(self, line: BatchLine, value: Any) -> None:
        try:
            line.answer = self._decode(line.ask, value)
        except CmdlogError as error:
            line.answer = error
        self._finish(line)

    def _finish(self, line: BatchLine) -> None:
        if line.ask.key is not None:
            self._world.names.finish(line.ask.key, known=line.known)

    def abandon(self) -> None:
        """The caller takes no more answers: it has no names to ask by for what is not answered."""
        for line in self._lines:
            if line.answer is None:
                self._finish(line)

    def passed(self, count: int) -> None:
        """A request with `count` lines is over."""
        if self._broke:
            self._sent_max = max(1, count // 2)
        else:
            self._sent_max = min(CALLS_MAX, self._sent_max * 2)

    def ready(self) -> Iterator[Answered]:
        """Answers that may leave, in order."""
        while self._lines and (answer := self._lines[0].answer) is not None:
            self._bytes -= len(self._lines.popleft().ask.body)
            yield answer
