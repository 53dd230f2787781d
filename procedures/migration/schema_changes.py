"""The schema changes of one partition's state: rehearsed and taken back, rehearsed and kept until they are logged, or run.

One rule: nothing half. Whatever goes wrong, the state is as before, and a failure of the machine is never the migration's.

A change that is kept holds the state's transaction open. It is committed by `apply_change` of an equal change, and dropped by
anything else that wants the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from procedures.errors import BatchRefused, MigrationDiverged, MigrationFailed, SchemaConflict, StateRefused
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.change_run import SQL_ERRORS, ChangeRun, FunctionRunner, Judged, MigrationRaised, RowWatch, StepsDiffer
from procedures.migration.stated_change import Rehearsal, StatedChange
from procedures.raised_errors import is_raised
from procedures.storage.row_digest import RowLog
from procedures.storage.state import PartitionState, Position

if TYPE_CHECKING:
    from procedures.declaration.database import Database


class ChangeTransaction(Protocol):
    """The transaction around a change; the executor's."""

    def begin_change(self, at: int) -> None: ...
    def commit_batch(self, position: Position) -> None: ...
    def undo_batch(self, error: BaseException) -> None: ...


class _TakenBack(Exception):
    """A rehearsal is over."""


class SchemaChanges:
    """Changes of one state. Owned by the executor."""

    def __init__(
        self,
        state: PartitionState,
        databases: Callable[[int], Database],
        transaction: ChangeTransaction,
        *,
        rows: RowLog | None,
        watch: RowWatch,
        calls: FunctionRunner,
        facts: Callable[[int], VersionFacts],
    ) -> None:
        self._facts = facts
        self._state, self._databases, self._transaction = state, databases, transaction
        self._rows, self._watch, self._calls = rows, watch, calls
        self.kept: StatedChange | None = None  # done in the open transaction

    def rehearse_change(self, *, catalog: int, at: int, keep: bool) -> Rehearsal | None:
        """See `Executor.rehearse_change`."""
        self.drop_kept()
        database = self._databases(catalog)
        judged = self._facts(catalog).judged
        if not database.plan_change(schema := self._state.schema(), self._state.migrations_done()):
            self._judge_rows(database, judged, schema)
            return None
        run, begun = self._new_run(), time.monotonic()
        change = self._try_change(at, lambda: run.rehearse(database, catalog=catalog, at=at, judged=judged), run)
        steps = tuple(run.steps)
        if change.rows_digest:  # code ran that may be another one each time: it is logged only if it repeats itself
            self._take_back()
            again, begun = self._new_run(), time.monotonic()
            self._try_change(at, lambda: self._play_rehearsed(again, change, database), again)
        seconds, schema = time.monotonic() - begun, self._state.schema()
        if keep:
            self.kept = change
        else:
            self._take_back()
        return Rehearsal(change, steps, seconds, schema)

    def apply_change(self, position: Position, change: StatedChange) -> None:
        """Runs a logged change and commits it; see `Executor.apply_schema`."""
        try:
            if self.kept is None or self.kept != change:
                self.drop_kept()
                self._transaction.begin_change(change.at)
                self._play_logged(change, position.index)
            self.kept = None
            if self._rows is not None:
                self._rows.schema_changed()
            self._transaction.commit_batch(position)
        except BaseException as error:
            self._undo(error)
            raise

    def pass_entry(self, position: Position) -> None:
        """Notes an entry that changes no rows; see `Executor.advance`."""
        self.drop_kept()
        try:
            self._transaction.begin_change(0)
            self._transaction.commit_batch(position)
        except BaseException as error:
            self._transaction.undo_batch(error)
            raise

    def drop_kept(self) -> None:
        """A change that is kept is taken back; no-op without one."""
        if self.kept is not None:
            self.kept = None
            self._take_back()

    def _judge_rows(self, database: Database, judged: Judged, schema: Mapping[str, str]) -> None:
        """Where the tables stay as they are. Raises: SchemaConflict."""
        run = self._new_run()
        try:
            run.judge(database, judged, schema)
        except (*SQL_ERRORS, StateRefused) as error:
            raise self._conflict(run, error) from None

    def _conflict(self, run: ChangeRun, error: BaseException) -> SchemaConflict:
        return SchemaConflict(
            f"the application's tables do not suit the rows of partition {self._state.partition}: {run.reason(error)}; "
            "nothing was changed; go back to the old declaration, or repair the rows with it first"
        )

    def _new_run(self) -> ChangeRun:
        return ChangeRun(self._state, self._rows, self._watch, self._calls)

    def _try_change(self, at: int, change: Callable[[], StatedChange], run: ChangeRun) -> StatedChange:
        """Raises: MigrationFailed, SchemaConflict, and then all is taken back."""
        try:
            self._transaction.begin_change(at)
            return change()
        except (*SQL_ERRORS, StateRefused) as error:
            self._undo(error)
            raise self._conflict(run, error) from None
        except BaseException as error:
            self._undo(error)
            raise

    def _play_rehearsed(self, run: ChangeRun, change: StatedChange, database: Database) -> StatedChange:
        try:
            self._play(run, change, database)
        except MigrationDiverged as error:
            raise MigrationFailed(
                f"it is not deterministic: when it was run again, {error.got}",
                migration=error.migration,
                partition=error.partition,
            ) from error
        return change

    def _play_logged(self, change: StatedChange, index: int) -> None:
        run = self._new_run()
        try:
            self._play(run, change, self._databases(change.catalog) if change.migrations else None)
        except (*SQL_ERRORS, StateRefused) as error:
            raise BatchRefused(f"schema record {index}: {run.reason(error)}") from None

    def _play(self, run: ChangeRun, change: StatedChange, database: Database | None) -> None:
        """Raises: MigrationDiverged, SQL errors of what is no migration's."""
        try:
            run.play(change, database)
        except (MigrationRaised, StepsDiffer) as raised:
            error = raised.error if isinstance(raised, MigrationRaised) else raised
            what = str(error) if is_raised(error, StepsDiffer) else f"it raised {run.reason(error)}"
            raise self._diverged(change, run.migration, "that it ends well", what) from raised
        if self._rows is not None and change.migrations and change.rows_digest != run.rows_digest:
            expected = f"the rows digest {change.rows_digest or '(no rows)'}"
            raise self._diverged(
                change, run.migration, expected, f"it changed other rows, digest {run.rows_digest or '(no rows)'}"
            )

    def _diverged(self, change: StatedChange, migration: str, expected: str, got: str) -> MigrationDiverged:
        return MigrationDiverged(migration=migration, partition=self._state.partition, at=change.at, expected=expected, got=got)

    def _take_back(self) -> None:
        self._undo(_TakenBack())

    def _undo(self, error: BaseException) -> None:
        try:
            self._transaction.undo_batch(error)
        finally:
            if self._rows is not None:
                self._rows.forget_tables()
