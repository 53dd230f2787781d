"""The steps of a take-over: in order, for the newest terms, and none without those before it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.takeover import Takeover, take_over
from cmdlog.node.background.running_work import RunningWork, Work
from tests.node.frozen import SteppedClock
from tests.waiting import PATIENCE_S

TERMS = (3, 3, 3)
CODE = ("code", "look", "run code")


class Steps(LeaderSteps):
    """Writes down the steps; one of them may find that the terms are over."""

    def __init__(self, *, over_at: str = "", half_skips: int = 0) -> None:
        self.over_at, self.half_skips = over_at, half_skips
        self.code_waits, self.code_done = 0, True
        self.steps: list[str] = []
        self.alive = True
        self.runs = 0  # looks until everything is run
        self.on_look: Callable[[], None] = lambda: None
        self.ended: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def _step(self, name: str) -> bool:
        self.steps.append(name)
        if name == self.over_at:
            self.alive = False
        return self.alive

    def lift_clock(self, terms: tuple[int, ...]) -> bool:
        return self._step("clock")

    def give_places(self, terms: tuple[int, ...]) -> bool:
        return self._step("places")

    def finish_skips(self, terms: tuple[int, ...]) -> bool:
        return self._step("skips")

    def skips_finished(self) -> bool:
        self.half_skips -= 1
        return self.half_skips < 0

    def run_committed(self, terms: tuple[int, ...]) -> bool:
        assert self.half_skips < 0, "some partition lacks a skip"
        return self._step("run")

    def still(self, terms: tuple[int, ...]) -> bool:
        return self.alive

    def all_run(self) -> bool:
        self._step("look")
        self.on_look()
        self.runs -= 1
        return self.runs < 0

    def change_code(self, terms: tuple[int, ...]) -> Generator[str, None, bool]:
        for _ in range(self.code_waits):
            yield "applied"
        return self._step("code") and self.code_done

    def run_newest_code(self, terms: tuple[int, ...]) -> bool:
        return self._step("run code")

    def load_keys(self) -> None:
        self._step("keys")

    def take_calls(self, terms: tuple[int, ...]) -> bool:
        self.ended.put(terms)
        return self._step("calls")

    def take_over(self) -> bool:
        """The steps, in this thread."""
        return made(self)._take_over(take_over(self, TERMS), Work("takeover", "", SteppedClock()))


def made(steps: Steps) -> Takeover:
    """Takes over by these steps."""
    return Takeover(steps.failures.put, RunningWork(), lambda: steps.runs)


@contextmanager
def running(steps: Steps) -> Iterator[Takeover]:
    """A take-over with its thread."""
    takeover = made(steps)
    takeover.start(steps)
    yield takeover
    takeover.stop()


@pytest.mark.parametrize("half_skips", [0, 2])
def test_the_steps_are_taken_in_order(half_skips: int) -> None:
    """Calls come last; nothing is run before every skip is on all partitions."""
    steps = Steps(half_skips=half_skips)
    assert steps.take_over()
    assert steps.steps == ["clock", "places", "skips", "run", "look", *CODE, "keys", "calls"]


def test_keys_are_loaded_when_everything_is_run() -> None:
    """What a site has not run yet has keys that no state holds."""
    steps = Steps()
    steps.runs = 2
    assert steps.take_over()
    assert steps.steps[4:] == ["look", "look", "look", *CODE, "keys", "calls"]


@pytest.mark.parametrize(
    ("over_at", "last"),
    [
        ("clock", "clock"),
        ("places", "places"),
        ("skips", "skips"),
        ("run", "run"),
        ("look", "look"),
        ("code", "code"),
        ("run code", "run code"),
    ],
)
def test_terms_that_are_over_end_the_steps(over_at: str, last: str) -> None:
    """Whoever leads next repeats them: no keys, no calls."""
    steps = Steps(over_at=over_at)
    steps.runs = 3
    assert not steps.take_over()
    assert steps.steps[-1] == last


def test_terms_that_end_with_the_last_entry_take_no_calls() -> None:
    """Everything is run, and somebody else leads by now."""
    steps = Steps(over_at="look")
    assert not steps.take_over()
    assert steps.steps[-1] == "look"


def test_terms_that_end_while_skips_are_on_their_way_run_nothing() -> None:
    """The call that some partitions skip must not be run on the others."""
    steps = Steps(over_at="skips", half_skips=3)
    assert not steps.take_over()
    assert steps.steps == ["clock", "places", "skips"]


def test_new_code_and_its_tables_come_first() -> None:
    """Then calls run it; code that is not known to be committed is run by nobody here."""
    steps = Steps()
    steps.code_waits = 2
    assert steps.take_over()
    assert steps.steps[-5:] == [*CODE, "keys", "calls"]
    steps = Steps()
    steps.code_done = False
    assert not steps.take_over()
    assert steps.steps[-1] == "code"


def test_calls_that_are_not_taken_are_not_a_success() -> None:
    """The terms may be over at the very last step."""
    steps = Steps(over_at="calls")
    assert not steps.take_over()


def test_every_leadership_is_taken_over() -> None:
    """Each with its own terms, in the thread of the take-over, also after one that was given up."""
    steps = Steps(over_at="clock")
    with running(steps) as takeover:
        takeover.begin_takeover((1, 1, 1))
        takeover.begin_takeover((2, 2, 2))
    assert steps.steps == ["clock", "clock"]
    steps = Steps()
    with running(steps) as takeover:
        takeover.begin_takeover((1, 1, 1))
        takeover.begin_takeover((2, 2, 2))
        assert [steps.ended.get(timeout=PATIENCE_S), steps.ended.get(timeout=PATIENCE_S)] == [(1, 1, 1), (2, 2, 2)]


def test_a_failure_is_reported() -> None:
    """A node that cannot take over must not stay silent, and stops as usual."""
    steps = Steps()
    error = OSError("the state cannot be read")

    def fail() -> None:
        raise error

    steps.on_look = fail
    with running(steps) as takeover:
        takeover.begin_takeover(TERMS)
        assert steps.failures.get(timeout=PATIENCE_S) is error
    assert steps.steps[-1] == "look"
