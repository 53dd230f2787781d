"""`check` of migrations: do they lead from a given state to the declared tables, and twice the same way?

One rule: the given state is not touched. Each run works on a copy of it, in a process of its own (`trial_runs`).
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import orjson

from cmdlog.whole_line_stdout import answer
from procedures.checks.lint import Finding
from procedures.checks.trial_runs import MILLIS_BITS, TrialFailed, resolve_target, run_in_worlds, trial_executor
from procedures.declaration.columns.held_values import values_shown
from procedures.declaration.database import Database
from procedures.declaration.schema_plan import kept_columns
from procedures.errors import BundleError, DefinitionError, ProceduresError, StateRefused
from procedures.storage.state import rows_of
from procedures.storage.state_file import connect

RUN_SECONDS_MAX: Final = 600
_CATALOG: Final = 1
_AT: Final = 1_700_000_000_000 << MILLIS_BITS


def check_migrations(target: str, database: Database, given: str | Path | None) -> list[Finding]:
    """Findings about an application's tables: made from nothing, and led to from the given states.

    Args:
        target: module:attribute of the database.
        given: a state file, or a directory of a node, whose states are all tried; None: none.

    Raises: BundleError when there is no state at `given`.
    """
    findings = list(_check_fresh(target, database))
    for path in () if given is None else _state_files(Path(given)):
        findings += _check_state(target, database, path)
    return findings


def _check_fresh(target: str, database: Database) -> Iterator[Finding]:
    """A state that is made from nothing has the declared tables."""
    try:
        database.check_tables()
    except DefinitionError:
        return  # which is a finding of its own
    with tempfile.TemporaryDirectory() as folder:
        ending = _rehearsed(database, Path(folder) / "fresh.db", partition=0)
    if "error" in ending:
        yield _finding(target, "schema", ending["error"])


def _check_state(target: str, database: Database, path: Path) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        copies = [str(Path(folder) / f"{at}.db") for at in (0, 1)]
        for copy in copies:
            _copy_state(path, Path(copy))
        runs = [(target, copy) for copy in copies]
        try:
            printed = run_in_worlds("procedures.checks.migrations", runs, second={}, patience_s=RUN_SECONDS_MAX)
        except TrialFailed as error:
            yield _finding(target, "migration", f"{path}: {error}")
            return
    first, second = map(orjson.loads, printed)
    for ending in (first, second):
        if "error" in ending:
            yield _finding(target, "migration", f"{path}: {ending['error']}")
            return
    if first != second:
        differing = ", ".join(name for name in first if first[name] != second[name])
        yield _finding(
            target, "divergence", f"{path}: two runs of the migrations differ in {differing}: they are not deterministic"
        )
    for table, column in first["kept"]:
        what = f"{path}: column {table}.{column} is declared no more and is kept; op.drop_column in a migration removes it"
        yield Finding(target.partition(":")[0], 0, "kept-column", "warning", f"{table}.{column}", what)


def _finding(target: str, code: str, message: str) -> Finding:
    return Finding(target.partition(":")[0], 0, code, "error", "", message)


def _state_files(given: Path) -> list[Path]:
    found = [given] if given.is_file() else sorted(given.rglob("p[0-9]*.sqlite"))
    if not found:
        raise BundleError(f"{given} is no state file, and no directory with states")
    return found


def _copy_state(path: Path, copy: Path) -> None:
    with (
        contextlib.closing(connect(path)) as source,
        contextlib.closing(apsw.Connection(str(copy))) as target,
        target.backup("main", source, "main") as backup,
    ):
        while not backup.done:
            backup.step(-1)


def _partition_of(path: Path) -> int:
    with contextlib.closing(connect(path)) as connection:
        try:
            return int(rows_of(connection, "SELECT partition FROM _cmdlog_meta")[0][0])
        except (apsw.Error, IndexError):
            raise StateRefused(f"{path} is no state of a partition") from None


def _rehearsed(database: Database, path: Path, *, partition: int) -> dict[str, Any]:
    """The change that leads to the declared tables, and what is left as it was; or why there is none."""
    with trial_executor(database, path, partition=partition) as (executor, state):
        try:
            rehearsal = executor.rehearse_change(catalog=_CATALOG, at=_AT, keep=True)
            kept = kept_columns(state.schema(), [info.table for info in database.tables.values()])
        except ProceduresError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            executor.drop_rehearsal()
    return {"change": {} if rehearsal is None else rehearsal.change.to_json(), "kept": kept}


def main() -> int:
    """Entry point of a run. TARGET STATE: prints how it ended."""
    target, path = sys.argv[1:]
    database = resolve_target(target)[1]
    with values_shown():  # the developer has the states
        found = _rehearsed(database, Path(path), partition=_partition_of(Path(path)))
    answer(orjson.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
