"""What the node's front counts and reports: requests, their ids, whole latencies, recent errors, slow calls.

One rule: nothing of a request but its route, its procedure's name, its codes and its id is kept or logged: no parameters, keys,
tokens, or anything else that a caller chose, except the id that it asked for. What a procedure raised is the application's own
text: its message is kept and logged as the application wrote it.

Written by the event loop's thread (embedded use: by callers, who may lose a count to each other); read by anyone.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import structlog

from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.telemetry.stage_timings import OUTCOMES, Histogram
from procedures.execution.failure_trace import FailureTrace

REQUEST_ID_CHARS_MAX: Final = 128
ERRORS_KEPT: Final = 50  # kinds of errors, that is pairs of code and procedure; the one seen longest ago goes first
SLOW_LINES_MAX: Final = 10  # slow calls logged per SLOW_LINES_S; the others are counted in the next line
SLOW_LINES_S: Final = 1.0
CALLED: Final = ("call", 200)  # route and status of a single call
TIMED_MAX: Final = 1 << 16  # between two looks, which come every second; beyond it the oldest are not counted

Timed = tuple[float, int, int]
"""Seconds that calls took, how many they were, and of them those that were a request of their own, answered with a result."""

log = structlog.get_logger("cmdlog.calls")


class Stages(Protocol):
    """The node, as far as a slow call asks it."""

    def stages_of(self, txn_id: int) -> dict[str, float]: ...


@dataclass(slots=True)
class RecentError:
    """One kind of error and its last occurrence."""

    code: str
    procedure: str  # "" when no procedure of the catalog was called
    count: int
    time: float  # seconds since 1970
    request_id: str
    text: str  # what the last one said
    file: str  # where the procedure raised; "" where none did
    line: int


class RequestStats:
    """One per process."""

    def __init__(
        self, *, slow_call_ms: float = 0.0, now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.now = now
        self.slow_s = slow_call_ms / 1000 if slow_call_ms else float("inf")
        self.timed: deque[Timed] = deque(maxlen=TIMED_MAX)  # what `requests` and `latency` do not show yet
        self._requests: dict[tuple[str, int], int] = {}
        self._latency = Histogram()
        self._adding = threading.Lock()
        self.refused: dict[tuple[str, str], int] = {}  # calls by procedure and code: nothing of them was logged
        self.slow_calls = 0
        self.connections: Callable[[], int] = lambda: 0
        self.held_bytes: Callable[[], Mapping[str, int]] = dict  # of "answers" and of "bodies"
        self.token_file_refused: Callable[[], bool] = lambda: False
        self.paths: Sequence[tuple[bytes, bytes]] = ()  # that errors name and callers do not see, and what stands for them
        self.cut: Callable[[], Mapping[str, int]] = dict  # connections that were refused or ended by the server, by code
        self._wall = wall
        self._errors: dict[tuple[str, str], RecentError] = {}  # the one seen last is last
        self._prefix = secrets.token_hex(6)  # of this process: ids of two lives are not the same
        self._numbers = itertools.count(1)
        self._slow_lines: deque[float] = deque(maxlen=SLOW_LINES_MAX)  # when the last ones were logged
        self._slow_unlogged = 0
        self._untraced = 0  # failures since the last that was logged

    def show_connections(self, connections: Callable[[], int], cut: Callable[[], Mapping[str, int]]) -> None:
        """How many are open, and how many were refused or ended by the server, by code."""
        self.connections, self.cut = connections, cut

    def show_held(self, held_bytes: Callable[[], Mapping[str, int]]) -> None:
        """How much is held of "answers" that their clients have not taken, and of "bodies" that are under way."""
        self.held_bytes = held_bytes

    def hide_paths(self, paths: Mapping[Path, str]) -> None:
        """Callers see names in place of these; of a relative one errors show no more than is in the settings."""
        texts = {
            str(form): name for path, name in paths.items() for form in (path, path.resolve()) if form.name and form.is_absolute()
        }
        ordered = sorted(texts.items(), key=lambda item: -len(item[0]))  # what lies in another one goes first
        self.paths = [(orjson.dumps(text)[1:-1], orjson.dumps(name)[1:-1]) for text, name in ordered]

    def show_token_file(self, refused: Callable[[], bool]) -> None:
        """Whether the token file cannot be used."""
        self.token_file_refused = refused

    def request_id(self, given: bytes | None = None) -> str:
        """The caller's id if it can be one, else a new one."""
        if given is not None and 0 < len(given) <= REQUEST_ID_CHARS_MAX and given.isascii():
            text = given.decode()
            if text.isprintable() and " " not in text:
                return text
        return f"{self._prefix}-{next(self._numbers)}"

    def answered(self, route: str, status: int) -> None:
        """A request was answered."""
        where = (route, status)
        self._requests[where] = self._requests.get(where, 0) + 1

    @property
    def requests(self) -> Mapping[tuple[str, int], int]:
        """How many were answered, by route and status."""
        self._add_timed()
        return self._requests

    @property
    def latency(self) -> Histogram:
        """What calls took: their request, or their line of a batch, was complete -> their answer was."""
        self._add_timed()
        return self._latency

    def _add_timed(self) -> None:
        """Adds up what calls have left; the history asks for it once a second."""
        with self._adding:
            timed = [self.timed.popleft() for _ in range(len(self.timed))]
            if timed:
                seconds, calls, requests = zip(*timed, strict=True)
                self._latency.add_all(seconds, calls)
                if answered := sum(requests):
                    self._requests[CALLED] = self._requests.get(CALLED, 0) + answered

    def refuse(self, procedure: str, code: str) -> None:
        """A call was refused. `procedure` is a name of the catalog, or "": names that callers invent are not kept."""
        where = (procedure, code)
        self.refused[where] = self.refused.get(where, 0) + 1

    def fail(self, trace: FailureTrace, request_id: str) -> None:
        """A procedure raised: one line of the log, with its traceback; those without a text are counted in the next line."""
        if not trace.text:
            self._untraced += 1
            return
        untraced, self._untraced = self._untraced, 0
        where = {"file": trace.file, "line": trace.line, "function": trace.function}
        more = {"hint": trace.hint, "not_logged": untraced}
        log.error(
            "procedure_failed", request_id=request_id, txn_id=str(trace.txn_id), procedure=trace.procedure, error=trace.error,
            **where, traceback=trace.text, **{name: value for name, value in more.items() if value},
        )  # fmt: skip

    def error(self, code: str, procedure: str, request_id: str, text: str = "", trace: FailureTrace | None = None) -> None:
        """An error went out. An abort is none: that is an answer which the application gives on purpose."""
        file, line = (trace.file, trace.line) if trace is not None else ("", 0)
        text = "; ".join(filter(None, (trace.error, trace.hint))) if trace is not None else text
        before = self._errors.pop((code, procedure), None)
        if len(self._errors) >= ERRORS_KEPT:
            del self._errors[next(iter(self._errors))]
        count = 1 if before is None else before.count + 1
        self._errors[code, procedure] = RecentError(code, procedure, count, self._wall(), request_id, text, file, line)
        if trace is not None:
            self.fail(trace, request_id)

    def errors(self) -> list[dict[str, Any]]:
        """The kinds of errors seen lately, the newest last."""
        return [asdict(error) for error in list(self._errors.values())]

    def slow(self, seconds: float, facts: Callable[[], Mapping[str, Any]]) -> None:
        """A call took longer than `slow_call_ms`: logs one line of these facts, unless there were too many just now.

        `facts` is called only if they are logged; see `facts_of`.
        """
        self.slow_calls += 1
        now, lines = self.now(), self._slow_lines
        if len(lines) == SLOW_LINES_MAX and now - lines[0] < SLOW_LINES_S:
            self._slow_unlogged += 1
            return
        lines.append(now)
        unlogged, self._slow_unlogged = self._slow_unlogged, 0
        log.warning("slow_call", ms=round(seconds * 1000, 3), **facts(), **({"not_logged": unlogged} if unlogged else {}))


def facts_of(node: Stages, reply: Reply, *, procedure: str, partition: int | None, request_id: str) -> dict[str, Any]:
    """What the log says about a slow call: where and how it ended, and its stages in the node if they are what made it slow."""
    told = {"request_id": request_id, "procedure": procedure, "partition": partition}
    if not isinstance(reply, CallOutcome):
        return {**told, "outcome": reply.code}
    return {**told, "txn_id": str(reply.txn_id), "outcome": OUTCOMES[reply.status], **node.stages_of(reply.txn_id)}
