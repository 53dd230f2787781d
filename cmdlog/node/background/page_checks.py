"""State files that a kill left without a seal are checked while the node already serves from them.

One rule: a damaged state is never served on. The file is not trusted any more, the node ends, and its next start rebuilds the
partition from snapshot and log, which hold every acknowledged call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.node.background.running_work import RunningWork
from cmdlog.wal.files import Files, RealFiles
from procedures.execution.hash_seed import PINNED
from replay.errors import StateDamaged
from replay.plan.node_plan import Plan
from replay.state.trust import Trust, state_path

log = structlog.get_logger("cmdlog.node")


def unsealed_states(files: Files, directory: str, partitions: Iterable[int]) -> list[int]:
    """Partitions whose state file would be trusted although nothing states what it holds. Call it before the seals are broken."""
    trust = Trust(files, directory)
    return [partition for partition in partitions if not trust.is_sealed(partition) and not trust.doubt(partition)]


class PageChecks:
    """The node's checks after a start. `status` may be called from any thread."""

    def __init__(self, directory: str, broken: Callable[[BaseException], None], work: RunningWork) -> None:
        self._directory, self._broken, self._work = directory, broken, work
        self._partitions: list[int] = []
        self._problems: dict[int, str] = {}  # by partition that was checked
        self._process: ChildProcess | None = None
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="page-checks", daemon=True)

    def wish(self, unsealed: Iterable[int], plan: Plan) -> None:
        """Those of the unsealed states that the start has kept are to be checked."""
        kept = {part.partition for part in plan.partitions if part.source == "state"}
        self._partitions = sorted(kept.intersection(unsealed))

    def start(self) -> None:
        if self._partitions:
            self._thread.start()

    def stop(self) -> None:
        """Ends a check under way: the next start begins it again, if there is no seal by then."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def status(self) -> dict[str, Any]:
        """running; checked: partitions; wanted: how many; damaged: partition -> problem."""
        problems = dict(self._problems)
        return {
            "running": self._thread.is_alive(),
            "wanted": len(self._partitions),
            "checked": len(problems),
            "damaged": {str(partition): problem for partition, problem in problems.items() if problem},
        }

    def _run(self) -> None:
        try:
            with self._lock:
                if self._stopping:
                    return
                partitions = map(str, self._partitions)
                self._process = ChildProcess(
                    "replay.state.page_check", self._directory, *partitions, stdout=PIPE, hash_seed=PINNED
                )
            with self._process as process, self._work.track("state_check", "check of the states after a kill"):
                for answer in process.answers():
                    self._take_result(**answer)
                process.wait()
            if process.returncode and not self._stopping:
                log.warning("state_check_failed", exit_code=process.returncode, checked=len(self._problems))
        except OSError as error:  # no process to be had: the states are as trusted as before
            log.warning("state_check_failed", reason=str(error))

    def _take_result(self, partition: int, problem: str) -> None:
        self._problems[partition] = problem
        path = state_path(self._directory, partition)
        if not problem:
            log.info("state_checked", partition=partition, path=path)
            return
        Trust(RealFiles(), self._directory).revoke(partition)
        log.error("state_damaged", partition=partition, path=path, reason=problem)
        self._broken(StateDamaged(f"state file {path} of partition {partition} is damaged: {problem}"))
