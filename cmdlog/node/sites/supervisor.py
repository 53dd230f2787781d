"""The node's sites: where durable batches go, and who brings a dead site back.

One rule: a site's death loses nothing. Its batches stay in the sequencer's pipeline until they are answered, and its successor
says from where it continues.

`ProcessSites` runs each site in a process; `InlineSites` runs all engines in the calling process (embedded use).
What the watchdog sees and does:

    the process ended                       -> start another, send its unanswered batches again
    it does nothing for `call_timeout_s`, though it was sent something, or said why it ends and does not end -> kill it
    one call ended it `site_restarts_max` times, or one call runs longer than `call_timeout_s`
                                            -> log a *skip* of that call, durable, then start another
    a read ran longer, or ended it          -> nothing is logged: the owner answers that read, and another site starts
    it said disk_full, io or refused, it keeps ending where no call is to blame, or does not start
                                            -> refuse calls, try again after 1, 2, 4, up to 10 s, or when room came free, until
                                               a site has run what none could; on a full volume a successor serves reads

A site that is tried may end as before, so calls are accepted when it has applied the batch, not when it starts.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson
import structlog

from cmdlog.node.sites.channel import LoopReader, ThreadReader
from cmdlog.node.sites.frames import BatchAnswer, Frame, FrameKind, decode_applied, decode_read_answer, encode_frame
from cmdlog.node.sites.site_child import NotStarted, SiteChild, await_first
from cmdlog.node.sites.site_executor import SitePlan
from cmdlog.node.sites.site_faults import FULL, OutageStage, Remedies, SiteFault, SiteOutage
from cmdlog.node.sites.site_progress import BUSY, INDEX, PARTITION, READ, SiteStall, is_stopped, position_of
from cmdlog.wal.os_errors import NO_ROOM
from cmdlog.wal.process_limits import worker_count
from procedures.execution.failure_trace import FailureTrace
from snapshot.capture.capture import Wish

WATCH_EVERY_S: Final = 0.05  # while a site is out
WATCH_WELL_S: Final = 0.5  # at most, while all are well: one that ends reports itself
GIVE_UP_MIN_S: Final = 10.0  # callers of what is logged wait that long at least, and call_timeout_s: some tries

FirstSite = Callable[[int, Sequence[int]], SiteChild]  # the site of this number, for these partitions, that the start uses

log = structlog.get_logger("cmdlog.sites")


class SiteOwner:
    """What the sites report to: the node. An owner hears of what it defines."""

    def applied(self, partition: int, index: int, answer: BatchAnswer | None) -> None: ...
    def read_done(
        self, partition: int, ident: int, *, as_of: int, status: int, body: bytes, traces: Sequence[FailureTrace]
    ) -> None: ...
    def captured(self, ident: int, report: dict[str, Any]) -> None: ...
    def prepared(self, partition: int, report: dict[str, Any]) -> None: ...
    def site_down(self, partitions: Sequence[int], fault: SiteFault) -> None: ...
    def site_up(self, positions: dict[int, int]) -> None: ...
    def hello(self, partitions: Sequence[int]) -> dict[str, Any]:
        """What a site process must know to serve."""
        raise NotImplementedError

    def plan(self) -> SitePlan:
        """The same for a site in this process."""
        raise NotImplementedError

    def refuse_calls(self, partitions: Sequence[int], fault: SiteFault | None) -> None: ...
    def hold(self, partitions: Sequence[int]) -> None: ...
    def let_go(self, partitions: Sequence[int]) -> None: ...
    def give_up(self, partitions: Sequence[int], fault: SiteFault) -> None: ...
    def free_bytes(self) -> int:
        """What the volume of the directory has left."""
        raise NotImplementedError

    def skip(self, fault: SiteFault) -> None: ...
    def broken(self, error: BaseException) -> None: ...


class ProcessSites:
    """Spawns, feeds and supervises site processes. `batch`, `read`, `capture` may be called from any thread."""

    _owner: SiteOwner  # from `start` on

    def __init__(
        self, groups: Sequence[Sequence[int]], *, call_timeout_s: float, restarts_max: int, start_timeout_s: float,
        first_site: FirstSite = SiteChild.spawn,
    ) -> None:  # fmt: skip
        self._call_timeout_s, self._start_timeout_s, self._first_site = call_timeout_s, start_timeout_s, first_site
        self._sites: list[SiteChild] = []
        self._groups = groups
        self._site_of: dict[int, SiteChild] = {}
        self._remedies = Remedies(restarts_max=restarts_max)
        self._outages: dict[int, SiteOutage] = {}  # by number of the site
        self._lost: queue.SimpleQueue[SiteChild | None] = queue.SimpleQueue()
        self._reader: LoopReader | ThreadReader | None = None
        self._watch = threading.Thread(target=self._watch_loop, name="sites-watch", daemon=True)
        self._stopping = False
        self._notices: list[tuple[bytes, int | None]] = []  # what sites must know before what follows, and whose: None of all
        self._noticing = threading.Lock()

    def start(self, owner: SiteOwner) -> dict[int, int]:
        """Starts every site and waits until it serves; returns each partition's position. Raises: RuntimeError.

        From now on the sites' reports go to `owner`.
        """
        self._owner = owner
        positions: dict[int, int] = {}
        try:
            for number, group in enumerate(self._groups):
                self._sites.append(self._first_site(number, group))
                self._greet(self._sites[number])
            for number in range(len(self._sites)):
                positions |= await_first(self._sites, number, self._greet, self._await_ready)
                self._site_of |= dict.fromkeys(self._groups[number], self._sites[number])
        except BaseException:
            for site in self._sites:
                site.discard()
            raise
        return positions

    def _greet(self, site: SiteChild) -> None:
        site.greet(self._owner.hello(site.partitions))

    def _await_ready(self, site: SiteChild) -> dict[int, int]:
        return site.wait_ready(lambda: self._stopping, self._start_timeout_s)

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
        """Sends a logged skip to the partition's site, before it gets the batch; the owner's hello has it, too."""
        frame = encode_frame(FrameKind.LEAVE_OUT, orjson.dumps(position), partition=partition, ident=index)
        self._add_notice(frame, partition)

    def add_code(self, version: int, bundle: str, *, partitions: int | None) -> None:
        """Sends one more version of the code to every site, before any batch that names it; the owner's hello has it, too."""
        code = {"version": version, "bundle": bundle, "partitions": partitions}
        self._add_notice(encode_frame(FrameKind.CODE, orjson.dumps(code)), None)

    def prepare(self, partition: int, order: Mapping[str, Any]) -> None:
        """Asks for what leads to the tables of some code, kept open; `prepared` gets the report. See `Site.prepare`."""
        self._site_of[partition].channel.send(encode_frame(FrameKind.PREPARE, orjson.dumps(order), partition=partition))

    def drop_prepared(self, partition: int) -> None:
        """Has taken back what was prepared; the partition's site waits for nothing."""
        self._site_of[partition].channel.send(encode_frame(FrameKind.DROP, partition=partition))

    def capture(self, partition: int, ident: int, path: str, wish: Wish | None = None) -> None:
        """Asks for a delta as wished, or else an image of the partition at `path`; `captured` gets the report."""
        request = orjson.dumps({"path": path, "wish": wish and wish.as_json()})
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
            site.popen.end(after_s=self._call_timeout_s)
        if self._reader is not None:
            self._reader.close()
        for site in self._sites:
            site.release()

    def pids(self) -> list[int]:
        return [site.popen.pid for site in self._sites]

    def progress(self, partition: int) -> int:
        """A number that changes as the partition's site gets on with a capture, or a change of tables."""
        return self._site_of[partition].popen.progress()

    def stalls(self, now: float) -> list[SiteStall]:
        """Sites that make no progress, at this reading of the monotonic clock; any thread."""
        return [stall for site in list(self._sites) if (stall := site.find_stall(now)) is not None]

    # -- reading ---------------------------------------------------------------------------------------------------------

    def _register(self, site: SiteChild) -> None:
        assert self._reader is not None
        self._reader.add(site.channel, partial(self._readable, site))

    def _readable(self, site: SiteChild) -> None:
        try:
            frames = site.channel.receive()
            if frames is None:
                self._lose(site)
                return
            for frame in frames:
                if frame.kind is not FrameKind.APPLIED:
                    self._take_report(site, frame)
                    continue
                self._owner.applied(frame.partition, frame.ident, decode_applied(frame.payload) if frame.payload else None)
                if self._outages and (outage := self._outages.get(site.number)) is not None:
                    outage.note_applied(frame.partition, frame.ident)
        except Exception as error:  # noqa: BLE001 - our own bug: continuing would leave callers waiting for ever
            self._owner.broken(error)

    def _take_report(self, site: SiteChild, frame: Frame) -> None:
        if frame.kind is FrameKind.READ_ANSWER:
            as_of, status, body, traces = decode_read_answer(frame.payload)
            self._owner.read_done(frame.partition, frame.ident, as_of=as_of, status=status, body=body, traces=traces)
        elif frame.kind is FrameKind.CAPTURED:
            self._owner.captured(frame.ident, orjson.loads(frame.payload))
        elif frame.kind is FrameKind.PREPARED:
            self._owner.prepared(frame.partition, orjson.loads(frame.payload))
        elif frame.kind is FrameKind.FAULT:
            site.report(SiteFault(**orjson.loads(frame.payload)))

    def _lose(self, site: SiteChild) -> None:
        if not site.lose():
            return
        assert self._reader is not None
        self._reader.remove(site.channel)
        if not self._stopping:
            self._lost.put(site)

    # -- watching --------------------------------------------------------------------------------------------------------

    def _watch_loop(self) -> None:
        well_s = min(WATCH_WELL_S, max(WATCH_EVERY_S, self._call_timeout_s / 20))  # soon enough for one that hangs
        while not self._stopping:
            lost = None
            with contextlib.suppress(queue.Empty):
                lost = self._lost.get(timeout=WATCH_EVERY_S if self._outages else well_s)
            if self._stopping:
                return
            try:
                if lost is not None:
                    self._replace(lost)
                else:
                    self._kill_hung()
                for number, outage in list(self._outages.items()):
                    self._tend_site(number, outage)
            except Exception as error:  # noqa: BLE001 - our own bug: no thread would bring sites back
                self._owner.broken(error)

    def _kill_hung(self) -> None:
        now = time.monotonic()
        for site in self._sites:
            at = site.stands_still(now, within_s=self._call_timeout_s)
            if at is not None:
                site.blame(self._hung(at, signal.SIGSTOP if is_stopped(site.popen.pid) else 0))
                site.popen.kill()

    def _hung(self, at: Sequence[int], stopped_by: int) -> SiteFault:
        """Why a site is killed: its call does not end; or no call runs, and a system call or a capture does not return."""
        if at[BUSY]:
            position, limit = position_of(at), f"call_timeout_s={self._call_timeout_s:g}"
            message = f"the {'read' if at[READ] else 'call'} ran longer than {limit}"
            if position < 0:
                message = f"the change of tables made no progress for {limit}, and has to: start with a higher call_timeout_s"
            return SiteFault("hung", message, at[PARTITION], at[INDEX], position, read=at[READ], signal=stopped_by)
        return SiteFault("hung", f"the site did not read its input for call_timeout_s={self._call_timeout_s:g}")

    def _replace(self, old: SiteChild) -> None:
        fault = old.await_end()
        remedy = self._remedies.choose(fault)
        tell = log.debug if old.number in self._outages else log.warning  # of a site that is tried again it is no news
        tell("site_exited", site=old.number, pid=old.popen.pid, kind=fault.kind, reason=fault.message, index=fault.index)
        self._owner.site_down(old.partitions, fault)
        if remedy == "wait":
            self._note_outage(old, fault)
            if fault.kind == FULL:
                self._start_again(old.number, held=True)
            return
        if remedy == "skip":
            self._owner.skip(replace(fault, attempts=self._remedies.attempts_at(fault)))
        self._start_again(old.number, held=False)

    def _note_outage(self, old: SiteChild, fault: SiteFault) -> None:
        """The site cannot run: calls are refused, and it is tried again later."""
        now = time.monotonic()
        outage = self._outages.get(old.number)
        if outage is None or outage.fault.kind != fault.kind:
            self._owner.refuse_calls(old.partitions, fault)
        if outage is None:
            wait_s = max(self._call_timeout_s, GIVE_UP_MIN_S)
            outage = self._outages[old.number] = SiteOutage(fault, now, give_up_after_s=wait_s)
        outage.fail(fault, now, free_bytes=self._owner.free_bytes())

    def _tend_site(self, number: int, outage: SiteOutage) -> None:
        """What is due of a site that cannot run."""
        partitions, now = self._groups[number], time.monotonic()
        if outage.stage is OutageStage.OVER:
            del self._outages[number]
            self._owner.let_go(partitions)
            self._owner.refuse_calls(partitions, None)
            return
        if outage.give_up(now):
            self._owner.give_up(partitions, outage.fault)
        begun_from = outage.begin_try(now, self._owner.free_bytes)
        if begun_from is OutageStage.DOWN:
            self._start_again(number, held=False)
        elif begun_from is OutageStage.READ_ONLY:
            self._owner.let_go(partitions)

    def _start_again(self, number: int, *, held: bool) -> None:
        """Brings a successor. One that is held serves reads and gets no batch; one that does not start is tried again later."""
        old, site = self._sites[number], None
        known = len(self._notices)  # to the hello
        try:
            site = SiteChild.spawn(number, old.partitions)
            self._greet(site)
            positions = self._await_ready(site)
        except (NotStarted, OSError) as error:
            if site is not None:
                site.discard()
            if not self._stopping:
                self._note_failed(old, error)
            return
        old.release()
        outage = self._outages.get(number)
        if outage is not None:
            outage.start(positions, held=held)
        with self._noticing:
            self._sites[number] = site
            self._site_of |= dict.fromkeys(site.partitions, site)
            self._send_notices(site, self._notices[known:])
        self._register(site)
        if held:
            self._owner.hold(site.partitions)
        else:
            self._owner.let_go(site.partitions)
        self._owner.site_up(positions)

    def _add_notice(self, frame: bytes, partition: int | None) -> None:
        with self._noticing:
            self._notices.append((frame, partition))
            for site in self._sites if self._site_of else ():  # before they serve, their hellos have it
                self._send_notices(site, [(frame, partition)])

    @staticmethod
    def _send_notices(site: SiteChild, notices: Sequence[tuple[bytes, int | None]]) -> None:
        for frame, partition in notices:
            if partition is None or partition in site.partitions:
                site.channel.send(frame)

    def _note_failed(self, old: SiteChild, error: NotStarted | OSError) -> None:
        if isinstance(error, NotStarted):
            fault = error.fault
        else:
            fault = SiteFault(FULL if error.errno in NO_ROOM else "died", str(error))
        outage = self._outages.get(old.number)
        tell = log.debug if outage is not None and outage.tries > 1 else log.error
        tell("site_start_failed", site=old.number, kind=fault.kind, reason=fault.message)
        if outage is not None:  # what none could run is still to be run
            before = outage.fault
            fault = replace(fault, partition=before.partition, index=before.index, position=before.position)
        self._note_outage(old, fault)


def spread(wanted: int, partitions: int) -> list[list[int]]:
    """Partitions of each site process, dealt round; 0 wants one process per core that may be used."""
    sites = min(wanted or worker_count(), partitions)
    return [list(range(number, partitions, sites)) for number in range(sites)]
