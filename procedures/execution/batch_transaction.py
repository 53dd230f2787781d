"""The transaction around a batch: begun, committed with position and outcomes, or undone.

Batches of a group share one transaction of SQLite, each in a savepoint of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import apsw

from procedures.errors import EnvironmentFault
from procedures.idempotency.key_table import Kind
from procedures.idempotency.known_calls import KnownCalls
from procedures.idempotency.known_outcome import NO_OUTCOMES, Fresh
from procedures.idempotency.packed_outcomes import NumberedCalls
from procedures.raised_errors import repr_of
from procedures.statements.call_state import CallState, fault_kind
from procedures.storage.row_digest import RowLog
from procedures.storage.state import PartitionState, Position


class BatchTransaction:
    """The open transaction of one state, if any. Owned by the executor."""

    def __init__(
        self, state: PartitionState, call: CallState, known: KnownCalls, rows: RowLog | None, millis_of: Callable[[int], int]
    ) -> None:
        self._state = state
        self._cursor = state.connection.cursor()
        self._call = call
        self._known = known
        self._rows = rows
        self._millis_of = millis_of
        self._last_ms = millis_of(state.position.txn_id)
        self._grouped = False

    def commit_batch(self, position: Position, fresh: Fresh | NumberedCalls = NO_OUTCOMES, kind: Kind | None = "single") -> None:
        """Position, activity clock and outcomes, in the batch's own transaction, or in that of an entry without calls.

        `kind`: None for a batch without names while nothing is known of named calls.
        """
        state, known, rows, txn_ms = self._state, self._known, self._rows, self._millis_of(position.txn_id)
        clock = state.clock + min(max(0, txn_ms - self._last_ms), known.keys.policy.clock_lead_max_ms)
        if kind is not None:
            known.store(position.index, fresh, clock=clock, txn_ms=txn_ms, kind=kind)
        if self._grouped:
            self._cursor.execute("RELEASE batch")
        else:
            state.save(position, clock)
            self._cursor.execute("COMMIT")
        state.position, state.clock, self._last_ms = position, clock, txn_ms
        if kind is not None:
            known.accept()
        if rows is not None and rows.changes is not None:
            rows.tell_changes(rows.changes)

    def begin_change(self, at: int) -> None:
        """The transaction of an entry without calls; `at`: TxnId that its migrations see."""
        self._call.begin_calls((at,))
        if self._rows is not None:
            self._rows.begin_batch()
        self.begin_batch()

    def begin_group(self) -> None:
        """See `Executor.begin_group`."""
        self._cursor.execute("BEGIN IMMEDIATE")
        self._grouped = True

    def end_group(self) -> None:
        """See `Executor.end_group`."""
        if not self._grouped:
            return
        try:
            self._state.save(self._state.position, self._state.clock)
            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            kind = fault_kind(error) or "io"
            raise EnvironmentFault(kind, txn_id=0, procedure="", position=-1, cause=repr(error)) from error
        self._grouped = False

    def begin_batch(self) -> None:
        self._cursor.execute("SAVEPOINT batch" if self._grouped else "BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def outside_calls(self) -> Iterator[None]:
        """A failure of the machine while SQLite is asked between two calls is `EnvironmentFault`; nothing is applied."""
        try:
            yield
        except apsw.Error as error:
            self.undo_batch(error)
            raise

    def undo_batch(self, error: BaseException, procedure_of: Callable[[int], str] | None = None) -> None:
        """Rolls back, and turns a failure of the machine into `EnvironmentFault`. `procedure_of` a call; None: there is none."""
        call = self._call
        cause = error if call.fault is None else call.fault
        kind = fault_kind(cause)
        try:
            self._roll_back()
        except apsw.Error as failed:
            kind = kind or fault_kind(failed) or "io"
        if kind is None:
            return
        at = call.fault_at if call.fault is not None and procedure_of is not None else -1
        raise EnvironmentFault(
            kind,
            txn_id=call.txn_ids[at] if at >= 0 else 0,
            procedure=procedure_of(at) if procedure_of is not None and at >= 0 else "",
            position=at,
            cause=repr_of(cause),
        ) from cause

    def _roll_back(self) -> None:
        """Undoes the open transaction, if SQLite has not done so already; at the latest by closing the file."""
        connection = self._state.connection
        for again in (True, True, False):
            if not connection.in_transaction:
                return
            try:
                if self._grouped:
                    self._cursor.execute("ROLLBACK TO batch")
                    self._cursor.execute("RELEASE batch")
                    return
                self._cursor.execute("ROLLBACK")
            except apsw.Error:
                # What interrupts the batch interrupts its rollback, too. The site ends after this, so its watch may go.
                connection.set_progress_handler(None)
                if not again:
                    self._state.close(force=True)
                    raise
