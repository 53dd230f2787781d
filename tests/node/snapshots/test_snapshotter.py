"""The node's snapshot thread: when, in which order, and what is left when it is broken off at any step."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog import child_process
from cmdlog.child_process import ChildEnd
from cmdlog.node.background import idle_process
from cmdlog.node.background.snapshot_schedule import LogView
from cmdlog.node.snapshots import snapshot_maker
from replay.state.trust import state_path
from snapshot import retention
from snapshot.errors import SnapshotFailed
from snapshot.recovery_points import list_points
from snapshot.space_reserve import Reserve
from tests.node.snapshots.thread import FILES, TIMEOUT_S, Node
from tests.processes import watch_policies


@pytest.mark.slow
def test_order_is_capture_seal_mark_anchor_retention(tmp_path: Path) -> None:
    """Each snapshot is verified before it is marked, and marked before the anchor moves to its predecessor's block."""
    node = Node(tmp_path)
    for _ in range(3):
        node.apply()
        node.take()
    node.close()
    assert node.events == [
        ("captured", 0), ("mark", "p0000-0000000000000001", True), ("anchor", "snapshot-p0000", 0),
        ("captured", 0), ("mark", "p0000-0000000000000002", True), ("anchor", "snapshot-p0000", 20),
        ("captured", 0), ("mark", "p0000-0000000000000003", True), ("anchor", "snapshot-p0000", 30),
    ]  # fmt: skip
    assert node.names() == ["p0000-0000000000000002", "p0000-0000000000000003"]


@pytest.mark.slow
def test_anchors_come_back_at_start(tmp_path: Path) -> None:
    """A new process says what the old one said, from the manifests alone; a partition without two snapshots holds everything."""
    node = Node(tmp_path, partitions=2)
    for _ in range(2):
        node.apply()
        node.take()
    node.close()
    again = Node(tmp_path, partitions=2)
    assert again.anchors == {"snapshot-p0000": 20, "snapshot-p0001": 0}
    again.close()


@pytest.mark.slow
def test_stop_before_the_mark_is_durable_loses_nothing(tmp_path: Path) -> None:
    """The anchor has not moved; the sealed snapshot counts from the next start on."""
    node = Node(tmp_path)
    reached: Future[None] = Future()
    node.noting = lambda _record, _done: reached.set_result(None)
    node.apply()
    asked = node.snapshotter.request_snapshots([0])
    reached.result(TIMEOUT_S)
    node.close()
    with pytest.raises(SnapshotFailed):
        asked.result(TIMEOUT_S)
    assert not [event for event in node.events if event[0] == "anchor"]
    assert node.verified("p0000-0000000000000001")


def test_site_that_ends_during_a_capture_fails_it_and_the_next_one_works(tmp_path: Path) -> None:
    """The request is answered, the folder goes, and what the dead site may still say is not believed."""
    node = Node(tmp_path)
    reached: Future[int] = Future()
    node.capturing = lambda _p, ident, _path: reached.set_result(ident)
    asked = node.snapshotter.request_snapshots([0])
    ident = reached.result(TIMEOUT_S)
    node.snapshotter.lost([0])
    with pytest.raises(SnapshotFailed, match="site ended"):
        asked.result(TIMEOUT_S)

    def late_word_last(partition: int, new: int, path: str) -> None:
        node.capture_all(partition, new, path)
        node.snapshotter.captured(ident, {"partition": 0, "error": "late"})

    node.capturing = late_word_last
    assert node.take()["index"] == 0
    node.close()


def test_image_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """The error names the partition and the reason; the node goes on."""
    node = Node(tmp_path)
    node.capturing = lambda p, ident, path: node.snapshotter.captured(
        ident, {"partition": p, "path": path, "error": "FullError: database or disk is full"}
    )
    with pytest.raises(SnapshotFailed, match="partition 0 could not be written: FullError"):
        node.take()
    assert "disk is full" in node.snapshotter.error
    assert node.names() == []
    node.close()


def test_full_log_is_freed_even_of_an_idle_partition(tmp_path: Path) -> None:
    """Without any request: partition 1 does nothing and still gets the two snapshots that let its anchor go."""
    node = Node(tmp_path, partitions=2)
    node.log = LogView(tuple(range(1, 16)), 16)
    moved = Future[None]()

    def look(record: bytes, done: Callable[[], None]) -> None:
        node.note(record, done)
        if all(len([e for e in node.events if e[0] == "mark" and e[1].startswith(f"p000{p}")]) >= 2 for p in (0, 1)):
            node.log = LogView((15,), 16)
            if not moved.done():
                moved.set_result(None)

    node.block = 15
    node.noting = look
    moved.result(TIMEOUT_S)
    node.close()
    assert all(block == 15 for block in anchors_at_start(node).values())


