"""One request from arrival to answer, for operators: its id, its route, its status, its errors.

One rule: every answer carries the request's id, problems also in their body, and every line that the log gets about it does too;
nothing else that the caller sent is kept.

With OpenTelemetry there is a span per call with a child per stage, below the caller's `traceparent`; and a span per batch. The
application chooses: without `opentelemetry-api`, or without a configured tracer provider (`opentelemetry-instrument cmdlog serve
…`), there are none, and a call costs nothing more. A batch is a stream, which may not end for hours: its span has a child per
group of calls that were answered together, with the stages of the last of them, for the first `GROUPS_TRACED` groups; the others
are counted. A stage's times are those of its batch, as in the log of slow calls: queue, log, commit, execute, settle. They end
with the answer and are laid out from there backwards, because the batch is timed on another clock than the span.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.types import Message, Send

from cmdlog.api.gate.problem import Problem
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.telemetry.request_stats import RequestStats, Stages, facts_of
from cmdlog.node.telemetry.stage_timings import OUTCOMES

if TYPE_CHECKING:
    from cmdlog.node.telemetry.request_stats import Stages

REQUEST_ID: Final = b"x-request-id"
SCOPE_KEY: Final = "cmdlog.trace"  # where FastAPI handlers find it
CALL_ROUTES: Final = ("call", "batch")
NO_ERRORS: Final = ("aborted", "redirected")  # what a procedure or a caller wants is none
PROBED: Final = ("readyz", "not_ready")  # what a probe asked is answered: at each start there would be such errors
FRAMES_LOGGED: Final = 8  # the innermost ones

Picked = dict[bytes, bytes]
"""The headers of a request that mean something here."""

logger = structlog.get_logger("cmdlog.api")


def text_of(problem: Problem) -> str:
    """What is kept of an error's text: the detail where it is the server's, else the title; callers' words may be in a detail."""
    return problem.detail if problem.status >= 500 else problem.title


class Trace:
    """Stands in for `send`. `route` is the name of an entry of the route table, "" for what is not served."""

    __slots__ = ("_front", "_send", "header", "procedure", "request_id", "route")

    def __init__(self, front: RequestStats, send: Send | None, *, route: str, given_id: bytes | None) -> None:
        self._front, self._send, self.route = front, send, route
        self.request_id = front.request_id(given_id)
        self.header = (REQUEST_ID, self.request_id.encode())
        self.procedure = ""  # of the catalog, once it is known

    def send(self, message: Message) -> Awaitable[None]:
        """Passes an answer on, with the id; counts it when it begins."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], self.header]
            self._front.answered(self.route, message["status"])
        assert self._send is not None
        return self._send(message)

    def note_procedure(self, name: str) -> None:
        """It is one of the catalog."""
        self.procedure = name

    def note_problem(self, problem: Problem, procedure: str | None = None) -> Problem:
        """An error that goes out, as the whole answer or as the answer to one call of a batch; it gets the id."""
        problem.without(self._front.paths).more["request_id"] = self.request_id
        name = self.procedure if procedure is None else procedure
        if problem.code not in NO_ERRORS and (self.route, problem.code) != PROBED:
            self._front.error(problem.code, name, self.request_id, text_of(problem), problem.trace)
        if problem.code == "outcome_unknown" or "txn_id" in problem.more:  # the node has counted what it decided
            return problem
        if procedure is not None or self.route in CALL_ROUTES:
            self._front.refuse(name, problem.code)
        return problem

    def log_defect(self, path: str, error: Exception) -> None:
        """The kind of error and the way to it, without its message, which may hold parameters."""
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_LOGGED:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        logger.error("request_failed", path=path, request_id=self.request_id, error=type(error).__name__, where=where)

    @classmethod
    def of_no_request(cls, front: RequestStats, problem: Problem) -> tuple[bytes, bytes]:
        """For an error before there was a request to read: counted, and given an id, whose header is returned."""
        trace = cls(front, send=None, route="", given_id=None)
        trace.note_problem(problem)
        front.answered("", problem.status)
        return trace.header

    def took(self, seconds: float, calls: int = 1) -> bool:
        """So long from a complete call to its answer; whether that is worth a line in the log."""
        self._front.timed.append((seconds, calls, 0))
        return seconds > self._front.slow_s

    def slow(self, node: Stages, seconds: float, procedure: str, partition: int | None, reply: Reply) -> None:
        """Logs a slow call."""
        self._front.slow(
            seconds,
            lambda: facts_of(node, reply, procedure=procedure, partition=partition, request_id=self.request_id),
        )


TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
MODULE: Final = "cmdlog"
REFUSED: Final = "refused"  # lines of a batch without an outcome
GROUPS_TRACED: Final = 64  # of one request, so that a stream without an end does not fill the exporter
ANSWERS: Final = (0, 1)  # an outcome of the application is no error of the server: ok, aborted


class CallSpans:
    """Spans of calls by the configured provider."""

    def __init__(self, api: Any, propagator: Any) -> None:
        """`api` is the module `opentelemetry.trace`; `propagator` reads the caller's context."""
        self._api, self._propagator = api, propagator
        self._tracer = api.get_tracer(MODULE)

    def add_call(
        self,
        headers: Picked,
        *,
        procedure: str,
        partition: int | None,
        request_id: str,
        elapsed_s: float,
        reply: Reply,
        node: Stages,
    ) -> None:
        """A call that has been answered now, `elapsed_s` after its request was complete."""
        end = time.time_ns()
        span = self._start_below(headers, f"call {procedure}", start=end - round(elapsed_s * 1e9))
        if span.is_recording():
            span.set_attributes(_facts(procedure, partition, request_id, reply))
            if not _is_answer(reply):
                self.set_error(span)
            if isinstance(reply, CallOutcome):
                self.add_stages(span, node.stages_of(reply.txn_id), end)
        span.end(end_time=end)

    def begin_batch(self, headers: Picked, *, request_id: str) -> BatchSpan:
        """A request that brings many calls, from now on."""
        span = self._start_below(headers, "batch", start=time.time_ns())
        return BatchSpan(self, span, request_id)

    def start_child(self, parent: Any, name: str, start: int) -> Any:
        """A span of this server below another one; `start` in nanoseconds."""
        return self._tracer.start_span(name, context=self._api.set_span_in_context(parent), start_time=start)

    def set_error(self, span: Any) -> None:
        """What alerts on errors look for."""
        span.set_status(self._api.Status(self._api.StatusCode.ERROR))

    def add_stages(self, span: Any, stages_ms: dict[str, float], end: int) -> None:
        """Children, the last of which ends with the span."""
        at = end - sum(round(took_ms * 1e6) for took_ms in stages_ms.values())
        for name, took_ms in stages_ms.items():
            child = self.start_child(span, name.removesuffix("_ms"), at)
            at += round(took_ms * 1e6)
            child.end(end_time=at)

    def _start_below(self, headers: Picked, name: str, *, start: int) -> Any:
        """A span of a request, below the one that its headers name."""
        carrier = {
            header.decode(): headers[header].decode("latin-1") for header in (TRACEPARENT, TRACESTATE) if header in headers
        }
        context = self._propagator.extract(carrier)
        return self._tracer.start_span(name, context=context, kind=self._api.SpanKind.SERVER, start_time=start)


