"""The allow-list: what depends on its arguments alone, and nothing that looks at clock, chance or connection."""

from __future__ import annotations

import pytest

from procedures.guard.sql_functions import FUNCTIONS


@pytest.mark.parametrize(
    "name", ["random", "randomblob", "changes", "last_insert_rowid", "datetime", "julianday", "exp", "sqlite_version"]
)
def test_what_differs_between_runs_is_not_on_it(name: str) -> None:
    """A replay would find something else."""
    assert name not in FUNCTIONS


def test_names_are_as_the_authorizer_compares_them() -> None:
    """It lowers the name that SQLite gives."""
    assert {name.lower() for name in FUNCTIONS} == FUNCTIONS
