"""A damaged segment whose copy is in the archive is made again from there, and never at the cost of a living file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.node.node import Node
from cmdlog.node.scrub.segment_mend import ANCHOR, MendOrder, mend_from_archive, mend_segment
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from snapshot.archive.archive import ArchiveFolder, add_segment
from snapshot.archive.segment_copy import copy_segment
from tests.node.rig import open_node
from tests.node.scrubbed import SHAPE, flip_bit, items_of, run_pass, scrub_of, write_segments

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Its second segment is in the archive and still in the ring."""
    node = open_node(tmp_path / "node", inline=True, **SHAPE)
    write_segments(node, 3, first=0)
    wal = node.overview.ground.wal
    place = ArchiveFolder(RealFiles(), node.directory, wal.instance.identity)
    segment, last = wal.segments[1], int(wal.segments[2].header.first_block) - 1
    temporary = place.temporary()
    copied = copy_segment(RealFiles(), segment.path, temporary, last_block=last)
    add_segment(place, segment, last, temporary=temporary, copied=copied, before=None)
    yield node
    node.close()


def mend_here(wal: Log, path: str) -> bool:
    """In this process."""
    return mend_segment(RealFiles(), wal, path, lambda order: mend_from_archive(RealFiles(), wal.instance.identity, order))


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_segment_is_made_again_from_the_archive(node: Node, seed: int) -> None:
    """By the scrub, on a running node; the next pass finds nothing, and the log reads to its end."""
    damaged = items_of(node)["log"][1]
    flip_bit(damaged.path, seed=seed, end=100_000)
    status = run_pass(scrub_of(node))
    scrub_of(node).step(5e9)
    (over,) = scrub_of(node).status()["repaired"]
    assert over["repair"] == "made again from the archive's copy"
    assert os.path.getsize(damaged.path) == SHAPE["segment_bytes"]
    assert run_pass(scrub_of(node))["last"]["damaged"] == 0
    assert status["last"]["damaged"] == 1
    assert sum(1 for _ in node.overview.ground.wal.read()) > 100


def test_a_copy_that_is_damaged_as_well_replaces_nothing(node: Node) -> None:
    """Both files stay as they are, and nothing temporary is left."""
    damaged = items_of(node)["log"][1]
    flip_bit(damaged.path, seed=1, begin=8192, end=100_000)
    (archived,) = Path(node.directory, "archive").glob("*.seg")
    flip_bit(archived, seed=2, begin=8192, end=100_000)
    before = Path(damaged.path).read_bytes()
    with pytest.raises(Corrupt):
        mend_here(node.overview.ground.wal, damaged.path)
    assert Path(damaged.path).read_bytes() == before
    assert list(Path(node.directory, "log").glob("seg-*.tmp")) == []
    assert ANCHOR not in node.overview.ground.wal.anchors.status()


def test_a_segment_that_is_not_archived_or_not_in_the_ring_is_not_made(node: Node) -> None:
    """There is nothing to make it from, or nobody needs it."""
    wal = node.overview.ground.wal
    assert mend_here(wal, items_of(node)["log"][0].path) is False
    assert mend_here(wal, items_of(node)["log"][-1].path) is False
    assert mend_here(wal, os.path.join(node.directory, "log", "seg-9999999999999999.wal")) is False


def test_a_segment_that_is_let_go_meanwhile_gets_no_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is thrown away: its name is another segment's by then."""
    wal, target = node.overview.ground.wal, items_of(node)["log"][1].path
    segments = wal.segments

    def copy(order: MendOrder) -> str:
        made = mend_from_archive(RealFiles(), wal.instance.identity, order)
        monkeypatch.setattr(Log, "segments", property(lambda _self: segments[2:]))
        return made

    before = os.stat(target).st_ino
    assert mend_segment(RealFiles(), wal, target, copy) is False
    assert os.stat(target).st_ino == before
    assert not os.path.exists(target + ".tmp")
