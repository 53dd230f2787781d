"""Work in the background: what counts as progress, and what is said of work that makes none."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.node.background.running_work import STALLED_AFTER_S, RunningWork
from cmdlog.work_progress import count_progress
from tests.node.frozen import SteppedClock


@pytest.fixture
def clock() -> SteppedClock:
    """That a test moves."""
    return SteppedClock()


@pytest.fixture
def works(clock: SteppedClock) -> RunningWork:
    """Of a node."""
    return RunningWork(clock)


def test_work_stands_still_after_a_minute_without_progress(works: RunningWork, clock: SteppedClock) -> None:
    """It is named with its step, in the form of a site that hangs; no partition waits for it."""
    with works.track("snapshot", "snapshot of partition 3") as work:
        work.enter("sealing")
        clock.skip(STALLED_AFTER_S - 1)
        assert works.stalled() == []
        clock.skip(16)
        (found,) = works.stalled()
        stall = found.as_stall()
        assert (stall["kind"], stall["seconds"], stall["partitions"]) == ("snapshot", 75, [])
        assert stall["message"] == "snapshot of partition 3, sealing: no progress for 75 s"
    assert works.stalled() == []


@pytest.mark.parametrize("how", ["count", "step"])
def test_any_progress_begins_a_new_minute(works: RunningWork, clock: SteppedClock, how: str) -> None:
    """A large state takes longer than a minute; what it copies, checks and names is counted."""
    with works.track("drill", "restore drill") as work:
        for _ in range(10):
            clock.skip(STALLED_AFTER_S - 1)
            assert works.stalled() == []
            count_progress() if how == "count" else work.enter("next")


def test_progress_is_that_of_its_own_thread(works: RunningWork, clock: SteppedClock) -> None:
    """A snapshot that is copied well does not hide a deploy that hangs."""
    begun, end = threading.Event(), threading.Event()

    def hang() -> None:
        with works.track("deploy", "deploy"):
            begun.set()
            end.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    begun.wait()
    with works.track("snapshot", "snapshot"):
        clock.skip(100)
        count_progress()
        assert [found.kind for found in works.stalled()] == ["deploy"]
    end.set()
    thread.join()


def lines_of(works: RunningWork) -> list[Any]:
    """What a look writes into the log."""
    with capture_logs() as lines:
        works.report_stalled()
    return [(line["event"], line["log_level"]) for line in lines]


def test_log_says_once_that_work_stands_still_and_once_that_it_gets_on(works: RunningWork, clock: SteppedClock) -> None:
    """However often it is looked at; an end is said as well."""
    with works.track("archive", "archiving of the log") as work:
        assert lines_of(works) == []
        clock.skip(61)
        assert lines_of(works) == [("work_stalled", "error")]
        clock.skip(61)
        assert lines_of(works) == []
        work.advance()
        assert lines_of(works) == [("work_resumed", "info")]
        clock.skip(61)
        assert lines_of(works) == [("work_stalled", "error")]
        with capture_logs() as lines, pytest.raises(KeyError), works.track("scrub", "scrub"):
            raise KeyError
    assert lines == []
    assert lines_of(works) == []
