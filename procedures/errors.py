"""What can go wrong around procedures, and who is at fault.

The caller (`InvalidParameters`), the author of the application (`DefinitionError`, `StatementRefused`, `SchemaConflict`),
the machine (`EnvironmentFault`), the node that drives us (`BatchRefused`) or the files (`StateRefused`, the bundle errors).
What a procedure itself raises is an outcome, not one of these: it is logged and answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cmdlog.operator_error import OperatorError

FaultKind = Literal["disk_full", "io", "memory", "interrupted", "recursion"]


class ProceduresError(OperatorError):
    """Base of the errors that this package raises at the code around it."""


class DefinitionError(ProceduresError):
    """A table or a procedure is declared in a way that cannot be replayed; the message says what to write instead."""


class StatementRefused(ProceduresError):
    """A statement does what no procedure may do: transaction control, other tables, functions of chance or time."""


class RowRefused(ProceduresError):
    """A row holds what its table does not: the call that wrote it fails, whether or not it catches this.

    Attributes:
        params: the value that is refused, by the name of its column; the text does not show it.
    """

    def __init__(self, message: str, params: Mapping[str, Any]) -> None:
        self.params = params
        super().__init__(message)


class SchemaConflict(ProceduresError):
    """The tables of the application and those of the state differ in a way that no safe statement bridges."""


class StateRefused(ProceduresError):
    """The state file is of another partition, another format, or no state file at all."""


class RowsUnfit(StateRefused):
    """Rows that exist do not suit the tables that a change leads to; the message names table, column and count."""


class BatchRefused(ProceduresError):
    """The batch does not follow on the state's position, or contradicts itself or its catalog; nothing was applied."""


class MigrationNeeded(SchemaConflict):
    """The application has migrations that the tables have not been through, and no one has asked for them.

    Attributes:
        names: of the migrations, in order.
    """

    hint = "look with `cmdlog migrate APP --data DIR --plan`, run them with `cmdlog migrate APP --data DIR`, or `serve --migrate`"

    def __init__(self, database: str, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__(f"database {database!r} has migrations that the tables have not been through: {', '.join(names)}")


class MigrationFailed(ProceduresError):
    """A migration cannot be done on these rows, or does not lead to the declared tables; nothing was changed.

    Attributes:
        migration: its name; "" where no single one is at fault.
        partition: whose state it was.
    """

    hint = "repair the migration, or with the old program the rows: `cmdlog migrate APP --data DIR --plan` shows them; try again"

    def __init__(self, message: str, *, migration: str = "", partition: int = 0) -> None:
        self.migration = migration
        self.partition = partition
        where = f"migration {migration!r} on partition {partition}: " if migration else f"partition {partition}: "
        super().__init__(f"{where}{message}; nothing was changed")


class MigrationDiverged(BatchRefused):
    """A logged migration does something else than it did when it was logged; nothing was applied.

    Attributes:
        migration, partition, at: its name, whose state, and the transaction id that it sees.
        expected, got: what was logged, and what it did now.
    """

    hint = "the migration is not deterministic, or code or environment differ: see `cmdlog check`"

    def __init__(self, *, migration: str, partition: int, at: int, expected: str, got: str) -> None:
        self.migration, self.partition, self.at, self.expected, self.got = migration, partition, at, expected, got
        super().__init__(f"migration {migration!r} on partition {partition}: {got}; logged was {expected}")


class InvalidParameters(ProceduresError):
    """The parameters of a call do not fit the procedure's signature.

    Attributes:
        procedure: its name.
        problems: `(field, problem)` for every field at fault, in the order of the signature, then unknown fields.
    """

    def __init__(self, procedure: str, problems: Sequence[tuple[str, str]]) -> None:
        self.procedure = procedure
        self.problems = list(problems)
        super().__init__(f"{procedure}: " + "; ".join(f"{field}: {problem}" for field, problem in problems))


class EnvironmentFault(ProceduresError):
    """The machine failed in the middle of a batch: never an outcome. Nothing of the batch is applied.

    The site must end, be restored and run the batch again.

    Attributes:
        kind: what failed.
        txn_id, procedure, position: the call that was running; 0, "" and -1 when the batch's own bookkeeping failed.
    """

    def __init__(self, kind: FaultKind, *, txn_id: int, procedure: str, position: int, cause: str) -> None:
        self.txn_id = txn_id
        self.procedure = procedure
        self.position = position
        where = f"procedure {procedure!r} (transaction {txn_id}, call {position} of its batch)" if procedure else "the batch"
        super().__init__(f"{kind} while running {where}: {cause}; nothing of the batch was applied")
        self.kind: FaultKind = kind


class BundleError(ProceduresError):
    """Code of an application cannot be taken or given back."""

    exit_code = 13


class BundleForged(BundleError):
    """The bundle's bytes do not have the hash under which they were stored."""


class BundleSqlChanged(BundleError):
    """The bundle's statements compile to other SQL than when it was captured: another SQLAlchemy."""
