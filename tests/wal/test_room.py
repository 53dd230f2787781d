"""The log's room: its limit and reserve, anchors and recycling, segments made ahead, disks and descriptors that run out."""

from __future__ import annotations

import errno
import itertools
import os
import random

import pytest

from cmdlog.wal import process_limits
from cmdlog.wal.directory.instance import BadSettings
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.log import Log
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
    numbers_in,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import Fault, Kind, SimFiles
from tests.wal.threadkit import WaitSource, threaded


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
    assert len([name for name in files.listdir(LOG) if name.endswith(".wal")]) == SEGMENTS
    log.anchors.set("snapshot", at(log.durable_block))
    log.run_background_work()
    assert log.room_bytes > 50_000
    append(log, source, range(6000, 6020))
    assert source.acknowledged[-1] == 6019
    assert len([name for name in files.listdir(LOG) if name.endswith(".wal")]) == SEGMENTS


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
        log.run_background_work()
    marks = range(5000, 5000 + reserve_bytes // SECTOR_BYTES - 1)
    for number in marks:
        source.put(number)
        assert log.run_turn(), "a control record waits though the reserve is not used up"
    assert source.acknowledged == [*range(count), *marks]
    log.anchors.set("snapshot", at(log.durable_block))
    log.run_background_work()
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
    source.wait(lambda: log._space.available == 0 and log._running._turn.held)
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
    log.run_background_work()
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
    log.run_background_work()
    assert log._space.oldest().header.first_block == 1
    anchors = log.status()["anchors"]
    assert isinstance(anchors, dict)
    assert anchors["old"]["block"] == 3
    assert anchors["old"]["since"] > 0
    log.anchors.release("old")
    log.run_background_work()
    assert log._space.oldest().header.first_block > 3


def test_an_anchor_at_a_segments_last_block_holds_it() -> None:
    """A segment goes when the anchor is in its successor, not one block earlier."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("x", at(1))
    append(log, source, range(8))
    first = log._space.segments.peekitem(1)[1].header.first_block
    log.anchors.set("x", at(first - 1))
    log.run_background_work()
    assert log._space.oldest().header.first_block == 1
    log.anchors.set("x", at(first))
    log.run_background_work()
    assert log._space.oldest().header.first_block == first


def test_a_full_disk_stops_preparation_and_not_the_log() -> None:
    """Prepared segments stay usable, the state is reported, and room returns with the space."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    room = log.room_bytes
    files.capacity_bytes = files.disk.used_bytes() + 1000
    log.run_background_work()
    assert log.status()["disk_full"] is not None
    assert log.room_bytes < room / 2
    assert not [name for name in files.listdir(LOG) if name.endswith(".tmp")]
    append(log, source, [1])
    assert source.acknowledged == [1]
    files.capacity_bytes = 1 << 30
    log.run_background_work()
    assert log.status()["disk_full"] is None
    assert log.room_bytes > room / 2


def test_a_disk_that_fills_up_during_a_write_is_full_and_not_broken() -> None:
    """The write that takes the last bytes is short, not refused; in a file that is being made it harms nobody."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("snapshot", at(1))
    files.fail_at(1, Fault.SHORT_WRITE, kinds=frozenset({"pwrite"}))
    log.run_background_work()
    assert "32768 bytes, which the volume has not got" in str(log.status()["disk_full"])
    assert not [name for name in files.listdir(LOG) if name.endswith(".tmp")]
    append(log, source, [1])
    log.run_background_work()
    assert log.status()["disk_full"] is None
    assert (source.acknowledged, source.errors) == ([1], [])


def test_interrupted_preparation_is_swept() -> None:
    """Half-made files of a killed process are removed at the next start, wrong-sized free files too."""
    files = sim()
    files.write_file_atomic(f"{LOG}/free-0.wal", b"short")
    file = files.open(f"{LOG}/free-3.wal.tmp", create=True)
    file.pwrite(bytes(100), 0)
    log, _ = open_log(files)
    log.run_background_work()
    names = files.listdir(LOG)
    assert "free-3.wal.tmp" not in names
    assert all(len(files.read_file(f"{LOG}/{name}")) == 32 << 10 for name in names if name.startswith("free-"))


@pytest.mark.parametrize(("kind", "nth"), [("fdatasync", 1), ("fsync", 3)], ids=["made", "reserved"])
def test_file_that_a_failed_sync_left_is_durable_before_it_is_used(kind: Kind, nth: int) -> None:
    """Its length may be in memory alone, where no later sync writes it; a power cut would cut a segment short."""
    files = sim()
    log = Log.open(files, NODE)
    log.start(source := ListSource(), threads=0, whole_ring=True)
    files.fail_at(nth, Fault.IO_ERROR, kinds=frozenset({kind}))
    log.run_background_work()
    assert [type(error).__name__ for error in source.errors] == ["WriteFailed"]
    back = files.kill()
    log, source = open_log(back)
    append(log, source, range(11), size=5000)
    assert len(log.segments) > 3
    log, _ = open_log(back.power_cut(random.Random(0), "none"))
    assert numbers_in(log) == source.acknowledged == list(range(11))


@pytest.mark.parametrize("sizes", [{"segment_bytes": 5000}, {"segment_bytes": 4096}, {"segments": 1}, {"segment_bytes": 1 << 40}])
def test_impossible_sizes_are_refused_by_name(sizes: dict[str, int]) -> None:
    """A setting that no log can have is named, and nothing is created."""
    files = SimFiles()
    with pytest.raises(BadSettings, match=next(iter(sizes))):
        Log.create(files, NODE, IDENTITY, **sizes, reserve_bytes=0)  # type: ignore[arg-type]
    assert not files.exists(NODE)


@pytest.mark.parametrize("every", [2, 3])
def test_a_log_without_free_descriptors_waits_for_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Log threads open a segment when they first write to it, rotations open the next: neither ends the log for want of one."""
    directory, files, real, opened = str(tmp_path_factory.mktemp("log") / "node"), RealFiles(), os.open, itertools.count()
    create(files, directory=directory, segments=12)
    log, source = Log.open(files, directory), WaitSource()
    monkeypatch.setattr(process_limits, "DESCRIPTOR_PAUSE_S", 0.001)

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
    monkeypatch.setattr(process_limits, "DESCRIPTOR_WAIT_S", 0.05)
    with pytest.raises(OSError, match="one") as refused:
        RealFiles().open(path, create=True)
    assert refused.value.errno == errno.EMFILE
