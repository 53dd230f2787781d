"""What a node does between winning all groups and its first call.

One rule: each step is for the terms it began in. When these are over the steps end without effect: the next leader repeats
them.

    clock      ticks are above every TxnId in the logs, whatever clock gave them
    places     the sequencer numbers entries from the logs' ends on
    skips      what the leader before has skipped on some partitions, of a multi-partition call, is skipped on all
    executed   everything committed is run by the sites here
    code       the log has this program and its environment, if it is a new one, and the tables that it adds; calls run the newest
    keys       the index of idempotency keys is loaded from the states
    calls      are taken
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final

import structlog

from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.node.background.running_work import RunningWork, Work
from cmdlog.work_progress import Followed

LOOK_S: Final = 0.002  # between two looks at what is run

log = structlog.get_logger("cmdlog.cluster")


class Takeover:
    """Runs the steps in a thread of its own, for the newest terms alone."""

    def __init__(self, failed: Callable[[BaseException], None], work: RunningWork, executed: Callable[[], int]) -> None:
        """`executed` is a number that grows as entries are executed and keys are loaded."""
        self._failed, self._work, self._executed = failed, work, executed
        self._wanted: queue.SimpleQueue[tuple[int, ...] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self.step = ""  # that the take-over under way waits at; "": it works
        self._threads: list[threading.Thread] = []

    def start(self, steps: LeaderSteps) -> None:
        """Takes these steps from now on; a take-over that has begun before waits for that."""
        thread = threading.Thread(target=self._run, args=(steps,), name="cmdlog-takeover", daemon=True)
        self._threads.append(thread)
        thread.start()

    def begin_takeover(self, terms: tuple[int, ...]) -> None:
        """All groups are led here. Any thread; does not wait."""
        self._wanted.put(terms)

    def stop(self) -> None:
        self._wanted.put(None)
        self._ending.set()
        for thread in self._threads:  # none of a node that is closed before it speaks with another
            thread.join()

    def _run(self, steps: LeaderSteps) -> None:
        while (terms := self._wanted.get()) is not None:
            began = time.monotonic()
            try:
                with self._work.track("takeover", "take-over of the cluster") as work:
                    done = self._take_over(take_over(steps, terms), work)
            except BaseException as error:  # noqa: BLE001 -- a node that cannot take over must not stay silent about it
                self._failed(error)
                return
            log.info("takeover_ended", terms=list(terms), leads=done, took_ms=round(1000 * (time.monotonic() - began), 1))

    def _take_over(self, steps: Iterator[str], work: Work) -> bool:
        followed = Followed(self._executed)
        while True:
            followed.follow()
            if self.step != work.step:
                work.enter(self.step)
            try:
                self.step = next(steps)
            except StopIteration as ended:
                return bool(ended.value)
            self._ending.wait(LOOK_S)


def take_over(steps: LeaderSteps, terms: tuple[int, ...]) -> Generator[str, None, bool]:
    """The steps in order; yields the name of one that waits. Whether calls are taken at the end."""
    if not (steps.lift_clock(terms) and steps.give_places(terms) and steps.finish_skips(terms)):
        return False
    while steps.still(terms) and not steps.skips_finished():
        yield "skips"
    if not steps.run_committed(terms) or not (yield from _wait_until_run(steps, terms, "executed")):
        return False
    if not (yield from steps.change_code(terms)) or not (yield from _wait_until_run(steps, terms, "tables")):
        return False
    if not steps.run_newest_code(terms):
        return False
    steps.load_keys()
    return steps.take_calls(terms)


def _wait_until_run(steps: LeaderSteps, terms: tuple[int, ...], name: str) -> Generator[str, None, bool]:
    """Until everything committed is run; False when the terms are over before."""
    while steps.still(terms) and not steps.all_run():
        yield name
    return steps.still(terms)
