"""A block that is on its way to the disk while its caller works: the log's other writers keep away from its file, and a
thread that must finishes it first.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.wal.errors import Wedged
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.log import Log
from cmdlog.wal.writing.block_writes import BlockWrites, ThreadFile
from tests.waiting import wait_for
from tests.wal.logkit import NODE, ListSource, append, create, generations, numbers_in, sim
from tests.wal.sim.simfiles import Fault, Operation, SimDirectWriter, SimFiles
from tests.wal.threadkit import WAIT_S, WaitSource


def started(files: Files, source: ListSource, *, threads: int = 0, lax: bool = False) -> Log:
    """A log that announces early what is written."""
    log = Log.open(files, NODE, generation=generations(2000))
    source.lax = lax
    log.start(source, threads=threads, early=True, seal_after_s=60.0)
    return log


def test_the_caller_works_between_written_and_durable() -> None:
    """The block is announced as written, the work runs, and only when the block has landed it is acknowledged."""
    files, source = sim(), ListSource()
    log = started(files, source)
    seen: list[tuple[list[int], list[int]]] = []
    source.put(1)
    assert log.run_turn(lambda: seen.append((list(source.written_numbers), list(source.acknowledged))))
    assert seen == [([1], [])]
    assert source.acknowledged == [1]
    dark = files.power_cut(random.Random(0), "none")
    assert numbers_in(started(dark, ListSource())) == [1]


def test_a_power_cut_during_the_work_finds_nothing_acknowledged() -> None:
    """What is on its way may be lost, and nobody heard of it."""
    files, source = sim(), ListSource()
    log = started(files, source)
    cuts: list[SimFiles] = []
    source.put(1)
    log.run_turn(lambda: cuts.append(files.power_cut(random.Random(0), "none")))
    assert numbers_in(started(cuts[0], ListSource())) == []


@pytest.mark.parametrize("kind", ["pwrite", "fdatasync"])
def test_a_write_that_fails_wedges_the_log_after_the_work(kind: str) -> None:
    """As any failed write: nothing is acknowledged, and nothing is accepted any more."""
    files, source = sim(), ListSource()
    log = started(files, source)
    source.put(1)
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({kind}))  # type: ignore[arg-type]
    worked: list[int] = []
    log.run_turn(lambda: worked.append(1))
    assert (worked, source.acknowledged) == ([1], [])
    assert [type(error).__name__ for error in source.errors] == ["WriteFailed"]
    with pytest.raises(Wedged):
        log.kick()
    with pytest.raises(Wedged):
        log.close()


def test_what_is_answered_when_written_is_written_first() -> None:
    """A block with a lax call is in the page cache before anybody hears of it: it has no work beside it."""
    files, source = sim(), ListSource()
    log = started(files, source, lax=True)
    source.put(1)
    worked: list[int] = []
    assert log.run_turn(lambda: worked.append(1))
    assert (worked, source.acknowledged) == ([], [1])


@pytest.mark.parametrize("waits", [False, True])
def test_a_sync_that_must_cover_more_is_an_ordinary_one(waits: bool) -> None:
    """A block that nobody waits for has no sync of its own, and one after it, that somebody waits for, must sync both."""
    files, source = sim(), ListSource()
    log = Log.open(files, NODE, generation=generations(2000))
    source.waits = False
    log.start(source, threads=0, early=True, async_window_s=60.0)
    worked: list[int] = []
    source.put(1)
    log.run_turn(lambda: worked.append(1))
    source.waits = waits
    source.put(2)
    log.run_turn(lambda: worked.append(2))
    assert (worked, source.acknowledged) == ([], [1, 2] if waits else [])


def test_an_interrupt_in_the_work_ends_the_log() -> None:
    """As one in the middle of a sync: what is on disk is not known any more."""
    files, source = sim(), ListSource()
    log = started(files, source)
    source.put(1)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.run_turn(interrupted)
    assert source.acknowledged == []
    assert len(source.errors) == 1
    with pytest.raises(Wedged):
        log.close()


def test_who_is_acknowledged_may_call_again() -> None:
    """`durable` may run the next turn, in the same thread: no lock is held then."""

    class Again(ListSource):
        def durable(self, block: int) -> None:
            super().durable(block)
            if self.acknowledged == [1]:
                self.put(2)
                assert log.run_turn(lambda: None)

    source = Again()
    log = started(sim(), source)
    source.put(1)
    log.run_turn(lambda: None)
    log.run_turn()
    assert source.sent == [1, 2]
    log.close()
    assert source.acknowledged == [1, 2]


def test_other_threads_wait_for_the_disk_and_not_for_the_work() -> None:
    """A block of a pool thread is written after the one that was started has landed, while the work of that one goes on."""
    files, source = sim(), WaitSource()
    log = started(files, source, threads=2)
    order: list[str] = []

    def note(operation: Operation) -> None:
        if "/log/seg-" in operation.path and operation.kind in ("pwrite", "fdatasync"):
            order.append(operation.kind)

    files.before = note
    goes_on = threading.Event()

    def work() -> None:
        source.put(2)
        log.kick()
        source.wait(lambda: source.acknowledged == [1, 2])  # both, though this work has not ended
        goes_on.set()

    source.put(1)
    log.run_turn(work)
    assert goes_on.is_set()
    assert order == ["pwrite", "fdatasync", "pwrite", "fdatasync"]
    files.before = None
    log.close()


class CrowdedFiles(SimFiles):
    """While the end of a direct write is waited for, `meanwhile` runs."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def open_direct_writer(self) -> SimDirectWriter:
        files = self

        class Crowded(SimDirectWriter):
            def finish(self) -> bool:
                files.meanwhile()
                return super().finish()

        return Crowded(self)


