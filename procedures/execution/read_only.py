"""Read-only calls on a frozen state, over a connection that can do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Final

from procedures.declaration.database import Database
from procedures.declaration.procedure import Procedure
from procedures.errors import BatchRefused, EnvironmentFault
from procedures.execution import process_guard
from procedures.execution.call_settings import begin_block, end_block
from procedures.execution.catalog import Catalog, Entry
from procedures.execution.failure_trace import FailureTracer
from procedures.execution.outcome_bodies import describe_failure, failure_body, outcome_of
from procedures.idempotency.known_outcome import Status
from procedures.idempotency.request_history import VersionFacts
from procedures.native import open_statements
from procedures.raised_errors import NO_TEXT, class_name, is_raised, repr_of
from procedures.statements.call_state import CallState, SiteFailed, fault_kind
from procedures.storage.authorizer import Mode
from procedures.storage.state import PartitionState, open_reader, rows_of

_FRAMES: Final = 1  # of Python's stack, between `begin_block` and a procedure
OF_THE_READ: Final = (MemoryError, RecursionError, KeyboardInterrupt)
"""Faults that are the outcome of a read: it left nothing behind, and no replay has to repeat it."""


class Reader:
    """Runs read-only procedures beside the site; one thread at a time."""

    def __init__(
        self,
        state: PartitionState,
        databases: Callable[[int], Database],
        millis_of: Callable[[int], int],
        facts: Callable[[int], VersionFacts],
        tracer: FailureTracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._connection, self._guard = open_reader(state.path)
        self._cursor = self._connection.cursor()
        self._statements = open_statements(self._connection)
        self._call = CallState(state.partition, millis_of)
        self._databases, self._facts = databases, facts
        self._catalogs: dict[int, Catalog] = {}

    def read(self, calls: Sequence[tuple[int, list[Any]]], *, catalog: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Runs read-only calls on one frozen state.

        Returns:
            (id of the last transaction that the state contains, (status, body) per call).

        Raises:
            BatchRefused: a procedure is not read-only.
            EnvironmentFault: the machine failed.
        """
        ready = self._catalog(catalog)
        for number, _ in calls:
            if not 0 <= number < len(ready.entries) or not ready.procedures[number].read_only:
                raise BatchRefused(f"procedure number {number} of catalog version {catalog} is no read-only procedure")
        self._cursor.execute("BEGIN")
        try:
            ((as_of,),) = rows_of(self._connection, "SELECT txn_id FROM _cmdlog_meta")
            return as_of, self._run_all(calls, ready, as_of)
        finally:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")

    def _catalog(self, version: int) -> Catalog:
        found = self._catalogs.get(version)
        if found is None:
            database, facts, statements = self._databases(version), self._facts(version), self._statements
            found = Catalog(database, self._cursor, self._guard, self._call, side="read", facts=facts, statements=statements)
            self._catalogs[version] = found
        return found

    def _run_all(self, calls: Sequence[tuple[int, list[Any]]], ready: Catalog, as_of: int) -> list[tuple[int, bytes]]:
        call = self._call
        call.begin_calls((as_of,) * len(calls))
        if self._tracer is not None:
            self._tracer.begin_attempt()
        numbers = {number for number, _ in calls}
        for number in numbers:
            ready.entries[number][3].open()
        self._guard.mode = Mode.PROCEDURE
        answers = []
        decimals = begin_block(_FRAMES, lambda: ready.procedures[calls[call.at][0]].name)
        try:
            for at, (number, params) in enumerate(calls):
                call.at = at
                answers.append(self._run(ready.entries[number], params, ready.procedures[number]))
                _, _, _, tx = ready.entries[number]
                # A call that keeps its `tx` is found by the references, as in a batch.
                if getrefcount(tx) > tx.references_max:
                    ready.retire(number)
        finally:
            end_block(decimals, call.pid)
            self._guard.mode = Mode.FRAMEWORK
            for number in numbers:
                ready.entries[number][3].close()
            call.at = -1
        return answers

    def _run(self, entry: Entry, params: list[Any], procedure: Procedure) -> tuple[int, bytes]:
        function, decode, encode, tx = entry
        call = self._call
        try:
            body = encode(function(tx, *(params if decode is None else decode(params))))
            if (tried := process_guard.take_attempt()) is not None:
                raise tried
            if call.refused:
                raise call.refused[0]
        except BaseException as error:  # noqa: BLE001 - whatever a procedure raises is its outcome
            return self._failed(error, procedure)
        return (Status.OK, body) if call.fault is None else self._failed(call.fault, procedure)  # it swallowed that

    def _failed(self, error: BaseException, procedure: Procedure) -> tuple[int, bytes]:
        """The outcome of a call that raised. Raises: EnvironmentFault, where that failed which the next call needs."""
        call = self._call
        fault = call.fault
        if fault is None and (fault_kind(error) is not None or is_raised(error, SiteFailed)):
            fault = error
        if fault is not None and not is_raised(fault, OF_THE_READ):
            raise EnvironmentFault(
                fault_kind(fault) or "io",
                txn_id=call.txn_ids[call.at],
                procedure=procedure.name,
                position=call.at,
                cause=repr_of(fault),
            ) from fault
        error = fault if fault is not None else process_guard.take_attempt() or next(iter(call.refused), error)
        try:
            status, body = outcome_of(error)
        except OF_THE_READ:
            status, body = Status.FAILED, failure_body(class_name(error), NO_TEXT)
        call.fault = None
        call.refused.clear()
        process_guard.take_attempt()  # by what reads the exception, which may run code of the application
        if self._tracer is not None and status == Status.FAILED:
            self._tracer.add(error, call.txn_ids[call.at], procedure, describe_failure(body))
        return status, body

    def close(self) -> None:
        if self._statements is not None:
            self._statements.close()
        self._connection.close()
