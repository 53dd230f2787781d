"""Traces of procedures that raised, as the node keeps them."""

from __future__ import annotations

from cmdlog.node.outcome import CallOutcome
from cmdlog.node.telemetry.recent_failures import TRACES_KEPT, RecentFailures
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import Status


def trace(txn_id: int, raised: BaseException | None = None) -> FailureTrace:
    """One call's."""
    return FailureTrace(txn_id, "reserve", "shop.py", 7, "reserve", "KeyError: 'x'", raised=raised)


def failed(txn_id: int, own: FailureTrace | None = None) -> CallOutcome:
    """The outcome of a call that raised."""
    return CallOutcome(Status.FAILED, txn_id, b"{}", own)


def test_outcome_of_a_failure_finds_its_trace_by_transaction() -> None:
    """A repeated outcome has the first one's transaction, and so its trace; other outcomes have none."""
    failures = RecentFailures()
    failures.add([trace(1), trace(2)])
    assert failures.trace_of(failed(2)) == failures.trace_of(failed(2)) == trace(2)
    assert failures.trace_of(failed(3)) is None
    assert failures.trace_of(CallOutcome(Status.ABORTED, 2, b"{}")) is None


def test_read_brings_its_own_trace() -> None:
    """Reads share the transaction as of which they read, so theirs is not looked up."""
    failures = RecentFailures()
    failures.add([trace(1)])
    own = trace(9)
    assert failures.trace_of(failed(1, own)) is own


def test_the_newest_traces_are_kept() -> None:
    """Their number is bounded; the oldest go first."""
    failures = RecentFailures()
    failures.add([trace(n) for n in range(TRACES_KEPT + 1)])
    assert failures.trace_of(failed(0)) is None
    assert failures.trace_of(failed(TRACES_KEPT)) is not None


def test_exception_is_given_away_once() -> None:
    """The caller gets the exception itself; a repetition finds the text alone, so nothing keeps its frames alive."""
    failures, error = RecentFailures(), KeyError("x")
    failures.add([trace(1, error)])
    first, second = failures.trace_of(failed(1)), failures.trace_of(failed(1))
    assert first is not None
    assert second is not None
    assert (first.raised, second.raised) == (error, None)
