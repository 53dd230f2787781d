"""A batch under way, in a world that breaks requests: order, exactness, bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.client import batch_window as window_module
from cmdlog.client.batch_window import Answered, BatchLine, RunningBatch
from cmdlog.client.request import call_ask
from cmdlog.client.response import Attempt, Lost, Response, read_result
from cmdlog.client.retry import RetryPolicy, RetryWorld
from cmdlog.client.server_set import DEFAULT_URL, ServerSet, base_urls
from cmdlog.errors import CmdlogError, InvalidParameters, OutcomeUnknown, Unavailable
from cmdlog.results import Result
from tests.client.renaming import Renaming, text_key


class Table:
    """A server's table of keys."""

    def __init__(self) -> None:
        self.results: dict[str, int] = {}
        self.executions = 0

    def execute(self, key: str | None) -> Response:
        """The result under the key; without one, executed in any case."""
        if key is None or key not in self.results:
            self.executions += 1
            self.results[key or f"keyless {self.executions}"] = self.executions
        number = self.executions if key is None else self.results[key]
        return Response(200, {"txn_id": str(number), "partition": 0, "result": number})


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_window(
    clock: Clock,
    *,
    timeout_s: float = 1e6,
    chance: Callable[[], float] = lambda: 0.5,
    calls_at_once: int | None = None,
    urls: Sequence[str] = (DEFAULT_URL,),
) -> RunningBatch:
    """A window over a policy without end; of `calls_at_once` in each request at first."""
    window = RunningBatch(
        RetryWorld(
            policy=RetryPolicy(attempts_max=10**6),
            servers=ServerSet(base_urls(urls)),
            clock=clock,
            chance=chance,
            names=Renaming(lambda _name, date: f"new {date}" if date else None),
        ),
        timeout_s=timeout_s,
        decode=lambda _ask, value: read_result(value),
    )
    window._sent_max = calls_at_once or window._sent_max
    return window


def run(window: RunningBatch, clock: Clock, calls: list[Any], respond: Any) -> list[Answered]:
    """The loop of the clients: `respond(lines)` gives the attempts of a request."""
    source, answers = iter(calls), []
    more = True
    for _ in range(10_000):
        while more and window.waits:
            ask = next(source, None)
            more = ask is not None
            if ask is not None:
                window.add(ask, renames=True)
        answers += list(window.ready())
        lines = window.due()
        if lines:
            for line, attempt in zip(lines, respond(lines), strict=True):
                window.settle_line(line, attempt)
                answers += list(window.ready())
            window.passed(len(lines))
        elif window:
            clock.now += window.wait_s()
        elif not more:
            return answers
    raise AssertionError("no end")


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sets(st.integers(0, 29))), max_size=12), st.integers(0, 30))
def test_broken_requests_resume_exactly(breaks: list[tuple[int, int, set[int]]], count: int) -> None:
    """Requests that break after any number of executed and of answered lines, with refusals between: each call is executed
    once, and answered once, in order, with its own result."""
    table, clock, script = Table(), Clock(), iter(breaks)
    calls = [call_ask("bump", {"id": n}, key=f"k{n}") for n in range(count)]

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        executed, answered, refused = next(script, (1000, 1000, set()))
        attempts: list[Attempt] = []
        for at, line in enumerate(lines):
            if at in refused:
                attempts.append(Response(503, {"code": "log_full", "status": 503}))
            elif at < executed:
                attempts.append(table.execute(text_key(line.ask)))
            else:
                attempts.append(Lost(reached=True, reason="reset"))
        return [*attempts[:answered], *[Lost(reached=True, reason="reset")] * len(attempts[answered:])]

    answers = run(make_window(clock), clock, calls, respond)
    assert [answer.value for answer in answers if isinstance(answer, Result)] == [table.results[f"k{n}"] for n in range(count)]
    assert table.executions == count


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=20), st.integers(0, 60), st.randoms())
def test_calls_are_executed_in_order(breaks: list[tuple[int, int, bool]], count: int, chance: Random) -> None:
    """Lost or refused together, calls go together again, whatever the jitter; what came later waits behind them."""
    table, clock, script = Table(), Clock(), iter(breaks)
    executed: list[str | None] = []

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        upto, answered, refused = next(script, (1000, 1000, False))
        clock.now += 0.001 * chance.random()
        if refused:
            return [Response(503, {"code": "not_ready", "status": 503})] * len(lines)
        fates: list[Attempt] = []
        for line in lines[:upto]:
            executed.append(text_key(line.ask))
            fates.append(table.execute(text_key(line.ask)))
        lost = Lost(reached=True, reason="reset")
        return [*fates[:answered], *[lost] * (len(lines) - len(fates[:answered]))]

    window = make_window(clock, chance=chance.random, calls_at_once=7)
    run(window, clock, [call_ask("bump", {}, key=f"k{n}") for n in range(count)], respond)
    assert list(dict.fromkeys(executed)) == [f"k{n}" for n in range(count)]


