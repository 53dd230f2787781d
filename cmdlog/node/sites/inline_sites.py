"""Sites in the calling process: embedded use, where procedures of a script or notebook must work.

One rule: engines are driven by one thread at a time, the one that holds the drive. A caller that has just made its own batch
durable drives at once and saves two thread switches (about 30 us each); under load the site thread does. It also does what cannot
be done now, on a full volume say: a caller waits where Ctrl-C ends the wait, and hears after a while that its call is logged, and
not executed yet.

A call cannot be killed from outside in one's own process, so `call_timeout_s` does not apply here.
"""

from __future__ import annotations

import struct
import threading
import time
from asyncio import AbstractEventLoop
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson
import structlog

from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.site_executor import TABLES_CHANGE, Site
from cmdlog.node.sites.site_faults import LASTING, SiteFault, pause_s
from cmdlog.node.sites.site_progress import VISIBLE_S, SiteStall
from cmdlog.node.sites.supervisor import SiteOwner
from cmdlog.wal.format.record import decode_record
from procedures.code.bundle import Bundle
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Applied
from snapshot.capture.capture import Wish

STOP_LOOK_S: Final = 0.05  # how often a thread that waits for room looks whether the node stops
GIVE_UP_S: Final = 10.0  # callers of what is logged wait that long; after it they hear that the outcome is unknown

Work = Callable[[], None]

log = structlog.get_logger("cmdlog.sites")


