"""Traces of OpenTelemetry: a span per call with a child per stage, below the caller's `traceparent`.

One rule: the application chooses. Without `opentelemetry-api`, or without a tracer provider that somebody has configured
(`opentelemetry-instrument cmdlog serve …`), there is nothing here, and a call costs nothing more.

A stage's times are those of its batch, as in the log of slow calls: queue, log, commit, execute, settle. They end with the answer
and are laid out from there backwards, because the batch is timed on another clock than the span.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.telemetry.stage_timings import OUTCOMES

if TYPE_CHECKING:
    from cmdlog.api.gate.request import Picked
    from cmdlog.node.telemetry.request_stats import Stages

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
MODULE: Final = "cmdlog"
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
        carrier = {name.decode(): headers[name].decode("latin-1") for name in (TRACEPARENT, TRACESTATE) if name in headers}
        span = self._tracer.start_span(
            f"call {procedure}",
            context=self._propagator.extract(carrier),
            kind=self._api.SpanKind.SERVER,
            start_time=end - round(elapsed_s * 1e9),
        )
        if span.is_recording():
            span.set_attributes(_facts(procedure, partition, request_id, reply))
            if not isinstance(reply, CallOutcome) or reply.status not in ANSWERS:
                span.set_status(self._api.Status(self._api.StatusCode.ERROR))
            if isinstance(reply, CallOutcome):
                self._add_stages(span, node.stages_of(reply.txn_id), end)
        span.end(end_time=end)

    def _add_stages(self, span: Any, stages_ms: dict[str, float], end: int) -> None:
        """Children, the last of which ends with the call."""
        context = self._api.set_span_in_context(span)
        at = end - sum(round(took_ms * 1e6) for took_ms in stages_ms.values())
        for name, took_ms in stages_ms.items():
            child = self._tracer.start_span(name.removesuffix("_ms"), context=context, start_time=at)
            at += round(took_ms * 1e6)
            child.end(end_time=at)


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


def _facts(procedure: str, partition: int | None, request_id: str, reply: Reply) -> dict[str, Any]:
    """Attributes; never a parameter or a result."""
    facts: dict[str, Any] = {"cmdlog.procedure": procedure, "cmdlog.request_id": request_id}
    if partition is not None:
        facts["cmdlog.partition"] = partition
    if isinstance(reply, CallOutcome):
        return {**facts, "cmdlog.txn_id": str(reply.txn_id), "cmdlog.outcome": OUTCOMES[reply.status]}
    return {**facts, "cmdlog.outcome": reply.code}
