"""One version of an application, made ready to run on one connection: procedure number → what the hot loop needs.

A call that keeps its `tx`, in a global, a closure or a generator, would hand a later call the rights and the identity of
another. The caller of a procedure compares the count of references to its `tx` with what the catalog and the loop itself hold: a
kept one has more, however it is kept, and is retired. A false alarm (a cycle that is not yet collected) costs one object.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any, Literal, NoReturn

import apsw

from procedures.declaration.database import Database
from procedures.declaration.procedure import Access, Procedure
from procedures.execution.context import CallState, Transaction
from procedures.execution.idempotency import request_seed
from procedures.execution.outcome_bodies import ReadOnlyProcedure
from procedures.execution.row_checks import row_checks
from procedures.statements.statement_runs import Runs
from procedures.storage.authorizer import Authorizer

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
        side: Literal["write", "read"],
        partitions: int | None = None,
    ) -> None:
        self.tables = tuple(database.tables)
        self._transactions = {
            access: Transaction(Runs(database, access, cursor, guard, state), state, guard, access) for access in Access
        }
        self.row_checks = (
            row_checks(database, state.refused, partition=state.partition, partitions=partitions) if side == "write" else {}
        )
        self.procedures = database.procedure_list
        self.seeds = [request_seed(procedure.name) for procedure in self.procedures]
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

    def open(self) -> None:
        """Calls begin: the transactions accept statements."""
        for transaction in self._transactions.values():
            transaction.open()

    def close(self) -> None:
        """Calls are over: the transactions refuse."""
        for transaction in self._transactions.values():
            transaction.close()


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