class BatchSpan:
    """One request on `/v1/batch`, as a context: it ends with the request, and an exception makes it an error."""

    def __init__(self, spans: CallSpans, span: Any, request_id: str) -> None:
        self._spans, self._span = spans, span
        self._groups = 0
        self._outcomes: Counter[str] = Counter()
        self._recording: bool = span.is_recording()
        if self._recording:
            span.set_attribute("cmdlog.request_id", request_id)

    def __enter__(self) -> BatchSpan:
        return self

    def add_group(self, slots: Sequence[bytes | Reply | None], elapsed_s: float, node: Stages) -> None:
        """Calls that have been answered now, `elapsed_s` after their lines were complete; bytes are lines that were no calls."""
        if not self._recording:
            return
        outcomes = Counter(_outcome_of(slot) for slot in slots)
        self._outcomes += outcomes
        self._groups += 1
        if self._groups > GROUPS_TRACED:
            return
        end = time.time_ns()
        child = self._spans.start_child(self._span, "calls", end - round(elapsed_s * 1e9))
        child.set_attributes(_counts(outcomes))
        if _failed(outcomes):
            self._spans.set_error(child)
        if last := next((slot for slot in reversed(slots) if isinstance(slot, CallOutcome)), None):
            self._spans.add_stages(child, node.stages_of(last.txn_id), end)
        child.end(end_time=end)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if self._recording:
            self._span.set_attributes({**_counts(self._outcomes), "cmdlog.groups": self._groups})
            if kind is not None or _failed(self._outcomes):
                self._spans.set_error(self._span)
        self._span.end(end_time=time.time_ns())


def make_call_spans() -> CallSpans | None:
    """None without the package, and without a provider that records."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an optional package
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return CallSpans(trace, TraceContextTextMapPropagator())


def _is_answer(reply: Reply) -> bool:
    return isinstance(reply, CallOutcome) and reply.status in ANSWERS


def _outcome_of(slot: bytes | Reply | None) -> str:
    """The same word for whatever refused a line: its code is in the answer."""
    return OUTCOMES[slot.status] if isinstance(slot, CallOutcome) else REFUSED


def _counts(outcomes: Counter[str]) -> dict[str, int]:
    return {"cmdlog.calls": outcomes.total(), **{f"cmdlog.calls.{name}": count for name, count in sorted(outcomes.items())}}


def _failed(outcomes: Counter[str]) -> bool:
    return any(outcomes[name] for name in outcomes if name not in {OUTCOMES[status] for status in ANSWERS})


def _facts(procedure: str, partition: int | None, request_id: str, reply: Reply) -> dict[str, Any]:
    """Attributes; never a parameter or a result."""
    facts: dict[str, Any] = {"cmdlog.procedure": procedure, "cmdlog.request_id": request_id}
    if partition is not None:
        facts["cmdlog.partition"] = partition
    if isinstance(reply, CallOutcome):
        return {**facts, "cmdlog.txn_id": str(reply.txn_id), "cmdlog.outcome": OUTCOMES[reply.status]}
    return {**facts, "cmdlog.outcome": reply.code}
