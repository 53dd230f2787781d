"""What a node promised stays restorable: crashes at every step, a full archive, a full disk, damage, clocks, operators."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.node.background import archiver
from cmdlog.node.background.archiver import Archiver, Rules
from cmdlog.node.background.running_work import RunningWork
from cmdlog.wal.errors import DiskFull
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log
from replay.errors import UntilUnreachable
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from snapshot.archive.archive import ArchiveFolder, bytes_of, check_segments, remove_segment
from snapshot.archive.segment_copy import CopiedSegment, copy_segment
from snapshot.archive_layout import gaps
from tests.replay.archiverig import FOREVER_S, RULES, SEGMENT_BYTES, ArchiveRig
from tests.replay.rig import Feed, balances_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("copies_start")]


class SteppedFiles(RealFiles):
    """Tells before every change of the disk; a copy of the directory taken then is what a kill leaves there."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda step: None

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> Any:
        if exclusive:
            self.before("open")
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)

    def rename(self, source: str, target: str) -> None:
        self.before("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.before("unlink")
        super().unlink(path)

    def fsync_dir(self, path: str) -> None:
        self.before("fsync_dir")
        super().fsync_dir(path)


class Restarted:
    """A copy of a node directory on which a node starts again, with the same needs of its log."""

    def __init__(self, rig: ArchiveRig, directory: Path) -> None:
        self.wal, self.feed = Log.open(RealFiles(), str(directory)), Feed()
        self.place = ArchiveFolder(RealFiles(), str(directory), rig.identity)
        self.archiver = Archiver(
            self.place,
            range(rig.partitions),
            rig.rules,
            wal=self.wal,
            copy=lambda source, target, last: copy_segment(RealFiles(), source, target, last_block=last),
            now_millis=lambda: rig.millis,
            work=RunningWork(),
        )
        self.wal.ask_before_recycling(self.archiver.may_go)
        self.wal.start(self.feed, threads=1, seal_after_s=60, sync="off")
        self.archiver.start()

    def close(self) -> None:
        self.archiver.stop()
        self.wal.close()


def ring_has_passed(wal: Log, block: int) -> bool:
    """No segment is left that lies before the block."""
    return all(first > block for first in wal.first_blocks()[1:])


@pytest.fixture
def tried_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in the way is looked at again soon."""
    monkeypatch.setattr(archiver, "RETRY_S", 0.05)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.torture)])
def test_crash_at_every_step_loses_and_doubles_nothing(tmp_path: Path, every: int) -> None:
    """Killed before any change of the disk while segments and snapshots move: the next start goes on, every moment is there.

    Here one start of two is tried, of each kind of change; by `make torture` all.
    """
    rig, files = ArchiveRig(tmp_path, segments=10), SteppedFiles()
    rig.archive_files = files
    rig.archiver.stop()
    rig.attach()
    rig.rotate(2)
    kills: list[tuple[str, Path, int]] = []

    def kill(step: str) -> None:
        directory = tmp_path / f"kill{len(kills)}"
        for attempt in range(20):  # the ring's own thread may be renaming a file that it prepares
            try:
                shutil.copytree(rig.directory, directory, ignore=shutil.ignore_patterns("LOCK", "free-*"))
            except shutil.Error:
                assert attempt < 19
                shutil.rmtree(directory)
            else:
                break
        kills.append((step, directory, len(rig.history)))

    files.before = kill
    rig.rotate(2, batches=34)
    files.before = lambda step: None
    anchor = rig.wal.anchors.oldest()
    assert anchor is not None
    assert {step for step, _, _ in kills} == {"open", "rename", "fsync_dir"}
    assert len(kills) > 15
    kills = kills[::every]
    assert {step for step, _, _ in kills} == {"open", "rename", "fsync_dir"}
    for n, (step, directory, there) in enumerate(kills):
        txn, balances = rig.history[(7, there // 2, there - 8)[n % 3]]
        node = Restarted(rig, directory)
        left = [name for name in os.listdir(directory / "archive") if name.startswith("tmp-") or name.endswith(".tmp")]
        assert [name for name in left if not node.archiver.archived] == [], step
        node.wal.anchors.set("all", Lsn(BlockNumber(anchor.block), 0))
        wait_for(lambda node=node: ring_has_passed(node.wal, anchor.block))  # type: ignore[misc]
        node.close()
        segments = node.place.segments()
        assert set(check_segments(node.place, segments)) == {""}, step
        assert gaps(segments, node.wal.first_blocks()[0]) == []
        out = directory.with_suffix(".out")
        rebuild(make_plan(RealFiles(), str(directory), PAST, until=txn), RealFiles(), str(out), workers=0)
        assert balances_of(str(out)) == balances, step
    rig.stop()


def test_segments_are_archived_once_and_chained(tmp_path: Path) -> None:
    """Each file names its predecessor with its hash, and none is ever written again."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(3)
    place = ArchiveFolder(RealFiles(), rig.directory, rig.identity)
    before = {s.name: os.stat(s.path) for s in place.segments()}
    rig.rotate(3)
    rig.close()
    segments = place.segments()
    for one, two in itertools.pairwise(segments):
        assert one.manifest is not None
        assert two.manifest is not None
        assert two.manifest.predecessor is not None
        assert (two.manifest.predecessor.name, two.manifest.predecessor.sha256) == (one.name, one.manifest.sha256)
        assert one.manifest.last_chain == two.manifest.previous_chain
    after = {s.name: os.stat(s.path) for s in segments}
    assert {name: (s.st_ino, s.st_mtime_ns) for name, s in before.items()} == {
        name: (after[name].st_ino, after[name].st_mtime_ns) for name in before
    }
    assert set(check_segments(place, segments)) == {""}


@pytest.mark.usefixtures("tried_often")
def test_full_archive_stops_the_log_and_goes_on_by_itself(tmp_path: Path) -> None:
    """With `stop` nothing that was promised goes: segments stay in the ring, it says why, and an operator's room is enough."""
    rig = ArchiveRig(tmp_path, rules={"bytes_max": 4 * SEGMENT_BYTES}, segments=10)
    rig.deposits(20)
    rig.snapshots_of_all()
    rig.settle()
    rig.deposits(30)
    rig.snapshots_of_all()
    rig.snapshots_of_all()
    wait_for(lambda: "archive_bytes_max" in rig.archiver.problem)
    assert rig.passed_segments() > 0
    assert "archive" in rig.archiver.why_full()
    assert rig.directory in rig.archiver.why_full()
    assert rig.archiver.status()["problem"] == rig.archiver.problem
    assert rig.archiver.status()["oldest_txn"] == "0", "nothing was given up"
    assert rig.archiver.given_up == 0
    place = ArchiveFolder(RealFiles(), rig.directory, rig.identity)
    while rig.passed_segments():
        count, there = rig.archiver.archived, rig.passed_segments()
        remove_segment(place, place.segments()[0])
        wait_for(lambda count=count, there=there: rig.archiver.archived > count or rig.passed_segments() < there)  # type: ignore[misc]
    wait_for(lambda: not rig.archiver.problem)
    assert "archive" not in rig.archiver.why_full()
    rig.close()


def test_shorten_gives_up_the_oldest_and_shows_how_far_back_one_can_go(tmp_path: Path) -> None:
    """The archive stays within its limit, writes go on, and from the shown moment on everything can be restored."""
    rig = ArchiveRig(tmp_path, rules={"bytes_max": 8 * SEGMENT_BYTES, "when_full": "shorten"}, segments=6)
    rig.rotate(10)
    status = rig.archiver.status()
    assert status["bytes"] <= 8 * SEGMENT_BYTES
    assert status["given_up"] > 0
    assert not status["window_kept"]
    oldest = int(status["oldest_txn"])
    assert 0 < oldest < rig.last_txn
    assert status["real_window_s"] == pytest.approx((rig.millis - (oldest >> 21)) / 1000, abs=0.01)
    rig.close()
    later = [moment for moment in rig.history if moment[0] >= oldest]
    for n, (txn, balances) in enumerate((later[0], later[len(later) // 2])):
        assert rig.recovered(tmp_path / f"out{n}", txn) == balances
    with pytest.raises(UntilUnreachable):
        make_plan(RealFiles(), rig.directory, PAST, until=rig.history[7][0])


@pytest.mark.parametrize("rule", ["stop", "shorten"])
def test_archive_never_exceeds_its_limit(tmp_path: Path, rule: str) -> None:
    """Manifests, the promise and snapshots that the window needs count before they are put in: the limit holds at any moment."""
    limit = 2 * SEGMENT_BYTES + 512
    rig, files = ArchiveRig(tmp_path, rules={"bytes_max": limit, "when_full": rule}, kept=3, segments=10), SteppedFiles()
    sizes: list[int] = []
    archive = Path(rig.directory) / "archive"
    files.before = lambda step: sizes.append(bytes_of(str(archive)))
    rig.archiver.stop()
    rig.archive_files = files
    rig.attach()
    for _ in range(2):
        rig.deposits(30)
        rig.snapshots_of_all()
    rig.snapshots_of_all()
    wait_for(lambda: bool(rig.archiver.problem) if rule == "stop" else not rig.passed_segments())
    for _ in range(3):  # the oldest snapshots go, which the window needs
        rig.snapshots_of_all()
    rig.archiver.stop()
    assert max(sizes) > SEGMENT_BYTES
    assert max(*sizes, bytes_of(str(archive))) <= limit
    if rule == "stop":
        txn, balances = rig.history[3]
        rig.close()
        assert rig.recovered(tmp_path / "out", txn) == balances
    else:
        rig.close()


@pytest.mark.usefixtures("tried_often")
@pytest.mark.parametrize("rule", ["stop", "shorten"])
def test_full_disk_follows_the_rule_and_costs_the_ring_no_file(tmp_path: Path, rule: str) -> None:
    """No space for a copy: with `stop` it waits and goes on when space is back, with `shorten` the history gives way."""
    rig = ArchiveRig(tmp_path, rules={"when_full": rule}, segments=8)
    rig.rotate(3)
    full = True

    def copy(source: str, target: str, last_block: int) -> CopiedSegment:
        if full and (rule == "stop" or len(rig.names(".seg")) > 1):
            raise DiskFull(f"write of {target}: No space left on device")
        return rig.copy_here(source, target, last_block)

    rig.copier = copy
    rig.deposits(24)
    rig.snapshots_of_all()
    rig.snapshots_of_all()
    if rule == "stop":
        wait_for(lambda: "archive is full" in rig.archiver.problem)
        assert rig.passed_segments() > 0
        full = False
    rig.settle()
    wait_for(lambda: not rig.archiver.problem)
    assert (rig.archiver.given_up > 0) == (rule == "shorten")
    assert not [name for name in rig.names() if name.startswith("tmp-")]
    files = [name for name in os.listdir(Path(rig.directory) / "log") if name.startswith(("seg-", "free-"))]
    assert len(files) <= 8
    rig.close()


@pytest.mark.parametrize("rule", ["stop", "shorten"])
def test_damaged_segment_is_never_archived_as_if_it_were_whole(tmp_path: Path, rule: str) -> None:
    """A bit of the ring's oldest segment has flipped: named, and then the rule decides between the promise and going on."""
    rig = ArchiveRig(tmp_path, rules={"when_full": rule}, segments=10)
    rig.deposits(40)
    path = Path(rig.wal.segments[1].path)
    data = bytearray(path.read_bytes())
    data[4096 * 5 + 100] ^= 1
    path.write_bytes(data)
    rig.snapshots_of_all()
    rig.snapshots_of_all()
    if rule == "stop":
        wait_for(lambda: path.name in rig.archiver.problem)
        assert rig.passed_segments() > 0
        assert "corrupt" in rig.archiver.problem
    else:
        rig.settle()
        assert rig.archiver.given_up == 1
    rig.stop()


def test_window_lets_go_of_what_is_older_and_of_nothing_else(tmp_path: Path) -> None:
    """The archive is pruned as the window moves; every moment inside it stays restorable."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0.15}, segments=6)  # 150 transactions of the rig's clock
    rig.rotate(8)
    begin = rig.millis - 150
    status = rig.archiver.status()
    assert status["window_kept"]
    assert 0 < int(status["oldest_txn"]) <= begin << 21
    rig.close()
    inside = [moment for moment in rig.history if moment[0] >> 21 >= begin]
    for n, (txn, balances) in enumerate((inside[0], inside[len(inside) // 2])):
        assert rig.recovered(tmp_path / f"out{n}", txn) == balances
    with pytest.raises(UntilUnreachable):
        make_plan(RealFiles(), rig.directory, PAST, until=rig.history[7][0])


def test_snapshots_that_only_save_time_make_room_first(tmp_path: Path) -> None:
    """Before the log stops, snapshots go without which every moment is there; the base of the window is never among them."""
    rig = ArchiveRig(tmp_path, segments=10)
    rig.rotate(6)
    rig.archiver.stop()  # it may be copying a snapshot still
    spare, used = {name for name in rig.names() if name.startswith("snap-")}, rig.archiver.status()["bytes"]
    rig.rules = Rules(window_s=FOREVER_S, bytes_max=used + SEGMENT_BYTES, when_full="stop")
    rig.attach()
    rig.rotate(1)

    def left() -> list[str]:
        return [name for name in rig.names() if name.startswith("snap-")]

    wait_for(lambda: spare - {*left()}, why=left)
    assert {name.split("-")[3] for name in left()} == {"p0000", "p0001"}
    assert not rig.archiver.problem
    assert rig.archiver.status()["oldest_txn"] == "0"
    rig.close()


def test_shorten_never_gives_up_what_a_point_pins(tmp_path: Path) -> None:
    """The window gives way, the recovery point does not."""
    rig = ArchiveRig(tmp_path, rules={"bytes_max": 8 * SEGMENT_BYTES, "when_full": "shorten"}, segments=6)
    rig.rotate(2)
    point, balances = rig.point(), rig.history[-1][1]
    rig.rotate(10)
    rig.close()
    assert rig.recovered(tmp_path / "out", point.txn_id) == balances


def test_shorten_waits_with_a_segment_that_a_point_pins(tmp_path: Path) -> None:
    """It is no part of the window that gives way: the log stands still until there is room."""
    rig = ArchiveRig(tmp_path, rules={"bytes_max": SEGMENT_BYTES // 2, "when_full": "shorten"}, segments=10)
    rig.deposits(20)
    rig.point()
    rig.deposits(30)
    for _ in range(2):
        rig.snapshots_of_all()
    wait_for(lambda: "archive_bytes_max" in rig.archiver.problem)
    rig.close()


def test_clock_an_hour_back_does_not_shorten_the_window(tmp_path: Path) -> None:
    """The begin of the window goes back with the clock: everything that was there stays."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0.15}, segments=6)
    rig.rotate(5)
    before, first = set(rig.names(".seg")), rig.archiver.status()["oldest_txn"]
    rig.archiver.stop()
    rig.millis -= 3_600_000
    rig.attach()
    assert set(rig.names(".seg")) == before
    assert rig.archiver.status()["oldest_txn"] == first
    assert rig.archiver.status()["window_kept"]
    rig.stop()


def test_switching_the_window_off_throws_nothing_away(tmp_path: Path) -> None:
    """A setting that got lost is no order to delete the history: what was promised stays for `archive prune`, and is shown."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(3)
    before = rig.names()
    rig.stop()
    rig.rules = Rules(**{**RULES, "window_s": 0.0})
    with capture_logs() as logs:
        rig.restart()
    assert [(line["log_level"], line["promised_window_s"]) for line in logs if "promised_window_s" in line] == [
        ("warning", FOREVER_S)
    ]
    status = rig.archiver.status()
    assert (status["unkept_window_s"], status["window_kept"]) == (FOREVER_S, False)
    rig.rotate(2)
    assert set(before) <= set(rig.names())
    rig.close()


def test_damaged_promise_is_shown_and_keeps_everything(tmp_path: Path) -> None:
    """A start without a window cannot know what was promised: it says so, and a start with one writes the file again."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(3)
    before = rig.names()
    rig.stop()
    (Path(rig.directory) / "archive" / "promise.json").write_bytes(b"")
    rig.rules = Rules(**{**RULES, "window_s": 0.0})
    rig.restart()
    rig.rotate(1)
    assert "promise.json is damaged" in str(rig.archiver.status()["promise_problem"])
    assert set(before) <= set(rig.names())
    rig.stop()
    rig.rules = Rules(**RULES)
    rig.restart()
    assert rig.archiver.status()["promise_problem"] is None
    rig.close()


def test_damaged_point_keeps_everything(tmp_path: Path) -> None:
    """Nobody knows what it pins, so nothing goes, and it is shown."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0}, segments=6)
    rig.rotate(1)
    point = rig.point()
    path = Path(rig.directory) / "snapshots" / "points" / f"{point.txn_id}.json"
    path.write_bytes(path.read_bytes().replace(b"from_block", b"from_blocc"))
    rig.rotate(7)
    assert rig.archiver.status()["damaged_points"] == [path.name]
    assert len(rig.names(".seg")) > 3
    rig.close()


def test_operator_may_prune_beside_the_running_node(tmp_path: Path) -> None:
    """What vanishes from the archive is forgotten, and the node goes on."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(3)
    place = ArchiveFolder(RealFiles(), rig.directory, rig.identity)
    for segment in place.segments()[:3]:
        remove_segment(place, segment)
    rig.rotate(2)
    assert not rig.archiver.problem
    assert int(rig.archiver.status()["oldest_txn"]) > 0
    rig.close()
