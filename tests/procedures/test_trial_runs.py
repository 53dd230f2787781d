"""The runs of `check`: which application, and rows without an order as the run's environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from procedures import Database
from procedures.checks.trial_runs import REVERSE, TrialFailed, resolve_target, run_in_worlds, trial_executor
from procedures.errors import BundleError
from procedures.samples import bank
from tests.node.apps import voter


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


def test_database_object_finds_its_module() -> None:
    """A Database can be given instead of its name, and a module whose `db` it is."""
    assert resolve_target(bank.db) == ("procedures.samples.bank:db", bank.db)
    assert resolve_target("tests.node.apps.voter")[1] is voter.db


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Database("loose"), "not an attribute of an imported module"),
        ("no_such_module:db", "cannot be imported"),
        ("procedures.samples.bank:nothing", "is no Database"),
    ],
)
def test_what_is_no_application_is_named(target: str | Database, why: str) -> None:
    """An object that no module holds, a module or an attribute that is not there."""
    with pytest.raises(BundleError, match=why):
        resolve_target(target)


def test_a_run_that_fails_says_why() -> None:
    """The last line of its errors."""
    with pytest.raises(TrialFailed, match="no_such_module"):
        run_in_worlds("procedures.checks.migrations", [("no_such_module:db", "x")] * 2, second={}, patience_s=60)
