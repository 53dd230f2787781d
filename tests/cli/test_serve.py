"""`cmdlog serve` before its server has taken over."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from cmdlog.cli.cli_errors import explain
from cmdlog.cli.server.serve import naming, stopped_in_order
from cmdlog.node.sites.site_child import NotStarted
from cmdlog.node.sites.site_faults import SiteFault


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_server_runs_ends_with_success(number: signal.Signals) -> None:
    """Nothing was begun, so nothing failed; whoever had the signal before has it again."""
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, stopped_in_order():
        signal.raise_signal(number)
    assert ended.value.code == 0
    assert signal.getsignal(number) is before


def test_an_error_without_a_path_gets_that_of_the_directory(tmp_path: Path) -> None:
    """A write to an open file that fails names none; one that is named stays."""
    for named, shown in ((None, str(tmp_path)), ("/elsewhere", "/elsewhere")):
        with pytest.raises(OSError, match="No space") as failed, naming(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), named)
        failure = explain(failed.value)
        assert failure is not None
        assert (failure.message, failure.exit_code) == (f"{shown}: No space left on device", 14)


def test_a_site_that_does_not_start_is_no_defect() -> None:
    """What it said decides the exit code."""
    for kind, code in (("disk_full", 14), ("io", 15), ("died", 1)):
        failure = explain(NotStarted(SiteFault(kind, "planted")))
        assert failure is not None
        assert (failure.message, failure.exit_code) == ("planted", code)
