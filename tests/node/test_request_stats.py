"""The front: request ids, recent errors, slow calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.node.telemetry.request_stats import ERRORS_KEPT, REQUEST_ID_CHARS_MAX, SLOW_LINES_MAX, SLOW_LINES_S, RequestStats
from procedures.execution.failure_trace import FailureTrace


@pytest.mark.parametrize("given", [b"a", b"x" * REQUEST_ID_CHARS_MAX, b"!~-_./", b"0af7651916cd43dd8448eb211c80319c"])
def test_an_id_that_the_caller_chose_is_kept(given: bytes) -> None:
    """1 to 128 visible ASCII characters pass as they are."""
    assert RequestStats().request_id(given) == given.decode()


@pytest.mark.parametrize(
    "given", [None, b"", b"x" * (REQUEST_ID_CHARS_MAX + 1), b"a b", b"a\tb", b"a\r\nb", b"\x7f", b"\x00", b"\xc3\xa9", b"\xff"]
)
def test_anything_else_gets_an_id_of_ours(given: bytes | None) -> None:
    """A missing, long or unprintable id is replaced, never an error."""
    front = RequestStats()
    made = front.request_id(given)
    assert made.isascii()
    assert " " not in made
    assert made != front.request_id(given)


def test_ids_of_two_processes_differ() -> None:
    """The prefix is random per process, the number counts."""
    assert len({front.request_id() for front in (RequestStats(), RequestStats()) for _ in range(100)}) == 200


def test_errors_are_kept_by_kind_the_newest_last() -> None:
    """A kind that repeats counts up and moves to the end with its last id; the kind seen longest ago goes first."""
    time = [0.0]
    front = RequestStats(wall=lambda: time[0])
    for n in range(ERRORS_KEPT + 5):
        time[0] += 1
        front.error("key_reused", f"p{n}", f"id-{n}")
    front.error("key_reused", "p10", "again", "why")
    errors = front.errors()
    assert len(errors) == ERRORS_KEPT
    newest = {"code": "key_reused", "procedure": "p10", "count": 2, "time": time[0], "request_id": "again"}
    assert errors[-1] == {**newest, "text": "why", "file": "", "line": 0}
    assert errors[0]["procedure"] == "p5"
    front.error("log_full", "p1", "new")
    assert front.errors()[0]["procedure"] == "p6"


def test_failure_leaves_a_line_with_its_traceback() -> None:
    """Request, transaction, place and text; failures without a text, of a flood, are counted in the next line."""
    front = RequestStats()
    trace = FailureTrace(7, "reserve", "shop.py", 12, "_take", "KeyError: 'x'", "Traceback …", "use tx.now")
    with capture_logs() as lines:
        front.error("procedure_failed", "reserve", "id-1", trace=trace)
        for _ in range(3):
            front.error("procedure_failed", "reserve", "id-2", trace=replace(trace, text=""))
        front.error("procedure_failed", "reserve", "id-3", trace=trace)
    assert [(line["event"], line["request_id"], line.get("not_logged")) for line in lines] == [
        ("procedure_failed", "id-1", None),
        ("procedure_failed", "id-3", 3),
    ]
    place = {name: lines[0][name] for name in ("txn_id", "procedure", "file", "line", "error", "traceback", "hint")}
    assert list(place.values()) == ["7", "reserve", "shop.py", 12, "KeyError: 'x'", "Traceback …", "use tx.now"]
    (kind,) = front.errors()
    assert (kind["count"], kind["text"], kind["file"], kind["line"]) == (5, "KeyError: 'x'; use tx.now", "shop.py", 12)


def test_slow_calls_leave_a_bounded_number_of_lines() -> None:
    """Of many slow calls the first few are logged, and the next line says how many were not."""
    now = [0.0]
    front = RequestStats(slow_call_ms=100, now=lambda: now[0])
    with capture_logs() as lines:
        for _ in range(SLOW_LINES_MAX + 7):
            front.slow(0.25, lambda: {"procedure": "p"})
        now[0] += SLOW_LINES_S
        front.slow(0.5, lambda: {"procedure": "p"})
    assert len(lines) == SLOW_LINES_MAX + 1
    assert lines[0] == {"event": "slow_call", "log_level": "warning", "ms": 250.0, "procedure": "p"}
    assert lines[-1]["not_logged"] == 7
    assert front.slow_calls == SLOW_LINES_MAX + 8


@pytest.mark.parametrize(("setting", "limit"), [(0, float("inf")), (250, 0.25)])
def test_the_limit_of_a_slow_call_is_the_setting(setting: Any, limit: float) -> None:
    """`slow_call_ms` in seconds; 0 means that no call is slow."""
    assert RequestStats(slow_call_ms=setting).slow_s == limit


def test_what_calls_took_is_added_up_once() -> None:
    """However often it is looked at; of the calls those count as requests that were one of their own."""
    front = RequestStats()
    front.timed.extend([(0.001, 1, 1), (0.002, 22, 0), (0.004, 1, 1)])
    for _ in range(2):
        assert (sum(front.latency.counts), round(front.latency.total, 6)) == (24, 0.049)
        assert front.requests == {("call", 200): 2}
