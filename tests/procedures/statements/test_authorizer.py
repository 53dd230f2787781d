"""What SQLite says about a text before it runs, and which functions it may call."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from procedures import StatementRefused
from procedures.execution.executor import Status
from procedures.storage.authorizer import FUNCTIONS, probe
from tests.procedures.statements.statement_bench import StatementBench


def test_text_of_the_framework_is_out_of_reach(bench: StatementBench) -> None:
    """The cached statements of the framework are not what a procedure gets for the same text."""
    bench.run(lambda tx: None)
    meta = "UPDATE _cmdlog_meta SET idx = ?, term = ?, checksum = ?, txn_id = ?, clock = ?"
    index = bench.site.state.position.index
    for sql in (meta, "SELECT * FROM sqlite_master", "SELECT * FROM _cmdlog_keys"):
        with pytest.raises(StatementRefused, match="is not for procedures"):
            probe(bench.site.state.connection, bench.site.state.guard, sql)
    assert bench.run(lambda tx: tx.execute(text(meta)))[0] == Status.FAILED
    assert bench.site.rows("SELECT idx FROM _cmdlog_meta") == [(index + 1,)]


@pytest.mark.parametrize(
    "name", ["random", "randomblob", "changes", "last_insert_rowid", "datetime", "julianday", "exp", "sqlite_version"]
)
def test_what_differs_between_runs_is_not_on_it(name: str) -> None:
    """A replay would find something else."""
    assert name not in FUNCTIONS


def test_names_are_as_the_authorizer_compares_them() -> None:
    """It lowers the name that SQLite gives."""
    assert {name.lower() for name in FUNCTIONS} == FUNCTIONS
