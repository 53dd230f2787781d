"""Files of recovery points."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.files import RealFiles
from snapshot.recovery_points import Point, describe_points, keep_points, list_points, write_point

FILES = RealFiles()
NAME = "p0001-0000000000000007"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node directory."""
    (tmp_path / "snapshots").mkdir()
    return tmp_path


def point(txn_id: int) -> Point:
    """Of two partitions."""
    return Point(txn_id, "2026-01-31T12:00:00Z", {0: "p0000-0000000000000003", 1: NAME}, 10, 90)


def test_points_are_listed_by_transaction(folder: Path) -> None:
    """As numbers, not as text; and described with ids as text."""
    for txn_id in (1000, 99, (1 << 63) + 5):
        write_point(FILES, str(folder), point(txn_id))
    points, bad = list_points(FILES, str(folder))
    assert points == [point(99), point(1000), point((1 << 63) + 5)]
    assert bad == []
    assert describe_points(points, bad)[0] == {
        "txn_id": "99", "created": "2026-01-31T12:00:00Z", "from_block": 10, "to_block": 90,
        "snapshots": ["p0000-0000000000000003", NAME],
    }  # fmt: skip


def test_the_newest_are_kept(folder: Path) -> None:
    """What the others pinned is free."""
    for txn_id in (1, 2, 3):
        write_point(FILES, str(folder), point(txn_id))
    assert [gone.txn_id for gone in keep_points(FILES, str(folder), kept=2)] == [1]
    assert keep_points(FILES, str(folder), kept=2) == []
    assert [p.txn_id for p in list_points(FILES, str(folder))[0]] == [2, 3]


@pytest.mark.parametrize("at", range(0, 240, 7))
def test_a_flipped_bit_is_seen(folder: Path, at: int) -> None:
    """Such a file is named and pins nothing."""
    path = Path(write_point(FILES, str(folder), point(5)))
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)
    points, bad = list_points(FILES, str(folder))
    if points:  # white space between the fields
        assert points == [point(5)]
    else:
        assert [b.name for b in bad] == ["5.json"]
        assert describe_points(points, bad)[0]["problem"]


@pytest.mark.parametrize("name", ["../../../etc/passwd", "p0000-0000000000000003", "p0001-0000000000000007/..", ""])
def test_a_name_that_is_no_snapshot_of_the_partition_is_refused(folder: Path, name: str) -> None:
    """Names in files never become paths."""
    write_point(FILES, str(folder), Point(5, "", {1: name}, 1, 2))
    points, bad = list_points(FILES, str(folder))
    assert points == []
    assert "names" in bad[0].problem


def test_other_files_are_left_alone(folder: Path) -> None:
    """Whatever an operator or a broken-off write left; a renamed point is none."""
    path = Path(write_point(FILES, str(folder), point(5)))
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / "6.json.tmp").write_text("{")
    path.rename(path.parent / "6.json")
    points, bad = list_points(FILES, str(folder))
    assert points == []
    assert "renamed" in bad[0].problem


class FailingFiles(RealFiles):
    """Fails at the n-th change of the volume."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise WriteFailed("planted")

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self._count()
        super().fsync_dir(path)

    def mkdir(self, path: str, mode: int = 0o750) -> None:
        self._count()
        super().mkdir(path)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_write_that_breaks_off_leaves_a_whole_point_or_none(folder: Path, at: int) -> None:
    """At every step; done again, it is there."""
    try:
        write_point(FailingFiles(at), str(folder), point(5))
    except WriteFailed:
        assert list_points(FILES, str(folder)) in (([], []), ([point(5)], []))
    write_point(FILES, str(folder), point(5))
    assert list_points(FILES, str(folder)) == ([point(5)], [])
