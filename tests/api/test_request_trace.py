"""Requests as whoever watches sees them: ids, preferences, counts, errors, slow calls - and nothing of their parameters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.request import PREFER, PREFER_BYTES_MAX, pick_headers, preferred_durability
from cmdlog.api.gate.request_trace import GROUPS_TRACED, BatchSpan, make_call_spans
from cmdlog.api.gate.route_table import TABLE
from cmdlog.node.outcome import CallOutcome, Durability, NotReady
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.stage_timings import StageTimings
from procedures.idempotency.known_outcome import Status

Post = Callable[..., Any]
SECRET = "4111-1111-secret"


def line(item: object, **more: Any) -> bytes:
    """A call of `put`."""
    return orjson.dumps({"procedure": "put", "params": {"item": item}, **more}) + b"\n"


# -- ids -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [e for e in TABLE if e.name != "events"], ids=lambda entry: entry.name)
@pytest.mark.parametrize("body", [b'{"item": 7}', b"{", b""])
def test_every_answer_bears_the_callers_id(app: Api, ask_app: Any, entry: Any, body: bytes) -> None:
    """Whatever a route answers, the id is in its header, and in the body of a problem."""
    path = entry.path.replace("{name}", "put")
    answer = asyncio.run(ask_app(app, entry.method, path, body, headers=[("X-Request-Id", "mine-1")]))
    assert answer.headers["x-request-id"] == "mine-1"
    if answer.headers["content-type"] == "application/problem+json":
        assert answer.json()["request_id"] == "mine-1"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/nowhere", []),
        ("/v1/procedures/nothing", []),
        ("/v1/procedures/put", [("Content-Encoding", "gzip")]),
        ("/v1/procedures/put", [("Origin", "http://elsewhere.example")]),
        ("/v1/procedures/put", [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]),
        ("/healthz", []),
    ],
)
def test_every_refusal_has_an_id_of_ours(post: Post, path: str, headers: list[tuple[str, str]]) -> None:
    """Without an id of the caller's, or with one that can be none, each answer has another one."""
    ids = {post(path, b"{}", headers=[*headers, *more]).json()["request_id"] for more in ([], [("X-Request-Id", "a b")])}
    assert len(ids) == 2
    assert "a b" not in ids


def test_problems_in_a_batch_bear_the_requests_id(node: Any, post: Post) -> None:
    """Lines that are refused, that fail and that are no calls all name the one request."""
    node.outcome = lambda route, params: (Status.ABORTED, b'{"code": "c", "message": "m"}')
    answer = post("/v1/batch", b"{\n" + line(1) + line("x"), headers=[("X-Request-Id", "batch-9")])
    assert answer.headers["x-request-id"] == "batch-9"
    assert [told["error"]["request_id"] for told in answer.lines()] == ["batch-9"] * 3


def test_of_two_ids_the_first_one_counts(post: Post) -> None:
    """A proxy that adds its own id behind the caller's breaks no request."""
    answer = post("/v1/procedures/put", b'{"item": 7}', headers=[("X-Request-Id", "one"), ("X-Request-Id", "two")])
    assert (answer.status, answer.headers["x-request-id"]) == (200, "one")


# -- preferences -----------------------------------------------------------------------------------------------------------

BOTH: Sequence[Durability] = ("sync", "async")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"durability=async", "async"),
        (b"durability=sync", "sync"),
        (b'Durability = "Async"', "async"),
        (b"respond-async, durability=async; x=1, wait=5", "async"),
        (b'foo="a, durability=sync", durability=async', "async"),
        (b"durability=async, durability=sync", "async"),
        (b"durability=nonsense, durability=sync", None),
        (b"durability", None),
        (b"durability=", None),
        (b"respond-async", None),
        (b"durabilityx=async", None),
        (b",,;;=", None),
        (b'"', None),
        (b"", None),
        (None, None),
    ],
)
def test_a_preference_is_read_as_the_rfc_says(value: bytes | None, expected: str | None) -> None:
    """Case and quotes do not matter, the first of several counts, what is not understood is ignored."""
    assert preferred_durability(value, BOTH) == expected


