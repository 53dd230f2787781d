"""How far the log is written and durable: blocks end in any order, marks and reports follow in theirs."""

from __future__ import annotations

import itertools
import random
import threading

import pytest

from cmdlog.wal.errors import WalError
from cmdlog.wal.writing.tail import PlacedBlock
from cmdlog.wal.writing.turn import Gate
from cmdlog.wal.writing.watermarks import RingSettings, Sync, Watermarks


class Reports:
    """A source that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.pending_bytes, self.waits, self.lax = 0, True, False

    def take_records(self, bytes_max: int) -> list[bytes]:
        return []

    def written(self, block: int) -> None:
        self.heard.append(("written", block))

    def durable(self, block: int) -> None:
        self.heard.append(("durable", block))

    def failed(self, error: WalError) -> None:
        self.heard.append(("failed", error))


class Marks:
    """Watermarks of a log that has 10 blocks, and a source."""

    def __init__(self, *, sync: Sync = "sync", early: bool = True) -> None:
        self.source, self.lock = Reports(), threading.Lock()
        settings = RingSettings(
            threads=0, sync=sync, seal_after_s=1, async_window_s=1, early=early,
            timed=lambda _: None, clock=lambda: 0.0,
        )  # fmt: skip
        self.marks = Watermarks(self.lock, Gate(self.lock), self.source, start=10, settings=settings)
        self._numbers = itertools.count(11)

    def place(self, *, is_taken: bool = True) -> PlacedBlock:
        block = PlacedBlock(next(self._numbers), "/seg", 0, b"", is_taken)
        self.marks.placed(block)
        return block

    def told(self, delivers: bool) -> list[tuple[str, object]]:
        """What the source has heard by now."""
        if delivers:
            self.marks.deliver()
        return self.source.heard


def test_marks_move_over_contiguous_blocks_alone() -> None:
    """Whatever ends first, the source hears of block 11 before 12, of each written before durable, and of a seal nothing."""
    for order in itertools.permutations(range(6)):
        rig = Marks()
        blocks = [rig.place(is_taken=n != 1) for n in range(3)]
        waiting = list(order)
        while waiting:  # a block is synced after it was written
            step = next(step for step in waiting if step < 3 or step - 3 not in waiting)
            waiting.remove(step)
            block = blocks[step % 3]
            rig.told(rig.marks.wrote(block) if step < 3 else rig.marks.synced(rig.marks.written, block))
            assert rig.marks.durable <= rig.marks.written
        assert (rig.marks.written, rig.marks.durable, rig.marks.in_flight) == (13, 13, 0)
        assert [block for kind, block in rig.source.heard if kind == "written"] == [11, 13]
        assert [block for kind, block in rig.source.heard if kind == "durable"] == [11, 13]
        for number in (11, 13):
            assert rig.source.heard.index(("written", number)) < rig.source.heard.index(("durable", number))


def test_a_sync_covers_what_was_left_before_it_began() -> None:
    """A block that is left after that waits for the next sync, and so does one that follows a block that is not written yet."""
    rig = Marks()
    first, gap, behind = (rig.place() for _ in range(3))
    for block in (first, behind):
        rig.told(rig.marks.wrote(block))
        rig.told(rig.marks.leave(block))
    assert (rig.marks.left, rig.marks.left_blocks()) == (2, [first])
    upto = rig.marks.written
    rig.told(rig.marks.wrote(gap))
    rig.told(rig.marks.leave(gap))
    assert rig.marks.left_blocks() == [first, gap, behind]
    assert rig.told(rig.marks.synced(upto))[-1] == ("durable", 11)
    assert (rig.marks.durable, rig.marks.left) == (11, 2)
    rig.told(rig.marks.synced(rig.marks.written))
    assert (rig.marks.durable, rig.marks.left) == (13, 0)


@pytest.mark.parametrize("early", [False, True])
def test_written_waits_for_durable_unless_it_is_wanted_early(early: bool) -> None:
    """Then it costs no lock of its own."""
    rig = Marks(early=early)
    block = rig.place()
    assert rig.told(rig.marks.wrote(block)) == ([("written", 11)] if early else [])
    assert rig.told(rig.marks.synced(11, block)) == [("written", 11), ("durable", 11)]


def test_without_syncs_what_is_written_is_acknowledged() -> None:
    """For benchmarks; a sync that comes all the same is no news."""
    rig = Marks(sync="off")
    block = rig.place()
    rig.told(rig.marks.wrote(block))
    rig.told(rig.marks.leave(block))
    rig.told(rig.marks.synced(11))
    assert rig.source.heard == [("written", 11), ("durable", 11)]
    assert rig.marks.durable == 11


def test_a_wedged_log_reports_that_and_nothing_else() -> None:
    """The first error, once; what was due and what ends later is not acknowledged."""
    rig, error = Marks(), WalError("first")
    done, late = rig.place(), rig.place()
    rig.marks.wrote(done)
    rig.marks.delivering = False  # its thread has not come to it
    delivers = rig.marks.wedge(error)
    assert not rig.marks.wedge(WalError("second")), "one thread reports"
    rig.told(delivers)
    rig.told(rig.marks.wrote(late))
    rig.told(rig.marks.synced(12, late))
    assert rig.source.heard == [("failed", error)]
    assert rig.marks.error is error


def test_one_thread_notifies_for_all_and_in_order() -> None:
    """Threads that end blocks at once: each block is reported twice, in order, and nothing is left when they are gone."""
    rig, chance = Marks(), random.Random(3)
    blocks = [rig.place() for _ in range(300)]
    mixed = chance.sample(blocks, len(blocks))

    def end(mine: list[PlacedBlock]) -> None:
        for block in mine:
            with rig.lock:
                delivers = rig.marks.wrote(block)
            rig.told(delivers)
            with rig.lock:
                delivers = rig.marks.synced(rig.marks.written, block)
            rig.told(delivers)

    threads = [threading.Thread(target=end, args=(mixed[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kind in ("written", "durable"):
        assert [block for what, block in rig.source.heard if what == kind] == [block.number for block in blocks]
    assert not rig.marks.delivering
