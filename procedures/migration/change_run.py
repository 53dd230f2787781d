"""One schema change in the open transaction of a state: rehearsed by the functions of its migrations, or run as it was logged.

One rule: both ways run the same statements in the same order, so what was rehearsed is what every replay does. In an `op` step
foreign keys are not enforced and changed rows are not reported: it writes whole tables. In `tx` they are, as in a call.

    for each migration    its function: `op` steps and `tx` statements, as it orders them
    then                  the additive statements, the names of what is done
    at the end            foreign keys, if a step wrote a table again, and the primary key of every table
    rehearsed only        the rows of columns that may take less than before, and of tables that `tx` wrote
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import apsw

from cmdlog.operator_error import OperatorError
from procedures.declaration.create_text import parse_table
from procedures.declaration.database import Migration
from procedures.errors import MigrationFailed, RowsUnfit, SchemaConflict, StateRefused
from procedures.migration.row_fitness import judge_rows
from procedures.migration.row_refusals import explain_orphans, explain_refusal
from procedures.migration.stated_change import RehearsedStep, RunMigration, StatedChange, Step
from procedures.raised_errors import class_name, is_raised, repr_of, text_of
from procedures.storage.authorizer import NEW_TABLE, Mode
from procedures.storage.row_digest import EMPTY, RowLog
from procedures.storage.state import PartitionState, rows_of

if TYPE_CHECKING:
    from procedures.declaration.database import Database

Judged = Mapping[str, Sequence[str]] | None  # table → columns whose rows are judged; None: it is not known, so all are

_NAMES: Final = re.compile(r"\w+")
SQL_ERRORS: Final = (apsw.SQLError, apsw.AuthError, apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.TooBigError)


class MigrationRaised(Exception):
    """A migration's function, or a statement of it, raised what is no failure of the machine."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr_of(error))
        self.error = error


class StepsDiffer(Exception):
    """The function calls `op` more often, or less often, than it did when it was rehearsed."""


class RowWatch(Protocol):
    """What sees changed rows: `RowLog`, `RowChecker`."""

    def suspend(self) -> None: ...
    def resume(self) -> None: ...


class FunctionRunner(Protocol):
    """What runs a migration's function as if it were a call; the executor's."""

    @property
    def undone(self) -> bool: ...
    @property
    def statements(self) -> Sequence[RehearsedStep]: ...
    def run_function(self, database: Database, catalog: int, migration: Migration, op: Any) -> None:
        """Raises: MigrationRaised; failures of the machine as they are."""
        ...

    def forget_statements(self) -> None: ...


