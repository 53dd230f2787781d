"""One version of an application, made ready to run on one connection: procedure number → what the hot loop needs.

A call that keeps its `tx`, in a global, a closure or a generator, would hand a later call the rights and the identity of
another. The caller of a procedure compares the count of references to its `tx` with what the catalog and the loop itself hold: a
kept one has more, however it is kept, and is retired. A false alarm (a cycle that is not yet collected) costs one object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import apsw

from procedures.declaration.database import Database, Migration
from procedures.declaration.procedure import Access, Procedure
from procedures.execution import process_guard
from procedures.execution.batch_attempt import CallRequests
from procedures.execution.call_settings import begin_block, end_block
from procedures.execution.context import Transaction
from procedures.execution.outcome_bodies import ReadOnlyProcedure
from procedures.execution.row_checks import RowChecker, row_checks
from procedures.idempotency.key_table import Kind
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.change_run import MigrationRaised
from procedures.migration.stated_change import RehearsedStep
from procedures.statements.call_state import CallState
from procedures.statements.compiled import sql_of
from procedures.statements.pinned_keys import KeyJudge
from procedures.statements.statement_runs import Runs
from procedures.storage.authorizer import Authorizer, Mode
from procedures.storage.row_digest import RowCheck, RowLog

if TYPE_CHECKING:
    from procedures.native.accelerator import Statements

STATEMENTS_SHOWN: Final = 64  # of a migration: one that builds a statement for each row is not listed row by row

# (function, decode or None, encode, tx) of a procedure. A bare tuple: it is unpacked once per call.
Entry = tuple[Callable[..., Any], Callable[[list[Any]], list[Any]] | None, Callable[[Any], bytes], Transaction]


class Catalog:
    """The procedures of a database by number, with a transaction for each kind of access."""

    def __init__(
        self,
        database: Database,
        cursor: apsw.Cursor,
        guard: Authorizer,
        state: CallState,
        *,
        side: Literal["write", "read"] = "write",
        facts: VersionFacts | None = None,
        statements: Statements | None = None,
    ) -> None:
        """`statements`: of the cursor's connection, where they run without it."""
        facts = facts or VersionFacts()
        self.tables = tuple(database.tables)
        judge = None
        if facts.partitions is not None and facts.partitions > 1:
            judge = KeyJudge(database, state.refused, partition=state.partition, partitions=facts.partitions)
        self._transactions: dict[Access, Transaction] = {}
        for access in Access:
            if access is not Access.MIGRATION:
                keys = judge if access in (Access.SINGLE, Access.READ) else None
                runs = Runs(database, access, cursor, guard, state, statements=statements, keys=keys)
                self._transactions[access] = Transaction(runs, state, guard, access)
        self.row_checks = {}
        if side == "write":
            self.row_checks = row_checks(database, state, cursor.connection, facts.partitions)
        self.procedures = database.procedure_list
        self.requests = CallRequests(self.procedures, facts.requests)
        self.everywhere = [procedure.access in (Access.EVERYWHERE, Access.EACH) for procedure in self.procedures]
        self._side = side
        self.entries = [self._entry(procedure, side) for procedure in self.procedures]
        for access in self._transactions:
            self._count_references(access)

    def retire(self, number: int) -> None:
        """The call of this procedure that has just ended kept its `tx`: from here on it refuses, and later calls get another."""
        procedure = self.procedures[number]
        self._transactions[procedure.access] = self._transactions[procedure.access].retire(procedure.name)
        self._transactions[procedure.access].open()
        self.entries[:] = [self._entry(procedure, self._side) for procedure in self.procedures]
        self._count_references(procedure.access)

    def _count_references(self, access: Access) -> None:
        """For the table of transactions, for its statements, for each entry, and what the loop that runs a call holds."""
        owners = 2 + sum(procedure.access is access for procedure in self.procedures)
        self._transactions[access].references_max = owners + _LOOP_REFERENCES

    def _entry(self, procedure: Procedure, side: str) -> Entry:
        belongs = procedure.read_only == (side == "read")
        function = procedure.run if belongs else _refuse
        return function, procedure.decode, procedure.encode, self._transactions[procedure.access]

    def kind_of(self, numbers: Sequence[int]) -> Kind:
        """The kind of a batch of these procedures: a call on all partitions is a batch of its own."""
        return "everywhere" if len(numbers) == 1 and self.everywhere[numbers[0]] else "single"


