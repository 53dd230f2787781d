"""The process that copies segments: it makes way for others, and is not kept waiting when the log waits for it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from cmdlog import child_process
from cmdlog.node.background import idle_process
from cmdlog.node.background.idle_process import SegmentCopyProcess
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import RealFiles
from cmdlog.wal.opening.survey import SegmentFile
from snapshot.archive.segment_copy import copy_segment
from snapshot.errors import SnapshotFailed
from tests.processes import watch_policies
from tests.replay.rig import Rig
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
WAIT_S = PATIENCE_S


@pytest.fixture
def segment(tmp_path: Path) -> tuple[SegmentFile, int]:
    """A full segment of a log, and its last block."""
    rig = Rig(tmp_path, segment_bytes=64 << 10, segments=12)
    while len(rig.wal.segments) < 3:
        rig.deposits(8)
    first, second = rig.wal.segments[:2]
    last = int(second.header.first_block) - 1
    rig.close()
    return first, last


@pytest.mark.usefixtures("cold_start")
def test_copies_take_time_that_nobody_wants(segment: tuple[SegmentFile, int], tmp_path: Path) -> None:
    """The process asks for idle time alone, and one serves many copies."""
    copier, (source, last) = SegmentCopyProcess(), segment
    expected = copy_segment(RealFiles(), source.path, str(tmp_path / "expected"), last_block=last)
    assert copier.copy(source.path, str(tmp_path / "a"), last) == expected
    process = copier._process
    assert process is not None
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    assert copier.copy(source.path, str(tmp_path / "b"), last) == expected
    assert copier._process is process
    with pytest.raises(Corrupt):
        copier.copy(source.path, str(tmp_path / "c"), last + 1000)
    copier.stop()
    copier.close()


def test_copy_that_gets_no_time_is_done_in_earnest(
    segment: tuple[SegmentFile, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is always busy a second process competes with the others; what the first had written does not disturb."""
    policies = watch_policies(monkeypatch, starve=True)
    monkeypatch.setattr(idle_process, "IDLE_S", 0.0)
    monkeypatch.setattr(idle_process, "IDLE_BYTES_PER_S_MIN", 1e12)
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", 0.01)
    copier, (source, last) = SegmentCopyProcess(), segment
    target = tmp_path / "a"
    target.write_bytes(b"half of it")
    assert copier.copy(source.path, str(target), last).bytes == target.stat().st_size
    assert policies == [os.SCHED_IDLE, os.SCHED_OTHER]
    copier.stop()
    copier.close()


def test_copy_does_not_wait_when_the_log_cannot(
    segment: tuple[SegmentFile, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It competes at once, or from the moment in which the log presses; afterwards it makes way again."""
    policies = watch_policies(monkeypatch)
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", 0.01)
    full = iter([True])
    copier, (source, last) = SegmentCopyProcess(lambda: next(full, False)), segment
    copier.copy(source.path, str(tmp_path / "a"), last)
    assert policies == [os.SCHED_OTHER]
    copier.copy(source.path, str(tmp_path / "b"), last)
    assert policies == [os.SCHED_OTHER, os.SCHED_IDLE]
    process = copier._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    full = iter([False, False, False, True])  # when it begins, and each time that the copy is not done yet
    copier.copy(source.path, str(tmp_path / "c"), last)
    assert policies == [os.SCHED_OTHER, os.SCHED_IDLE, os.SCHED_OTHER]
    copier.stop()
    copier.close()


def test_stop_ends_a_copy_under_way(segment: tuple[SegmentFile, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gets no time does not hold up the end of the node."""
    watch_policies(monkeypatch, starve=True)
    copier, (source, last) = SegmentCopyProcess(), segment
    failed: list[Exception] = []

    def copy() -> None:
        try:
            copier.copy(source.path, str(tmp_path / "a"), last)
        except SnapshotFailed as error:
            failed.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    while copier._process is None:
        assert thread.is_alive()
    copier.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert failed
    copier.close()
