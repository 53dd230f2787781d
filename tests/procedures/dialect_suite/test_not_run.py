"""The list of what SQLAlchemy's suite asks in vain: it names tests that there are, and modules whose reason is true."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, inspect, select
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.schema import CreateTable, CreateView

from procedures import Transaction
from procedures.errors import StatementRefused
from tests.procedures.dialect_suite.conftest import ENTRIES_USED
from tests.procedures.dialect_suite.not_run import MODULES_NOT_RUN, NOT_RUN
from tests.procedures.dialect_suite.suite_classes import MODULES
from tests.procedures.dialect_suite.suite_engine import SuiteEngine


def test_every_entry_names_a_test(request: pytest.FixtureRequest) -> None:
    """An entry whose tests were renamed or removed would hide nothing, and is no longer true."""
    used = request.config.stash[ENTRIES_USED]
    if not used or any("::" in argument for argument in request.config.args):
        pytest.skip("the suite was not collected as a whole")
    assert [entry for listed in NOT_RUN for entry in listed.tests if entry not in used] == []


def test_entries_are_written_once() -> None:
    """The same entry under two reasons would say one too many."""
    entries = [entry for listed in NOT_RUN for entry in listed.tests]
    assert len(entries) == len(set(entries))


def test_modules_left_out_exist() -> None:
    """Every module of the suite is run, or left out by its name."""
    assert MODULES_NOT_RUN.keys() <= MODULES
    assert len(MODULES - MODULES_NOT_RUN.keys()) >= 9


def test_modules_left_out_ask_for_what_is_refused(engine: SuiteEngine) -> None:
    """They create tables and views, or read the schema, and a transaction does none of that."""
    table = Table("t", MetaData(), Column("id", Integer, primary_key=True))
    for statement in (CreateTable(table), CreateView(select(table), "v")):
        with pytest.raises(StatementRefused):
            engine.run(statement, None)
    with pytest.raises(NoInspectionAvailable):
        inspect(Transaction.__new__(Transaction))
