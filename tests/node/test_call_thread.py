"""Handlers of signals run between two calls of the main thread, for every signal and every handler."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from cmdlog.node.embedded import call_thread
from cmdlog.node.embedded.call_thread import NUMBERS, CallbackThread, Interrupts
from cmdlog.node.embedded.embedded import Embedded, open_embedded
from cmdlog.node.queries import query
from procedures.storage.authorizer import Mode
from tests.node.apps.faulty import db
from tests.node.rig import SMALL
from tests.waiting import wait_for

SIGNALS: Final = (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGINT)


class TooSlow(Exception):
    """What a program's own time limit raises."""


@pytest.fixture(autouse=True)
def handlers_come_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test leaves set is an error of the test or of the code. Databases that other tests left open do not matter."""
    monkeypatch.setattr(call_thread, "_OF_PROCESS", [])
    numbers = [number for number in NUMBERS if number != signal.SIGALRM]  # pytest-timeout's, which gives it back when it likes
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)
    assert after == before


@pytest.fixture
def own() -> Iterator[Callable[[int, Callable[[int, FrameType | None], Any]], None]]:
    """Sets a handler until the end of the test."""
    taken: list[tuple[int, Any]] = []
    yield lambda number, handler: taken.append((number, signal.signal(number, handler)))
    for number, before in reversed(taken):
        signal.signal(number, before)


def opened(directory: Path, **settings: Any) -> Embedded:
    """The data directory, in this process."""
    return open_embedded(directory / "data", db, **{**SMALL, "partitions": 1, **settings})


@pytest.mark.parametrize("number", SIGNALS)
def test_a_handler_runs_at_the_end_of_the_work(number: int, own: Callable[..., None]) -> None:
    """Once, however often the signal came, with a frame; and at once where no work is under way."""
    came: list[bool] = []
    own(number, lambda _number, frame: came.append(frame is not None))
    interrupts = Interrupts()
    with interrupts:
        for _ in range(5):
            os.kill(os.getpid(), number)
        with interrupts:
            pass
        assert came == []
    assert came == [True]
    os.kill(os.getpid(), number)
    assert len(came) == 2
    interrupts.restore()


def test_what_a_handler_raises_is_raised_there(own: Callable[..., None]) -> None:
    """Of several, all run, also those after one that raises."""
    came: list[int] = []

    def refuse(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise TooSlow(number)

    for number in SIGNALS:
        own(number, refuse)
    interrupts = Interrupts()

    def work() -> None:
        with interrupts:
            for number in SIGNALS:
                os.kill(os.getpid(), number)
            assert came == []

    with pytest.raises(TooSlow):
        work()
    assert came == sorted(SIGNALS)
    with interrupts:
        pass
    interrupts.restore()


def test_a_handler_that_the_work_sets_stays(own: Callable[..., None]) -> None:
    """What is there at the end is not taken back, and gets the signal that was missed."""
    came: list[str] = []
    own(signal.SIGUSR1, lambda *_: came.append("before"))
    interrupts = Interrupts()
    with interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: came.append("after"))
    assert came == ["after"]
    interrupts.restore()


def test_the_databases_of_a_program_share_one(own: Callable[..., None]) -> None:
    """SIGINT is taken once, by the first that the main thread opens, and given back by the last that is closed."""
    came: list[int] = []
    own(signal.SIGINT, lambda number, _frame: came.append(number))
    before = signal.getsignal(signal.SIGINT)
    made: list[Interrupts] = []
    maker = threading.Thread(target=lambda: made.append(Interrupts.of_process()))
    maker.start()
    maker.join()
    assert signal.getsignal(signal.SIGINT) is before
    first, second = Interrupts.of_process(), Interrupts.of_process()
    assert made[0] is first is second
    assert signal.getsignal(signal.SIGINT) is first._own
    first.restore()
    second.restore()
    assert signal.getsignal(signal.SIGINT) is first._own
    made[0].restore()
    assert signal.getsignal(signal.SIGINT) is before
    later = Interrupts.of_process()
    assert later is not first
    later.restore()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fork_is_not_in_the_middle_of_the_parents_work(own: Callable[..., None]) -> None:
    """Another thread forks while the main thread works: in the child signals are handled."""
    own(signal.SIGINT, lambda *_: os._exit(3))
    interrupts, codes = Interrupts.of_process(), []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(4)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with interrupts:
        forker = threading.Thread(target=fork)
        forker.start()
        forker.join()
    assert codes == [3]
    interrupts.restore()


def test_two_that_share_nothing(own: Callable[..., None]) -> None:
    """Each defers what the other has set, closed in any order."""
    came: list[int] = []
    own(signal.SIGINT, lambda number, _frame: came.append(number))
    first, second = Interrupts(), Interrupts()
    for inner, outer in ((first, second), (second, first)):
        came.clear()
        with outer, inner:
            os.kill(os.getpid(), signal.SIGINT)
            assert came == []
        assert came == [signal.SIGINT]
    second.restore()
    first.restore()
    os.kill(os.getpid(), signal.SIGINT)
    assert len(came) == 2


def test_other_threads_are_not_concerned(own: Callable[..., None]) -> None:
    """Python runs handlers in the main thread alone: while another thread works, they run at once."""
    came: list[int] = []
    own(signal.SIGUSR1, lambda number, _frame: came.append(number))
    interrupts, inside, leave = Interrupts(), threading.Event(), threading.Event()

    def work() -> None:
        with interrupts:
            inside.set()
            leave.wait()

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert came == [signal.SIGUSR1]
    leave.set()
    worker.join()
    interrupts.restore()


def test_one_that_another_thread_has_opened_defers_them_too(own: Callable[..., None]) -> None:
    """SIGINT too, which it could not take when it was opened."""
    came: list[int] = []
    own(signal.SIGINT, lambda number, _frame: came.append(number))
    made: list[Interrupts] = []
    maker = threading.Thread(target=lambda: made.append(Interrupts()))
    maker.start()
    maker.join()
    with made[0]:
        os.kill(os.getpid(), signal.SIGINT)
        assert came == []
    assert came == [signal.SIGINT]
    made[0].restore()


class StrikingMode:
    """The modes of the guard, for `query`: one comes with a signal."""

    def __init__(self, number: int, strikes: str) -> None:
        self._number, self._strikes = number, strikes

    def __getattr__(self, name: str) -> Mode:
        if name == self._strikes:
            os.kill(os.getpid(), self._number)
        return Mode[name]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
def test_a_time_limit_of_a_query_is_raised_as_it_is(
    number: int, tmp_path: Path, own: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a query runs it ends it, after that it does not replace it by a refusal. A handler that returns ends none."""
    limits, came = [False], []

    def limit(*_: object) -> None:
        came.append(number)
        if limits[0]:
            raise TooSlow

    own(number, limit)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    with opened(tmp_path, query_timeout_s=600.0) as embedded:
        for strikes, sql in ("FRAMEWORK", "SELECT 7"), ("PROCEDURE", "SELECT 7"), ("PROCEDURE", endless):
            monkeypatch.setattr(query, "Mode", StrikingMode(number, strikes))
            limits[0] = True
            with pytest.raises(TooSlow):
                embedded.query(sql)
            limits[0] = False
            assert embedded.query("SELECT 7").rows == [(7,)]
        assert len(came) == 6


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
def test_a_time_limit_is_no_outcome_of_a_call(number: int, tmp_path: Path, own: Callable[..., None]) -> None:
    """It strikes in the middle of a procedure: the call is executed once, its caller hears of the limit, and replays agree."""

    def limit(*_: object) -> None:
        raise TooSlow

    own(number, limit)
    lasts = tmp_path / "lasts"
    with opened(tmp_path) as embedded:
        embedded.call("bump", id=1, amount=0)
        for _ in range(2):
            wait_for(lambda: not embedded.status()["stalled"])  # of the call before
            lasts.touch()

            def strike() -> None:
                wait_for(lambda: bool(embedded.status()["stalled"]))
                os.kill(os.getpid(), number)
                lasts.unlink()

            striker = threading.Thread(target=strike)
            striker.start()
            with pytest.raises(TooSlow):
                embedded.call("stay", id=1, path=str(lasts))
            striker.join()
        assert embedded.call("peek", id=1) == 2
    shutil.rmtree(tmp_path / "data" / "state")
    with opened(tmp_path) as embedded:  # which replays all, and compares digests
        assert embedded.call("peek", id=1) == 2