class InlineSites:
    """One `Site` with all partitions. `batch` and `read` may be called from any thread."""

    _owner: SiteOwner  # from `start` on

    def __init__(self, *, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._site: Site | None = None
        self._work: deque[Work] = deque()
        self._drive = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="site", daemon=True)
        self._helper: int | None = None  # thread that will drive by itself and needs no waking
        self._stuck = False  # what is next cannot be done now: it is the site thread's
        self._attempts: Counter[tuple[int, int, int]] = Counter()
        self._running: tuple[int, int, int, float] | None = None  # partition, index (0: a read), position, since when
        self._partitions = 0
        self._steps = 0  # of captures
        self._stopping = False

    def start(self, owner: SiteOwner) -> dict[int, int]:
        """Opens the state files; returns each partition's position. From now on the site's reports go to `owner`."""
        self._owner = owner
        self._site = self._make_site()
        self._partitions = len(self._site.positions)
        return self._site.positions

    def attach(self, _loop: AbstractEventLoop | None) -> None:
        """From now on work is done."""
        self._thread.start()

    def batch(self, partition: int, record: bytes, index: int) -> None:
        self._work.append(partial(self._apply, partition, record, index))
        if self._helper != threading.get_ident():
            self._wake.release()

    def read(self, partition: int, ident: int, calls: bytes) -> None:
        self._put(lambda: self._read(partition, ident, calls))

    def leave_out(self, partition: int, index: int, position: int) -> None:
        """A logged skip of a call that comes later."""
        self._put(lambda: self._current.leave_out(partition, index, position))

    def add_code(self, version: int, bundle: str, *, partitions: int | None) -> None:
        """One more version of the code, before any batch that names it; the owner's plan has it, too."""
        self._put(lambda: self._current.run_code(version, Bundle.from_bytes(bundle.encode()), partitions=partitions))

    def prepare(self, partition: int, order: Mapping[str, Any]) -> None:
        """Asks for what leads to the tables of some code, kept open; `prepared` gets the report. See `Site.prepare`."""
        self._put(lambda: self._prepare(partition, order))

    def drop_prepared(self, partition: int) -> None:
        self._put(lambda: self._current.drop_prepared(partition))

    def capture(self, partition: int, ident: int, path: str, wish: Wish | None = None) -> None:
        self._put(lambda: self._current.capture(partition, ident, path, wish))

    def progress(self, _partition: int) -> int:
        """A number that changes as the site gets on with a capture."""
        return self._steps

    def pace(self, partition: int, share: float) -> None:
        """The share of its time that the site may give to the capture under way."""
        self._put(lambda: self._current.pace(partition, share))

    def helped_by(self, thread: int) -> None:
        """The thread that is about to call `drive`, so no other thread needs waking for what it brings."""
        self._helper = thread

    def drive(self) -> None:
        """Does the work that is there, unless another thread is doing it, which will see it."""
        self._helper = None
        while self._work and not self._stuck:
            if not self._drive.acquire(blocking=False):
                return
            try:
                self._do_all()
            finally:
                self._drive.release()

    def close(self) -> None:
        """Ends after the work that is there."""
        self._stopping = True
        self._wake.release()
        if self._thread.is_alive():
            self._thread.join()
        if self._site is not None:
            self._site.close()

    def pids(self) -> list[int]:
        return []

    def stalls(self, now: float) -> list[SiteStall]:
        """The call that runs, if it has run for long; any thread."""
        running = self._running
        if running is None or now - running[3] < VISIBLE_S:
            return []
        partition, index, position, since = running
        partitions = range(self._partitions)
        return [SiteStall(0, "running", now - since, partitions, partition, index, position if index else -1)]

    @property
    def _current(self) -> Site:
        if self._site is None:
            raise RuntimeError("sites are not started")
        return self._site

    @property
    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _put(self, work: Work) -> None:
        self._work.append(work)
        if self._helper != threading.get_ident():
            self._wake.release()

    def _run(self) -> None:
        while not self._stopping or self._work:
            if not self._work:  # a caller who came while this thread held the drive left its work here, and woke nobody
                self._wake.acquire(timeout=None if self._site is None else self._site.idle_pause_s)
            with self._drive:
                self._do_all()
                if self._site is not None:
                    self._site.empty_logs()
                self._step_captures()

    def _do_all(self) -> None:
        while self._work and (not self._stuck or self._is_own_thread):
            try:
                self._work.popleft()()
                site = self._site
                if site is not None and site.captures:
                    self._step_captures()
                if site is not None and site.gates and not self._is_own_thread:
                    self._wake.release()  # that thread looks again when no call comes
            except Exception as error:  # noqa: BLE001 - the batch does not fit, or our own bug: callers must not wait for ever
                self._owner.broken(error)

    def _step_captures(self) -> None:
        site = self._site
        if site is not None and site.captures:
            self._steps += 1
            for _partition, ident, report in site.step_captures():
                self._owner.captured(ident, report)

    def _make_site(self) -> Site:
        return Site(self._owner.plan(), self._begin_call)

    def _begin_call(self, position: int) -> None:
        """The executor is at this call of its batch."""
        if self._running is not None:
            self._running = (*self._running[:2], position, time.monotonic())

    def _apply(self, partition: int, record: bytes, index: int) -> None:
        tries, lasting, since = 0, self._stuck, time.monotonic()
        while True:
            site, self._running = self._site, (partition, index, 0, time.monotonic())
            assert site is not None  # a batch comes after `start`
            try:
                applied = site.apply(decode_record(record))
            except EnvironmentFault as error:
                tries += 1
                lasting = lasting or self._is_lasting(error)
                fault = self._restore(partition, index, error, tries=tries)
                if self._stopping and lasting:
                    return  # it stays in the log: the next start applies it
                if lasting and self._leave(partition, record, index):
                    return
                if lasting and time.monotonic() - since > GIVE_UP_S:
                    self._owner.give_up(range(self._partitions), fault)  # one thread does the work of all
                continue
            finally:
                self._running = None
            break
        if lasting:
            self._stuck = False
            self._owner.refuse_calls((partition,), None)
        self._owner.applied(partition, index, None if applied is None else _answer(applied))

    def _leave(self, partition: int, record: bytes, index: int) -> bool:
        """Whether the site thread does it, before all that is left; not where it is the site thread that asks."""
        if self._is_own_thread:
            return False
        self._stuck = True
        self._work.appendleft(lambda: self._apply(partition, record, index))
        self._wake.release()
        return True

    def _read(self, partition: int, ident: int, calls: bytes) -> None:
        self._running = (partition, 0, 0, time.monotonic())
        try:
            as_of, replies = self._current.read(partition, orjson.loads(calls)[0])
        finally:
            self._running = None
        status, body = replies[0]
        traces = self._current.read_traces()
        self._owner.read_done(partition, ident, as_of=as_of, status=status, body=body, traces=traces)

    def _prepare(self, partition: int, order: Mapping[str, Any]) -> None:
        for _partition, ident, report in self._current.abort_captures(TABLES_CHANGE, partition):
            self._owner.captured(ident, report)
        self._owner.prepared(partition, self._current.prepare(partition, order))

    @staticmethod
    def _is_lasting(error: EnvironmentFault) -> bool:
        return error.kind in LASTING or error.position < 0  # no call is to blame

    def _restore(self, partition: int, index: int, error: EnvironmentFault, *, tries: int) -> SiteFault:
        """Opens the state again, after a logged skip of a call that keeps failing; the batch is then run once more."""
        fault = SiteFault(error.kind, str(error), partition, index, max(error.position, 0))
        tell = log.warning if tries == 1 else log.debug
        tell("site_restored", kind=fault.kind, partition=partition, index=index, reason=fault.message)
        for _partition, ident, report in self._current.abort_captures("the site ended during the capture"):
            self._owner.captured(ident, report)
        self._current.close()
        if self._is_lasting(error):
            self._owner.refuse_calls((partition,), fault)
            until = time.monotonic() + pause_s(tries)
            while time.monotonic() < until and not self._stopping and self._is_own_thread:
                time.sleep(STOP_LOOK_S)
        else:  # also an interrupt: a procedure that raises one would be run again for ever
            where = (partition, index, fault.position)
            self._attempts[where] += 1
            if self._attempts[where] >= self._restarts_max:
                self._owner.skip(replace(fault, attempts=self._attempts[where]))
        self._site = self._make_site()
        return fault


def _answer(applied: Applied) -> BatchAnswer:
    count = len(applied.bodies)
    earlier = applied.txn_ids if type(applied.txn_ids) is list else bytes(count)
    outcomes = list(zip(applied.statuses, earlier, applied.bodies, strict=True))
    hashes = struct.pack(f"<{count}I", *applied.result_hashes)
    return tuple.__new__(BatchAnswer, (applied.rows_digest, hashes, outcomes, applied.statuses, applied.traces))
