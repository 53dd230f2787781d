"""Calls of threads that share requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from cmdlog.client.auto_batch import AutoBatcher
from cmdlog.client.options import AutoBatch
from cmdlog.client.request import Ask, call_ask
from cmdlog.client.response import Attempt, Lost, Response
from cmdlog.client.retry import SendAttempt
from tests.client.renaming import text_key
from tests.waiting import PATIENCE_S, wait_for


def step(number: int, *, attempt_s: float = 10.0, size: int = 0) -> SendAttempt:
    """An attempt of one call."""
    return SendAttempt(call_ask("bump", {"n": number, "x": "y" * size}, key=f"k{number}"), 1.0, attempt_s)


def answer(ask: Ask) -> Response:
    """The answer that belongs to the call."""
    return Response(200, text_key(ask))


class Line:
    """The way to a server: records requests, and holds them while it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[str | None]] = []
        self.open = threading.Event()
        self.open.set()
        self.fail: Callable[[int], None] = lambda _number: None

    def one(self, sent: SendAttempt) -> Attempt:
        self.requests.append([text_key(sent.ask)])
        assert self.open.wait(PATIENCE_S)
        return answer(sent.ask)

    def many(self, asks: Sequence[Ask], _sent: SendAttempt) -> Iterator[Attempt]:
        self.requests.append([text_key(ask) for ask in asks])
        assert self.open.wait(PATIENCE_S)
        for number, ask in enumerate(asks):
            self.fail(number)
            yield answer(ask)


class Callers:
    """Threads that make one attempt each."""

    def __init__(self, coalescer: AutoBatcher) -> None:
        self._batcher = coalescer
        self._threads: list[threading.Thread] = []
        self.found: dict[str | None, Attempt] = {}

    def start(self, *steps: SendAttempt) -> None:
        for made in steps:
            self._threads.append(threading.Thread(target=self._run, args=(made,)))
            self._threads[-1].start()

    def _run(self, made: SendAttempt) -> None:
        self.found[text_key(made.ask)] = self._batcher.attempt(made)

    def join(self) -> dict[str | None, Attempt]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return self.found


@pytest.fixture
def line() -> Line:
    """The way to a server."""
    return Line()


def waiting(coalescer: AutoBatcher) -> int:
    """How many calls wait for the next request."""
    return len(coalescer._queue)


def test_first_call_goes_at_once_and_the_others_together(line: Line) -> None:
    """Nothing waits while idle; what arrives meanwhile is one request; each caller gets its own answer."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch())
    callers = Callers(coalescer)
    line.open.clear()
    callers.start(step(0))
    wait_for(lambda: line.requests == [["k0"]])
    callers.start(*(step(n) for n in range(1, 9)))
    wait_for(lambda: waiting(coalescer) == 8)
    line.open.set()
    found = callers.join()
    assert {key: value.value for key, value in found.items() if isinstance(value, Response)} == {
        f"k{n}": f"k{n}" for n in range(9)
    }
    assert [len(request) for request in line.requests] == [1, 8]
    coalescer.close()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [(AutoBatch(calls_max=3), [1, 3, 3, 1]), (AutoBatch(bytes_max=250), [1, 2, 2, 2, 1]), (AutoBatch(bytes_max=1), [1] * 8)],
)
def test_requests_are_bounded(line: Line, options: AutoBatch, sizes: list[int]) -> None:
    """By calls, and by bytes; one call goes in any case."""
    coalescer = AutoBatcher(line.one, line.many, options)
    callers = Callers(coalescer)
    line.open.clear()
    callers.start(step(0))
    wait_for(lambda: len(line.requests) == 1)
    for n in range(1, 8):
        callers.start(step(n, size=100))
    wait_for(lambda: waiting(coalescer) == 7)
    line.open.set()
    callers.join()
    assert [len(request) for request in line.requests] == sizes
    coalescer.close()


def test_caller_that_gives_up_harms_nobody(line: Line) -> None:
    """Withdrawn before it was sent, it surely was not; after that nobody knows; the others get their answers."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch())
    callers = Callers(coalescer)
    line.open.clear()
    callers.start(step(0))
    wait_for(lambda: len(line.requests) == 1)
    callers.start(step(1, attempt_s=0.02))
    wait_for(lambda: "k1" in callers.found)
    callers.start(step(2), step(3, attempt_s=0.2))
    wait_for(lambda: waiting(coalescer) == 2)
    line.open.set()
    wait_for(lambda: "k0" in callers.found)
    found = callers.join()
    assert found["k1"] == Lost(reached=False, reason="no request was free for 0.02 s")
    assert all("k1" not in request for request in line.requests)
    assert isinstance(found["k2"], Response)
    coalescer.close()


def test_answer_that_comes_too_late_is_doubt(line: Line) -> None:
    """A call that was sent and is not answered in its time may have been executed."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch(linger_ms=1))
    callers = Callers(coalescer)
    line.open.clear()
    callers.start(step(1, attempt_s=0.1))
    found = callers.join()
    assert found["k1"] == Lost(reached=True, reason="no answer for 0.1 s")
    line.open.set()
    coalescer.close()


def test_defect_on_the_way_is_told_to_the_callers_it_struck(line: Line) -> None:
    """An exception that nobody expected ends as doubt for the calls without an answer, and the next request is sent."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch())

    def fail(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError("of the test")

    line.fail = fail
    callers = Callers(coalescer)
    line.open.clear()
    callers.start(step(0))
    wait_for(lambda: len(line.requests) == 1)
    callers.start(*(step(n) for n in range(1, 5)))
    wait_for(lambda: waiting(coalescer) == 4)
    line.open.set()
    found = callers.join()
    assert sorted(type(value).__name__ for value in found.values()) == ["Lost"] * 2 + ["Response"] * 3
    assert {value.reason for value in found.values() if isinstance(value, Lost)} == {"ZeroDivisionError: of the test"}
    callers.start(step(9))
    assert isinstance(callers.join()["k9"], Response)
    coalescer.close()


def test_close_sends_what_waits_and_then_refuses(line: Line) -> None:
    """Calls under way are answered; later ones hear that the client is closed."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch(linger_ms=5))
    callers = Callers(coalescer)
    callers.start(*(step(n) for n in range(4)))
    wait_for(lambda: waiting(coalescer) + sum(map(len, line.requests)) == 4)
    coalescer.close()
    assert len(callers.join()) == 4
    with pytest.raises(RuntimeError, match="closed"):
        coalescer.attempt(step(9))


@pytest.mark.parametrize("kind", [{"calls_max": 0}, {"bytes_max": 0}, {"streams": 0}, {"linger_ms": -1}, {"linger_ms": 1e6}])
def test_options_that_mean_nothing_are_refused(kind: dict[str, int]) -> None:
    """Limits are at least 1, and no call lingers for minutes."""
    with pytest.raises(ValueError, match="auto_batch"):
        AutoBatch(**kind)


@pytest.mark.slow
def test_many_threads_get_their_own_answers(line: Line) -> None:
    """64 threads in a row of calls each: every answer belongs to its call, and requests carry many."""
    coalescer = AutoBatcher(line.one, line.many, AutoBatch(streams=2))
    wrong: list[object] = []

    def run(thread: int) -> None:
        for n in range(30):
            made = step(thread * 1000 + n)
            if coalescer.attempt(made) != answer(made.ask):
                wrong.append(made)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    coalescer.close()
    assert wrong == []
    assert sum(map(len, line.requests)) == 64 * 30
