"""The node's sites: where durable batches go, and who brings a dead site back.

One rule: a site's death loses nothing. Its batches stay in the sequencer's pipeline until they are answered, and its successor
says from where it continues.

`ProcessSites` runs each site in a process; `InlineSites` runs all engines in the calling process (embedded use).
What the watchdog sees and does:

    the process ended                       -> start another, send its unanswered batches again
    it does nothing for `call_timeout_s`, though it was sent something, or said why it ends and does not end -> kill it
    one call ended it `site_restarts_max` times, or one call runs longer than `call_timeout_s`
                                            -> log a *skip* of that call, durable, then start another
    it said disk_full, io or refused, it keeps ending where no call is to blame, or does not start
                                            -> refuse calls, try again after 1, 2, 4, up to 10 s, or when room came free, until
                                               a site has run what none could; on a full volume a successor serves reads

A site that is tried may end as before, so calls are accepted when it has applied the batch, not when it starts.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

import orjson
import structlog

from cmdlog.node.sites.channel import Channel
from cmdlog.node.sites.frames import READ_ANSWER, BatchAnswer, Frame, FrameKind, decode_applied, encode_frame
from cmdlog.node.sites.partition_health import FULL, ROOM_BYTES, pause_s
from cmdlog.node.sites.site_io import LoopReader, ThreadReader
from procedures.hash_seed import pinned_environment
from snapshot.lineage import Wish

WATCH_EVERY_S: Final = 0.05
START_TIMEOUT_S: Final = 60.0  # of a site: imports, opening its state files
BUSY, PARTITION, INDEX, POSITION, HANDLED, STEPS = range(6)  # words of the progress page; frames handled, steps of captures
PROGRESS_BYTES: Final = 4096
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GIVE_UP_MIN_S: Final = 10.0  # callers of what is logged wait that long at least, and call_timeout_s: some tries
LASTING: Final = (FULL, "io", "refused")  # faults that another try at once would meet again

log = structlog.get_logger("cmdlog.sites")


@dataclass(frozen=True, slots=True)
class SiteFault:
    """Why a site ended. `kind` is one of the executor's environment faults, `refused` (it does not fit), `died` or `hung`."""

    kind: str
    message: str
    partition: int | None = None
    index: int = 0  # of the entry that it was at; 0 = none: it was reading, or idle
    position: int = 0  # of the call in the entry; -1 = none of them: the batch as a whole


