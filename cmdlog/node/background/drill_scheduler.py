"""Restore drills of the running node: when the next one is due, and what the last ones said.

One rule: a drill is a process of its own (`replay.drill.drill`) that only reads what the node writes, with the time that nobody
else wants; it ends when the node does. Here it is started, and its word passed on: one that disproves a restore is an error in
the log, one that could not be run a warning, and it is tried again soon. Either is shown until one proves a restore.

Reports are looked at where they lie, so a drill by hand counts as well, and one of an earlier life of the node.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import structlog

from cmdlog.child_process import PIPE, ChildEnd, ChildProcess, describe_end, last_answer
from cmdlog.node.background.running_work import RunningWork
from procedures.execution.hash_seed import PINNED
from replay.drill.report import FOLDER, NOT_RUN, last_proven, last_report

FIRST_AFTER_S: Final = 300.0  # a node that never had a drill has its first one soon, whatever the interval
END_TIMEOUT_S: Final = 10.0  # for a drill to remove what it made
TEXT_MAX: Final = 500  # characters of a reason that status and log show

log = structlog.get_logger("cmdlog.drill")


class DrillScheduler:
    """The node's drill thread. `status` and `age_s` may be called from any thread, before `start` too."""

    def __init__(
        self,
        directory: str,
        *,
        every_s: float,
        wall: Callable[[], float] = time.time,
        module: str = "replay.drill.drill",
        work: RunningWork | None = None,
    ) -> None:
        """`every_s` 0: none is started here."""
        self._directory, self._every_s, self._wall, self._module = directory, every_s, wall, module
        self._work = work or RunningWork()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._seen = -1  # time of the folder's last change when it was looked at
        self._last: dict[str, Any] | None = None
        self._proven: datetime | None = None
        self._failure = ""  # of a drill that ended without a report
        self.due_at = self._next_due()  # seconds since 1970
        self._thread = threading.Thread(target=self._run, name="drills", daemon=True)

    def start(self) -> None:
        if self._every_s:
            self._thread.start()

    def stop(self) -> None:
        """Ends a drill under way, which leaves nothing."""
        self._stop.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            process.end(after_s=END_TIMEOUT_S)
        if self._thread.is_alive():
            self._thread.join()

    def age_s(self) -> float | None:
        """Seconds since a drill last proved a restore; None when none did."""
        self._read_reports()
        return None if self._proven is None else max(0.0, self._wall() - self._proven.timestamp())

    def status(self) -> dict[str, Any]:
        """every_s, running, last_proven_restore_seconds, last: finished, verdict and error; error of a drill without a report."""
        age, last = self.age_s(), self._last
        shown = None if last is None else {"finished": last["finished"], "verdict": last["verdict"], "error": _reason(last)}
        return {
            "every_s": self._every_s,
            "running": self._process is not None,
            "last_proven_restore_seconds": None if age is None else round(age, 3),
            "last": shown,
            "error": self._failure or None,
        }

    def _read_reports(self) -> None:
        """Reads the reports again if there are others."""
        try:
            changed = os.stat(os.path.join(self._directory, FOLDER)).st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._seen:
            self._seen, self._last, self._proven = changed, last_report(self._directory), last_proven(self._directory)

    def _next_due(self) -> float:
        self._read_reports()
        if self._last is None:
            return self._wall() + min(self._every_s, FIRST_AFTER_S)
        again_s = min(self._every_s, FIRST_AFTER_S) if self._last["verdict"] == NOT_RUN else self._every_s
        return datetime.fromisoformat(self._last["finished"]).timestamp() + again_s

    def _run(self) -> None:
        while not self._stop.wait(min(max(self.due_at - self._wall(), 0.0), FIRST_AFTER_S)):
            if self._wall() < self.due_at:
                continue
            try:
                with self._work.track("drill", "restore drill"):
                    self._drill()
            except Exception as error:  # our own bug, or no process to be had: the node itself is well
                log.exception("restore_drill_failed")
                self._failure = str(error)
            self.due_at = max(self._next_due(), self._wall() + min(self._every_s, FIRST_AFTER_S))

    def _drill(self) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            process = self._process = ChildProcess(
                self._module,
                self._directory,
                hash_seed=PINNED,
                parent_ended=signal.SIGTERM,  # it removes what it made
                stdout=PIPE,
            )
        with process:
            ended = process.finish()
        with self._lock:
            self._process = None
        if ended is not None and not self._stop.is_set():
            self._log_verdict(ended)

    def _log_verdict(self, ended: ChildEnd) -> None:
        if (report := last_answer(ended.output)) is None:
            self._failure = f"the drill ended: {describe_end(ended.code)}; see its output on standard error"
            log.error("restore_drill_failed", reason=self._failure)
            return
        self._failure = ""
        if report["verdict"] == "proven":
            log.info("restore_proven", seconds=report["seconds"], seed=report["seed"])
        elif report["verdict"] == NOT_RUN:
            log.warning("restore_drill_not_run", reason=_reason(report), report=report["file"])
        else:
            log.error("restore_drill_failed", verdict=report["verdict"], reason=_reason(report), report=report["file"])


def _reason(report: dict[str, Any]) -> str | None:
    return None if report["error"] is None else str(report["error"]["message"])[:TEXT_MAX]