@given(st.binary(max_size=3 * PREFER_BYTES_MAX))
def test_no_preference_is_an_error(value: bytes) -> None:
    """Whatever stands in the header, it is understood or ignored."""
    assert preferred_durability(value, BOTH) in (None, "sync", "async")


def test_preferences_may_come_in_several_headers() -> None:
    """Two `Prefer` headers are one list."""
    picked = pick_headers({"headers": [(PREFER, b"respond-async"), (PREFER, b"durability=async")]})
    assert preferred_durability(picked[PREFER], BOTH) == "async"


@pytest.mark.parametrize("wish", ["sync", "async"])
@pytest.mark.parametrize("status", [0, Status.ABORTED])
def test_an_applied_preference_is_told(node: Any, post: Post, wish: str, status: int) -> None:
    """The node gets the promise that was asked for, and the answer says so, be it a result or an outcome without one."""
    node.outcome = lambda route, params: (status, b"7" if not status else b'{"code": "c", "message": "m"}')
    answer = post("/v1/procedures/put", b'{"item": 7}', headers=[("Prefer", f"durability={wish}")])
    assert answer.status == (409 if status else 200)
    assert answer.headers["preference-applied"] == f"durability={wish}"
    assert node.durabilities == [wish]


@pytest.mark.parametrize("value", ["durability=never", "respond-async", ""])
def test_a_preference_that_is_not_known_changes_nothing(node: Any, post: Post, value: str) -> None:
    """The call is served by the node's setting, and the answer does not claim that a preference was applied."""
    answer = post("/v1/procedures/put", b'{"item": 7}', headers=[("Prefer", value)])
    assert answer.status == 200
    assert "preference-applied" not in answer.headers
    assert node.durabilities == [None]


@pytest.mark.parametrize("path", ["/v1/procedures/put", "/v1/batch"])
def test_a_preference_that_the_node_does_not_offer_is_not_claimed(node: Any, post: Post, path: str) -> None:
    """A node of a cluster answers when a majority has the call, whatever is preferred; what it does follow, it says."""
    node.durabilities_offered = ("sync",)
    body = b'{"item": 7}' if path.endswith("put") else line(7)
    answer = post(path, body, headers=[("Prefer", "durability=async")])
    assert answer.status == 200
    assert "preference-applied" not in answer.headers
    assert post(path, body, headers=[("Prefer", "durability=sync")]).headers["preference-applied"] == "durability=sync"
    assert node.durabilities == [None, "sync"]


def test_a_refused_call_followed_no_preference(node: Any, post: Post) -> None:
    """Nothing was done, so nothing was applied."""
    node.refuse = lambda calls: NotReady("no")
    answer = post("/v1/procedures/put", b'{"item": 7}', headers=[("Prefer", "durability=async")])
    assert answer.status == 503
    assert "preference-applied" not in answer.headers


def test_a_line_says_more_than_the_batch(node: Any, post: Post) -> None:
    """The header holds for every line that does not say itself; null says nothing."""
    body = line(1) + line(2, durability="sync") + line(3, durability="async") + line(4, durability=None)
    answer = post("/v1/batch", body, headers=[("Prefer", "durability=async")])
    assert answer.headers["preference-applied"] == "durability=async"
    assert node.durabilities == ["async", "sync", "async", "async"]
    node.durabilities.clear()
    assert "preference-applied" not in post("/v1/batch", body).headers
    assert node.durabilities == [None, "sync", "async", None]


@pytest.mark.parametrize("wish", ["nonsense", "", 1, True, ["sync"], {}])
def test_a_line_with_another_durability_is_refused(node: Any, post: Post, wish: object) -> None:
    """A member of the line is part of its contract, so a wrong one is an error of that line."""
    answer = post("/v1/batch", line(1, durability=wish) + line(2))
    assert [told.get("error", {}).get("code") for told in answer.lines()] == ["invalid_parameters", None]
    assert len(node.logged) == 1


# -- counts, errors, slow calls --------------------------------------------------------------------------------------------


def test_requests_are_counted_by_route_and_status(app: Api, post: Post, fetch: Post) -> None:
    """Every answer counts once, under a name of the route table or none: a caller cannot make names."""
    post("/v1/procedures/put", b'{"item": 7}')
    post("/v1/procedures/put", b"{")
    post("/v1/procedures/made-up", b"{}")
    post("/v1/batch", line(1))
    fetch("/healthz")
    fetch("/made/up")
    post("/healthz")
    assert app.service.front.requests == {
        ("call", 200): 1, ("call", 422): 1, ("call", 404): 1, ("batch", 200): 1, ("healthz", 200): 1, ("", 404): 1, ("", 405): 1,
    }  # fmt: skip


