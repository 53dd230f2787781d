"""How many processors this process may use; limits of memory and descriptors are met in `tests/cli/test_limits.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmdlog.wal import process_limits
from cmdlog.wal.process_limits import usable_processors, worker_count

PLENTY = 64


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups of a process on a machine with many processors: it is in the group `a/b`."""
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/elsewhere\n0::/a/b\n")
    monkeypatch.setattr(process_limits, "OWN_CGROUP", own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(PLENTY)), raising=False)
    root = tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("quotas", "processors"),
    [
        ({}, PLENTY),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "50000 100000", "a/b": "150000 100000"}, 0.5),
        ({"": "200000 100000"}, 2),  # a container sees its own group as the root
        ({"a": "max 100000", "a/b": "max 100000"}, PLENTY),
        ({"a/b": "nonsense"}, PLENTY),
    ],
)
def test_the_tightest_quota_around_the_process_counts(groups: Path, quotas: dict[str, str], processors: float) -> None:
    """Its own group or one around it; what states none is passed over."""
    for group, text in quotas.items():
        (groups / group / "cpu.max").write_text(text + "\n")
    assert usable_processors(groups) == processors


def test_processes_are_whole_and_at_least_one(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor and a half two are worth while, of a half one."""
    for quota_us, processes in ((150_000, 2), (50_000, 1), (100_000, 1), (300_000, 3)):
        (groups / "a" / "b" / "cpu.max").write_text(f"{quota_us} 100000\n")
        monkeypatch.setattr(process_limits, "usable_processors", lambda: usable_processors(groups))
        assert worker_count() == processes


def test_without_control_groups_it_is_what_the_scheduler_allows(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on other systems."""
    monkeypatch.setattr(process_limits, "OWN_CGROUP", groups / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3}, raising=False)
    assert usable_processors(groups) == 1
