"""What a procedure sees: its transaction, and nothing else of the world.

Time, chance and identifiers come from the transaction id, which the log holds; so a replay sees the same ones.

One `Transaction` per database and kind of access serves all calls of a site, one after the other (no object per call).
It always stands for the call that is running; between batches, and after the machine failed under it, it refuses. A call that
keeps its `tx` keeps it to itself: it is retired when the call ends, and the next calls get another (`catalog.Catalog.retire`).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar, TypeVarTuple, cast, overload

import apsw
from sqlalchemy.sql import ClauseElement

from procedures.declaration.procedure import Access
from procedures.errors import ProceduresError
from procedures.native import accelerator
from procedures.statements.call_state import CallState, SiteFailed, fault_kind
from procedures.statements.changes import Result, joined_results
from procedures.statements.prepared import NOTED, NamesDiffer
from procedures.statements.raised import error_for_sqlalchemy
from procedures.statements.result_values import Scalars
from procedures.statements.statement_runs import Runs
from procedures.storage.authorizer import Authorizer

if TYPE_CHECKING:
    from sqlalchemy import UpdateBase
    from sqlalchemy.sql.selectable import TypedReturnsRows

    from procedures.statements.changes import Inserted, Written
    from procedures.statements.result_values import MaybeNone
    from procedures.statements.rows import AnyRows, AnyTypes, Rows

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
Parameters: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Unknown: TypeAlias = Any  # of a text, say: rows, or else what a change returns
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ABORT_CODE_BYTES_MAX = 64


class Abort(BaseException):
    """Ends the call with an answer of the procedure's own; raised by `tx.abort`.

    It is no `Exception`, so that `except Exception` in a procedure does not swallow the decision to abort.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class TransactionClosed(ProceduresError):
    """`tx` was kept and used outside of its call."""


class _Refusing(dict[object, Any]):
    """Stands in for the statements of a transaction that may not run any."""

    def __init__(self, kind: type[BaseException], message: str) -> None:
        super().__init__()
        self._kind = kind
        self._message = message

    def __missing__(self, _statement: object) -> NoReturn:
        raise self._kind(self._message)