@pytest.mark.slow
def test_signals_at_every_moment_leave_the_directory_usable(tmp_path: Path, own: Callable[..., None]) -> None:
    """SIGALRM over and over in a loop of calls and submits: every call is there once, and the next one works."""

    def limit(*_: object) -> None:
        raise TooSlow

    own(signal.SIGTERM, limit)
    own(signal.SIGALRM, limit)
    chance, struck, done = random.Random(7), 0, 0
    with opened(tmp_path) as embedded:
        embedded.call("bump", id=1, amount=0)
        while struck < 150:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
                while True:
                    embedded.call("bump", id=1, amount=1)
                    done += 1
                    embedded.submit("bump", id=2, amount=1)
            except TooSlow:
                struck += 1
        assert done <= embedded.call("peek", id=1) <= done + struck
        assert embedded.node.error is None
    shutil.rmtree(tmp_path / "data" / "state")
    with opened(tmp_path) as embedded:
        assert done <= embedded.call("peek", id=1) <= done + struck


# -- A thread that runs callbacks waits for no call


def test_a_thread_that_runs_callbacks_is_known_by_itself() -> None:
    """The others are not."""
    answering, others = CallbackThread(), list[bool]()
    answering.note_answering(True)
    thread = threading.Thread(target=lambda: others.append(answering.answers))
    thread.start()
    thread.join()
    assert (answering.answers, others) == (True, [False])
    answering.note_answering(False)
    assert not answering.answers
