"""One version of an application, made ready to run on one connection: procedure number → what the hot loop needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn

import apsw

from .context import CallState, Transaction
from .database import Database
from .failures import ReadOnlyProcedure
from .guard import Guard
from .outcomes import request_seed
from .signature import Access, Procedure
from .statements import Runs

# (function, decode or None, encode, tx) of a procedure. A bare tuple: it is unpacked once per call.
Entry = tuple[Callable[..., Any], Callable[[list[Any]], list[Any]] | None, Callable[[Any], bytes], Transaction]


class Catalog:
    """The procedures of a database by number, with a transaction for each kind of access."""

    def __init__(
        self, database: Database, cursor: apsw.Cursor, guard: Guard, state: CallState, *, side: Literal["write", "read"]
    ) -> None:
        self.tables = tuple(database.tables)
        self._transactions = {
            access: Transaction(Runs(database, access, cursor, guard, state), state, guard, access) for access in Access
        }
        self.procedures = database.procedure_list
        self.seeds = [request_seed(procedure.name) for procedure in self.procedures]
        self.everywhere = [procedure.access is Access.EVERYWHERE for procedure in self.procedures]
        self.entries = [self._entry(procedure, side) for procedure in self.procedures]

    def _entry(self, procedure: Procedure, side: str) -> Entry:
        belongs = procedure.read_only == (side == "read")
        function = procedure.function if belongs else _refuse
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
