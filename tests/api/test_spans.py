"""Traces of OpenTelemetry, seen by the SDK's exporter in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from cmdlog.api.app import create_app
from cmdlog.api.gate.spans import make_call_spans
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.stage_timings import StageTimings

trace_sdk = pytest.importorskip("opentelemetry.sdk.trace")
trace_export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory_export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a configured provider exports."""
    memory = memory_export.InMemorySpanExporter()
    provider = trace_sdk.TracerProvider()
    provider.add_span_processor(trace_export.SimpleSpanProcessor(memory))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    return memory


@pytest.fixture
def traced(exporter: Any, node: Any, settings: Settings, ask_app: Any) -> Callable[..., Any]:
    """Posts to an app that was made with the provider; returns its spans by name."""
    import asyncio

    node.meter = StageTimings(["put"], partitions=1)
    app = create_app(node, settings)

    def post(path: str, body: bytes, **headers: str) -> dict[str, Any]:
        exporter.clear()
        asyncio.run(ask_app(app, "POST", path, body, headers=list(headers.items())))
        return {span.name: span for span in exporter.get_finished_spans()}

    return post


def test_a_call_is_a_span_below_its_callers(traced: Callable[..., Any], node: Any) -> None:
    """With the caller's trace, what happened, and a child per stage that ends with it; the node keeps the stages."""
    spans = traced("/v1/procedures/put", b'{"item": 7}', traceparent=SAMPLED, **{"X-Request-Id": "r-1"})
    call, queue = spans["call put"], spans["queue"]
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    facts = dict(call.attributes)
    assert facts.pop("cmdlog.partition") in range(4)
    assert facts == {
        "cmdlog.procedure": "put", "cmdlog.request_id": "r-1", "cmdlog.txn_id": str(node.txn), "cmdlog.outcome": "ok",
    }  # fmt: skip
    assert call.kind.name == "SERVER"
    assert queue.parent.span_id == call.context.span_id
    assert (queue.end_time, queue.end_time - queue.start_time) == (call.end_time, 1_000_000)
    assert node.meter.slow_s == 0


@pytest.mark.parametrize(("answer", "outcome", "code"), [
    ((1, b'{"code": "sold_out", "message": "none"}'), "aborted", "UNSET"),
    ((2, b'{"type": "KeyError", "message": "7"}'), "procedure_failed", "ERROR"),
])  # fmt: skip
def test_failures_are_errors_and_aborts_are_not(
    traced: Callable[..., Any], node: Any, answer: tuple[int, bytes], outcome: str, code: str
) -> None:
    """An abort is an answer of the application; alerts on errors must not see it."""
    node.outcome = lambda route, params: answer
    call = traced("/v1/procedures/put", b'{"item": 7}')["call put"]
    assert (call.attributes["cmdlog.outcome"], call.status.status_code.name, call.parent) == (outcome, code, None)


def test_what_the_caller_does_not_sample_is_not_recorded(traced: Callable[..., Any]) -> None:
    """The caller's flag decides; a header that is no context is ignored, and a second one, too."""
    assert traced("/v1/procedures/put", b'{"item": 7}', traceparent=NOT_SAMPLED) == {}
    assert traced("/v1/procedures/put", b'{"item": 7}', traceparent="\xff")["call put"].parent is None


def test_spans_hold_no_parameters(traced: Callable[..., Any]) -> None:
    """Neither in names nor in attributes."""
    spans = traced("/v1/procedures/put", b'{"item": 7, "tags": ["4111-1111-secret"]}')
    assert "4111" not in "".join(span.to_json() for span in spans.values())


def test_without_a_provider_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package alone traces nothing, and without the package neither."""
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    assert make_call_spans() is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert make_call_spans() is None
