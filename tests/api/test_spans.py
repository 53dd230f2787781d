"""Traces of OpenTelemetry, seen by the SDK's exporter in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from cmdlog.api.app import create_app
from cmdlog.api.gate.spans import GROUPS_TRACED, BatchSpan, make_call_spans
from cmdlog.node.outcome import CallOutcome
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


def test_a_batch_is_a_span_with_its_calls_by_outcome(traced: Callable[..., Any], node: Any) -> None:
    """Below the caller's, with a child for calls that were answered together, and the stages of the last of them."""
    node.outcome = lambda route, params: (1, b'{"code": "sold_out", "message": "none"}') if params[0] == 2 else (0, b"1")
    lines = b"".join(b'{"procedure": "put", "params": {"item": %d}}\n' % item for item in (1, 2, 3)) + b"[]\n"
    spans = traced("/v1/batch", lines, traceparent=SAMPLED, **{"X-Request-Id": "r-2"})
    batch, calls, queue = spans["batch"], spans["calls"], spans["queue"]
    assert (f"{batch.context.trace_id:032x}", f"{batch.parent.span_id:016x}") == (TRACE, PARENT)
    counted = {"cmdlog.calls": 4, "cmdlog.calls.ok": 2, "cmdlog.calls.aborted": 1, "cmdlog.calls.refused": 1}
    assert dict(batch.attributes) == {**counted, "cmdlog.request_id": "r-2", "cmdlog.groups": 1}
    assert dict(calls.attributes) == counted
    assert (calls.parent.span_id, queue.parent.span_id) == (batch.context.span_id, calls.context.span_id)
    assert (queue.end_time, queue.end_time - queue.start_time) == (calls.end_time, 1_000_000)
    assert batch.start_time <= calls.end_time <= batch.end_time
    assert {batch.kind.name, batch.status.status_code.name} == {"SERVER", "ERROR"}


def test_a_batch_of_answers_is_no_error(traced: Callable[..., Any], node: Any) -> None:
    """Aborts are answers; an empty batch has no calls, and one that is not sampled no spans."""
    node.outcome = lambda route, params: (1, b'{"code": "sold_out", "message": "none"}')
    line = b'{"procedure": "put", "params": {"item": 1}}\n'
    assert traced("/v1/batch", line)["batch"].status.status_code.name == "UNSET"
    empty = traced("/v1/batch", b"")
    assert (empty.keys(), empty["batch"].attributes["cmdlog.calls"]) == ({"batch"}, 0)
    assert traced("/v1/batch", line, traceparent=NOT_SAMPLED) == {}


def test_a_stream_has_children_for_its_first_groups_alone(exporter: Any, node: Any) -> None:
    """Later groups are counted, so that a stream of days does not fill the exporter; an exception makes it an error."""
    spans = make_call_spans()
    assert spans is not None

    def stream(batch: BatchSpan) -> None:
        with batch:
            for txn_id in range(GROUPS_TRACED + 5):
                batch.add_group([CallOutcome(0, txn_id, b"1")], 0.001, node)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        stream(spans.begin_batch({}, request_id="r-3"))
    found = exporter.get_finished_spans()
    assert sum(span.name == "calls" for span in found) == GROUPS_TRACED
    assert (found[-1].attributes["cmdlog.calls"], found[-1].attributes["cmdlog.groups"]) == (GROUPS_TRACED + 5,) * 2
    assert found[-1].status.status_code.name == "ERROR"


def test_spans_hold_no_parameters(traced: Callable[..., Any]) -> None:
    """Neither in names nor in attributes."""
    spans = traced("/v1/procedures/put", b'{"item": 7, "tags": ["4111-1111-secret"]}')
    assert "1111-secret" not in "".join(span.to_json() for span in spans.values())


def test_without_a_provider_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package alone traces nothing, and without the package neither."""
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    assert make_call_spans() is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert make_call_spans() is None
