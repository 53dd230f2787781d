"""Every kind of work in the background is seen when it stands still, wherever it was frozen, and ends well when it gets on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.member.leading.takeover import Takeover
from cmdlog.node.background.drill_scheduler import DrillScheduler
from cmdlog.node.background.page_checks import PageChecks
from cmdlog.node.background.running_work import STALLED_AFTER_S, RunningWork
from cmdlog.node.node import Node
from cmdlog.node.reporting.prometheus import PrometheusExposition
from cmdlog.node.scrub import scrubber
from cmdlog.node.telemetry.request_stats import RequestStats
from tests.member.test_takeover import TERMS, Steps
from tests.node.deployed import make_version
from tests.node.frozen import Freezer, SteppedClock, frozen_starts
from tests.node.rig import ask, open_node, send, when_there_is_room
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
RING: dict[str, Any] = {
    "partitions": 1, "segment_bytes": 256 << 10, "segments": 6, "log_reserve_bytes": 128 << 10, "call_bytes_max": 30_000,
    "batch_bytes_max": 30_000, "retention_window_s": 3600.0,
}  # fmt: skip
Begin = Callable[[Node], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def in_background(*works: Callable[[], object]) -> Iterator[None]:
    """Their ends are waited for; they have to go well."""
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(work) for work in works]
        yield
        for future in futures:
            future.result()


def begin_snapshot(node: Node) -> contextlib.AbstractContextManager[Any]:
    """As an operator asks for one."""
    return in_background(node.take_snapshot)


def begin_deploy(node: Node) -> contextlib.AbstractContextManager[Any]:
    """Of code with other answers."""
    return in_background(partial(node.deployer.deploy, make_version(Path(node.directory).parent, 2)[1]))


@contextlib.contextmanager
def begin_drill(node: Node) -> Iterator[None]:
    """Whose turn comes at once."""
    drills = DrillScheduler(node.directory, every_s=0.01, work=node.overview.ground.work)
    drills.start()
    yield
    drills.stop()


@contextlib.contextmanager
def begin_archiving(node: Node) -> Iterator[None]:
    """Calls fill the ring until a segment has to be kept elsewhere."""
    enough = threading.Event()

    def fill() -> None:
        number = 0
        while not enough.is_set():
            number += 1
            when_there_is_room(partial(send, node, "hit", id=number, key=str(number)))

    with in_background(fill):
        yield
        wait_for(lambda: node.status()["archive"]["archived"])
        enough.set()


def begin_scrub(_node: Node) -> contextlib.AbstractContextManager[Any]:
    """It began with the node."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def begin_state_check(node: Node) -> Iterator[None]:
    """As after a kill."""
    checks = PageChecks(node.directory, lambda error: None, node.overview.ground.work)
    checks._partitions = [0]
    checks.start()
    yield
    wait_for(lambda: checks.status()["checked"])
    checks.stop()


FROZEN: dict[str, tuple[str, Begin]] = {
    "snapshot": ("snapshot.capture.seal", begin_snapshot),
    "archive": ("snapshot.archive.segment_copy", begin_archiving),
    "drill": ("replay.drill.drill", begin_drill),
    "deploy": ("cmdlog.node.deploying.bundle_check", begin_deploy),
    "scrub": ("cmdlog.node.scrub.scrub_reader", begin_scrub),
    "state_check": ("replay.state.page_check", begin_state_check),
}


class FrozenNode:
    """A node of a version whose background work a test looks at, by a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.node = open_node(folder / "data", app=make_version(folder, 1)[0], **{"partitions": 2, "sites": 1, **settings})
        self.clock = SteppedClock()
        work = self.node.overview.ground.work
        for timed in (work, *work._under_way()):  # the scrub has begun with the node
            monkeypatch.setattr(timed, "_now", self.clock)
        self._exposition = PrometheusExposition(RequestStats(slow_call_ms=1000), lambda: self.node.overview)

    def stands(self, kind: str) -> list[str]:
        """What the status says of that kind, a minute later."""
        self.clock.skip(STALLED_AFTER_S)
        return [stall["message"] for stall in self.node.status()["stalled"] if stall["kind"] == kind]

    def shows(self, kind: str) -> bool:
        """Whether a scrape has the metric."""
        return f'cmdlog_work_stalled_seconds{{work="{kind}"}}' in self._exposition.render()[1].decode()


def is_stopped(freezer: Freezer) -> bool:
    """Whether a process was started and stands."""
    return bool(freezer.pids)


@pytest.mark.parametrize("kind", FROZEN)
def test_frozen_work_is_seen_and_ends_when_it_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """In status, metric and log, while calls go on; once it is over, nothing of it is left there."""
    module, begin = FROZEN[kind]
    monkeypatch.setattr(scrubber, "FIRST_AFTER_S", 0.0 if kind == "scrub" else 1e9)
    with frozen_starts(monkeypatch, module) as freezer, capture_logs() as lines:
        frozen = FrozenNode(tmp_path, monkeypatch, **(RING if kind == "archive" else {}))
        try:
            ask(frozen.node, "hit", id=1)
            with begin(frozen.node):
                wait_for(partial(is_stopped, freezer))
                (message,) = wait_for(partial(frozen.stands, kind))
                assert message.endswith("s")
                assert frozen.shows(kind)
                wait_for(lambda: [line for line in lines if line["event"] == "work_stalled" and line["work"] == kind])
                if kind != "archive":  # whose ring may be full by now
                    assert ask(frozen.node, "hit", id=2) in (1, 2)
                freezer.thaw()
            wait_for(lambda: not [stall for stall in frozen.node.status()["stalled"] if stall["kind"] == kind])
            assert not frozen.shows(kind)
        finally:
            frozen.node.close()


def test_snapshot_whose_site_is_stopped_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture is the site's work: it stands still beside the site."""
    frozen = FrozenNode(tmp_path, monkeypatch)
    (site,) = frozen.node.status()["sites"]
    try:
        os.kill(site, signal.SIGSTOP)
        with begin_snapshot(frozen.node):
            (message,) = wait_for(partial(frozen.stands, "snapshot"))
            assert "copying partition 0" in message
            os.kill(site, signal.SIGCONT)
    finally:
        frozen.node.close()


def test_take_over_that_waits_for_ever_is_seen() -> None:
    """With the step that it waits at; what is executed meanwhile is progress."""
    clock, steps, looks = SteppedClock(), Steps(), threading.Event()
    works, executed = RunningWork(clock), [0]
    steps.runs, steps.on_look = 1 << 60, looks.set
    takeover = Takeover(steps.failures.put, works, lambda: executed[0])
    takeover.start(steps)
    takeover.begin_takeover(TERMS)
    try:

        def stands() -> bool:
            clock.skip(STALLED_AFTER_S)
            return [(of.kind, of.step) for of in works.stalled()] == [("takeover", "executed")]

        wait_for(stands)
        executed[0] += 1
        wait_for(lambda: not works.stalled())
    finally:
        steps.alive = False
        takeover.stop()
    assert works.stalled() == []