def test_refused_calls_are_counted_and_decided_ones_are_not(app: Api, node: Any, post: Post) -> None:
    """A call that was not let in counts under its code; an abort is an outcome, which the node counts."""
    post("/v1/procedures/put", b'{"item": "x"}')
    post("/v1/procedures/made-up", b"{}")
    post("/v1/batch", b"{\n" + line("x") + line(1))
    node.refuse = lambda calls: NotReady("no")
    post("/v1/procedures/put", b'{"item": 7}')
    post("/v1/batch", line(1) + line(2))
    node.refuse = lambda calls: None
    node.outcome = lambda route, params: (Status.ABORTED, b'{"code": "c", "message": "m"}')
    post("/v1/procedures/put", b'{"item": 7}')
    front = app.service.front
    assert front.refused == {
        ("put", "invalid_parameters"): 2, ("", "unknown_procedure"): 1, ("", "invalid_parameters"): 1, ("put", "not_ready"): 3,
    }  # fmt: skip
    assert front.errors()[-1]["code"] == "not_ready"  # an abort is no error
    assert front.errors()[-1]["procedure"] == "put"


def test_latencies_weigh_calls(app: Api, post: Post) -> None:
    """A batch of n lines is n observations, a call one."""
    post("/v1/procedures/put", b'{"item": 7}')
    post("/v1/batch", b"".join(line(n) for n in range(9)))
    assert sum(app.service.front.latency.counts) == 10


def test_slow_calls_tell_where_and_how_long_but_not_what(app: Api, node: Any, post: Post) -> None:
    """A line per slow call: id, procedure, partition, transaction, stages, outcome; never parameters, keys or tokens."""
    app.service.front.slow_s = 0.0
    headers = [("X-Request-Id", "slow-1"), ("Idempotency-Key", SECRET)]
    with capture_logs() as lines:
        post("/v1/procedures/put", orjson.dumps({"item": 7, "tags": [SECRET]}), headers=headers)
        node.outcome = lambda route, params: (Status.ABORTED, orjson.dumps({"code": "c", "message": SECRET}))
        post("/v1/batch", line(7, key=SECRET), headers=[("X-Request-Id", "slow-2")])
        node.refuse = lambda calls: NotReady("no")
        post("/v1/batch", line(7), headers=[("X-Request-Id", "slow-3")])
    assert [(told["request_id"], told["procedure"], told["outcome"]) for told in lines] == [
        ("slow-1", "put", "ok"), ("slow-2", "put", "aborted"), ("slow-3", "put", "not_ready"),
    ]  # fmt: skip
    assert lines[0]["txn_id"] == "1001"
    assert isinstance(lines[0]["partition"], int)
    assert lines[0]["queue_ms"] == 1.0
    assert SECRET not in repr(lines)


def test_no_line_of_the_log_holds_what_a_caller_sent(app: Api, node: Any, post: Post) -> None:
    """Defects, refusals and slow calls are logged with the request's id; parameters, keys and tokens are in none of them."""

    def broken(calls: Any) -> Any:
        raise ValueError(f"defect with {SECRET}")

    app.service.front.slow_s = 0.0
    headers = [("Idempotency-Key", SECRET), ("Authorization", f"Bearer {SECRET}"), ("X-Request-Id", "r-1")]
    with capture_logs() as lines:
        for refuse in (broken, lambda calls: NotReady("no"), lambda calls: None):
            node.refuse = refuse
            post("/v1/procedures/put", orjson.dumps({"item": 7, "tags": [SECRET]}), headers=headers)
            post("/v1/procedures/put", orjson.dumps({"item": SECRET}), headers=headers)
    assert [told["event"] for told in lines] == ["request_failed", "slow_call"]
    assert all(told["request_id"] == "r-1" for told in lines)
    assert SECRET not in repr(lines)
    assert SECRET not in repr(app.service.front.errors())


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a configured provider exports."""
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
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
