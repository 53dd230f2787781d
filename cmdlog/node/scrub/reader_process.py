"""The process that reads for the scrub (`cmdlog.node.scrub.scrub_reader`), from the node's side.

One rule: it lives for one pass, and it is never in a hurry: SCHED_IDLE from its begin to its end. On a machine that is busy all
the time it may get nothing for long, and then the scrub takes long.
"""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.node.scrub.file_scan import Damage, Scanned, SliceOrder
from cmdlog.node.scrub.segment_mend import MendOrder


class ReadingFailed(Exception):
    """Nobody reads now; the text says why."""


@dataclass(frozen=True, slots=True)
class SliceRead:
    """What one order gave: what was read, and which sums came and went with it: group, range, sum."""

    scanned: Scanned
    sums: list[tuple[int, int, int | None]]


class SliceReader(Protocol):
    """What reads. Tests read in the process at hand."""

    def read(self, order: SliceOrder) -> SliceRead:
        """Raises: ReadingFailed, when there is nobody to read."""
        ...

    def mend(self, order: MendOrder) -> str:
        """See `mend_from_archive`. Raises: ReadingFailed."""
        ...

    def rest(self) -> None:
        """A pass is over: nothing is read for long. The next order begins again, without sums."""
        ...

    def stop(self) -> None:
        """Any thread; an order under way raises."""
        ...


class ReaderProcess:
    """See `SliceReader`; one caller at a time, `stop` from any thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def read(self, order: SliceOrder) -> SliceRead:
        told = self._ask({"slice": asdict(order)})
        damage = told["damage"]
        scanned = Scanned(told["bytes"], told["at"], None if damage is None else Damage(**damage), told["gone"])
        return SliceRead(scanned, [(group, number, found) for group, number, found in told["sums"]])

    def mend(self, order: MendOrder) -> str:
        told = self._ask({"mend": asdict(order)})
        if "error" in told:
            raise ReadingFailed(str(told["error"]))
        return str(told["path"])

    def rest(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = orjson.loads(self._running().ask(order) or b"")
        except (OSError, EOFError, ValueError) as error:
            self.rest()
            raise ReadingFailed(f"the process that reads for the scrub ended: {error}") from error
        return answer

    def _running(self) -> ChildProcess:
        with self._lock:
            if self._stopped:
                raise ReadingFailed("the node is stopping")
            if self._process is None:
                self._process = ChildProcess(
                    "snapshot.background_process", "cmdlog.node.scrub.scrub_reader", str(os.SCHED_IDLE), self._directory,
                    stdin=PIPE, stdout=PIPE,
                )  # fmt: skip
            return self._process