class _Ended:
    """Stands in for the state of a call that kept its `tx`."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, _name: str) -> NoReturn:
        raise TransactionClosed(self._message)


_OF_SESSIONS = frozenset(("add", "add_all", "commit", "delete", "flush", "get", "merge", "query", "refresh", "rollback"))
_OUTSIDE = "tx was used outside of its call; it belongs to one call and ends with it"
_CLOSED = _Refusing(TransactionClosed, _OUTSIDE)
_BROKEN = _Refusing(SiteFailed, "the machine failed earlier in this batch")


class PythonRunner:
    """Runs a call's statements; `accelerator.Runner` is the same in C."""

    __slots__ = ("_runs",)
    _runs: Any  # statement -> what runs it

    @overload
    def execute(self, statement: TypedReturnsRows[*Ts], parameters: Parameters = None, /, **params: Any) -> Rows[*Ts]: ...
    @overload
    def execute(self, statement: UpdateBase, parameters: Parameters = None, /, **params: Any) -> Written | Inserted: ...
    @overload
    def execute(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> AnyRows | Unknown: ...
    def execute(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> Result:
        """Runs a SQLAlchemy Core statement; its bound parameters are given as keywords, or as a dict.

        A list of dicts runs the statement once for each, none for an empty list; `rowcount` is then the sum. An INSERT or
        UPDATE that names no columns sets those that the parameters name.

        Returns:
            Rows, read as a result of SQLAlchemy is, or, for a change, its `rowcount` and `inserted_primary_key`.

        Raises:
            StatementRefused: it does what no procedure may do.
            sqlalchemy.exc.IntegrityError: the rows refuse it (`procedures.IntegrityError` catches it, too).
        """
        if parameters is not None:
            return self._execute_each(statement, parameters, params)
        try:
            result: Result = self._runs[statement](params)
            return result
        except NamesDiffer:
            return self._execute(statement, params)
        except NOTED as error:
            raise self._note_error(error, statement, params)  # noqa: B904 - the same, or one that is caused by it

    execute.__qualname__ = "Transaction.execute"  # what a TypeError calls it is part of the outcome of a call

    if TYPE_CHECKING:  # of `Transaction`

        def _execute(self, statement: ClauseElement, params: dict[str, Any]) -> Result: ...
        def _execute_each(self, statement: ClauseElement, parameters: Any, params: dict[str, Any]) -> Result: ...
        def _note_error(self, error: BaseException, statement: Any, params: Mapping[str, Any]) -> BaseException: ...


if TYPE_CHECKING or accelerator is None:  # noqa: SIM108 - a type checker takes it for a class
    StatementRunner = PythonRunner
else:
    StatementRunner = accelerator.Runner


class Savepoint:
    """`with tx.savepoint():` a block, entered once, whose changes are rolled back if it raises, and the call continues.

    SQLite keeps savepoints as a stack, above those of the executor (`batch`, `call`). One that a call leaves open, in a generator
    that is not run to its end, is gone with the call: the executor ends its own savepoint or the transaction, and all above it.
    """

    __slots__ = ("_control", "_open")

    def __init__(self, control: Callable[[str], None], open_savepoints: list[Savepoint]) -> None:
        """
        Args:
            control: runs SQL for transactions; raises when the call is over.
            open_savepoints: of the call, the innermost last.
        """
        self._control = control
        self._open = open_savepoints

    def __enter__(self) -> Self:
        if self in self._open:
            raise RuntimeError("a savepoint is entered once; call tx.savepoint() for another")
        self._control(f"SAVEPOINT block{len(self._open)}")
        self._open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        depth = len(self._open) - 1
        if not self._open or self._open[-1] is not self:
            raise RuntimeError("savepoints end in the reverse order of their beginning")
        if kind is not None:
            self._control(f"ROLLBACK TO block{depth}")
        self._control(f"RELEASE block{depth}")
        self._open.pop()


class Transaction(StatementRunner):
    """The context of one call: `tx`.

    Attributes:
        partition: number of the partition on which the call runs.
    """

    __slots__ = ("_access", "_guard", "_random", "_random_of", "_savepoints", "_savepoints_of", "_state", "_statements",
                 "references_max")  # fmt: skip

    def __init__(self, statements: Runs, state: CallState, guard: Authorizer, access: Access) -> None:
        self._statements = statements
        self._state = state
        self._guard = guard
        self._access = access
        self._random: random.Random = random.Random(0)
        self._random_of = -1  # position of the call for which it was seeded, in the batch that runs
        self._runs: Any = None
        self._savepoints: list[Savepoint] = []
        self._savepoints_of = (0, -1)  # the call that they are of
        self.references_max = 0  # more than these between two calls: a call kept it; the catalog's to count
        self.close()

    def open(self) -> None:
        """The framework's: calls begin, perhaps for the second time: a batch that must be taken back is run again."""
        self._runs = self._statements
        self._statements.tx = self
        self._random_of = -1

    def close(self) -> None:
        """The framework's: calls are over."""
        self._runs = _CLOSED
        self._statements.recent.clear()

    def retire(self, procedure: str) -> Transaction:
        """The framework's: a call of this procedure kept it, so it refuses for ever; returns its successor."""
        successor = Transaction(self._statements, self._state, self._guard, self._access)
        message = f"tx was used outside of its call: a call of {procedure} kept it; use the tx that the procedure is given"
        self._runs, self._state = _Refusing(TransactionClosed, message), cast("CallState", _Ended(message))
        return successor

    def _execute_each(
        self, statement: ClauseElement, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]], params: dict[str, Any]
    ) -> Result:
        if isinstance(parameters, Mapping):
            return self._execute(statement, {**parameters, **params})
        given: Any = parameters
        if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
            raise TypeError("parameters are keywords, a dict, or a list of dicts")
        return joined_results([self._execute(statement, {**each, **params}) for each in parameters])

    def _execute(self, statement: ClauseElement, params: dict[str, Any]) -> Result:
        try:
            try:
                result: Result = self._runs[statement](params)
            except NamesDiffer:
                result = self._statements.run_with_names(statement, params)
            return result
        except (apsw.Error, MemoryError, RecursionError, KeyboardInterrupt) as error:
            raise self._note_error(error, statement, params)  # noqa: B904 - as above

    @overload
    def scalar(
        self, statement: TypedReturnsRows[T, *AnyTypes], parameters: Parameters = None, /, **params: Any
    ) -> T | MaybeNone: ...
    @overload
    def scalar(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> Any: ...
    def scalar(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> Any:
        """First column of the first row; None if there is none."""
        return self.execute(statement, parameters, **params).scalar()

    @overload
    def scalars(
        self, statement: TypedReturnsRows[T, *AnyTypes], parameters: Parameters = None, /, **params: Any
    ) -> Scalars[T]: ...
    @overload
    def scalars(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> Scalars[Any]: ...
    def scalars(self, statement: ClauseElement, parameters: Parameters = None, /, **params: Any) -> Scalars[Any]:
        """First column of every row, as a list that has `one`, `first` and their like."""
        found: Scalars[Any] = self.execute(statement, parameters, **params).scalars()
        return found

    def savepoint(self) -> Savepoint:
        """`with tx.savepoint():` rolls back the changes of its block if the block raises, and raises on; they nest."""
        self._check_running()
        call = self._state.call
        if self._savepoints_of != call:
            self._savepoints, self._savepoints_of = [], call
        return Savepoint(lambda sql: self._control_savepoint(sql, call), self._savepoints)

    def _control_savepoint(self, sql: str, call: tuple[int, int]) -> None:
        if self._state.call != call:
            raise TransactionClosed(_OUTSIDE)
        if self._runs is _BROKEN:
            raise SiteFailed("the machine failed earlier in this batch")
        if self._access in (Access.READ, Access.READ_ALL):
            return
        try:
            self._statements.run_control(sql)
        except (apsw.Error, MemoryError, RecursionError, KeyboardInterrupt) as error:
            self._note_fault(error)
            raise
        self._state.undone |= sql.startswith("ROLLBACK")

    def _note_error(self, error: BaseException, statement: Any, params: Mapping[str, Any]) -> BaseException:
        """What the procedure gets for it; a failure of the machine ends the batch, even if it swallows that."""
        self._state.undone = True
        if fault_kind(error) is not None:
            self._note_fault(error)
            return error
        raised = error_for_sqlalchemy(error, statement, self._statements.values_of(statement) | dict(params))
        if raised is not error:
            raised.__cause__ = error
        return raised

    def _note_fault(self, error: BaseException) -> None:
        self._state.note_fault(error)
        self._runs = _BROKEN

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")  # a copy would be a `tx` that no call can be asked for

    if not TYPE_CHECKING:  # a type checker shall see which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_SESSIONS:
                raise AttributeError(f"tx.{name}: there is no Session; tx.execute takes select, insert, update and delete")
            raise AttributeError(f"a Transaction has no attribute {name!r}")

    def abort(self, code: str, message: str = "") -> NoReturn:
        """Ends the call: its changes are rolled back, and the caller gets `code` and `message`."""
        self._check_running()
        if not 0 < len(code.encode(errors="replace")) <= ABORT_CODE_BYTES_MAX:
            raise ValueError(f"an abort code is a short string of at most {ABORT_CODE_BYTES_MAX} bytes")
        raise Abort(code, str(message))

    @property
    def txn_id(self) -> int:
        """Id of this transaction: unique, and increasing in the order of execution."""
        self._check_running()
        return self._state.txn_ids[self._state.at]

    @property
    def now(self) -> datetime:
        """The time of the transaction, in UTC with milliseconds; the same at every replay."""
        return _EPOCH + timedelta(milliseconds=self._state.millis_of(self.txn_id))

    @property
    def partition(self) -> int:
        self._check_running()
        if self._access is Access.EVERYWHERE:
            raise RuntimeError("a writing procedure on all partitions must do the same on each; it has no tx.partition")
        return self._state.partition

    @property
    def random(self) -> random.Random:
        """A generator of this call's own, seeded from its transaction id; the same at every run of the call."""
        txn_id, at = self.txn_id, self._state.at
        if self._random_of != at:
            # Copies of replicated rows must agree, so only calls on one partition mix its number in.
            salt = self._state.partition + 1 if self._access is not Access.EVERYWHERE else 0
            self._random = random.Random((txn_id << 32) | salt)
            self._random_of = at
        return self._random

    def uuid(self) -> uuid.UUID:
        """A random UUID (version 4) from `random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def _check_running(self) -> None:
        if self._state.at < 0:
            raise TransactionClosed(_OUTSIDE)