DOUBT = Response(504, {"code": "outcome_unknown", "status": 504}, of_line=True)
GONE: dict[str, Attempt] = {
    "refused": Response(503, {"code": "not_ready", "status": 503}, of_line=True),
    "unknown": DOUBT,
    "ends": Lost(reached=True, reason="reset"),
}
"""What becomes of the lines that a leader gets no more to."""


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(sorted(GONE))), max_size=20),
    st.integers(0, 60),
    st.randoms(),
)
def test_calls_keep_their_order_over_changes_of_leader(changes: list[tuple[int, int, str]], count: int, chance: Random) -> None:
    """A stream's later lines are refused one by one, or are in doubt: all go to the next leader in order, whatever the jitter,
    and nothing that came later goes before them."""
    table, clock, script = Table(), Clock(), iter(changes)
    executed: list[str | None] = []
    window = make_window(clock, chance=chance.random, calls_at_once=7, urls=["http://a", "http://b", "http://c"])
    servers = window._servers

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        server = servers.preferred
        upto, answered, kind = next(script, (1000, 1000, ""))
        clock.now += 0.001 * chance.random()
        attempts: list[Attempt] = []
        for at, line in enumerate(lines):
            if at < upto:
                executed.append(text_key(line.ask))
                attempts.append(table.execute(text_key(line.ask)))
            if at >= min(upto, answered):
                attempts[at:] = [DOUBT if at < upto else GONE[kind]]
        return [servers.note_attempt(server, attempt) for attempt in attempts]

    answers = run(window, clock, [call_ask("bump", {}, key=f"k{n}") for n in range(count)], respond)
    assert list(dict.fromkeys(executed)) == [f"k{n}" for n in range(count)]
    assert [answer.value for answer in answers if isinstance(answer, Result)] == [table.results[f"k{n}"] for n in range(count)]


def test_lines_of_a_leader_that_is_gone_do_not_wait() -> None:
    """They go to the next server at once; when that is none either, all wait as long as one, and then ask each again."""
    clock = Clock()
    window = make_window(clock, urls=["http://a", "http://b"])
    for n in range(3):
        window.add(call_ask("bump", {}, key=f"k{n}"), renames=True)
    for wait_s in (0.0, 7.0, 0.0, 7.0):
        clock.now += window.wait_s()
        server, lines = window._servers.preferred, window.due()
        assert [text_key(line.ask) for line in lines] == ["k0", "k1", "k2"]
        for line in lines:
            refusal = Response(503, {"code": "not_ready", "status": 503}, retry_after_s=7.0, of_line=True)
            window.settle_line(line, window._servers.note_attempt(server, refusal))
        assert wait_s <= window.wait_s() <= wait_s + 1


def test_doubt_keeps_the_key() -> None:
    """A line that may have been executed is not given another key, however old its own is called."""
    clock = Clock()
    script = [Lost(reached=True, reason="reset"), Response(409, {"code": "session_expired", "status": 409}, date="noon")]
    answers = run(make_window(clock), clock, [call_ask("bump", {}, key="old")], lambda _lines: [script.pop(0)])
    assert [type(answer) for answer in answers] == [OutcomeUnknown]


def test_call_that_cannot_be_sent_has_its_error_in_its_place() -> None:
    """A mistake of one call is answered in its place and stops nobody."""
    table, clock = Table(), Clock()
    calls = [call_ask("bump", {}, key="a"), InvalidParameters(problems=[("x", "y")]), call_ask("bump", {}, key="b")]
    answers = run(make_window(clock), clock, calls, lambda lines: [table.execute(text_key(line.ask)) for line in lines])
    assert [type(answer) for answer in answers] == [Result, InvalidParameters, Result]


