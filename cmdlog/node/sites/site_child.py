"""One site process as its parent sees it: how it starts, what it says, whether it moves, why it ended.

One rule: nothing here decides. The supervisor (`cmdlog.node.sites.supervisor`) says when a site starts, is killed or is replaced.

Parent and site share a page, in which the site says what it is at: a site that can say nothing any more is still judged by it.
"""

from __future__ import annotations

import math
import mmap
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
import structlog

from cmdlog.child_process import ChildProcess, describe_end, describe_late_start, hint_at_end
from cmdlog.node.sites.channel import Channel
from cmdlog.node.sites.frames import FrameKind, encode_frame
from cmdlog.node.sites.site_faults import FULL, SiteFault
from cmdlog.node.sites.site_progress import (
    BUSY,
    HANDLED,
    INDEX,
    PAGE_WORDS,
    PARTITION,
    PROGRESS_BYTES,
    READ,
    VISIBLE_S,
    SiteStall,
    StallKind,
    is_stopped,
    position_of,
)
from cmdlog.operator_error import OperatorError
from procedures.execution.hash_seed import PINNED

REPORTED_TIMEOUT_S: Final = 60.0  # of a site that has reported why it does not start
START_LOOK_S: Final = 0.05  # at whether the caller has given up
END_TIMEOUT_S: Final = 5.0  # of a site whose socket is closed: it has nothing left to do

T = TypeVar("T")

log = structlog.get_logger("cmdlog.sites")


