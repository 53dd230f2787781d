"""`cmdlog serve` before its server has taken over."""

from __future__ import annotations

import signal

import pytest

from cmdlog.cli.serve import stopped_in_order


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_server_runs_ends_with_success(number: signal.Signals) -> None:
    """Nothing was begun, so nothing failed; whoever had the signal before has it again."""
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, stopped_in_order():
        signal.raise_signal(number)
    assert ended.value.code == 0
    assert signal.getsignal(number) is before
