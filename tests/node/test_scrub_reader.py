"""What the reading process does around a slice: it asks the disk and leaves the page cache as it was."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.node.node import Node
from cmdlog.node.scrub.entry_sums import EntrySums
from cmdlog.node.scrub.file_scan import ScanGround, SliceOrder, scan_slice
from cmdlog.node.scrub.scrub_reader import ReadingFailed, ScrubReader, forget_slice
from cmdlog.node.scrub.segment_mend import MendOrder
from cmdlog.wal.files import RealFiles
from tests.node.rig import alive, kill, open_node
from tests.node.scrubbed import SHAPE, flip_bit, items_of, write_segments
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SIZE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """On disk, and in the page cache."""
    path = tmp_path / "file"
    with path.open("wb") as out:
        out.write(os.urandom(SIZE))
        out.flush()
        os.fsync(out.fileno())
    path.read_bytes()
    return path


def test_what_is_read_is_dropped_from_the_page_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of the order, of the segment or of the snapshot's file."""
    dropped: list[tuple[str, int, int]] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        dropped.append((os.readlink(f"/proc/self/fd/{descriptor}"), offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    forget_slice(SliceOrder("log", str(file), 4096, at={"number": 3, "offset": 8192, "chain": 1}))
    forget_slice(SliceOrder("snapshot", str(file.parent), 4096, at={"name": "file", "offset": 0}))
    assert dropped == [(str(file), 8192, 4096), (str(file), 0, 4096)]


def test_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The reading itself finds that out."""
    forget_slice(SliceOrder("log", str(tmp_path / "gone"), 4096))


# -- the process, which answers as the same reading here does ------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """With two segments and a snapshot."""
    node = open_node(tmp_path / "node", inline=True, **SHAPE)
    write_segments(node, 2, first=0)
    node.take_snapshot()
    yield node
    node.close()


@pytest.fixture
def reader(node: Node) -> Iterator[ScrubReader]:
    """Ended with the test."""
    reader = ScrubReader(node.directory)
    yield reader
    reader.stop()
    reader.rest()


def log_order(node: Node, number: int) -> SliceOrder:
    """The begin of a segment."""
    item = items_of(node)["log"][number]
    return SliceOrder("log", item.path, 50_000, last_block=item.last_block, generation=item.generation, sums=True)


def test_it_answers_as_the_same_reading_here(node: Node, reader: ScrubReader) -> None:
    """Slices, damage and sums come back as they were, over JSON."""
    ground = ScanGround(RealFiles(), node.overview.ground.wal.instance.identity, EntrySums())
    assert dataclasses.replace(reader.read(log_order(node, 0)), sums=()) == scan_slice(ground, log_order(node, 0))
    flip_bit(items_of(node)["log"][1].path, seed=4, begin=8192, end=20_000)
    read = reader.read(log_order(node, 1))
    assert dataclasses.replace(read, sums=()) == scan_slice(ground, log_order(node, 1))
    assert read.damage is not None
    order = SliceOrder("snapshot", items_of(node)["snapshot"][0].path, 1 << 20)
    assert dataclasses.replace(reader.read(order), sums=()) == scan_slice(ground, order)


@pytest.mark.usefixtures("cold_start")
def test_it_takes_time_that_nobody_else_wants(node: Node, reader: ScrubReader) -> None:
    """SCHED_IDLE, and nice as well where that is not allowed."""
    reader.read(log_order(node, 0))
    assert reader.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, reader.pid) >= 15
    assert os.sched_getscheduler(reader.pid) == os.SCHED_IDLE


def test_it_ends_with_the_pass_and_begins_again(node: Node, reader: ScrubReader) -> None:
    """A process that was killed is replaced at the next order; one order fails."""
    reader.read(log_order(node, 0))
    first = reader.pid
    assert first is not None
    kill(first)
    wait_for(lambda: not alive(first))
    with pytest.raises(ReadingFailed, match="ended"):
        reader.read(log_order(node, 0))
    reader.read(log_order(node, 0))
    second = reader.pid
    assert second not in (None, first)
    reader.rest()
    assert reader.pid is None
    assert second is not None
    assert not alive(second)


def test_a_segment_that_is_in_no_archive_is_not_made(node: Node, reader: ScrubReader) -> None:
    """No path; and no more orders after a stop."""
    item = items_of(node)["log"][0]
    assert reader.mend(MendOrder(node.directory, item.path, item.generation, item.last_block)) == ""
    reader.stop()
    with pytest.raises(ReadingFailed):
        reader.read(log_order(node, 0))
