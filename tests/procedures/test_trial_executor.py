"""The executor of a run of `check`: rows without an order come as the run's environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from procedures.checks.trial_executor import REVERSE, trial_executor
from procedures.samples import bank


@pytest.mark.parametrize(("set_to", "reverses"), [(None, 0), ("1", 1)])
def test_rows_without_an_order_come_as_the_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_to: str | None, reverses: int
) -> None:
    """And the state is closed at the end."""
    monkeypatch.delenv(REVERSE, raising=False)
    if set_to is not None:
        monkeypatch.setenv(REVERSE, set_to)
    with trial_executor(bank.db, tmp_path / "state.db", partition=3) as (executor, state):
        assert (executor.position.index, state.partition) == (0, 3)
        assert state.connection.pragma("reverse_unordered_selects") == reverses
    with trial_executor(bank.db, tmp_path / "state.db", partition=3) as (executor, _):
        assert executor.position.index == 0
