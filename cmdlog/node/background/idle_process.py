"""Processes that take the time that nobody else wants, for segments and images: how one begins, and how long it may wait.

One rule: what makes way for others must not be what others wait for. Being nice is not enough: what wakes up waits for the end of
a nice process's slice, 3 ms, and the p99 of calls at half load was half as long again. A process of SCHED_IDLE makes way, if it
rests often (`snapshot.background_io`), but gets nothing where others want all there is, and cannot be raised again without
privilege. So it is given up, and a nice one begins again: when the log cannot wait any longer, or when it takes longer than its
bytes should.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from cmdlog.child_process import PIPE, ChildEnd, ChildProcess, describe_end, last_answer
from cmdlog.wal.errors import Corrupt, DiskFull, WriteFailed
from snapshot.archive.segment_copy import CopiedSegment
from snapshot.errors import SnapshotFailed

IDLE_S: Final = 10.0  # of one that takes only time that nobody else wants, beside what its bytes need …
ASKED_S: Final = 2.0  # … the same of one that somebody waits for …
IDLE_BYTES_PER_S_MIN: Final = 5e6  # … a fifth of what a free core does; slower, it may never end on a machine that is always busy
COPY_TIMEOUT_S: Final = 600.0  # a segment at the speed of a floppy disk
SEAL_TIMEOUT_S: Final = 3600.0  # an hour is more than any disk needs

T = TypeVar("T")


def idle_first(
    run: Callable[[int, Callable[[], bool]], T | None],
    *,
    size_bytes: int,
    pressing: Callable[[], bool],
    timeout_s: float,
    asked: bool = False,
    again: Callable[[], bool] = lambda: True,
) -> T | None:
    """What `run(policy, given_up)` makes of it, with SCHED_IDLE first unless it presses, then like everybody else.

    `run` returns None when it was given up, and has ended what it began. `asked`: somebody has asked for it, and waits.
    `again` is asked whether there is still something to do.
    None: it took too long, or there was nothing more to do.
    """
    if not pressing():
        end = time.monotonic() + (ASKED_S if asked else IDLE_S) + size_bytes / IDLE_BYTES_PER_S_MIN
        done = run(os.SCHED_IDLE, lambda: pressing() or time.monotonic() > end)
        if done is not None or not again():
            return done
    end = time.monotonic() + timeout_s
    return run(os.SCHED_OTHER, lambda: time.monotonic() > end)


class SegmentCopyProcess:
    """Copies segments into the archive (`snapshot.archive.segment_copy`). One caller at a time; `stop` from any thread.

    It is started when the first segment is to be copied, and again after it has died; a node that archives nothing has none.
    """

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
                    "snapshot.background_io", "snapshot.archive.segment_copy", str(policy), stdin=PIPE, stdout=PIPE
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


class SealProcess:
    """Runs `snapshot.capture.seal`, which checks an image, makes it durable and gives it its name: one process at a time.

    `seal` belongs to one thread, `stop` to any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._stopping = False

    def seal(
        self, temporary: str, final: str, facts: Mapping[str, Any], pressing: Callable[[], bool], *, asked: bool = False
    ) -> None:
        """On return the snapshot `final` is durable and verified.

        `pressing` is asked now and then: once it says so, the process takes its share of the processor. `asked`: somebody waits.
        Raises: SnapshotFailed; the image at `temporary` is then whole, gone, or at `final` and nothing relies on it.
        """
        facts = {**facts, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        order = orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)
        size = sum(entry.stat().st_size for entry in os.scandir(temporary))
        ended = idle_first(
            partial(self._run, temporary, final, order),
            size_bytes=size,
            pressing=pressing,
            asked=asked,
            timeout_s=SEAL_TIMEOUT_S,
            again=lambda: _take_back(temporary, final),
        )
        if ended is None:
            raise SnapshotFailed("sealing took too long")
        said = last_answer(ended.output) or {}
        if ended.code != 0 or "error" in said:
            raise SnapshotFailed(str(said.get("error", f"the sealing process ended: {describe_end(ended.code)}")))

    def stop(self) -> None:
        """Ends the process under way; no other one begins."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()

    def _run(self, temporary: str, final: str, order: bytes, policy: int, given_up: Callable[[], bool]) -> ChildEnd | None:
        """None when it was given up and ended."""
        with self._lock:
            if self._stopping:
                raise SnapshotFailed("the node is stopping")
            arguments = ("snapshot.capture.seal", temporary, final, str(policy))
            process = self._process = ChildProcess("snapshot.background_io", *arguments, stdin=order, stdout=PIPE)
        try:
            return process.finish(given_up=given_up)
        finally:
            with self._lock:
                self._process = None
            process.close()


def _take_back(temporary: str, final: str) -> bool:
    """A process was ended after giving the name, before it had read all back: what it made is sealed from the beginning."""
    if os.path.exists(final):
        os.rename(final, temporary)
    return os.path.exists(temporary)
