"""One version of an application, made ready to run on one connection: procedure number → what the hot loop needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

import apsw

from .context import CallState, Transaction
from .database import Database
from .failures import ReadOnlyProcedure
from .guard import Guard
from .signature import Access, Procedure
from .statements import Runs


class Entry(NamedTuple):
    """A procedure, unpacked once per call."""

    function: Callable[..., Any]
    decode: Callable[[list[Any]], list[Any]] | None
    encode: Callable[[Any], bytes]
    tx: Transaction
    procedure: Procedure


class Catalog:
    """The procedures of a database by number, with a transaction for each kind of access."""

    def __init__(
        self, database: Database, cursor: apsw.Cursor, guard: Guard, state: CallState, *, side: Literal["write", "read"]
    ) -> None:
        self.tables = tuple(database.tables)
        self._transactions = {
            access: Transaction(Runs(database, access, cursor, guard, state), state, guard, access) for access in Access
        }
        self.entries = [self._entry(procedure, side) for procedure in database.procedure_list]

    def _entry(self, procedure: Procedure, side: str) -> Entry:
        belongs = procedure.read_only == (side == "read")
        return Entry(
            procedure.function if belongs else _refuse,
            procedure.decode,
            procedure.encode,
            self._transactions[procedure.access],
            procedure,
        )

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
