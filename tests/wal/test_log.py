"""The log in use: order of acknowledgements, syncs in flight, room, anchors, reading, modes of syncing."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Sequence

import pytest

from cmdlog.wal import Log, LogReader, Lsn, Verdict
from cmdlog.wal import files as files_module
from cmdlog.wal.block import SECTOR_BYTES, BlockFlag
from cmdlog.wal.errors import Corrupt, WalError, Wedged
from cmdlog.wal.files import RealFiles
from cmdlog.wal.hardstate import read_hardstate
from cmdlog.wal.ids import BlockNumber
from cmdlog.wal.instance import BadSettings
from cmdlog.wal.marks import Sync
from cmdlog.wal.reader import Recycled
from cmdlog.wal.segment import segment_name
from cmdlog.wal.simfiles import Fault, Operation, SimFiles
from cmdlog.wal.space import READY_WANTED
from cmdlog.wal.tail import Placed
from tests.wal.logkit import (
    IDENTITY,
    LOG,
    NODE,
    RESERVE_BYTES,
    SEGMENTS,
    ListSource,
    append,
    at,
    create,
    generations,
    hard_state,
    number_of,
    numbers_in,
    open_log,
    sim,
)

WAIT_S = 20.0  # a bound that is only met when something is broken


class WaitSource(ListSource):
    """A ListSource for threads: one lock, and a way to wait for acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def put(self, number: int, size: int = 64) -> None:
        with self.changed:
            super().put(number, size)

    def take(self, bytes_max: int) -> Sequence[bytes]:
        with self.changed:
            self.changed.notify_all()
            return super().take(bytes_max)

    def written(self, block: int) -> None:
        with self.changed:
            super().written(block)
            self.changed.notify_all()

    def durable(self, block: int) -> None:
        with self.changed:
            super().durable(block)
            self.changed.notify_all()

    def failed(self, error: WalError) -> None:
        with self.changed:
            super().failed(error)
            self.changed.notify_all()

    def wait(self, reached: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, WAIT_S), "nothing happened"


def threaded(files: SimFiles, *, threads: int = 4, sync: Sync = "sync", window_s: float = 0.005) -> tuple[Log, WaitSource]:
    """A log with its threads."""
    log, source = Log.open(files, NODE), WaitSource()
    log.start(source, threads=threads, sync=sync, async_window_s=window_s)
    return log, source


def flags(files: SimFiles) -> list[BlockFlag]:
    """The flags of all blocks of the newest segment."""
    return [place.header.flags for place in LogReader(files, NODE).walk.places]


# -- order and threads ---------------------------------------------------------------------------------------------------


def test_watermarks_move_in_order_though_later_syncs_finish_first() -> None:
    """A block whose sync is held is acknowledged first all the same, and the overtaking ones right after it."""
    files = SimFiles()
    create(files, segment_bytes=64 << 10)  # no rotation here: that waits for all syncs
    log, source = threaded(files)
    release, overtaken, held = threading.Event(), threading.Semaphore(0), threading.Lock()

    def hold(operation: Operation) -> None:
        if operation.kind != "fdatasync":
            return
        if held.acquire(blocking=False):
            assert release.wait(WAIT_S)
        else:
            overtaken.release()

    files.before = hold
    for number in range(4):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent)  # type: ignore[misc]
    for _ in range(3):
        assert overtaken.acquire(timeout=WAIT_S)
    assert source.acknowledged == []
    assert not log.run_turn(), "a caller's thread must not pass what is in flight"
    release.set()
    source.wait(lambda: len(source.acknowledged) == 4)
    assert source.acknowledged == [0, 1, 2, 3]
    log.close()


