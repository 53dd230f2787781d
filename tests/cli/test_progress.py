"""Bars of a long command: only where somebody looks at them, and with the pace of each partition."""

from __future__ import annotations

import pytest

from cmdlog.cli.progress import ProgressDisplay
from replay.recover.progress import RecoveryProgress
from replay.results import WorkPace

PACE = WorkPace(1000, 4000, 2.0)
PROGRESS = RecoveryProgress(1000, 4000, 2.0, partitions={0: PACE, 1: PACE})


def test_nothing_is_shown_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither output nor errors hold a bar."""
    with ProgressDisplay("recover") as tell:
        tell(PROGRESS)
    assert capsys.readouterr() == ("", "")


def test_terminal_sees_all_and_each_partition(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With calls, rate and the time left."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    display = ProgressDisplay("recover")
    with display as tell:
        tell(PROGRESS)
        assert [task.description for task in display._bar.tasks] == ["recover", "  partition 0", "  partition 1"]
        assert {task.fields["pace"] for task in display._bar.tasks} == {"1,000 calls, 500/s 6 s left"}
    assert capsys.readouterr().out == ""