class ChangeRun:
    """The parts of one change, run one after the other. Owned by one transaction; not used again."""

    def __init__(self, state: PartitionState, rows: RowLog | None, watch: RowWatch, calls: FunctionRunner) -> None:
        self._state, self._rows, self._watch, self._calls = state, rows, watch, calls
        self._hasher = hashlib.blake2b(digest_size=8)
        self._changed = False  # rows, by tx
        self.migration = ""  # that runs, or ran last
        self.steps: list[RehearsedStep] = []
        self._written: set[str] = set()  # words of the statements by which `tx` changed rows, tables among them

    @property
    def rows_digest(self) -> str:
        """Digest of the rows that `tx` changed; "" where it changed none, or digests are off."""
        return self._hasher.hexdigest() if self._changed else ""

    def play(self, change: StatedChange, database: Database | None) -> None:
        """Runs a logged change. Raises: what its statements and functions raise, StepsDiffer."""
        declared = {migration.name: migration for migration in database.migrations} if database is not None else {}
        for run in change.migrations:
            if database is None or run.name not in declared:
                raise StateRefused(f"migration {run.name!r} is not in the code of catalog version {change.catalog}")
            op = RecordedOperations(run.steps, self.run_step)
            self._run_function(database, change.catalog, declared[run.name], op)
            op.end_steps()
        self._finish(change)

    def rehearse(self, database: Database, *, catalog: int, at: int, judged: Judged) -> StatedChange:
        """Runs what the state lacks, judges the rows that this leaves, and says what it was.

        `judged`: columns whose types may take less than before. Raises: MigrationFailed, SchemaConflict, DefinitionError; faults.
        """
        before = self._state.schema()
        done = self._state.migrations_done()
        plan = database.plan_change(self._state.schema(), done)
        declared = {migration.name: migration for migration in database.migrations}
        runs = tuple(self._rehearse_migration(database, catalog, declared[name]) for name in plan.pending)
        statements = plan.statements
        if runs:
            statements = self._plan_rest(database, [*done, *plan.pending])
        change = StatedChange(statements, runs, plan.marked, *((catalog, at) if runs else ()))
        try:
            self._finish(change)
            self.judge(database, judged, None if runs else before)
        except (*SQL_ERRORS, StateRefused) as error:
            if not runs:
                raise
            raise MigrationFailed(self.reason(error), migration=runs[-1].name, partition=self._state.partition) from error
        return StatedChange(change.statements, change.migrations, change.marked, change.catalog, change.at, self.rows_digest)

    def judge(self, database: Database, judged: Judged, before: Mapping[str, str] | None) -> None:
        """Looks at the rows of these columns, and of tables that `tx` wrote, maybe in SQL text.

        `before`: of columns that the state had then alone. Raises: RowsUnfit.
        """
        for name, info in database.tables.items():
            is_written = name.lower() in self._written
            columns = info.table.columns.keys() if judged is None or is_written else judged.get(name, ())
            if before is not None:
                had = parse_table(before[name]).column_names if judged is not None and name in before else ()
                columns = [column for column in columns if column in had]
            with self.as_framework():
                self.steps += judge_rows(self._state.connection, info.table, columns, self.migration)

    def reason(self, error: BaseException) -> str:
        """What went wrong, for people."""
        if is_raised(error, apsw.AuthError):
            return str(self._state.guard.denied or error)
        ours, text = is_raised(error, (OperatorError, apsw.Error)), text_of(error)
        return text if ours else f"{class_name(error)}: {text}"

    def _plan_rest(self, database: Database, done: Sequence[str]) -> tuple[str, ...]:
        try:
            return database.plan_change(self._state.schema(), done).statements
        except SchemaConflict as error:
            raise MigrationFailed(
                f"it does not lead to the declared tables: {error}", migration=done[-1], partition=self._state.partition
            ) from error

    def _rehearse_migration(self, database: Database, catalog: int, migration: Migration) -> RunMigration:
        from procedures.migration.operations import TableOperations  # noqa: PLC0415 - Alembic is for those who migrate

        target = _Rehearsing(self, self._state)
        try:
            self._run_function(database, catalog, migration, TableOperations(database, target))
        except MigrationRaised as raised:
            raise self._failed(migration, len(target.steps), raised.error) from raised.error
        return RunMigration(migration.name, tuple(target.steps))

    def _failed(self, migration: Migration, steps: int, error: BaseException) -> MigrationFailed:
        after = f"after {steps} steps of op" if steps else "before its first step of op"
        return MigrationFailed(f"{after}: {self.reason(error)}", migration=migration.name, partition=self._state.partition)

    def _run_function(self, database: Database, catalog: int, migration: Migration, op: Any) -> None:
        self.migration = migration.name
        self._calls.run_function(database, catalog, migration, op)
        self.steps += self._calls.statements
        for step in self._calls.statements:
            self._written.update(_NAMES.findall(step.sql.lower()) if step.rows else ())
        with self.as_framework():
            self._fold_rows()

    def run_step(self, step: Step) -> None:
        """The statements of one call of `op`, in the migration's turn."""
        with self.as_framework():
            self._fold_rows()
            self._run_statements(step)
            self._calls.forget_statements()

    @contextmanager
    def as_framework(self) -> Iterator[None]:
        """Statements of ours, in the turn of a migration."""
        guard = self._state.guard
        before, guard.mode = guard.mode, Mode.FRAMEWORK
        try:
            yield
        finally:
            guard.mode = before

    def _run_statements(self, statements: Sequence[str]) -> None:
        connection, guard = self._state.connection, self._state.guard
        self._watch.suspend()
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)  # the PRAGMA has no effect in a transaction
        guard.mode, guard.denied = Mode.SCHEMA, None
        try:
            for statement in statements:
                begun = time.monotonic()
                self._run_statement(statement)
                copied = connection.changes() if statement.startswith("INSERT") else 0
                self.steps.append(RehearsedStep(self.migration, statement, copied, time.monotonic() - begun))
        finally:
            guard.mode = Mode.FRAMEWORK
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
            self._watch.resume()

    def _run_statement(self, statement: str) -> None:
        """Raises: RowsUnfit, where it is known which rows SQLite refuses; what SQLite raises."""
        try:
            self._state.connection.execute(statement)
        except (apsw.ConstraintError, apsw.MismatchError) as error:
            with self.as_framework():
                found = explain_refusal(self._state.connection, statement, error)
            if not found:
                raise
            raise RowsUnfit(found) from error

    def _fold_rows(self) -> None:
        """Mixes in what `tx` changed since the last step: after the next one the tables may have other columns."""
        rows = self._rows
        if rows is None:
            return
        rows.uncertain = self._calls.undone
        digest = rows.digest()
        if digest != EMPTY:
            self._changed = True
            self._hasher.update(digest.to_bytes(8))
        rows.begin_batch()

    def _finish(self, change: StatedChange) -> None:
        self._run_statements(change.statements)
        self._state.add_migrations_done(change.done)
        if any(
            NEW_TABLE in sql or sql.startswith("DROP TABLE") for run in change.migrations for step in run.steps for sql in step
        ):
            self._check_foreign_keys()
        self._state.check_keys()

    def _check_foreign_keys(self) -> None:
        if orphans := explain_orphans(self._state.connection):
            raise RowsUnfit(orphans)


