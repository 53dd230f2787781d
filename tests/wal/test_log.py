"""The log in use: order of acknowledgements, syncs in flight, modes of syncing, seals, reading."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import pytest

from cmdlog.wal.errors import Corrupt, WalError, Wedged
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag
from cmdlog.wal.format.segment import segment_name
from cmdlog.wal.hard_state import read_hardstate
from cmdlog.wal.log import Log
from cmdlog.wal.opening.restart import RestartVerdict
from cmdlog.wal.reader import LogReader, Recycled
from cmdlog.wal.writing.segment_pool import READY_WANTED
from cmdlog.wal.writing.tail import PlacedBlock
from cmdlog.wal.writing.watermarks import Sync
from tests.waiting import wait_for
from tests.wal.logkit import (
    LOG,
    NODE,
    ListSource,
    append,
    at,
    create,
    hard_state,
    number_of,
    numbers_in,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import Fault, Operation, SimFiles
from tests.wal.threadkit import WAIT_S, HeldSync, WaitSource, threaded


def flags(files: SimFiles) -> list[BlockFlag]:
    """The flags of all blocks of the newest segment."""
    return [place.header.flags for place in LogReader(files, NODE).walk.places]


# -- order and threads ---------------------------------------------------------------------------------------------------


def test_watermarks_move_in_order_though_later_syncs_finish_first() -> None:
    """A block whose sync is held is acknowledged first all the same, and the overtaking ones right after it."""
    files = SimFiles()
    create(files, segment_bytes=64 << 10)  # no rotation here: that waits for all syncs
    log, source = threaded(files)
    first = HeldSync(files)
    for number in range(4):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent)  # type: ignore[misc]
        first.wait()
    for _ in range(3):
        assert first.overtaking.acquire(timeout=WAIT_S)
    assert source.acknowledged == []
    assert not log.run_turn(), "a caller's thread must not pass what is in flight"
    first.release()
    source.wait(lambda: len(source.acknowledged) == 4)
    assert source.acknowledged == [0, 1, 2, 3]
    log.close()


def test_a_rotation_waits_for_every_sync_of_the_segment_before() -> None:
    """The next segment's name vouches for all of this one, so it may not exist while a sync of this one is under way."""
    files = sim()
    log, source = threaded(files)
    wait_for(lambda: log._space.ready > 0)
    first = HeldSync(files)
    for number in range(4):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent or log._tail.left_bytes < SECTOR_BYTES)  # type: ignore[misc]
        first.wait()
    ring = log._ring
    assert ring is not None
    wait_for(lambda: ring._quiet.parked or files.exists(f"{LOG}/{segment_name(2)}"))  # the rotation waits, or has gone ahead
    assert not files.exists(f"{LOG}/{segment_name(2)}")
    assert source.acknowledged == []
    first.release()
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

    wait_for(lambda: log._space.ready == READY_WANTED)  # its thread syncs too
    files.before = hold
    files.fail_at(2, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    for number in range(2):
        source.put(number)
        log.kick()
        source.wait(lambda number=number: number in source.sent)  # type: ignore[misc]
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
    assert again.recovered.verdict is RestartVerdict.CLEAN


def test_a_source_that_raises_wedges_the_log() -> None:
    """What the source took cannot be given back, so its error ends the log and is told."""

    class Broken(ListSource):
        def take_records(self, bytes_max: int) -> Sequence[bytes]:
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
    source.waits = False
    log.start(source, threads=0, sync="async")
    append(log, source, [1, 2])
    log.run_background_work()
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
        log.run_background_work()
    log.close()
    log, _ = open_log(files)
    log.run_background_work()
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

    def watched(records: Sequence[bytes], *, flags: BlockFlag, durable_upto: int) -> PlacedBlock | None:
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
    log.run_background_work()
    with pytest.raises(WalError, match="is no longer in the log"):
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
        log.run_background_work()
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
        log.run_background_work()
    assert not files.exists(f"{LOG}/{segment_name(1)}")
    log, _ = open_log(files.kill())
    assert log.recovered.groups.votes == {0: (1, 7)}
    assert log.first_blocks()[0] > 1


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
