"""Traces of procedures that raise: the application's frames alone, bounded, and beside the outcome."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from procedures import Database, Transaction
from procedures.code.bundle import capture_bundle
from procedures.code.loaded_modules import load_bundle
from procedures.execution.executor import Executor
from procedures.execution.failure_trace import (
    TEXT_CHARACTERS_MAX,
    TEXTS_EVERY_S,
    TEXTS_MAX,
    TRACES_MAX,
    FailureTrace,
    FailureTracer,
    hint_of,
)
from procedures.execution.outcome_bodies import describe_failure, outcome_of
from procedures.idempotency.known_outcome import Status
from tests.procedures import traced_app
from tests.procedures.sites import START_MS, Site
from tests.procedures.test_executor import MakeSite

shop = Database("shop")


@shop.procedure(partition_by="item")
def reserve(tx: Transaction, item: str) -> int:
    """Stands for the procedure that raised."""
    raise NotImplementedError


RESERVE = shop.procedure_list[0]


class _Hostile:
    """Its description is the application's code."""

    def __repr__(self) -> str:
        raise AssertionError("code of the application ran for a traceback")


def _look_up(shelf: dict[str, int], item: str, thing: object) -> int:
    return shelf[item]


def raised(item: str = "missing") -> KeyError:
    """What a procedure with a helper raises."""
    try:
        _look_up({"here": 1}, item, _Hostile())
    except KeyError as error:
        return error
    raise AssertionError


def trace_of(error: BaseException, **options: Any) -> FailureTrace:
    """The trace that is made of it."""
    tracer = FailureTracer(**options)
    tracer.begin_attempt()
    tracer.add(error, 7, RESERVE, describe_failure(outcome_of(error)[1]))
    (trace,) = tracer.take_traces()
    return trace


def traced(site: Site, tracer: FailureTracer) -> Site:
    """The site, whose executor makes traces."""
    site.executor = Executor(
        site.state, lambda _version: site.db, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None, tracer=tracer
    )
    return site


def test_trace_names_the_innermost_line_of_the_application() -> None:
    """File, line and function are those of the helper that raised, and the text has source lines and the error last."""
    trace = trace_of(raised())
    assert (trace.file, trace.function, trace.error) == (__file__, "_look_up", "KeyError: 'missing'")
    assert trace.line == _look_up.__code__.co_firstlineno + 1
    assert trace.place == f"{__file__}:{trace.line}"
    assert "    return shelf[item]\nKeyError: 'missing'" in trace.text


def test_frames_of_libraries_are_left_out() -> None:
    """An error inside the standard library has the place of the application's line that led there."""
    with pytest.raises(ValueError, match="Expecting") as failed:
        json.loads("{")
    trace = trace_of(failed.value)
    assert trace.file == __file__
    assert "decoder.py" not in trace.text


def test_locals_are_shown_in_development_alone() -> None:
    """Values are in the text only if asked for, and no code of the application runs to describe one."""
    assert "item = " not in trace_of(raised()).text
    text = trace_of(raised(), show_locals=True).text
    assert "      item = 'missing'" in text
    assert "      thing = <_Hostile>" in text


def test_causes_come_first() -> None:
    """An error that was raised while another was handled brings that one along."""
    try:
        try:
            raise raised("other")
        except KeyError as cause:
            raise ValueError("no such item") from cause
    except ValueError as error:
        text = trace_of(error).text
    assert text.index("KeyError: 'other'") < text.index("direct cause") < text.index("ValueError: no such item")


def test_texts_are_bounded_in_size_and_rate() -> None:
    """Of a flood each call has its place, the first ones a text; after a while there are texts again."""
    now = [0.0]
    tracer = FailureTracer(now=lambda: now[0])
    tracer.begin_attempt()
    for _ in range(TRACES_MAX + 5):
        tracer.add(ValueError("x" * 10_000), 1, RESERVE, "ValueError")
    traces = tracer.take_traces()
    assert len(traces) == TRACES_MAX
    assert sum(bool(trace.text) for trace in traces) == TEXTS_MAX
    assert max(len(trace.text) for trace in traces) <= TEXT_CHARACTERS_MAX + 10
    now[0] += TEXTS_EVERY_S
    tracer.add(ValueError("again"), 1, RESERVE, "ValueError")
    assert tracer.take_traces()[0].text


def test_kept_error_has_the_application_frames_and_no_values() -> None:
    """A caller in the same process gets the exception itself; what its frames held is gone, so no transaction lives on."""
    error = raised()
    trace = trace_of(error, keep_errors=True)
    assert trace.raised is error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert {frame.f_code.co_filename for frame in frames} == {__file__}
    assert all("thing" not in frame.f_locals for frame in frames)


