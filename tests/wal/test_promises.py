"""One log for callers who wait for the disk and for callers who do not: what is synced, when, and what is told before."""

from __future__ import annotations

import random
import threading
from typing import Literal

import pytest

from cmdlog.wal.errors import Wedged
from cmdlog.wal.log import Log
from cmdlog.wal.writing.segment_pool import READY_WANTED
from tests.waiting import wait_for
from tests.wal.logkit import LOG, NODE, ListSource, generations, numbers_in, sim
from tests.wal.sim.simfiles import Fault, Operation, SimFiles
from tests.wal.threadkit import WAIT_S, WaitSource

Sync = Literal["sync", "async"]
BOTH = pytest.mark.parametrize("sync", ["sync", "async"])
LONG_S = 3600.0  # a window that no test lives to see end


def open_promising(files: SimFiles, sync: Sync, source: ListSource, *, threads: int = 0, early: bool = False) -> Log:
    """A log for whose blocks no caller waits yet; the source wants to hear of writes `early`."""
    source.waits = False
    log = Log.open(files, NODE, generation=generations(2000))
    log.start(
        source, threads=threads, sync=sync, async_window_s=LONG_S, seal_after_s=LONG_S,
        early=early,
    )  # fmt: skip
    return log


def syncs(files: SimFiles) -> int:
    """Syncs of the log's segments so far."""
    return sum(operation.kind == "fdatasync" and "seg-" in operation.path for operation in files.trace)


@BOTH
def test_a_block_is_synced_for_those_who_wait(sync: Sync) -> None:
    """Blocks that nobody waits for are written and told, without a sync; the next one that somebody waits for syncs them all."""
    files, source = sim(), ListSource()
    log = open_promising(files, sync, source)
    before = syncs(files)
    for number in range(2):
        source.put(number)
        log.run_turn()
    assert (syncs(files), source.written_numbers, source.acknowledged) == (before, [0, 1], [])
    source.waits = True
    source.put(2)
    log.run_turn()
    assert (syncs(files), source.acknowledged) == (before + 1, [0, 1, 2])
    dark = files.power_cut(random.Random(0), "none")
    assert numbers_in(Log.open(dark, NODE, generation=generations(9000))) == [0, 1, 2]


@BOTH
def test_what_nobody_waits_for_is_synced_with_the_window(sync: Sync) -> None:
    """`run_background_work`, as the keeper at the end of the window, syncs what was left, once."""
    files, source = sim(), ListSource()
    log = open_promising(files, sync, source)
    before = syncs(files)
    for number in range(3):
        source.put(number)
        log.run_turn()
    log.run_background_work()
    assert source.acknowledged == [0, 1, 2]
    assert syncs(files) <= before + 2  # the blocks, and the seal behind them
    log.close()


@BOTH
@pytest.mark.parametrize("early", [False, True])
def test_a_write_is_told_before_its_sync_if_that_is_wanted(sync: Sync, early: bool) -> None:
    """While somebody wants to hear early, `written` comes before the sync; else with `durable`, and one lock less."""
    files, source = sim(), ListSource()
    log = open_promising(files, sync, source, early=early)
    source.waits = True
    seen: list[list[int]] = []

    def look(operation: Operation) -> None:
        if operation.kind == "fdatasync" and "seg-" in operation.path:
            seen.append(list(source.written_numbers))

    files.before = look
    source.put(7)
    log.run_turn()
    assert seen == [[7] if early else []]
    assert (source.written_numbers, source.acknowledged) == ([7], [7])


@BOTH
def test_a_slow_write_that_nobody_waits_for_keeps_nobody_waiting(sync: Sync) -> None:
    """A block that is written only after a later one was synced for somebody syncs itself, not at the end of the window."""
    files = sim()
    source = WaitSource()
    log = open_promising(files, sync, source, threads=4)
    wait_for(lambda: log._space.ready == READY_WANTED)
    release, held = threading.Event(), threading.Lock()

    def hold(operation: Operation) -> None:
        if operation.kind == "pwrite" and "seg-" in operation.path and held.acquire(blocking=False):
            assert release.wait(WAIT_S)

    files.before = hold
    source.put(0)
    log.kick()
    source.wait(lambda: source.sent == [0])
    ring = log._ring
    assert ring is not None
    wait_for(lambda: ring.status()["in_flight"] == 1)  # its place in the order is given, and with it what was said about waiting
    source.waits = True
    before = syncs(files)
    source.put(1)
    log.kick()
    wait_for(lambda: syncs(files) == before + 1)
    assert source.acknowledged == []
    release.set()
    source.wait(lambda: source.acknowledged == [0, 1])
    assert syncs(files) == before + 2
    log.close()


@BOTH
def test_whoever_comes_to_wait_later_ends_the_window(sync: Sync) -> None:
    """`hasten` has the keeper sync what was left at once."""
    files = sim()
    source = WaitSource()
    log = open_promising(files, sync, source, threads=2)
    source.put(0)
    log.kick()
    source.wait(lambda: source.written_numbers == [0])
    assert source.acknowledged == []
    log.hasten()
    source.wait(lambda: source.acknowledged == [0])
    log.hasten()
    log.close()


@BOTH
def test_a_failed_sync_of_one_covers_nothing(sync: Sync) -> None:
    """When the sync that was to cover blocks without their own fails, none of them is ever durable."""
    files, source = sim(), ListSource()
    log = open_promising(files, sync, source)
    source.put(0)
    log.run_turn()
    source.waits = True
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    source.put(1)
    log.run_turn()
    assert len(source.errors) == 1
    assert source.acknowledged == []
    with pytest.raises(Wedged):
        log.close()
    assert source.acknowledged == []


def test_rotation_syncs_what_was_left() -> None:
    """A segment is left behind only when everything in it is durable, whether anybody waits or not."""
    files, source = sim(), ListSource()
    log = open_promising(files, "sync", source)
    number = 0
    while len(log._space.segments) < 3:
        source.put(number, 5000)
        log.run_turn()
        log._space.prepare_files()
        number += 1
    last_of_old = log._space.segments.peekitem(-1)[1].header.first_block
    assert log.durable_block >= last_of_old - 1
    assert LOG in log._space.segments.peekitem(-1)[1].path
    log.close()
    assert source.acknowledged == list(range(number))