def test_a_pool_thread_writes_after_a_block_that_another_one_is_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller waits for the end of the block: until then nobody writes to the file, which both have open."""
    files, source = CrowdedFiles(), WaitSource()
    create(files)
    log = Log.open(files, NODE, generation=generations(2000))
    log.start(source, threads=2, early=True, seal_after_s=60.0, clock=lambda: 0.0)  # to the keeper nothing takes long
    landing, land = [0], BlockWrites.land
    written, seen = [0], [0]

    def note(operation: Operation) -> None:
        written[0] += "/log/seg-" in operation.path and operation.kind == "pwrite"

    def note_landing(writes: BlockWrites) -> None:
        landing[0] += 1
        land(writes)

    def call_another() -> None:
        files.meanwhile = lambda: None
        source.put(2)
        log.kick()
        wait_for(lambda: landing[0] == 2 or written[0] == 2)
        seen[0] = written[0]

    monkeypatch.setattr(BlockWrites, "land", note_landing)
    files.before, files.meanwhile = note, call_another
    source.put(1)
    log.run_turn(lambda: None)
    source.wait(lambda: source.acknowledged == [1, 2])
    assert seen == [1]
    files.before = None
    log.close()


def test_closing_finishes_what_was_started() -> None:
    """A thread that closes the log does not wait for the work of another one."""
    files, source = sim(), WaitSource()
    log = started(files, source, threads=2)
    working, closed = threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        assert closed.wait(WAIT_S)

    source.put(1)
    caller = threading.Thread(target=lambda: log.run_turn(work))
    caller.start()
    assert working.wait(WAIT_S)
    log.close()
    assert source.acknowledged == [1]
    closed.set()
    caller.join(WAIT_S)
    assert not caller.is_alive()


def test_a_full_segment_is_left_only_when_what_was_started_has_landed() -> None:
    """A rotation in the middle of the work: every block is acknowledged once, and read back in order."""
    files, source = sim(), WaitSource()
    log = started(files, source, threads=2)
    wait_for(lambda: log._space.ready > 0)
    number = 0
    while len(log._space.segments) < 3:
        number += 1
        source.put(number, 5000)

        def work(number: int = number) -> None:
            source.put(number + 1000, 5000)
            log.kick()
            source.wait(lambda: number + 1000 in source.acknowledged)

        if not log.run_turn(work):
            log.kick()
        source.wait(lambda number=number: number in source.acknowledged)  # type: ignore[misc]
    source.wait(lambda: len(source.acknowledged) == len(source.sent) and not source.waiting)
    assert numbers_in(log) == source.sent == source.acknowledged
    log.close()


def test_the_real_log_lands_beside_its_pool(tmp_path: Path) -> None:
    """Callers that work beside their blocks and a pool of threads, on a real disk: nothing is lost, nothing comes twice."""
    directory = str(tmp_path / "node")
    files = RealFiles()
    create(files, directory=directory, segment_bytes=1 << 20)
    log, source = Log.open(files, directory), WaitSource()
    log.start(source, threads=2, early=True)
    count = 400
    for number in range(count):
        source.put(number)
        if number % 3 == 0:
            log.kick()

        def work(number: int = number) -> None:
            if number % 5 == 0:
                log.kick()

        if not log.run_turn(work):
            log.kick()
    source.wait(lambda: len(source.acknowledged) == count)
    log.close()
    again = Log.open(files, directory)
    assert numbers_in(again) == list(range(count))
    again.close()


def test_a_block_beside_a_late_sync_brings_nothing_else_to_the_disk() -> None:
    """While the sync of a block that was left is under way, a later one is not acknowledged before it."""
    files, source = sim(), ListSource()
    log = Log.open(files, NODE, generation=generations(2000))
    source.waits = False
    log.start(source, threads=0, early=True, async_window_s=60.0)
    source.put(1)
    log.run_turn()
    seen: list[list[int]] = []

    def in_the_sync(operation: Operation) -> None:
        if operation.kind == "fdatasync" and "/log/seg-" in operation.path and not seen:
            seen.append([])
            source.waits = True
            source.put(2)
            log.run_turn(lambda: None)
            seen.append(list(source.acknowledged))
            dark = files.power_cut(random.Random(0), "none")
            assert set(source.acknowledged) <= set(numbers_in(started(dark, ListSource())))

    files.before = in_the_sync
    log.run_background_work()
    files.before = None
    assert len(seen) == 2
    assert source.acknowledged == [1, 2]


class StruckWriter(SimDirectWriter):
    """A signal handler raises when the writer was called: before its work, or after it."""

    strikes: tuple[str, str] | None = None
    error: type[Exception] = TimeoutError

    def start(self, path: str, data: bytes, offset: int) -> bool:
        self._strike("start", "before")
        started = super().start(path, data, offset)
        self._strike("start", "after")
        return started

    def finish(self) -> bool:
        self._strike("finish", "before")
        waited = super().finish()
        self._strike("finish", "after")
        return waited

    def _strike(self, method: str, when: str) -> None:
        if StruckWriter.strikes == (method, when):
            StruckWriter.strikes = None
            raise self.error("planted by a signal handler")


class StruckFiles(SimFiles):
    """Whose direct writer is struck."""

    def open_direct_writer(self) -> StruckWriter:
        return StruckWriter(self)


@pytest.mark.parametrize("error", [TimeoutError, ValueError])  # an OSError, and none
@pytest.mark.parametrize("method", ["start", "finish"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_handler_that_raises_wedges_and_leaves_nobody_waiting(
    method: str, when: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written a second time, no thread waits for an end that was taken, and closing comes back."""
    files = StruckFiles()
    create(files)
    source = WaitSource()
    log = started(files, source, threads=2)
    monkeypatch.setattr(StruckWriter, "error", error)
    StruckWriter.strikes = (method, when)
    writes: list[int] = []
    files.before = lambda operation: writes.append(operation.offset) if "/log/seg-" in operation.path else None
    source.put(1)
    with contextlib.suppress(error):
        log.run_turn(lambda: None)
    source.wait(lambda: bool(source.errors))
    assert len([offset for offset in writes if offset]) <= 1, "the block was written twice"

    def call() -> None:
        with pytest.raises(Wedged):
            log.run_turn(lambda: None)

    other = threading.Thread(target=call)
    other.start()
    other.join(WAIT_S)
    assert not other.is_alive()
    with pytest.raises(Wedged):
        log.close()
    assert source.acknowledged == []


