"""What the node believes of its procedures' times, and of the replay that they would take."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.node.background.recovery_forecast import FIRST_S, RecoverySpeeds


def test_each_procedure_has_its_own_time(tmp_path: Path) -> None:
    """From batches of one kind; of a mixed one each call is charged what it is believed to take."""
    speeds = RecoverySpeeds(str(tmp_path), ["quick", "slow", "never"], 1)
    speeds.add(0, [0] * 100, 100 * 10e-6)
    speeds.add(0, [1] * 100, 100 * 90e-6)
    assert speeds.per_call_us() == pytest.approx({"quick": 10.0, "slow": 90.0})
    speeds.add(0, [0, 1] * 50, 50 * 100e-6)
    assert speeds.per_call_us() == pytest.approx({"quick": 10.0, "slow": 90.0})
    assert speeds.replay_s(0) == pytest.approx(150 * 10e-6 + 150 * 90e-6)


def test_batches_that_come_together_count_as_one_by_one(tmp_path: Path) -> None:
    """Each kind with its own time, mixed ones as they are; a batch without calls says nothing."""
    speeds = RecoverySpeeds(str(tmp_path), ["quick", "slow"], 2)
    speeds.add_batches((0, 1, 0, 0), ([0] * 60, [1] * 100, [0] * 40, []), (600e-6, 9000e-6, 400e-6, 1.0))
    speeds.add_batches((0,), ([0, 1] * 50,), (100 * 50e-6,))
    assert speeds.per_call_us() == pytest.approx({"quick": 10.0, "slow": 90.0})
    assert [speeds.calls_behind(partition) for partition in (0, 1)] == [200, 100]


def test_times_follow_a_change(tmp_path: Path) -> None:
    """A procedure that got slower is believed to be, after some thousand calls."""
    speeds = RecoverySpeeds(str(tmp_path), ["p"], 1)
    speeds.add(0, [0], 10e-6)
    for _ in range(200):
        speeds.add(0, [0] * 100, 100 * 50e-6)
    assert speeds.per_call_us()["p"] == pytest.approx(50.0, rel=0.01)


def test_a_snapshot_takes_away_what_was_behind_when_it_was_taken(tmp_path: Path) -> None:
    """Calls that were executed while it was made stay behind it; other partitions are not touched."""
    speeds = RecoverySpeeds(str(tmp_path), ["p"], 2)
    for partition in (0, 1):
        speeds.add(partition, [0] * 10, 1.0)
    marked = speeds.mark(0)
    speeds.add(0, [0] * 3, 0.3)
    speeds.settle_snapshot(0, marked)
    assert [speeds.calls_behind(p) for p in (0, 1)] == [3, 10]
    assert speeds.replay_s(0) == pytest.approx(0.3)


def test_what_was_known_comes_back(tmp_path: Path) -> None:
    """Times by name, whatever numbers procedures have now; calls behind a snapshot only while it is the newest."""
    (tmp_path / "state").mkdir()
    speeds = RecoverySpeeds(str(tmp_path), ["a", "b"], 2)
    speeds.add(0, [0] * 10, 10 * 20e-6)
    speeds.add(1, [1] * 10, 10 * 40e-6)
    speeds.save({0: "s1", 1: "s1"})
    again = RecoverySpeeds(str(tmp_path), ["b", "new", "a"], 2)
    again.found(0, "s1", {"a": 4})
    again.found(1, "s2", {"a": 3, "new": 1})
    assert again.per_call_us() == pytest.approx({"a": 20.0, "b": 40.0})
    assert [again.calls_behind(p) for p in (0, 1)] == [10, 4]
    assert [again.replay_s(p) for p in (0, 1)] == pytest.approx([10 * 20e-6, 3 * 20e-6 + FIRST_S])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"call_us": {"a": -1}, "behind": {}}', b'{"call_us": {"a": "x"}, "behind": {}}']
)
def test_a_file_that_is_nonsense_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    """It is a cache."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "speeds.json").write_bytes(content)
    speeds = RecoverySpeeds(str(tmp_path), ["a"], 1)
    speeds.found(0, "s", {"a": 2})
    assert speeds.per_call_us() == {}
    assert speeds.replay_s(0) == 2 * FIRST_S
