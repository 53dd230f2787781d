"""The process that reads for the scrub, from both sides of its pipes.

One rule: it lives for one pass, and it is never in a hurry. It takes time and disk that nobody else wants, SCHED_IDLE from its
begin to its end; on a machine that is busy all the time it may get nothing for long, and then the scrub takes long.

It asks the disk, not the page cache: what is in memory may be whole while the disk's sector is not. What it has read it forgets
again, so that the log's readers keep their pages.

One order and one answer per line, as JSON: {"slice": …} -> `Scanned`, {"mend": …} -> {"path"} or {"error"}. It ends when its
input does. The sums of the log live there, between two orders: one process reads the log in one pass, from its begin to its end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

import orjson

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.node.scrub.entry_sums import EntrySums
from cmdlog.node.scrub.file_scan import Damage, ScanGround, Scanned, SliceOrder, scan_slice
from cmdlog.node.scrub.segment_mend import MendOrder, mend_from_archive
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.whole_line_stdout import answer
from snapshot.background_io import Breath, make_way


class ReadingFailed(Exception):
    """Nobody reads now; the text says why."""


class ScrubReader:
    """The process from the node's side; one caller at a time, `stop` from any thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def read(self, order: SliceOrder) -> Scanned:
        """Raises: ReadingFailed, when there is nobody to read."""
        answer = self._ask({"slice": asdict(order)})
        damage = None if answer["damage"] is None else Damage(**answer["damage"])
        sums = [(group, number, found) for group, number, found in answer["sums"]]
        return Scanned(answer["bytes"], answer["at"], damage, answer["gone"], sums)

    def mend(self, order: MendOrder) -> str:
        """See `mend_from_archive`. Raises: ReadingFailed."""
        answer = self._ask({"mend": asdict(order)})
        if "error" in answer:
            raise ReadingFailed(str(answer["error"]))
        return str(answer["path"])

    def rest(self) -> None:
        """A pass is over: nothing is read for long. The next order begins again, without sums."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def stop(self) -> None:
        """Any thread; an order under way raises."""
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
                    "snapshot.background_io", "cmdlog.node.scrub.scrub_reader", str(os.SCHED_IDLE), self._directory,
                    stdin=PIPE, stdout=PIPE,
                )  # fmt: skip
            return self._process


# -- the process ---------------------------------------------------------------------------------------------------------


def forget_slice(order: SliceOrder) -> None:
    """Drops what the order is about to read, or has read, from the page cache, as far as it is on the disk."""
    at = order.at or {}
    path = os.path.join(order.path, at["name"]) if "name" in at else order.path
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, at.get("offset", 0), order.bytes_max, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _scanned(ground: ScanGround, value: dict[str, Any]) -> dict[str, Any]:
    order = SliceOrder(**value)
    forget_slice(order)
    found = scan_slice(ground, order)
    forget_slice(order)
    return {**asdict(found), "sums": ground.sums.take_changes()}


def _mended(ground: ScanGround, value: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"path": mend_from_archive(ground.files, ground.identity, MendOrder(**value))}
    except (WalError, OSError) as error:
        return {"error": str(error)}


def main() -> int:
    """Entry point: `python -m snapshot.background_io cmdlog.node.scrub.scrub_reader POLICY DIRECTORY`."""
    make_way(int(sys.argv[1]))
    files = RealFiles()
    ground = ScanGround(files, load_instance(files, sys.argv[2]).identity, EntrySums(), Breath())
    for line in sys.stdin.buffer:
        order = orjson.loads(line)
        said = _mended(ground, order["mend"]) if "mend" in order else _scanned(ground, order["slice"])
        answer(orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE))
    return 0