def test_a_long_work_keeps_nobody_from_the_disk() -> None:
    """A block whose thread works long lands without it: who waits for the disk alone is served."""
    files, source = sim(), WaitSource()
    log = started(files, source, threads=2)
    source.put(1)
    assert log.run_turn(lambda: source.wait(lambda: source.acknowledged == [1]))
    log.close()


def async_log(files: SimFiles) -> tuple[Log, ListSource]:
    """A log without threads, none of whose blocks is synced before `run_background_work`."""
    log, source = Log.open(files, NODE, generation=generations(2000)), ListSource()
    source.waits = False
    log.start(source, threads=0, sync="async")
    return log, source


def test_one_sync_covers_every_block_that_was_left() -> None:
    """Three blocks are written; the flush makes all of them durable with one sync, and a second flush has nothing to do."""
    log, source = async_log(sim())
    for number in range(3):
        append(log, source, [number])
    before = log.status()
    assert isinstance(before["syncs"], int)
    log._running._writes.flush()
    after = log.status()
    assert after["syncs"] == before["syncs"] + 1
    assert after["durable_block"] == before["written_block"]
    log._running._writes.flush()
    assert log.status()["syncs"] == after["syncs"]
    assert numbers_in(log) == [0, 1, 2]


def test_failed_sync_wedges_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left is not durable then, and nothing is written any more."""
    log, source = async_log(sim())
    append(log, source, [1])

    def broken(own: ThreadFile, placed: object) -> object:
        raise OSError(5, "planted")

    monkeypatch.setattr(ThreadFile, "of_block", broken)
    log._running._writes.flush()
    assert "planted" in str(log._running.error)
    assert len(source.errors) == 1
    with pytest.raises(Wedged):
        append(log, source, [2])