def anchors_at_start(node: Node) -> dict[str, int]:
    """Anchors as a new process would state them."""
    again = Node(node.folder, partitions=len(node.states))
    anchors = again.anchors
    again.close()
    return anchors


def starve_idle_processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A process that asks for idle time only is stopped for good. Returns the policies asked for, in order."""
    return watch_policies(monkeypatch, starve=True)


@pytest.mark.slow
def test_check_that_gets_no_time_is_done_in_earnest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is always busy a process of lowest priority may never end: a second one competes with the others.

    Sooner where somebody has asked for the snapshot, and waits.
    """
    policies = starve_idle_processes(monkeypatch)
    monkeypatch.setattr(idle_process, "ASKED_S", 0.0)
    monkeypatch.setattr(idle_process, "IDLE_S", 1e9)
    monkeypatch.setattr(idle_process, "IDLE_BYTES_PER_S_MIN", 1e12)
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", 0.01)
    node = Node(tmp_path)
    node.apply()
    assert node.take()["index"] == 1
    assert policies == [os.SCHED_IDLE, os.SCHED_OTHER]
    assert node.names() == ["p0000-0000000000000001"]
    node.close()


@pytest.mark.slow
def test_check_does_not_wait_for_idle_time_when_the_log_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the soft limit it competes at once; when the limit is met while it waits, it begins anew."""
    policies = starve_idle_processes(monkeypatch)
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", 0.01)
    node = Node(tmp_path)
    node.log = LogView(tuple(range(1, 10)), 16)
    node.take()
    assert policies == [os.SCHED_OTHER]
    looks = iter([LogView((1,), 16)] * 4)
    monkeypatch.setattr(node.snapshotter, "_log_view", lambda: next(looks, node.log))
    node.take()
    assert policies == [os.SCHED_OTHER, os.SCHED_IDLE, os.SCHED_OTHER]
    node.close()


@pytest.mark.slow
def test_point_is_a_transaction_that_every_snapshot_and_the_durable_log_reach(tmp_path: Path) -> None:
    """Its id is read before the last mark is given to the log, so that it is durable with it; the file is written last."""
    node = Node(tmp_path, partitions=2)
    for partition in (0, 1):
        node.apply(partition)
    seen: list[int] = []

    def note(record: bytes, done: Callable[[], None]) -> None:
        seen.append(node.closed)
        node.closed += 1000
        node.note(record, done)

    node.closed, node.noting = 5000, note
    made = node.snapshotter.request_snapshots((0, 1), point=True).result(TIMEOUT_S)
    points, bad = list_points(FILES, str(tmp_path))
    assert (len(points), bad) == (1, [])
    assert points[0].txn_id == 6000 == seen[-1]
    assert points[0].snapshots == {s["partition"]: s["name"] for s in made["snapshots"]}
    assert points[0].from_block == min(s["log_block"] for s in made["snapshots"])
    assert made["point"]["txn_id"] == "6000"
    node.close()


@pytest.mark.slow
def test_reserve_is_let_go_for_an_image_and_held_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full volume the space is there for the copy, and taken again when the snapshot is made or has failed."""
    monkeypatch.setattr(Reserve, "_free", lambda _self: 0)
    state = Path(state_path(str(tmp_path), 0))
    state.parent.mkdir()
    state.write_bytes(bytes(1 << 20))
    node = Node(tmp_path)
    path = tmp_path / "snapshots" / "reserve"
    during: list[bool] = []

    def look(partition: int, ident: int, image: str) -> None:
        during.append(path.exists())
        node.capture_all(partition, ident, image)

    node.capturing = look
    node.take()
    node.capturing = lambda p, ident, image: node.snapshotter.captured(ident, {"partition": p, "path": image, "error": "planted"})
    with pytest.raises(SnapshotFailed):
        node.take()
    node.close()
    assert during == [False]
    assert path.stat().st_size == node.snapshotter.reserve.held_bytes > 1 << 20


