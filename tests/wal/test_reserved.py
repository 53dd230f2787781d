"""The space of the whole ring: taken at creation, or in the background, so that no other program gets it."""

from __future__ import annotations

import os
import random

import pytest

from cmdlog.wal.errors import DiskFull, WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from tests.wal.logkit import (
    IDENTITY,
    LOG,
    NODE,
    RESERVE_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    ListSource,
    append,
    at,
    generations,
    numbers_in,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import SimCrash, SimFiles

RING_BYTES = SEGMENTS * SEGMENT_BYTES


def create_whole(files: SimFiles) -> None:
    """A node whose log has all of its space."""
    Log.create(
        files, NODE, IDENTITY, segment_bytes=SEGMENT_BYTES, segments=SEGMENTS, reserve_bytes=RESERVE_BYTES, whole_ring=True,
        generation=generations(),
    )  # fmt: skip


def fill_ring(log: Log, source: ListSource) -> int:
    """Records until every segment is in use; how many."""
    log.anchors.set("all", at(1))
    for number in range(1000):
        if log.room_bytes < 8192:
            return number
        append(log, source, [number], size=1500)
        log.run_background_work()
    raise AssertionError("the log grows")


def log_bytes(files: SimFiles) -> int:
    """What the ring's files take."""
    return sum(files.open(f"{LOG}/{name}").size() for name in files.listdir(LOG) if name.startswith(("seg-", "free-")))


def test_a_volume_that_others_fill_leaves_the_log_its_space() -> None:
    """Created with its whole ring, the log uses every segment although nothing is left beside it."""
    files = SimFiles()
    create_whole(files)
    assert log_bytes(files) == RING_BYTES
    files.capacity_bytes = files.disk.used_bytes()
    log, source = open_log(files)
    count = fill_ring(log, source)
    assert len(log.segments) == SEGMENTS
    assert log.status()["disk_full"] is None
    assert numbers_in(log) == list(range(count))


def test_without_its_whole_ring_the_log_has_what_others_leave() -> None:
    """The counterpart: made ahead only, it ends where the volume does, and says so."""
    files = sim()
    files.capacity_bytes = files.disk.used_bytes() + SEGMENT_BYTES
    log, source = open_log(files)
    fill_ring(log, source)
    assert len(log.segments) < SEGMENTS
    assert log.status()["disk_full"] is not None


def test_creation_without_space_for_the_ring_is_refused_and_gives_the_space_back() -> None:
    """One message with the bytes that it takes; what was taken goes; with space the same directory is created."""
    files = SimFiles(capacity_bytes=RING_BYTES - 1)
    with pytest.raises(DiskFull, match=f"{RING_BYTES} bytes .{SEGMENTS} segments of {SEGMENT_BYTES}"):
        create_whole(files)
    assert files.listdir(LOG) == []
    with pytest.raises(WalError):
        Log.open(files, NODE)
    files.capacity_bytes = 2 * RING_BYTES
    create_whole(files)
    Log.open(files, NODE).close()


def test_a_log_of_an_older_version_gets_its_space_in_the_background() -> None:
    """Started for the whole ring, the preparing thread takes what is missing; the status counts it; a restart finds it."""
    files = sim()
    log = Log.open(files, NODE)
    log.start(source := ListSource(), threads=0, whole_ring=True)
    assert log.status()["segments"]["without_space"] == SEGMENTS - 1  # type: ignore[index]
    log.run_background_work()
    assert log_bytes(files) == RING_BYTES
    append(log, source, [1])
    log.close()
    log, source = open_log(files)
    segments = log.status()["segments"]
    assert isinstance(segments, dict)
    assert (segments["without_space"], segments["ready"] + segments["reserved"]) == (0, SEGMENTS - 1)
    files.capacity_bytes = files.disk.used_bytes()
    assert numbers_in(log) == [1]
    fill_ring(log, source)
    assert len(log.segments) == SEGMENTS


def test_space_that_runs_out_in_the_background_stops_nothing() -> None:
    """Calls go on in what there is, the status says what is missing, and the rest is taken when there is room."""
    files = sim()
    files.capacity_bytes = files.disk.used_bytes() + 3 * SEGMENT_BYTES
    log = Log.open(files, NODE)
    log.start(source := ListSource(), threads=0, whole_ring=True)
    log.run_background_work()
    assert "which the volume has not got" in str(log.status()["disk_full"])
    append(log, source, [1, 2])
    files.capacity_bytes = 2 * RING_BYTES
    log.run_background_work()
    assert log.status()["disk_full"] is None
    assert log_bytes(files) == RING_BYTES


@pytest.mark.parametrize("power", [False, True])
def test_every_crash_while_the_ring_is_made_leaves_a_node_or_none(power: bool) -> None:
    """After each operation of a creation and of a first start: what is left is opened, or created again, with its whole ring."""

    def scenario(files: SimFiles) -> None:
        create_whole(files)
        log = Log.open(files, NODE, generation=generations(2000))
        log.start(source := ListSource(), threads=0, whole_ring=True)
        log.run_background_work()
        append(log, source, [7])
        log.close()

    whole = SimFiles()
    scenario(whole)
    for number in range(1, len(whole.trace) + 1):
        files = SimFiles(number)
        files.crash_at(number)
        with pytest.raises(SimCrash):
            scenario(files)
        left = files.power_cut(random.Random(number)) if power else files.kill()
        try:
            log = Log.open(left, NODE, generation=generations(3000))
        except WalError:
            create_whole(left)
            log = Log.open(left, NODE, generation=generations(3000))
        log.start(source := ListSource(), threads=0, whole_ring=True)
        log.run_background_work()
        assert log_bytes(left) == RING_BYTES, f"after operation {number}"
        append(log, source, [8])
        assert numbers_in(log)[-1] == 8
        log.close()


def test_reserved_space_is_allocated_and_not_a_hole(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On the real volume the files have their blocks: a hole would have the size and not the space."""
    directory = str(tmp_path_factory.mktemp("log") / "node")
    Log.create(RealFiles(), directory, IDENTITY, segment_bytes=1 << 20, segments=6, reserve_bytes=4096, whole_ring=True)
    with os.scandir(f"{directory}/log") as entries:
        taken = {entry.name: entry.stat().st_blocks * 512 for entry in entries if entry.name.startswith(("seg-", "free-"))}
    assert len(taken) == 6
    assert min(taken.values()) >= 1 << 20