def test_keyless_call_is_sent_again_only_when_it_surely_was_not_executed() -> None:
    """Without a key a lost connection is the end; a refusal is not."""
    table, clock = Table(), Clock()
    keyless = call_ask("bump", {}, key=None)
    script: list[list[Attempt]] = [
        [Response(503, {"code": "not_ready", "status": 503}), Lost(reached=True, reason="reset")],
        [Lost(reached=False, reason="refused")],
    ]

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        return script.pop(0) if script else [table.execute(text_key(line.ask)) for line in lines]

    answers = run(make_window(clock), clock, [keyless, keyless], respond)
    assert [type(answer) for answer in answers] == [Result, OutcomeUnknown]
    assert table.executions == 1


def test_time_counts_from_the_first_failure() -> None:
    """A batch that runs for an hour gives a call up only `timeout_s` after it failed first, and tells what is known."""
    clock = Clock()
    table = Table()
    refused: set[str | None] = set()

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        clock.now += 3600.0
        refused.update(text_key(line.ask) for line in lines)
        return [
            Response(503, {"code": "log_full", "status": 503}, retry_after_s=1.0)
            if text_key(line.ask) == "k1"
            else table.execute(text_key(line.ask))
            for line in lines
        ]

    answers = run(make_window(clock, timeout_s=10.0), clock, [call_ask("bump", {}, key=f"k{n}") for n in range(3)], respond)
    assert [type(answer) for answer in answers] == [Result, Unavailable, Result]


def test_requests_shrink_while_they_break_and_grow_when_they_do_not() -> None:
    """Halves down to one line, then doubles: what was too much for something on the way gets through."""
    clock, table, sizes = Clock(), Table(), list[int]()

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        sizes.append(len(lines))
        if len(sizes) <= 6:
            return [Lost(reached=True, reason="too much")] * len(lines)
        return [table.execute(text_key(line.ask)) for line in lines]

    window = make_window(clock, chance=Random(1).random)  # what was lost together goes together, jitter or not
    run(window, clock, [call_ask("bump", {}, key=f"k{n}") for n in range(32)], respond)
    assert sizes == [32, 16, 8, 4, 2, 1, 1, 2, 4, 8, 16, 1]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the source gives and however long the head waits, no more than the limits is taken in."""
    monkeypatch.setattr(window_module, "CALLS_MAX", 10)
    clock, taken = Clock(), 0
    window = make_window(clock)
    while window.waits:
        window.add(call_ask("bump", {}, key=f"k{taken}"), renames=True)
        taken += 1
    assert taken == 10
    for line in window.due()[1:]:
        window.settle_line(line, Table().execute(text_key(line.ask)))
    assert list(window.ready()) == []
    assert not window.room
    monkeypatch.setattr(window_module, "CALLS_MAX", 1000)
    monkeypatch.setattr(window_module, "BYTES_MAX", 100)
    wide = make_window(clock)
    wide.add(call_ask("bump", {"x": "y" * 500}, key="a"), renames=True)
    assert not wide.room, "one call may be larger than the window"


def test_slow_source_holds_back_what_it_gave_for_a_moment_only() -> None:
    """After FILL_S the next request goes out with what there is."""
    clock = Clock()
    window = make_window(clock)
    assert window.waits
    window.add(call_ask("bump", {}, key="a"), renames=True)
    assert window.waits
    clock.now += 1.0
    assert not window.waits
    assert len(window.due()) == 1


def test_fresh_key_of_a_line_is_replaced_when_our_clock_is_behind() -> None:
    """A line refused as expired under a key that was made here goes out once more, at once, under a better one."""
    clock, table = Clock(), Table()
    keys: list[str | None] = []

    def respond(lines: list[BatchLine]) -> list[Attempt]:
        keys.extend(text_key(line.ask) for line in lines)
        expired = Response(409, {"code": "session_expired", "status": 409}, date="noon")
        return [expired if text_key(line.ask) == "old" else table.execute(text_key(line.ask)) for line in lines]

    answers = run(make_window(clock), clock, [call_ask("bump", {}, key="old")], respond)
    assert keys == ["old", "new noon"]
    assert not isinstance(answers[0], CmdlogError)