@pytest.mark.parametrize("call", ["fail_at_once", "fail_after_write"])
def test_batch_brings_a_trace_per_call_that_raised(make_site: MakeSite, call: str) -> None:
    """Whether or not the batch ran twice, each failure has one trace with its transaction; aborts and results have none."""
    site = traced(make_site(traced_app.db), FailureTracer())
    applied = site.apply(("fine", {"id": 1}), (call, {"id": 2}), ("refuse", {"id": 3}))
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.ABORTED]
    (trace,) = applied.traces
    assert (trace.txn_id, trace.procedure, trace.function) == (applied.txn_ids[1], call, call)
    assert trace.txn_id >> 21 >= START_MS


def test_outcome_is_the_same_with_and_without_traces(make_site: MakeSite) -> None:
    """Bodies, hashes and digests know nothing of traces: a replay, which makes none, is compared with them."""
    calls = [("fine", {"id": 1}), ("fail_after_write", {"id": 2}), ("fail_at_once", {"id": 3})]
    plain = make_site(traced_app.db, name="plain.db").apply(*calls)
    live = traced(make_site(traced_app.db, name="traced.db"), FailureTracer()).apply(*calls)
    assert (plain.bodies, plain.result_hashes, plain.rows_digest) == (live.bodies, live.result_hashes, live.rows_digest)
    assert len(live.traces) == 2
    assert plain.traces == ()


def test_code_of_a_bundle_is_named_by_its_module(make_site: MakeSite) -> None:
    """A site process runs the logged bundle: its files are shown without the bundle's hash, and with their source."""
    db = load_bundle(capture_bundle(traced_app.db, "tests.procedures.traced_app:db"))
    (trace,) = traced(make_site(db), FailureTracer()).apply(("fail_at_once", {"id": 1})).traces
    assert trace.file == "tests/procedures/traced_app.py"
    assert 'raise LookupError("at once")' in trace.text


def test_read_that_raises_has_a_trace(make_site: MakeSite) -> None:
    """Read-only calls run elsewhere, and say as much."""
    tracer = FailureTracer()
    site = traced(make_site(traced_app.db), tracer)
    site.executor.read([(site.numbers["look"], [1])], catalog=1)
    (trace,) = tracer.take_traces()
    assert (trace.procedure, trace.error) == ("look", "ZeroDivisionError: integer division or modulo by zero")


def test_kept_errors_do_not_retire_the_transaction(make_site: MakeSite) -> None:
    """The transaction object serves the next call although the exception of the last one is kept."""
    site = traced(make_site(traced_app.db), FailureTracer(keep_errors=True))
    kept = [site.apply(("fail_after_write", {"id": n})).traces[0].raised for n in range(3)]
    assert all(isinstance(error, LookupError) for error in kept)
    assert list(site.apply(("fine", {"id": 9})).statuses) == [Status.OK]


def test_error_without_a_frame_of_the_application_has_the_place_of_the_definition() -> None:
    """A result of another type is raised by no line of the procedure: its first line is the place, and the text has no frames."""
    trace = trace_of(TypeError("result of the wrong type"))
    assert (trace.file, trace.function, trace.text) == (__file__, "reserve", "TypeError: result of the wrong type")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("SQLError: not authorized to use function: CURRENT_TIMESTAMP", "tx.now"),
        ("SQLError: not authorized to use function: datetime", "tx.now"),
        ("SQLError: not authorized to use function: random", "tx.random"),
        ("StatementRefused: function randomblob does not depend on its arguments alone: SELECT", "tx.random"),
        ("SQLError: not authorized to use function: last_insert_rowid", "RETURNING"),
        ("SQLError: not authorized to use function: exp", "Numeric"),
        ("StatementRefused: COMMIT is not for procedures; they read and change rows", "tx.abort"),
        ("StatementRefused: CREATE is not for procedures; they read and change rows", "Database.table"),
    ],
)
def test_refusals_come_with_the_alternative(error: str, hint: str) -> None:
    """What procedures write instead of a clock, of chance, of transaction control is said beside the outcome's text."""
    assert hint in hint_of(error)
    assert hint_of("ValueError: COMMIT") == ""


def test_refused_function_is_answered_with_its_alternative(make_site: MakeSite) -> None:
    """The outcome has the text that old logs have; the hint is in the trace."""
    site = traced(make_site(traced_app.db), FailureTracer())
    applied = site.apply(("ask_the_clock", {"id": 1}))
    assert b"not authorized to use function: CURRENT_TIMESTAMP" in applied.bodies[0]
    assert applied.traces[0].hint.endswith("use tx.now")


def test_result_of_the_wrong_type_is_named_beside_the_outcome(make_site: MakeSite) -> None:
    """The outcome keeps the text that old logs have; the hint says that it is about the result, and of which procedure."""
    site = traced(make_site(traced_app.db), FailureTracer())
    applied = site.apply(("give_numbers", {"id": 1}))
    assert applied.bodies == [b'{"type":"WireError","message":"expected a string, got generator"}']
    assert applied.traces[0].hint == "the result of give_numbers is refused: its return annotation states what it may be"