class _Rehearsing:
    """Gathers the steps of one migration (`operations.StepTarget`)."""

    def __init__(self, run: ChangeRun, state: PartitionState) -> None:
        self._run, self._state = run, state
        self._statements: list[str] = []  # of the call that runs
        self.steps: list[Step] = []

    def schema(self) -> dict[str, str]:
        with self._run.as_framework():
            return self._state.schema()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._run.as_framework():
            return rows_of(self._state.connection, sql)

    def run_statements(self, statements: list[str]) -> None:
        self._statements += statements
        self._run.run_step(tuple(statements))

    def end_step(self) -> None:
        self.steps.append(tuple(self._statements))
        self._statements = []


class RecordedOperations:
    """`op` of a migration that is run from the log: each call runs the next of its recorded steps, whatever its arguments.

    They return None here and with Alembic; `f` alone gives its argument back.
    """

    def __init__(self, steps: Sequence[Step], run_step: Callable[[Step], None]) -> None:
        self._steps = list(steps)
        self._run_step = run_step
        self._done = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._run_next

    def f(self, name: str) -> str:
        """A name that no convention changes."""
        return name

    @contextmanager
    def batch_alter_table(self, *_: Any, **__: Any) -> Iterator[Any]:
        """What is done with the table is one step, at the end of the block."""
        yield _Ignoring()
        self._run_next()

    def end_steps(self) -> None:
        """The function has returned. Raises: StepsDiffer."""
        if self._done != len(self._steps):
            raise StepsDiffer(f"it made {self._done} calls of op")

    def _run_next(self, *_: Any, **__: Any) -> None:
        if self._done == len(self._steps):
            raise StepsDiffer(f"it calls op more than {self._done} times")
        self._done += 1
        self._run_step(self._steps[self._done - 1])


class _Ignoring:
    """The table inside `batch_alter_table`."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def f(self, name: str) -> str:
        return name
