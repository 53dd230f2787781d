"""What a drill reads stays while the node replaces it, and a drill that cannot read is no failed restore."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.background.drill_scheduler import DrillScheduler
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.reader import LogReader, Recycled
from replay.drill import drill as module
from replay.drill import view
from replay.drill.view import take_view
from replay.log.source import open_source, settled
from snapshot.catalog import list_snapshots
from snapshot.retention import anchor_block, retain
from tests.commands import Command
from tests.replay.drills import left_behind, run_drill
from tests.replay.rig import Rig

FILES = RealFiles()


class Busy(Rig):
    """A node with a small ring that it turns around quickly."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, segment_bytes=32 << 10, segments=6)
        self.turn()

    def turn(self) -> None:
        """Every file of the log and every snapshot is another one afterwards, by the node's own rules."""
        before = {*self.segments(), *self.snapshots()}
        while before & {*self.segments(), *self.snapshots()}:
            self.deposits(4)
            for partition in range(self.partitions):
                self.snapshot(partition)
                mine = [s for s in list_snapshots(FILES, self.directory, self.identity) if s.partition == partition]
                self.wal.anchors.set(f"p{partition}", Lsn(BlockNumber(anchor_block(mine) or 0), 0))
                retain(FILES, mine, kept=2)

    def segments(self) -> list[str]:
        return [name for name in os.listdir(Path(self.directory, "log")) if name.startswith("seg-")]

    def snapshots(self) -> list[str]:
        return os.listdir(Path(self.directory, "snapshots"))


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """A log that is open while its directory is removed has a thread that may just be making a file there."""
    before = {*threading.enumerate()}
    yield
    assert [thread.name for thread in {*threading.enumerate()} - before] == []


@pytest.fixture
def busy(nothing_runs_on: None, tmp_path: Path) -> Iterator[Busy]:
    """It runs until the test is over."""
    node = Busy(tmp_path)
    yield node
    node.stop()


def before_each(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[int], None]) -> None:
    """The function of `replay.drill.view` is called after `act`, which gets the number of the call."""
    real, calls = getattr(view, name), [0]

    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        act(calls[0])
        return real(*arguments, **options)

    monkeypatch.setattr(view, name, call)


@pytest.mark.slow
def test_drill_proves_what_it_has_seen_while_the_node_replaces_all_of_it(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole ring turns around and every snapshot is removed under a drill that has begun; it need not begin again."""
    views: list[set[str]] = []

    def view_and_turn(files: RealFiles, directory: str, folder: str) -> int:
        looks = take_view(files, directory, folder)
        views.append(set(busy.snapshots()))
        busy.turn()
        return looks

    monkeypatch.setattr(module, "take_view", view_and_turn)
    report = run_drill(busy)
    assert report.verdict == "proven", report.error
    assert views == [{proof.snapshot for proof in (*report.newest.values(), *report.second.values())}]
    assert left_behind(busy) == ["lock"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["_hold", "_copy"])
def test_look_is_repeated_when_the_node_replaces_files_during_it(busy: Busy, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Between listing and reading everything has another name: the second look succeeds."""
    before_each(monkeypatch, where, lambda number: busy.turn() if number == 1 else None)
    report = run_drill(busy)
    assert (report.verdict, report.attempts) == ("proven", 2), report.error


@pytest.mark.slow
def test_drill_that_finds_no_moment_to_read_was_not_run(busy: Busy, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """Its verdict, exit code and the node's schedule keep it apart from a restore that failed."""
    monkeypatch.setattr(view, "LOOKS_MAX", 3)
    before_each(monkeypatch, "_copy", lambda _number: busy.turn())
    code, told = command.text("drill", busy.directory)
    assert code == 1
    assert "replaced snapshots or log files while they were being read" in told
    drills = DrillScheduler(busy.directory, every_s=86_400.0)
    last = drills.status()["last"]
    assert last["verdict"] == "not_run"
    assert drills.status()["last_proven_restore_seconds"] is None
    assert drills.due_at < datetime.fromisoformat(last["finished"]).timestamp() + 3600


def test_damage_that_stays_is_named_with_the_nodes_own_path(busy: Busy) -> None:
    """A hole in the log is no race: the drill says damaged, and names a file that is still there afterwards."""
    busy.stop()  # its log would fail, sooner or later, at the file that is gone
    second = sorted(busy.segments())[1]
    os.unlink(Path(busy.directory, "log", second))
    report = run_drill(busy)
    assert report.verdict == "damaged"
    assert "drills" not in str(report.error)
    assert busy.directory in str(report.error)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["source", "reader"])
def test_vanished_segment_is_recycled_for_every_reader(busy: Busy, reader: str) -> None:
    """A log that was opened before the ring turned around says that it was recycled, not that a file is missing."""
    opened = open_source(FILES, busy.directory) if reader == "source" else LogReader(FILES, busy.directory)
    busy.turn()
    with pytest.raises(Recycled, match=r"log/seg-"):
        list(opened.read(from_block=opened.first_blocks[0]) if not isinstance(opened, LogReader) else opened.read())


@pytest.mark.slow
def test_reading_that_can_begin_again_does(busy: Busy) -> None:
    """The node turns its ring around during the first of two looks, and the second one reads everything."""
    looks: list[int] = []

    def look() -> int:
        source = open_source(FILES, busy.directory)
        if not looks:
            looks.append(0)
            busy.turn()
        return sum(1 for _ in source.read(from_block=source.first_blocks[0]))

    assert settled(look) > 0