@pytest.mark.slow
def test_copy_goes_faster_the_more_pressing_it_is(tmp_path: Path) -> None:
    """A tenth of the site's time while nothing presses, four tenths when the log is far beyond its soft limit."""
    node = Node(tmp_path)
    node.take()
    node.log = LogView(tuple(range(1, 16)), 16)
    node.take()
    node.close()
    assert node.shares[0] == pytest.approx(0.1)
    assert node.shares[-1] == pytest.approx(0.4 * (15 / 16) / 0.5 / 2)


def test_check_that_is_given_up_behind_the_name_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image has its name, but was not read back: it is taken back and sealed once more, not reported as taking too long."""
    temporary, final = tmp_path / "tmp", tmp_path / "final"
    temporary.mkdir()
    seen: list[int] = []

    def run(*told: Any) -> ChildEnd | None:
        seen.append(told[4])
        temporary.rename(final)
        return ChildEnd(0, b"{}", b"") if len(seen) == 2 else None

    monkeypatch.setattr(idle_process.SealProcess, "_run", run)
    idle_process.SealProcess().seal(str(temporary), str(final), {}, lambda: False)
    assert seen == [os.SCHED_IDLE, os.SCHED_OTHER]


def test_stop_during_a_capture_leaves_nothing(tmp_path: Path) -> None:
    """A site that never answers does not hold up the stop, and its image goes."""
    node = Node(tmp_path)
    reached: Future[None] = Future()
    node.capturing = lambda _p, _ident, _path: reached.set_result(None)
    asked = node.snapshotter.request_snapshots([0])
    reached.result(TIMEOUT_S)
    node.close()
    with pytest.raises(SnapshotFailed):
        asked.result(TIMEOUT_S)
    assert node.names() == []


@pytest.mark.slow
def test_delta_that_fails_is_followed_by_a_whole_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a delta may stay so: it is not asked for again before a whole image was made, or has failed as well."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 100.0)
    node = Node(tmp_path)
    for _ in range(2):
        node.apply()
        node.take()
    for fails in (True, False, True, True, True):
        node.apply()
        node.capturing = node.fail if fails else node.capture_all
        if fails:
            with pytest.raises(SnapshotFailed, match="the keys are gone"):
                node.take()
        else:
            node.take()
    assert [wish.base is not None for wish in node.wishes[2:]] == [True, False, True, False, True]
    node.close()


@pytest.mark.slow
def test_no_point_without_all_of_its_snapshots(tmp_path: Path) -> None:
    """The second partition's image fails: the first one's snapshot stays, and nothing is promised."""
    node = Node(tmp_path, partitions=2)

    def fail_second(partition: int, ident: int, path: str) -> None:
        if partition == 0:
            node.capture_all(partition, ident, path)
        else:
            node.snapshotter.captured(ident, {"partition": partition, "path": path, "error": "FullError: planted"})

    node.capturing = fail_second
    with pytest.raises(SnapshotFailed, match="planted"):
        node.snapshotter.request_snapshots((0, 1), point=True).result(TIMEOUT_S)
    assert list_points(FILES, str(tmp_path)) == ([], [])
    assert node.names() == ["p0000-0000000000000000"]
    node.close()


def test_point_pins_the_log_from_the_oldest_snapshot_to_the_end(tmp_path: Path) -> None:
    """Only the newest ones are kept, and nobody counts on one that is gone: the log says which, and how many are kept."""
    node = Node(tmp_path, partitions=2)
    blocks = []
    with capture_logs() as lines:
        for node.closed in (100, 200):
            node.apply(0)
            made = node.snapshotter.request_snapshots((0, 1), point=True).result(TIMEOUT_S)
            assert made["point"]["txn_id"] == str(node.closed)
            blocks.append(min(snapshot["log_block"] for snapshot in made["snapshots"]))
    gone = [(line["txn_id"], line["points_kept"]) for line in lines if line["event"] == "recovery_point_dropped"]
    assert gone == [("100", 1)]
    (point,) = node.snapshotter.points()
    assert (point["txn_id"], point["from_block"], point["to_block"]) == ("200", blocks[-1], node.block)
    node.close()


def test_point_that_cannot_become_durable_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has no room: the snapshot stays."""
    monkeypatch.setattr(snapshot_maker, "LOOK_EVERY_S", 0.001)
    node = Node(tmp_path)
    node.feed.notes_fit, node.feed.when_taken_is_durable = False, lambda done: None
    with pytest.raises(SnapshotFailed, match="no room"):
        node.snapshotter.request_snapshots((0,), point=True).result(TIMEOUT_S)
    assert (node.snapshotter.points(), len(node.names())) == ([], 1)
    node.close()