class SiteOwner(Protocol):
    """What the sites report to: the node."""

    def applied(self, partition: int, index: int, answer: BatchAnswer | None) -> None: ...
    def read_done(self, partition: int, ident: int, *, as_of: int, status: int, body: bytes) -> None: ...
    def captured(self, ident: int, report: dict[str, Any]) -> None: ...
    def site_down(self, partitions: Sequence[int], fault: SiteFault) -> None: ...
    def site_up(self, positions: dict[int, int]) -> None: ...
    def hello(self, partitions: Sequence[int]) -> dict[str, Any]: ...
    def refuse_calls(self, partitions: Sequence[int], fault: SiteFault | None) -> None: ...
    def hold(self, partitions: Sequence[int]) -> None: ...
    def let_go(self, partitions: Sequence[int]) -> None: ...
    def give_up(self, partitions: Sequence[int], fault: SiteFault) -> None: ...
    def free_bytes(self) -> int: ...
    def skip(self, fault: SiteFault) -> None: ...
    def broken(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class _Process:
    """One site process. Owned by the watch thread; the reader touches `channel` alone."""

    number: int
    partitions: Sequence[int]
    popen: subprocess.Popen[bytes]
    channel: Channel
    progress: memoryview  # [512] uint64, written by the site
    fault: SiteFault | None = None
    lost: bool = False
    seen: tuple[int, ...] = ()
    seen_at: float = 0.0
    page: mmap.mmap | None = field(default=None, repr=False)
    life: int = -1  # write end of a pipe: the kernel ends the site when no process holds it any more


@dataclass(slots=True)
class _Wait:
    """A site that cannot run, from its first fault until a successor has run what it could not. Owned by the watch thread."""

    fault: SiteFault
    since: float
    tries: int = 0
    due: float = 0.0  # when the next try is; infinite while one is under way
    free_bytes: int = 0  # of the volume when it was tried last
    held: bool = False  # a successor serves reads, and gets no batch before the next try
    given_up: bool = False  # callers of what is logged were answered
    passed: bool = False  # the batch is applied; set by the reader


class NotStarted(RuntimeError):
    """A site ended before it served, or was silent; `fault` is what it said."""

    def __init__(self, fault: SiteFault) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.exit_code = {FULL: 14, "io": 15}.get(fault.kind, 1)
        self.hint = "free space on the volume of the directory, then start again" if fault.kind == FULL else ""


class ProcessSites:
    """Spawns, feeds and supervises site processes. `batch`, `read`, `capture` may be called from any thread."""

    def __init__(self, owner: SiteOwner, groups: Sequence[Sequence[int]], *, call_timeout_s: float, restarts_max: int) -> None:
        self._owner = owner
        self._call_timeout_s, self._restarts_max = call_timeout_s, restarts_max
        self._sites: list[_Process] = []
        self._groups = groups
        self._site_of: dict[int, _Process] = {}
        self._deaths: Counter[tuple[int, int, int]] = Counter()  # per partition, index, position
        self._skipped: set[tuple[int, int, int]] = set()
        self._waits: dict[int, _Wait] = {}  # by number of the site
        self._lost: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        self._reader: LoopReader | ThreadReader | None = None
        self._watch = threading.Thread(target=self._watch_loop, name="sites-watch", daemon=True)
        self._stopping = False

    def start(self) -> dict[int, int]:
        """Starts every site and waits until it serves; returns each partition's position. Raises: RuntimeError."""
        positions: dict[int, int] = {}
        try:
            for number, group in enumerate(self._groups):
                self._sites.append(_spawn(number, group))
            for site in self._sites:
                _hello(site, self._owner.hello(site.partitions))
            for site in self._sites:
                positions |= _wait_ready(site, lambda: False)
                for partition in site.partitions:
                    self._site_of[partition] = site
        except BaseException:
            for site in self._sites:
                _discard(site)
            raise
        return positions

    def attach(self, loop: AbstractEventLoop | None) -> None:
        """From now on sites are read, by this event loop or (None) by a thread of its own, and watched."""
        self._reader = ThreadReader() if loop is None else LoopReader(loop)
        for site in self._sites:
            self._register(site)
        self._watch.start()

    def batch(self, partition: int, record: bytes, index: int) -> None:
        self._site_of[partition].channel.send(encode_frame(FrameKind.ENTRY, record, partition=partition, ident=index))

    def read(self, partition: int, ident: int, calls: bytes) -> None:
        self._site_of[partition].channel.send(encode_frame(FrameKind.READ, calls, partition=partition, ident=ident))

    def leave_out(self, partition: int, index: int, position: int) -> None:
        """Tells a running site of a logged skip, before it gets the batch; one that starts later hears of it in its hello."""
        site = self._site_of.get(partition)
        if site is not None:
            payload = orjson.dumps(position)
            site.channel.send(encode_frame(FrameKind.LEAVE_OUT, payload, partition=partition, ident=index))

    def capture(self, partition: int, ident: int, path: str, wish: Wish | None = None) -> None:
        """Asks for a delta as wished, or else an image of the partition at `path`; `captured` gets the report."""
        request = orjson.dumps({"path": path, "wish": wish})
        self._site_of[partition].channel.send(encode_frame(FrameKind.CAPTURE, request, partition=partition, ident=ident))

    def pace(self, partition: int, share: float) -> None:
        """The share of its time that a busy site may give to the capture under way; nothing to it when there is none."""
        self._site_of[partition].channel.send(encode_frame(FrameKind.PACE, orjson.dumps(share), partition=partition))

    def close(self) -> None:
        """Ends every site after what it was sent; kills one that does not end."""
        self._stopping = True
        self._lost.put(None)
        if self._watch.is_alive():
            self._watch.join()
        for site in self._sites:
            site.channel.send(encode_frame(FrameKind.STOP))
        for site in self._sites:
            try:
                site.popen.wait(timeout=self._call_timeout_s)
            except subprocess.TimeoutExpired:
                site.popen.kill()
                site.popen.wait()
        if self._reader is not None:
            self._reader.close()
        for site in self._sites:
            _release(site)

    def pids(self) -> list[int]:
        return [site.popen.pid for site in self._sites]

    # -- reading ---------------------------------------------------------------------------------------------------------

    def _register(self, site: _Process) -> None:
        assert self._reader is not None
        self._reader.add(site.channel, lambda: self._readable(site))

    def _readable(self, site: _Process) -> None:
        try:
            frames = site.channel.receive()
            if frames is None:
                self._lose(site)
                return
            for frame in frames:
                self._frame(site, frame)
        except Exception as error:  # noqa: BLE001 - our own bug: continuing would leave callers waiting for ever
            self._owner.broken(error)

    def _frame(self, site: _Process, frame: Frame) -> None:
        if frame.kind is FrameKind.APPLIED:
            answer = decode_applied(frame.payload) if frame.payload else None
            self._owner.applied(frame.partition, frame.ident, answer)
            if self._waits:
                self._note_passed(site, frame)
        elif frame.kind is FrameKind.READ_ANSWER:
            as_of, status = READ_ANSWER.unpack_from(frame.payload)
            body = frame.payload[READ_ANSWER.size :]
            self._owner.read_done(frame.partition, frame.ident, as_of=as_of, status=status, body=body)
        elif frame.kind is FrameKind.CAPTURED:
            self._owner.captured(frame.ident, orjson.loads(frame.payload))
        elif frame.kind is FrameKind.FAULT:
            site.fault = SiteFault(**orjson.loads(frame.payload))

    def _note_passed(self, site: _Process, frame: Frame) -> None:
        wait = self._waits.get(site.number)
        if wait is not None and frame.partition == wait.fault.partition and frame.ident >= wait.fault.index:
            wait.passed = True

    def _lose(self, site: _Process) -> None:
        if site.lost:
            return
        site.lost = True
        assert self._reader is not None
        self._reader.remove(site.channel)
        if not self._stopping:
            self._lost.put(site)

    # -- watching --------------------------------------------------------------------------------------------------------

    def _watch_loop(self) -> None:
        while not self._stopping:
            lost = None
            with contextlib.suppress(queue.Empty):
                lost = self._lost.get(timeout=WATCH_EVERY_S)
            if self._stopping:
                return
            try:
                if lost is not None:
                    self._replace(lost)
                else:
                    self._kill_hung()
                for number, wait in list(self._waits.items()):
                    self._tend(number, wait)
            except Exception as error:  # noqa: BLE001 - our own bug: nobody would bring sites back any more
                self._owner.broken(error)

    def _kill_hung(self) -> None:
        now = time.monotonic()
        for site in self._sites:
            at = tuple(site.progress[: STEPS + 1])
            idle = not at[BUSY] and site.fault is None and site.channel.frames_sent == at[HANDLED]
            if at != site.seen or idle:
                site.seen, site.seen_at = at, now
            elif now - site.seen_at > self._call_timeout_s:
                site.fault = site.fault or self._hung(at)
                site.popen.kill()

    def _hung(self, at: Sequence[int]) -> SiteFault:
        """Why a site is killed: its call does not end; or no call runs, and a system call or a capture does not return."""
        if at[BUSY]:
            message = f"the call ran longer than call_timeout_s={self._call_timeout_s:g}"
            return SiteFault("hung", message, at[PARTITION], at[INDEX], at[POSITION])
        return SiteFault("hung", f"the site did not read its input for call_timeout_s={self._call_timeout_s:g}")

    def _replace(self, old: _Process) -> None:
        fault = self._why(old)
        remedy = self._remedy(fault)
        tell = log.debug if old.number in self._waits else log.warning  # of a site that is tried again it is no news
        tell("site_exited", site=old.number, pid=old.popen.pid, kind=fault.kind, reason=fault.message, index=fault.index)
        self._owner.site_down(old.partitions, fault)
        if remedy == "wait":
            self._note_wait(old, fault)
            if fault.kind == FULL:
                self._start_again(old.number, held=True)
            return
        if remedy == "skip":
            self._owner.skip(fault)
        self._start_again(old.number, held=False)

    def _note_wait(self, old: _Process, fault: SiteFault) -> None:
        """The site cannot run: calls are refused, and when it is tried again."""
        now = time.monotonic()
        wait = self._waits.get(old.number)
        if wait is None or wait.fault.kind != fault.kind:
            self._owner.refuse_calls(old.partitions, fault)
        if wait is None:
            wait = self._waits[old.number] = _Wait(fault, now)
        wait.fault, wait.held = fault, False
        wait.tries += 1
        wait.due, wait.free_bytes = now + pause_s(wait.tries), self._owner.free_bytes()

    def _tend(self, number: int, wait: _Wait) -> None:
        """What is due of a site that cannot run."""
        partitions, now = self._groups[number], time.monotonic()
        if wait.passed:
            del self._waits[number]
            if wait.held:
                self._owner.let_go(partitions)
            self._owner.refuse_calls(partitions, None)
            return
        if not wait.given_up and now - wait.since > max(self._call_timeout_s, GIVE_UP_MIN_S):
            wait.given_up = True
            self._owner.give_up(partitions, wait.fault)
        room_came = now >= wait.due - pause_s(wait.tries) + pause_s(1) and self._room_came(wait)
        if now < wait.due and not room_came:
            return
        wait.due = math.inf
        if not wait.held:
            self._start_again(number, held=False)
            return
        wait.held = False
        if not wait.fault.index:  # it was at no batch: whoever serves reads has done what there is to do
            wait.passed = True
        self._owner.let_go(partitions)

    def _room_came(self, wait: _Wait) -> bool:
        return wait.fault.kind == FULL and self._owner.free_bytes() >= wait.free_bytes + ROOM_BYTES

    def _start_again(self, number: int, *, held: bool) -> None:
        """Brings a successor. One that is held serves reads and gets no batch; one that does not start is tried again later."""
        old, site = self._sites[number], None
        try:
            site = _spawn(number, old.partitions)
            _hello(site, self._owner.hello(site.partitions))
            positions = _wait_ready(site, lambda: self._stopping)
        except (NotStarted, OSError) as error:
            if site is not None:
                _discard(site)
            if not self._stopping:
                self._note_failed(old, error)
            return
        _release(old)
        self._sites[number] = site
        for partition in site.partitions:
            self._site_of[partition] = site
        self._register(site)
        if held:
            self._waits[number].held = True
            self._owner.hold(site.partitions)
        else:
            self._owner.let_go(site.partitions)
        self._owner.site_up(positions)
        wait = self._waits.get(number)
        if wait is not None and (wait.fault.partition is None or positions[wait.fault.partition] >= wait.fault.index):
            wait.passed = not held or bool(wait.fault.index)

    def _note_failed(self, old: _Process, error: NotStarted | OSError) -> None:
        if isinstance(error, NotStarted):
            fault = error.fault
        else:
            fault = SiteFault(FULL if error.errno in NO_ROOM else "died", str(error))
        wait = self._waits.get(old.number)
        tell = log.debug if wait is not None and wait.tries > 1 else log.error
        tell("site_start_failed", site=old.number, kind=fault.kind, reason=fault.message)
        if wait is not None:  # what none could run is still to be run
            fault = replace(fault, partition=wait.fault.partition, index=wait.fault.index, position=wait.fault.position)
        self._note_wait(old, fault)

    def _why(self, site: _Process) -> SiteFault:
        """What the site said before it ended, or what its end and its progress page say."""
        try:
            code = site.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            site.popen.kill()
            code = site.popen.wait()
        if site.fault is not None:
            return site.fault
        busy, partition, index, position = site.progress[:4]
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return SiteFault("died", reason, partition if busy else None, index, position)

    def _remedy(self, fault: SiteFault) -> Literal["restart", "skip", "wait"]:
        """What is done before a successor starts. Only a call that ran as part of an entry can be skipped, and only once."""
        if fault.kind in LASTING:
            return "wait"
        if fault.partition is None or not fault.index:
            return "restart"
        where = (fault.partition, fault.index, fault.position)
        self._deaths[where] += 1
        if fault.kind != "hung" and self._deaths[where] < self._restarts_max:
            return "restart"
        if fault.position < 0 or where in self._skipped:
            return "wait"
        self._skipped.add(where)
        return "skip"


def _spawn(number: int, partitions: Sequence[int]) -> _Process:
    ours, theirs = socket.socketpair()
    page_fd = os.memfd_create("cmdlog-progress")
    os.ftruncate(page_fd, PROGRESS_BYTES)
    page = mmap.mmap(page_fd, PROGRESS_BYTES)
    life_r, life_w = os.pipe()
    popen = subprocess.Popen(
        [sys.executable, "-m", "cmdlog.node.sites.site_main", str(theirs.fileno()), str(page_fd), str(life_r)],
        pass_fds=(theirs.fileno(), page_fd, life_r),
        stdin=subprocess.DEVNULL,
        env=pinned_environment(),
        process_group=0,  # Ctrl-C reaches the terminal's whole group, and a site that is still importing cannot ignore it yet
    )
    theirs.close()
    os.close(page_fd)
    os.close(life_r)
    return _Process(number, partitions, popen, Channel(ours), memoryview(page).cast("Q"), page=page, life=life_w)


def _hello(site: _Process, hello: dict[str, Any]) -> None:
    site.channel.send(encode_frame(FrameKind.HELLO, orjson.dumps(hello, option=orjson.OPT_NON_STR_KEYS)))


def _wait_ready(site: _Process, given_up: Callable[[], bool]) -> dict[int, int]:
    """The site's positions. Raises: NotStarted when it ends or is silent instead, or the caller has given up."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(site.channel, selectors.EVENT_READ)
        while time.monotonic() < deadline and not given_up():
            site.channel.flush()
            selector.select(timeout=WATCH_EVERY_S)
            frames = site.channel.receive()
            if frames is None:
                break
            for frame in frames:
                if frame.kind is FrameKind.FAULT:
                    site.popen.wait(timeout=START_TIMEOUT_S)
                    told = orjson.loads(frame.payload)
                    raise NotStarted(SiteFault(told["kind"], told["message"]))
                positions = orjson.loads(frame.payload)["positions"]
                return {int(partition): index for partition, index in positions.items()}
    site.popen.kill()
    raise NotStarted(SiteFault("died", f"site {site.number} did not start (exit code {site.popen.wait()}); see its output above"))


def _discard(site: _Process) -> None:
    site.popen.kill()
    site.popen.wait()
    _release(site)


def _release(site: _Process) -> None:
    """The process has ended."""
    os.close(site.life)
    site.channel.close()
    site.progress.release()
    if site.page is not None:
        site.page.close()


def spread(wanted: int, partitions: int) -> list[list[int]]:
    """Partitions of each site process, dealt round; 0 wants one process per core."""
    sites = min(wanted or os.cpu_count() or 1, partitions)
    return [list(range(number, partitions, sites)) for number in range(sites)]
