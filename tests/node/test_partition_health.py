"""Which partitions cannot run: what is told, once, and what calls are refused with."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from cmdlog.node.outcome import DiskFullRefusal, NotReady
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.sites.site_faults import RETRY_MAX_S, RETRY_S, pause_s


def test_a_change_is_told_once(tmp_path: Path) -> None:
    """The same trouble again is no news; another kind is, and so is the end."""
    now = [100.0]
    troubles = PartitionHealth(str(tmp_path), wall=lambda: now[0])
    with capture_logs() as lines:
        for _ in range(5):
            troubles.begin_trouble([0, 1], "disk_full", "no room")
        troubles.begin_trouble([1], "io", "broken")
        now[0] = 107.5
        troubles.end([0, 1])
        troubles.end([0, 1])
    assert [(line["event"], line["partitions"]) for line in lines] == [
        ("refusing_calls", [0, 1]), ("refusing_calls", [1]), ("accepting_calls", [0, 1]),
    ]  # fmt: skip
    assert lines[0]["path"] == str(tmp_path)
    assert lines[0]["free_bytes"] > 0
    assert lines[2]["lasted_s"] == 7.5


def test_a_full_volume_is_full_for_every_partition(tmp_path: Path) -> None:
    """All states lie on it; whatever else keeps a site from running concerns its own partitions."""
    troubles = PartitionHealth(str(tmp_path))
    assert troubles.refusal(0) is None
    troubles.begin_trouble([1], "io", "broken")
    assert troubles.refusal(0) is None
    assert isinstance(troubles.refusal(1), NotReady)
    assert not troubles.full
    assert troubles.disk_full() is None
    troubles.begin_trouble([2], "disk_full", "no room")
    assert troubles.full
    for partition in range(4):
        assert isinstance(refusal := troubles.refusal(partition), DiskFullRefusal)
        assert str(tmp_path) in str(refusal)
    told = troubles.disk_full()
    assert told is not None
    assert (told["path"], told["partitions"], told["reason"]) == (str(tmp_path), [2], "no room")
    troubles.end([2])
    assert [type(troubles.refusal(p)) for p in (0, 1, 2)] == [type(None), NotReady, type(None)]


def test_tries_become_rarer_up_to_a_limit() -> None:
    """No spinning, and never so rare that a volume with room is not tried within seconds."""
    pauses = [pause_s(tries) for tries in range(1, 100)]
    assert pauses[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_MAX_S