class _ObservedTransaction(Transaction):
    """The `tx` of a migration: it notes what each statement did."""

    __slots__ = ("_noted", "_texts")

    def observe(self, noted: dict[str, tuple[int, float]]) -> None:
        """Gives it where to note: SQL -> rows and seconds."""
        self._noted = noted
        self._texts: dict[object, str] = {}

    def execute(self, statement: Any, parameters: Any = None, /, **params: Any) -> Any:
        connection, begun = self._statements.connection, time.monotonic()
        before = connection.total_changes()
        result = super().execute(statement, parameters, **params)
        text = self._texts.get(statement) or self._text_of(statement)
        rows, seconds = self._noted.get(text, (0, 0.0))
        self._noted[text] = rows + connection.total_changes() - before, seconds + time.monotonic() - begun
        return result

    def _text_of(self, statement: object) -> str:
        if len(self._texts) >= STATEMENTS_SHOWN:
            return "… other statements of tx"
        text = self._texts[statement] = sql_of(statement)
        return text


class MigrationCalls:
    """Runs the functions of migrations on one connection, each with a `tx` of its own. Owned by the executor."""

    def __init__(
        self,
        cursor: apsw.Cursor,
        guard: Authorizer,
        state: CallState,
        watch: RowLog | RowChecker,
        facts: Callable[[int], VersionFacts],
    ) -> None:
        self._cursor, self._guard, self._state, self._watch = cursor, guard, state, watch
        self._facts = facts
        self._catalog = 0
        self._runs: Runs | None = None  # of the migration that runs
        self._database: Database | None = None
        self.statements: list[RehearsedStep] = []  # that the last function ran

    @property
    def undone(self) -> bool:
        """Whether SQLite took something back that it had reported."""
        return self._state.undone

    def forget_statements(self) -> None:
        """Tables have other columns: statements are prepared again, and rows are judged as they are now."""
        if self._runs is not None and self._database is not None:
            self._runs.forget_statements()
            self._watch.checks = self._row_checks(self._database)

    def run_function(self, database: Database, catalog: int, migration: Migration, op: Any) -> None:
        """Raises: MigrationRaised; failures of the machine as they are."""
        state, guard = self._state, self._guard
        self._database, self._catalog = database, catalog
        self._watch.checks = self._row_checks(database)
        self._runs = Runs(database, Access.MIGRATION, self._cursor, guard, state)
        tx = _ObservedTransaction(self._runs, state, guard, Access.MIGRATION)
        noted: dict[str, tuple[int, float]] = {}
        tx.observe(noted)
        state.at = 0
        tx.open()
        guard.mode = Mode.PROCEDURE
        decimals = begin_block(0, lambda: migration.name)
        try:
            migration.function(tx, op)
            if (tried := process_guard.take_attempt()) is not None:
                raise tried
            if state.refused:
                raise state.refused[0]
        except BaseException as error:
            state.raise_fault(error)
            raise MigrationRaised(error) from error
        finally:
            end_block(decimals, state.pid)
            guard.mode = Mode.FRAMEWORK
            tx.close()
            state.at, self._runs, self._watch.checks = -1, None, {}
        if state.fault is not None:
            raise state.fault  # the function swallowed it
        self.statements = [RehearsedStep(migration.name, sql, rows, seconds) for sql, (rows, seconds) in noted.items()]

    def _row_checks(self, database: Database) -> dict[str, RowCheck]:
        return row_checks(database, self._state, self._cursor.connection, self._facts(self._catalog).partitions)


def _refuse(*_: object) -> NoReturn:
    raise ReadOnlyProcedure("a read-only procedure is not part of the log; call it as a query")


def _loop_references() -> int:
    """References that a loop holds to the `tx` of the entry at hand while it counts: versions of Python differ."""
    entries = [(None, None, None, object())]
    for entry in entries:
        _, _, _, tx = entry
        return getrefcount(tx) - 1
    return 0


_LOOP_REFERENCES = _loop_references()