def test_a_rotation_waits_for_every_sync_of_the_segment_before() -> None:
    """The next segment's name vouches for all of this one, so it may not exist while a sync of this one is under way."""
    files = sim()
    log, source = threaded(files)
    release, held = threading.Event(), threading.Lock()

    def hold(operation: Operation) -> None:
        if operation.kind == "fdatasync" and operation.path.endswith("01.log") and held.acquire(blocking=False):
            assert release.wait(WAIT_S)

    source.wait(lambda: log._space.ready > 0)
    files.before = hold
    for number in range(4):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent or log._tail.left_bytes < SECTOR_BYTES)  # type: ignore[misc]
    ring = log._ring
    assert ring is not None
    pause = threading.Event()
    for _ in range(10_000):  # until the rotation waits, or has gone ahead
        if files.exists(f"{LOG}/{segment_name(2)}") or ring._quiet.waiting:
            break
        pause.wait(0.001)
    assert not files.exists(f"{LOG}/{segment_name(2)}")
    assert source.acknowledged == []
    release.set()
    source.wait(lambda: len(source.acknowledged) == 4)
    assert files.exists(f"{LOG}/{segment_name(2)}")
    log.close()


def test_term_and_vote_are_in_their_second_place_before_they_are_acknowledged() -> None:
    """A vote that anyone may rely on stands in the hard state file too, on disk."""
    files = sim()
    log, source = open_log(files)
    source.waiting.append((1, hard_state(2, 9)))
    log.run_turn()
    assert source.acknowledged == [1]
    dark = files.power_cut(random.Random(0), "none")
    assert read_hardstate(dark, LOG)[0].votes == {0: (2, 9)}


def test_blocks_behind_a_failed_sync_are_never_acknowledged() -> None:
    """Syncs that end well after another one failed prove nothing: the kernel has dropped the pages (ATC 2020)."""
    files = sim()
    log, source = threaded(files)
    release, held = threading.Event(), threading.Lock()

    def hold(operation: Operation) -> None:
        if operation.kind == "fdatasync" and held.acquire(blocking=False):
            assert release.wait(WAIT_S)

    source.wait(lambda: log._space.ready == READY_WANTED)  # its thread syncs too
    files.before = hold
    files.fail_at(2, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    for number in range(3):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent or bool(source.errors))  # type: ignore[misc]
        if source.errors:
            break
    source.wait(lambda: bool(source.errors))
    release.set()
    with pytest.raises(Wedged):
        log.close()
    assert source.acknowledged == []
    assert len(source.errors) == 1
    assert source.sent[:2] == [0, 1]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sync", ["sync", "async", "off"])
