"""Speeds of checking and restoring snapshots: measured where it is done, kept, and used by the forecast."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from replay.recover.in_place import bring_up
from snapshot import restore_speed
from snapshot.restore_speed import FIRST_BYTES_PER_S, NAME, note_speed, read_speeds
from tests.replay.rig import Rig

MB = 1_000_000


def test_speed_follows_what_was_measured(tmp_path: Path) -> None:
    """The first measurement replaces the belief, later ones move it by half; each step has its own."""
    note_speed(str(tmp_path), "restore", size_bytes=400 * MB, seconds=1.0)
    assert read_speeds(str(tmp_path)) == {"check": FIRST_BYTES_PER_S["check"], "restore": 400e6}
    note_speed(str(tmp_path), "restore", size_bytes=200 * MB, seconds=1.0)
    note_speed(str(tmp_path), "check", size_bytes=100 * MB, seconds=1.0)
    assert read_speeds(str(tmp_path)) == {"check": 100e6, "restore": 300e6}


def test_small_images_tell_nothing(tmp_path: Path) -> None:
    """Opening files takes most of their time."""
    note_speed(str(tmp_path), "restore", size_bytes=100_000, seconds=1.0)
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"restore_bytes_per_s": -1}', b'{"restore_bytes_per_s": true}'])
def test_file_that_is_wrong_is_as_if_there_were_none(tmp_path: Path, content: bytes) -> None:
    """What cannot be a speed is not believed."""
    (tmp_path / NAME).write_bytes(content)
    assert read_speeds(str(tmp_path)) == FIRST_BYTES_PER_S


def test_node_keeps_both_kinds_of_speeds(tmp_path: Path) -> None:
    """What the node saves about calls, and what a recovery measured meanwhile, stand in one file."""
    (tmp_path / "state").mkdir()
    speeds = RecoverySpeeds(str(tmp_path), ["p"], 1)
    before = speeds.restore_s(100 * MB)
    speeds.add(0, [0], 1e-5)
    note_speed(str(tmp_path / "state"), "restore", size_bytes=50 * MB, seconds=1.0)
    note_speed(str(tmp_path / "state"), "check", size_bytes=50 * MB, seconds=1.0)
    speeds.save({0: "s"})
    again = RecoverySpeeds(str(tmp_path), ["p"], 1)
    assert again.per_call_us() == pytest.approx({"p": 10.0})
    assert again.restore_s(100 * MB) == pytest.approx(4.0)
    assert before == pytest.approx(0.5, abs=0.01)


def test_recovery_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that checks and restores snapshots writes down how fast it was."""
    monkeypatch.setattr(restore_speed, "BYTES_MIN", 1)
    rig = Rig(tmp_path)
    rig.deposits(4)
    for partition in range(rig.partitions):
        rig.snapshot(partition)
    rig.close()
    for state in Path(rig.directory, "state").iterdir():
        state.unlink()
    wal = Log.open(RealFiles(), rig.directory)
    bring_up(RealFiles(), wal)
    wal.close()
    value = orjson.loads(Path(rig.directory, "state", NAME).read_bytes())
    assert value.keys() == {"check_bytes_per_s", "restore_bytes_per_s"}
    assert all(speed > 0 for speed in value.values())
