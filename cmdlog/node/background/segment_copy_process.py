"""The process that copies segments into the archive (`snapshot.archive.segment_copy`), from the node's side.

One rule: it is started when the first segment is to be copied, and again after it has died; a node that archives nothing has
none. It takes time that nobody else wants, until the log waits for it (`cmdlog.node.background.idle_priority`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.node.background.idle_priority import idle_first
from cmdlog.wal.errors import Corrupt, DiskFull, WriteFailed
from snapshot.archive.segment_copy import CopiedSegment
from snapshot.errors import SnapshotFailed

COPY_TIMEOUT_S: Final = 600.0  # a segment at the speed of a floppy disk


class SegmentCopyProcess:
    """One caller at a time; `stop` from any thread."""

    def __init__(self, pressing: Callable[[], bool] = lambda: False) -> None:
        """`pressing`: the log is so full that a copy must not wait."""
        self._pressing = pressing
        self._process: ChildProcess | None = None
        self._policy = os.SCHED_IDLE  # of the process
        self._lock = threading.Lock()
        self._stopped = False

    def copy(self, source: str, target: str, last_block: int) -> CopiedSegment:
        """See `copy_segment`. Raises: Corrupt, DiskFull, WriteFailed, SnapshotFailed (the process ended, or took too long)."""
        order = {"source": source, "target": target, "last_block": last_block}
        answer = idle_first(
            partial(self._ask, order, target),
            size_bytes=2 * os.stat(source).st_size,  # written, and read back
            pressing=self._pressing,
            timeout_s=COPY_TIMEOUT_S,
        )
        if answer is None:
            raise SnapshotFailed("copying a segment took too long")
        return _understood(orjson.loads(answer), source)

    def _ask(self, order: dict[str, Any], target: str, policy: int, given_up: Callable[[], bool]) -> bytes | None:
        """The answer to the order; None when it was given up: then the process has ended and its copy is gone."""
        try:
            answer = self._running(policy).ask(order, given_up=given_up)
        except (OSError, EOFError) as error:
            raise SnapshotFailed(f"the process that copies segments ended: {error}") from error
        if answer is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
        return answer

    def stop(self) -> None:
        """Ends the process, also in the middle of a copy."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            process.end()

    def close(self) -> None:
        """After `stop`, when no copy is under way any more."""
        if self._process is not None:
            self._process.close()

    def _running(self, policy: int) -> ChildProcess:
        with self._lock:
            if self._stopped:
                raise SnapshotFailed("the node is stopping")
            if self._process is not None and self._process.poll() is None and self._policy != policy:
                self._process.end()  # it waits for an order; idle it cannot be raised, and raised it is in the way
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._process = ChildProcess(
                    "snapshot.background_process", "snapshot.archive.segment_copy", str(policy), stdin=PIPE, stdout=PIPE
                )
                self._policy = policy
            return self._process


def _understood(answer: dict[str, Any], source: str) -> CopiedSegment:
    kind, text = answer.get("kind"), str(answer.get("error", ""))
    if kind == "disk_full":
        raise DiskFull(text)
    if kind == "corrupt":
        raise Corrupt(text, path=source)
    if kind is not None:
        raise WriteFailed(text)
    partitions = {int(p): (int(first), int(last)) for p, (first, last) in answer["partitions"].items()}
    return CopiedSegment(int(answer["bytes"]), str(answer["sha256"]), int(answer["last_chain"]), partitions)