def test_many_callers_are_acknowledged_in_order_and_found_again(threads: int, sync: Sync) -> None:
    """Under load from several threads, over rotations, nothing is lost, doubled or out of order."""
    files = SimFiles()
    create(files, initial=[hard_state(1, 7)], segments=16)
    log, source = threaded(files, threads=threads, sync=sync)

    def caller(base: int) -> None:
        for number in range(base, base + 40):
            source.put(number, size=random.Random(number).randrange(16, 900))
            if number % 3 or not log.run_turn():
                log.kick()

    callers = [threading.Thread(target=caller, args=(1000 * n,)) for n in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    source.wait(lambda: len(source.acknowledged) == 120)
    assert source.acknowledged == source.sent == source.written_numbers
    log.close()
    again, _ = open_log(files.power_cut(random.Random(1), "none"))
    assert numbers_in(again) == source.sent
    assert again.recovered.verdict is Verdict.CLEAN


def test_a_source_that_raises_wedges_the_log() -> None:
    """What the source took cannot be given back, so its error ends the log and is told."""

    class Broken(ListSource):
        def take(self, bytes_max: int) -> Sequence[bytes]:
            raise KeyError("oops")

    log = Log.open(sim(), NODE)
    source = Broken()
    log.start(source, threads=0)
    assert not log.run_turn()
    assert "oops" in str(source.errors[0])
    with pytest.raises(Wedged):
        log.kick()


def test_a_record_that_fits_no_block_wedges_with_the_limit_named() -> None:
    """The caller must respect `block_bytes_max`; what is too large by mistake is never half written."""
    files = sim()
    log, source = open_log(files)
    source.put(1, size=log.block_bytes_max)
    log.run_turn()
    assert str(log.block_bytes_max) in str(source.errors[0])
    assert numbers_in(open_log(files.kill())[0]) == []


# -- async and off -------------------------------------------------------------------------------------------------------


def test_async_tells_written_first_and_durable_within_the_window() -> None:
    """The page cache has it at once; the sync follows without anyone asking."""
    files = sim()
    log, source = threaded(files, sync="async", window_s=0.001)
    source.put(1)
    log.kick()
    source.wait(lambda: source.acknowledged == [1])
    assert source.written_numbers == [1]
    log.close()


def test_async_blocks_that_were_only_written_survive_a_kill_and_not_a_power_cut() -> None:
    """Between `written` and `durable` a kill loses nothing; a power cut may lose the block, and nothing before it."""
    files = sim()
    log, source = Log.open(files, NODE), ListSource()
    log.start(source, threads=0, sync="async")
    append(log, source, [1, 2])
    log.tend()
    append(log, source, [3])
    assert source.written_numbers == [1, 2, 3]
    assert source.acknowledged == [1, 2]
    assert numbers_in(open_log(files.power_cut(random.Random(0), "none"))[0]) == [1, 2]
    assert numbers_in(open_log(files.kill())[0]) == [1, 2, 3]


# -- seals ---------------------------------------------------------------------------------------------------------------


def test_a_seal_never_follows_a_seal() -> None:
    """An idle log writes one seal after its last records and then nothing."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    for _ in range(3):
        log.tend()
    log.close()
    log, _ = open_log(files)
    log.tend()
    log.close()
    assert flags(files).count(BlockFlag.SEAL) == 2  # that of the creation, that after record 1


def test_an_idle_log_is_sealed_by_its_keeper() -> None:
    """Without a caller's help the seal comes a moment after the last block."""
    files = sim()
    log, source = threaded(files)
    sealed = threading.Event()

    def watch(operation: Operation) -> None:
        if operation.kind == "pwrite" and operation.size == SECTOR_BYTES and source.acknowledged:
            sealed.set()

    files.before = watch
    source.put(1)
    log.kick()
    source.wait(lambda: source.acknowledged == [1])
    assert sealed.wait(WAIT_S)
    files.before = None
    log.close()
    assert flags(files)[-1] is BlockFlag.SEAL


def test_keeper_places_no_seal_beside_that_of_the_closing_thread() -> None:
    """Two seals at once would take one number for two places, and a log that was closed in good order would be refused."""
    files = sim()
    log, source = threaded(files)
    place, second = log._tail.place, threading.Event()
    placing: list[str] = []

    def watched(records: Sequence[bytes], *, flags: BlockFlag, durable_upto: int) -> Placed:
        if flags is BlockFlag.SEAL:
            if placing:
                second.set()
            placing.append(threading.current_thread().name)
            second.wait(0.2)  # many times the keeper's patience
        return place(records, flags=flags, durable_upto=durable_upto)

    log._tail.place = watched  # type: ignore[method-assign]
    source.put(1)
    log.close()
    assert len(placing) == 1
    again, _ = open_log(files)
    assert numbers_in(again) == [1]


# -- room, reserve, anchors, disk full -----------------------------------------------------------------------------------


def fill(log: Log, source: ListSource) -> int:
    """One record per block as long as there is room for ordinary ones; returns how many."""
    for number in range(1000):
        if log.room_bytes < 2 * SECTOR_BYTES:
            return number
        append(log, source, [number])
    raise AssertionError("the log grows")


def test_a_full_log_refuses_before_the_reserve_and_gets_out_again() -> None:
    """Ordinary records stop at `room_bytes`, control records still fit, and room comes back when the anchors move."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    count = fill(log, source)
    assert count > 10
    source.put(5000, size=RESERVE_BYTES - 200)
    assert log.run_turn(), "the reserve takes a control record"
    assert source.acknowledged == [*range(count), 5000]
    assert len([name for name in files.listdir(LOG) if name.endswith(".log")]) == SEGMENTS
    log.anchors.set("snapshot", at(log.durable_block))
    log.tend()
    assert log.room_bytes > 50_000
    append(log, source, range(6000, 6020))
    assert source.acknowledged[-1] == 6019
    assert len([name for name in files.listdir(LOG) if name.endswith(".log")]) == SEGMENTS


def test_the_reserve_is_usable_to_its_last_sector() -> None:
    """Also where it is no more than what a rotation usually leaves behind: with the default sizes it is just that."""
    files = SimFiles(0)
    segment_bytes, reserve_bytes = 1 << 20, 64 << 10
    Log.create(
        files, NODE, IDENTITY, segment_bytes=segment_bytes, segments=3, reserve_bytes=reserve_bytes, generation=generations()
    )
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    count = 0
    while log.room_bytes > 2 * SECTOR_BYTES:
        append(log, source, [count], size=4000)
        count += 1
        log.tend()
    marks = range(5000, 5000 + reserve_bytes // SECTOR_BYTES - 1)
    for number in marks:
        source.put(number)
        assert log.run_turn(), "a control record waits though the reserve is not used up"
    assert source.acknowledged == [*range(count), *marks]
    log.anchors.set("snapshot", at(log.durable_block))
    log.tend()
    append(log, source, [6000])
    assert source.acknowledged[-1] == 6000


def test_records_that_wait_for_a_segment_are_written_when_one_is_let_go() -> None:
    """Beyond the reserve the log holds still instead of failing, and goes on by itself."""
    files = sim()
    log, source = threaded(files)
    log.anchors.set("snapshot", at(1))
    for number in range(60):
        source.put(number, size=3000)
    log.kick()
    source.wait(lambda: log._space.available == 0 and log._ring is not None and log._ring._turn)
    held = len(source.acknowledged)
    assert held < 60
    for _ in range(20):
        log.anchors.set("snapshot", at(log.durable_block))
        log.kick()
        if len(source.acknowledged) == 60:
            break
        before = len(source.acknowledged)
        source.wait(lambda before=before: len(source.acknowledged) > before or len(source.acknowledged) == 60)  # type: ignore[misc]
    source.wait(lambda: len(source.acknowledged) == 60)
    assert source.acknowledged == list(range(60))
    log.close()


def test_closing_a_full_log_does_not_hang() -> None:
    """What waits for a free segment at the end is not acknowledged, and its source is told."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    for number in range(60):
        source.put(number, size=5000)
    for _ in range(60):
        log.run_turn()
    acknowledged = list(source.acknowledged)
    assert acknowledged
    with pytest.raises(WalError):
        log.close()
    assert numbers_in(open_log(files.kill())[0])[: len(acknowledged)] == acknowledged


def test_without_anchors_nothing_is_recycled() -> None:
    """A node that has not yet said what it needs loses nothing."""
    files = sim()
    log, source = open_log(files)
    fill(log, source)
    log.tend()
    assert numbers_in(log)[0] == 0
    assert log.anchors.oldest() is None


def test_every_anchor_holds_its_segment() -> None:
    """The oldest one counts; releasing it lets go; the status names who holds what since when."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("new", at(1))
    append(log, source, range(12))
    log.anchors.set("old", at(3))
    log.anchors.set("new", at(log.durable_block))
    log.tend()
    assert log._space.oldest().header.first_block == 1
    anchors = log.status()["anchors"]
    assert isinstance(anchors, dict)
    assert anchors["old"]["block"] == 3
    assert anchors["old"]["since"] > 0
    log.anchors.release("old")
    log.tend()
    assert log._space.oldest().header.first_block > 3


def test_an_anchor_at_a_segments_last_block_holds_it() -> None:
    """A segment goes when the anchor is in its successor, not one block earlier."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("x", at(1))
    append(log, source, range(8))
    first = log._space.segments.peekitem(1)[1].header.first_block
    log.anchors.set("x", at(first - 1))
    log.tend()
    assert log._space.oldest().header.first_block == 1
    log.anchors.set("x", at(first))
    log.tend()
    assert log._space.oldest().header.first_block == first


def test_a_full_disk_stops_preparation_and_not_the_log() -> None:
    """Prepared segments stay usable, the state is reported, and room returns with the space."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    room = log.room_bytes
    files.capacity_bytes = files.disk.used_bytes() + 1000
    log.tend()
    assert log.status()["disk_full"] is not None
    assert log.room_bytes < room / 2
    assert not [name for name in files.listdir(LOG) if name.endswith(".tmp")]
    append(log, source, [1])
    assert source.acknowledged == [1]
    files.capacity_bytes = 1 << 30
    log.tend()
    assert log.status()["disk_full"] is None
    assert log.room_bytes > room / 2


def test_a_disk_that_fills_up_during_a_write_is_full_and_not_broken() -> None:
    """The write that takes the last bytes is short, not refused; in a file that is being made it harms nobody."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    files.fail_at(1, Fault.SHORT_WRITE, kinds=frozenset({"pwrite"}))
    log.tend()
    assert "32768 bytes, which the volume has not got" in str(log.status()["disk_full"])
    assert not [name for name in files.listdir(LOG) if name.endswith(".tmp")]
    append(log, source, [1])
    log.tend()
    assert log.status()["disk_full"] is None
    assert (source.acknowledged, source.errors) == ([1], [])


def test_interrupted_preparation_is_swept() -> None:
    """Half-made files of a killed process are removed at the next start, wrong-sized free files too."""
    files = sim()
    files.write_file_atomic(f"{LOG}/free-0.log", b"short")
    file = files.open(f"{LOG}/free-3.log.tmp", create=True)
    file.pwrite(bytes(100), 0)
    log, _ = open_log(files)
    log.tend()
    names = files.listdir(LOG)
    assert "free-3.log.tmp" not in names
    assert all(len(files.read_file(f"{LOG}/{name}")) == 32 << 10 for name in names if name.startswith("free-"))


@pytest.mark.parametrize("sizes", [{"segment_bytes": 5000}, {"segment_bytes": 4096}, {"segments": 1}, {"segment_bytes": 1 << 40}])
def test_impossible_sizes_are_refused_by_name(sizes: dict[str, int]) -> None:
    """A setting that no log can have is named, and nothing is created."""
    files = SimFiles()
    with pytest.raises(BadSettings, match=next(iter(sizes))):
        Log.create(files, NODE, IDENTITY, **sizes, reserve_bytes=0)  # type: ignore[arg-type]
    assert not files.exists(NODE)


# -- reading -------------------------------------------------------------------------------------------------------------


def test_reading_starts_and_ends_where_it_is_told() -> None:
    """`after` is exclusive, `upto` inclusive, over segment borders."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("all", at(1))
    append(log, source, range(12))
    everything = list(log.read())
    lsns = [lsn for lsn, _ in everything]
    assert lsns == sorted(set(lsns))
    for i in range(0, len(lsns), 4):
        assert [lsn for lsn, _ in log.read(after=lsns[i])] == lsns[i + 1 :]
        assert [lsn for lsn, _ in log.read(upto=lsns[i])] == lsns[: i + 1]
        assert list(log.read(after=lsns[i], upto=lsns[i])) == []
    assert [number_of(found) for _, found in everything if found.kind == 18] == list(range(12))


def test_reading_before_the_log_begins_says_so() -> None:
    """A position that was recycled is an error, not an empty answer."""
    files = sim()
    log, source = open_log(files)
    append(log, source, range(12))
    log.anchors.set("x", at(log.durable_block))
    log.tend()
    with pytest.raises(WalError, match="not in the log any more"):
        list(log.read(after=at(1)))
    assert [number_of(found) for _, found in log.read() if found.kind == 18] == numbers_in(log)


def test_a_reader_beside_a_running_log_sees_a_prefix() -> None:
    """A read-only look at a node that runs needs no lock and changes nothing."""
    files = sim()
    log, source = open_log(files)
    append(log, source, range(8))
    operations = len(files.trace)
    reader = LogReader(files, NODE)
    found = [number_of(record) for _, record in reader.read() if record.kind == 18]
    assert found == list(range(8))
    assert len(files.trace) == operations
    append(log, source, [8])


def test_a_segment_recycled_under_a_reader_is_named() -> None:
    """Old bytes are never taken for new ones: the reader is told to hold an anchor."""
    files = sim()
    log, source = open_log(files)
    append(log, source, range(9))
    reading = log.read()
    next(reading)
    log.anchors.set("x", at(log.durable_block))
    for number in range(9, 60):
        append(log, source, [number])
        log.anchors.set("x", at(log.durable_block))
        log.tend()
    with pytest.raises((Recycled, FileNotFoundError, Corrupt)) as caught:
        list(reading)
    assert not isinstance(caught.value, Corrupt)


def test_a_checkpoint_carries_the_hard_state_over_recycled_segments() -> None:
    """Term and vote outlive the segment that they were written in, by the checkpoint alone."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("x", at(1))
    for number in range(40):
        append(log, source, [number])
        log.anchors.set("x", at(log.durable_block))
        log.tend()
    assert not files.exists(f"{LOG}/{segment_name(1)}")
    log, _ = open_log(files.kill())
    assert log.recovered.groups.votes == {0: (1, 7)}
    assert log.recovered.first_lsn > Lsn(BlockNumber(1), 0)


def test_the_log_works_on_a_real_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Create, fill over rotations with threads, close, reopen, on the operating system."""
    directory, files = str(tmp_path_factory.mktemp("log") / "node"), RealFiles()
    create(files, directory=directory, initial=[hard_state(1, 7)], segments=12)
    log, source = Log.open(files, directory), WaitSource()
    log.start(source)
    log.anchors.set("all", at(1))
    for number in range(60):
        source.put(number, size=700)
        if not log.run_turn():
            log.kick()
    source.wait(lambda: len(source.acknowledged) == 60)
    log.close()
    log, _ = open_log(files, directory=directory)
    assert numbers_in(log) == list(range(60))
    log.close()


@pytest.mark.parametrize("every", [2, 3])
def test_a_log_without_free_descriptors_waits_for_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Log threads open a segment when they first write to it, rotations open the next: neither ends the log for want of one."""
    directory, files, real, opened = str(tmp_path_factory.mktemp("log") / "node"), RealFiles(), os.open, itertools.count()
    create(files, directory=directory, segments=12)
    log, source = Log.open(files, directory), WaitSource()
    monkeypatch.setattr(files_module, "DESCRIPTOR_PAUSE_S", 0.001)

    def scarce(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if next(opened) % every:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", scarce)
    log.start(source, threads=4)
    log.anchors.set("all", at(1))
    for number in range(60):
        source.put(number, size=700)
        log.kick()
    source.wait(lambda: len(source.acknowledged) == 60)
    assert source.errors == []
    log.close()
    monkeypatch.undo()
    log, _ = open_log(files, directory=directory)
    assert numbers_in(log) == list(range(60))
    log.close()


def test_descriptors_are_not_waited_for_for_ever(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that never gets one says so, with the path."""
    path = str(tmp_path_factory.mktemp("files") / "one")

    def none(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(os, "open", none)
    monkeypatch.setattr(files_module, "DESCRIPTOR_WAIT_S", 0.05)
    with pytest.raises(OSError, match="one") as refused:
        RealFiles().open(path, create=True)
    assert refused.value.errno == errno.EMFILE


@pytest.mark.parametrize("kind", ["pwrite", "fdatasync"])
def test_turn_that_a_signal_handler_breaks_off_wedges_the_log(kind: str) -> None:
    """An exception out of nowhere leaves a block of which nobody knows what is on disk; nobody waits for it."""
    files = sim()
    log, source = open_log(files)

    def interrupt(operation: Operation) -> None:
        if operation.kind == kind:
            raise KeyboardInterrupt

    source.put(1)
    files.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.run_turn()
    files.before = None
    assert len(source.errors) == 1
    with pytest.raises(Wedged):
        log.run_turn()
    with pytest.raises(Wedged):
        log.close()
    assert source.acknowledged == []