@dataclass(slots=True)
class SiteChild:
    """One site process. Owned by the watch thread; the reader touches `channel`, `report` and `lose` alone, others only look."""

    number: int
    partitions: Sequence[int]
    popen: ChildProcess
    channel: Channel
    progress: memoryview  # [512] uint64, written by the site
    fault: SiteFault | None = None
    lost: bool = False
    silent_since: float = math.inf  # when it was lost, or first seen stopped
    seen: tuple[int, ...] = ()
    seen_at: float = 0.0
    page: mmap.mmap | None = field(default=None, repr=False)

    @classmethod
    def spawn(cls, number: int, partitions: Sequence[int]) -> SiteChild:
        """Starts the process; it waits for its hello. Raises: OSError."""
        ours, theirs = socket.socketpair()
        page_fd = os.memfd_create("cmdlog-progress")
        os.ftruncate(page_fd, PROGRESS_BYTES)
        page = mmap.mmap(page_fd, PROGRESS_BYTES)
        descriptors = theirs.fileno(), page_fd
        popen = ChildProcess("cmdlog.node.sites.site_main", *map(str, descriptors), pass_fds=descriptors, hash_seed=PINNED)
        theirs.close()
        os.close(page_fd)
        return cls(number, partitions, popen, Channel(ours), memoryview(page).cast("Q"), page=page)

    def assign(self, number: int, partitions: Sequence[int]) -> None:
        """Before `greet`: which site it will be."""
        self.number, self.partitions = number, partitions

    def greet(self, hello: dict[str, Any]) -> None:
        """Sends what the site needs to serve."""
        self.channel.send(encode_frame(FrameKind.HELLO, orjson.dumps(hello, option=orjson.OPT_NON_STR_KEYS)))

    def try_code(self, order: Mapping[str, Any]) -> None:
        """Before `greet`: has it load code that is not logged yet (`trial_load.trial_order`)."""
        self.channel.send(encode_frame(FrameKind.TRY, orjson.dumps(order)))

    def wait_tried(self, timeout_s: float) -> str:
        """Why it cannot load that code; "" when it has. Raises: NotStarted, as `wait_ready`."""
        return str(self._wait_answer(lambda: False, timeout_s)["problem"])

    def ended_by_import(self) -> str:
        """How the code that it tried ended the process, which has ended; "" when it was something else."""
        if not self.progress[BUSY]:
            return ""
        code = self.popen.returncode
        return self.popen.last_error() or (describe_end(code) if code >= 0 else "")

    def wait_ready(self, given_up: Callable[[], bool], timeout_s: float) -> dict[int, int]:
        """The site's positions. Raises: NotStarted when it ends or is silent instead, or the caller has given up."""
        positions = self._wait_answer(given_up, timeout_s)["positions"]
        return {int(partition): index for partition, index in positions.items()}

    def _wait_answer(self, given_up: Callable[[], bool], timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            while time.monotonic() < deadline and not given_up():
                self.channel.flush()
                selector.select(timeout=START_LOOK_S)
                frames = self.channel.receive()
                if frames is None:
                    break
                for frame in frames:  # one at most: it was asked for one answer
                    if frame.kind is FrameKind.FAULT:
                        self.popen.end(after_s=REPORTED_TIMEOUT_S)
                        told = orjson.loads(frame.payload)
                        raise NotStarted(SiteFault(told["kind"], told["message"]))
                    answer: dict[str, Any] = orjson.loads(frame.payload)
                    return answer
        late = given_up() or time.monotonic() >= deadline
        code = self.popen.end(after_s=0.0 if late else REPORTED_TIMEOUT_S)
        why = self.popen.last_error()
        killed_by = 0 if why or late else max(0, -code)
        why = why or (describe_late_start(timeout_s) if late else f"it reported no error and ended: {describe_end(code)}")
        raise NotStarted(SiteFault("died", f"site {self.number} did not start: {why}"), killed_by=killed_by)

    def report(self, fault: SiteFault) -> None:
        """The site says why it ends."""
        self.fault = fault

    def blame(self, fault: SiteFault) -> None:
        """Why it is ended, unless it said something itself."""
        self.fault = self.fault or fault

    def lose(self) -> bool:
        """Nothing more comes from it; False if that was known."""
        before, self.lost = self.lost, True
        self.silent_since = math.inf
        return not before

    def stands_still(self, now: float, *, within_s: float) -> tuple[int, ...] | None:
        """Its progress page, if that has not changed for so long although the site has something to do."""
        at = tuple(self.progress[:PAGE_WORDS])
        idle = not at[BUSY] and self.fault is None and self.channel.frames_sent == at[HANDLED]
        if at != self.seen or idle:
            self.seen, self.seen_at = at, now
        return at if now - self.seen_at > within_s else None

    def find_stall(self, now: float, *, within_s: float = VISIBLE_S) -> SiteStall | None:
        """What it is at, if it has made no progress for so long although it should, or could not; any thread may look."""
        stopped = not self.lost and is_stopped(self.popen.pid)
        self.silent_since = min(self.silent_since, now) if stopped or self.lost else math.inf
        idle_s = max(0.0, now - self.silent_since)
        if self.lost:
            return SiteStall(self.number, "restarting", idle_s, self.partitions)
        try:
            at = self.stands_still(now, within_s=within_s)
        except ValueError:  # the page was released at this moment
            return None
        if at is None:
            return SiteStall(self.number, "stopped", idle_s, self.partitions) if stopped else None
        kind: StallKind = "stopped" if stopped else "running" if at[BUSY] else "silent"
        seconds = max(now - self.seen_at, idle_s)
        if not at[BUSY]:
            return SiteStall(self.number, kind, seconds, self.partitions)
        position = position_of(at) if at[INDEX] else -1
        return SiteStall(self.number, kind, seconds, self.partitions, at[PARTITION], at[INDEX], position)

    def await_end(self) -> SiteFault:
        """What the site said before it ended, or what its end and its progress page say."""
        code = self.popen.end(after_s=END_TIMEOUT_S)
        if self.fault is not None:
            return self.fault
        at, reason = self.progress, describe_end(code)
        if not at[BUSY]:
            return SiteFault("died", reason, None, at[INDEX], position_of(at))
        return SiteFault("died", reason, at[PARTITION], at[INDEX], position_of(at), read=at[READ], signal=max(0, -code))

    def discard(self) -> None:
        """Ends the process, and gives up what it used."""
        self.popen.end()
        self.release()

    def release(self) -> None:
        """Gives up what the process used; it has ended."""
        self.popen.close()
        self.channel.close()
        self.progress.release()
        if self.page is not None:
            self.page.close()


class NotStarted(OperatorError, RuntimeError):
    """A site ended before it served, or was silent; `fault` is what it said. `killed_by`: the signal that ended it, or 0."""

    def __init__(self, fault: SiteFault, *, killed_by: int = 0) -> None:
        hint = "free space on the volume of the directory, then start again" if fault.kind == FULL else ""
        hint = hint or hint_at_end(-killed_by)
        self.killed_by = killed_by
        super().__init__(fault.message, hint=hint, exit_code={FULL: 14, "io": 15}.get(fault.kind, 1))
        self.fault = fault


def await_first(sites: list[SiteChild], number: int, order: Callable[[SiteChild], None], wait: Callable[[SiteChild], T]) -> T:
    """What a site answers to its first order, as the node starts. One that is killed gets a second attempt, as later.

    Raises: NotStarted.
    """
    site = sites[number]
    try:
        return wait(site)
    except NotStarted as error:
        if not error.killed_by:
            raise
        log.warning("site_start_failed", site=number, kind=error.fault.kind, reason=error.fault.message)
    site.discard()
    site = sites[number] = SiteChild.spawn(number, site.partitions)
    order(site)
    return wait(site)
