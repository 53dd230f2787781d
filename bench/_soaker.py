"""Callers of the soak, in a process of their own: `python -m bench._soaker`, until their calls are made or standard input ends.

One rule: every caller uses `cmdlog.Client` as it comes, without an option, and never leaves a call undecided: when it is to stop,
it makes no more calls, and waits for the answers of those under way.

Order, as one line of JSON on standard input: {"url", "way": "batch" | "single", "callers", "first_slot", "calls": per caller or
null}. `batch` streams the calls of each caller through `Client.batch`, `single` makes one after the other. Every second a line
says what has been answered since the line before; the last one has the tallies by slot.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from bench._histogram import Histogram
from bench._soak_tally import SLOTS, Tally
from cmdlog import Client
from cmdlog.errors import CmdlogError
from cmdlog.results import Result
from cmdlog.whole_line_stdout import answer as answer_line

REPORT_S: Final = 1.0
STDIN: Final = 0
PAUSE_S: Final = 0.05  # of a caller whose call was refused: the client has waited and given up by then


@dataclass(slots=True)
class Caller:
    """One thread's calls; what it counts is read by the thread that reports."""

    tally: Tally
    numbers: Iterator[int]
    stopped: threading.Event
    latencies: Histogram = field(default_factory=Histogram)
    acknowledged: int = 0

    def wanted(self) -> Iterator[int]:
        """Numbers of calls to make."""
        return itertools.takewhile(lambda _: not self.stopped.is_set(), self.numbers)

    def note(self, number: int, answer: Result[Any] | CmdlogError) -> None:
        self.tally.note(number, answer)
        if isinstance(answer, Result):
            self.acknowledged += 1
        else:
            self.stopped.wait(PAUSE_S)

    def call_singly(self, client: Client) -> None:
        for number in self.wanted():
            began = time.perf_counter()
            answer: Result[Any] | CmdlogError
            try:
                answer = client.invoke("count", self.tally.params(number))
            except CmdlogError as error:
                answer = error
            else:
                self.latencies.note(time.perf_counter() - began)
            self.note(number, answer)

    def call_in_batches(self, client: Client) -> None:
        sent: deque[int] = deque()

        def calls() -> Iterator[tuple[str, dict[str, int]]]:
            for number in self.wanted():
                sent.append(number)
                yield "count", self.tally.params(number)

        for answer in client.batch(calls()):
            self.note(sent.popleft(), answer)


WAYS: Final[dict[str, Callable[[Caller, Client], None]]] = {"batch": Caller.call_in_batches, "single": Caller.call_singly}


class Reporter:
    """Says on standard output what has been answered since it last did."""

    def __init__(self, callers: list[Caller]) -> None:
        self._callers = callers
        self._acknowledged = 0
        self._errors: Counter[str] = Counter()
        self._latencies: Counter[int] = Counter()

    def report(self, **more: Any) -> None:
        acknowledged = sum(caller.acknowledged for caller in self._callers)
        errors, latencies = Counter[str](), Counter[int]()
        for caller in self._callers:
            errors.update(caller.tally.errors.copy())
            latencies.update(caller.latencies.counts.copy())
        line = {
            "acknowledged": acknowledged - self._acknowledged,
            "errors": errors - self._errors,
            "latencies": [list(item) for item in (latencies - self._latencies).items()],
        }
        self._acknowledged, self._errors, self._latencies = acknowledged, errors, latencies
        answer_line(orjson.dumps(line | more) + b"\n")


def run_callers(order: dict[str, Any], stopped: threading.Event) -> None:
    """Makes the calls and reports them; the first report says that the callers begin."""
    first, calls = order["first_slot"], order["calls"]
    callers = [
        Caller(Tally(first + at * SLOTS), itertools.count() if calls is None else iter(range(calls)), stopped)
        for at in range(order["callers"])
    ]
    reporter = Reporter(callers)
    with Client(order["url"]) as client, ThreadPoolExecutor(len(callers)) as pool:
        reporter.report()
        working = [pool.submit(WAYS[order["way"]], caller, client) for caller in callers]
        pending = set(working)
        while pending:
            done, pending = wait(working, REPORT_S)
            reporter.report()
            if any(work.exception() for work in done):
                stopped.set()  # one that has failed ends the run
        for work in working:
            work.result()
    reporter.report(
        acknowledged_by_slot=[[slot, *sums] for caller in callers for slot, sums in caller.tally.acknowledged_by_slot.items()],
        unknown_by_slot=[[slot, *numbers] for caller in callers for slot, numbers in caller.tally.unknown_by_slot.items()],
    )


def main() -> None:
    order, stopped = orjson.loads(sys.stdin.buffer.readline()), threading.Event()

    def wait_for_end() -> None:
        while os.read(STDIN, 1 << 10):  # not through `sys.stdin`, whose lock a thread may not hold when the interpreter ends
            pass
        stopped.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    run_callers(order, stopped)


if __name__ == "__main__":
    main()
