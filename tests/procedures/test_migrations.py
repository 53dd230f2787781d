"""`check` of migrations: they lead to the declared tables from a given state, twice the same way, and the state stays."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, Text

from procedures import Database
from procedures.checks.check import check
from procedures.errors import BundleError
from tests.procedures.migration.people import ChangingSite

APP = """
from sqlalchemy import Column, Integer, Text, select, update
from procedures import Database
db = Database("moving")
rows = db.table("rows", Column("id", Integer, primary_key=True), Column("label", Text), {more} partition_by="id")

@db.migration("0001_label")
def rename_name(tx, op):
    op.alter_column("rows", "name", new_column_name="label")
    {body}
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the application and gives its target."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(body: str = "pass", more: str = "") -> str:
        (tmp_path / "moving_app.py").write_text(APP.format(body=body, more=more))
        importlib.invalidate_caches()
        sys.modules.pop("moving_app", None)
        return "moving_app:db"

    yield make
    sys.modules.pop("moving_app", None)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A state of the program before, with two rows, as a node's directory has it."""
    db = Database("moving")
    db.table("rows", Column("id", Integer, primary_key=True), Column("name", Text), Column("old", Integer), partition_by="id")
    folder = tmp_path / "node" / "state"
    folder.mkdir(parents=True)
    site = ChangingSite(folder / "p0000.sqlite", db)
    site.start()
    site.run_sql("INSERT INTO rows VALUES (1, 'one', 1), (2, 'two', 2)")
    site.close()
    return tmp_path / "node"


def test_migration_that_leads_to_the_declared_tables_passes(write: Write, given: Path) -> None:
    """What is kept is noted; the given state is as before, from nothing all is as declared."""
    state = given / "state" / "p0000.sqlite"
    before = state.read_bytes()
    (finding,) = check(write(), given=given)
    assert (finding.code, finding.severity, finding.function) == ("kept-column", "warning", "rows.old")
    assert [each.code for each in check(write(), given=state)] == ["kept-column"]
    assert state.read_bytes() == before
    assert check(write()) == []


@pytest.mark.parametrize(
    ("body", "more", "code", "says"),
    [
        (
            "pass",
            'Column("n", Integer, nullable=False),',
            "migration",
            "does not lead to the declared tables.*'n' cannot be added",
        ),
        ("1 / 0", "", "migration", "after 1 steps of op: ZeroDivisionError"),
        (
            "tx.execute(update(rows).values(label=','.join({'a', 'b', 'c', 'd', 'e', 'f'})))",
            "",
            "divergence",
            "two runs of the migrations differ in change",
        ),
        (
            "tx.execute(update(rows).values(label=str(tx.scalars(select(rows.c.id)))))",
            "",
            "divergence",
            "not deterministic",
        ),
    ],
)
def test_migration_that_does_not_is_an_error(write: Write, given: Path, *, body: str, more: str, code: str, says: str) -> None:
    """Tables that differ, an exception, and rows that depend on the order of a set or of a SELECT."""
    errors = [finding for finding in check(write(body, more), given=given) if finding.severity == "error"]
    assert code in [finding.code for finding in errors]
    assert any(re.search(says, finding.message) for finding in errors)


def test_no_state_at_the_place_is_an_error(write: Write, tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(BundleError, match="is no state file"):
        check(write(), given=tmp_path / "nowhere")
