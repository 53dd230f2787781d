"""The executor: runs a batch of calls on a state, in one SQLite transaction, and says how each ended.

Live, in recovery and in back-fill the same code runs. It is a function of state, batch and catalog; nothing else.

**Savepoints.** A call that raises must leave no trace. The first attempt runs without savepoints; if a call raises after it
began to change rows, everything is rolled back and the batch runs again with a savepoint per call. (A call that raises
before it changed anything needs no second run: that is the common abort.) After a second run the next batches start with
savepoints, since failures come in series. Both ways give the same state, outcomes and digest.

**Faults of the machine** (faults.py) are no outcomes. They are remembered when they pass through `tx`, even if the procedure
swallows them; the batch is rolled back and `EnvironmentFault` tells the site to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from sys import getrefcount
from typing import Any

import google_crc32c

from procedures.declaration.database import Database
from procedures.declaration.procedure import Procedure
from procedures.execution import process_guard
from procedures.execution.batch_attempt import BatchAttempt, NeedsSavepoints
from procedures.execution.batch_transaction import BatchTransaction
from procedures.execution.call_settings import begin_block, end_block
from procedures.execution.catalog import Catalog, Entry, MigrationCalls
from procedures.execution.failure_trace import FailureTracer
from procedures.execution.invocations import Applied, Invocations, check_batch, check_index
from procedures.execution.outcome_bodies import SKIPPED, ResultTooLarge, describe_failure, outcome_of
from procedures.execution.process_guard import attempts
from procedures.execution.read_only import Reader
from procedures.execution.row_checks import RowChecker
from procedures.idempotency.key_table import FormerHashes, Kind
from procedures.idempotency.known_calls import KnownCalls
from procedures.idempotency.known_outcome import NO_KEY, KeyPolicy, KnownOutcome, Status
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.schema_changes import SchemaChanges
from procedures.migration.stated_change import Rehearsal, StatedChange
from procedures.statements.call_state import CallState
from procedures.storage.authorizer import Mode
from procedures.storage.changed_keys import Changes
from procedures.storage.row_digest import ChangedRow, RowLog
from procedures.storage.state import PartitionState, Position

__all__ = ["Applied", "Executor", "Invocations", "KeyPolicy", "Status"]

SAVEPOINT_BATCHES = 16  # how long savepoints stay on after they were needed
_STRAIGHT_FRAMES, _GUARDED_FRAMES = 1, 2  # of Python's stack, between `begin_block` and a procedure

_crc = google_crc32c.extend
_SEEDS = tuple(google_crc32c.value(bytes([status])) for status in Status)  # hash of the status byte, to be extended by the body
_MASK = (1 << 64) - 1
_make = tuple.__new__  # half the time of the classes' own
_RunCalls = Callable[[Invocations, Catalog, BatchAttempt], None]


class Executor:
    """Runs batches on one partition's state; one thread at a time."""

    def __init__(
        self,
        state: PartitionState,
        databases: Callable[[int], Database],
        *,
        digest_rows: bool,
        millis_of: Callable[[int], int],
        progress: Callable[[int], object] | None,
        key_policy: KeyPolicy | None = None,
        facts: Callable[[int], VersionFacts] = lambda _version: VersionFacts(),
        tracer: FailureTracer | None = None,
    ) -> None:
        """
        Args:
            databases: catalog version → the application of that version.
            digest_rows: whether `Applied.rows_digest` is computed.
            millis_of: time of a transaction id, milliseconds since 1970.
            progress: gets the position in the batch before each call; for a watchdog.
            key_policy: limits of the idempotency table; must be the logged one.
            facts: catalog version → what it says beside its code.
            tracer: makes `Applied.traces`; a replay has none.
        """
        self._state = state
        self._databases = databases
        self._facts = facts
        self._millis_of = millis_of
        self._progress = progress
        self._tracer = tracer
        self._procedure_at: Callable[[], Procedure]  # of the call that runs
        self._call = CallState(state.partition, millis_of)
        process_guard.watch()
        self._cursor = state.connection.cursor()
        self._catalogs: dict[int, Catalog] = {}
        self._known = KnownCalls(state, key_policy or KeyPolicy())
        self._savepoint_batches = 0
        self._rows = RowLog(state.connection) if digest_rows else None
        self._row_checker = self._rows or RowChecker(state.connection)
        self._reader: Reader | None = None
        self._batch = BatchTransaction(state, self._call, self._known, self._rows, millis_of)
        calls = MigrationCalls(self._cursor, state.guard, self._call, self._row_checker, facts)
        self._changes = SchemaChanges(
            state, databases, self._batch, rows=self._rows, watch=self._row_checker, calls=calls, facts=facts
        )

    @property
    def position(self) -> Position:
        return self._state.position

    @property
    def key_policy(self) -> KeyPolicy:
        """Limits of the idempotency table; set it when the log brings another one, between two batches."""
        return self._known.keys.policy

    @key_policy.setter
    def key_policy(self, policy: KeyPolicy) -> None:
        self._known.keys.policy = policy

    def apply(self, batch: Invocations) -> Applied:
        """Runs a batch; on return it is committed to the state file (not synced: the log is the truth).

        Raises:
            EnvironmentFault: the machine failed; nothing is applied, the site must end.
            BatchRefused: the batch does not follow on the state's position, or contradicts itself.
        """
        if self._changes.kept is not None:
            self._changes.drop_kept()
        catalog, known = self._catalogs.get(batch.catalog) or self._make_catalog(batch.catalog), self._known
        check_batch(batch, self._state, procedures=len(catalog.entries))
        kind, run_calls = None, self._run_guarded if batch.skips else self._run_straight
        if batch.keys is not None or not known.idle:
            kind = catalog.kind_of(batch.procedures)
            known.begin_batch(batch.floors, txn_ms=self._millis_of(batch.txn_ids[-1]), kind=kind)
            if batch.keys is not None and not known.runs_plainly(batch.keys, kind=kind):
                run_calls = self._run_guarded
        if self._savepoint_batches == 0:
            try:
                return self._attempt(batch, catalog, kind, run_calls)
            except NeedsSavepoints:
                self._savepoint_batches = SAVEPOINT_BATCHES
        self._savepoint_batches -= 1
        return self._attempt(batch, catalog, kind, self._run_guarded)

    def _make_catalog(self, version: int) -> Catalog:
        database, facts, guard = self._databases(version), self._facts(version), self._state.guard
        with self._batch.outside_calls():  # it reads which columns the tables have
            made = Catalog(database, self._cursor, guard, self._call, facts=facts, statements=self._state.statements)
            self._catalogs[version] = made
        return made

    def _attempt(self, batch: Invocations, catalog: Catalog, kind: Kind | None, run_calls: _RunCalls) -> Applied:
        """One transaction around one way to run the calls; whatever goes wrong rolls all of it back.

        `kind`: None for a batch without names while no named calls are known.
        """
        run = BatchAttempt(bytearray(len(batch.txn_ids)), batch.txn_ids, kind=kind or "single", hashed=bool(batch.sent))
        tracer, position = self._tracer, (batch.index, batch.term, batch.checksum, batch.txn_ids[-1])
        self._call.begin_calls(batch.txn_ids)
        try:
            self._batch.begin_batch()
            digest = self._run_calls(batch, catalog, run, run_calls)
            if batch.keys is not None and run_calls == self._run_straight:
                run.keep_outcomes(batch, batch.keys, catalog.requests, self._known.keys.policy.stored_result_bytes_max)
            self._batch.commit_batch(_make(Position, position), run.fresh if run.straight is None else run.straight, kind)
        except BaseException as error:
            if tracer is not None:
                tracer.begin_attempt()
            self._batch.undo_batch(error, lambda at: catalog.procedures[batch.procedures[at]].name)
            raise
        hashes = list(map(_crc, map(_SEEDS.__getitem__, run.statuses), run.bodies))
        digest = (digest + self._known.share) & _MASK or 1 if digest else 0
        traces = tracer.take_traces() if tracer is not None and any(run.statuses) else ()
        return _make(Applied, (batch.index, run.statuses, run.txn_ids, run.bodies, hashes, digest, traces))

    def _run_calls(self, batch: Invocations, catalog: Catalog, run: BatchAttempt, run_calls: _RunCalls) -> int:
        """Runs the calls; returns the digest of the rows that they changed."""
        guard, call, rows, numbers = self._state.guard, self._call, self._rows, set(batch.procedures)
        if rows is not None:
            rows.begin_batch()
        self._row_checker.checks = catalog.row_checks
        for number in numbers:
            catalog.entries[number][3].open()
        guard.mode = Mode.PROCEDURE
        self._procedure_at = lambda: catalog.procedures[batch.procedures[call.at]]
        frames = _STRAIGHT_FRAMES if run_calls == self._run_straight else _GUARDED_FRAMES
        decimals = begin_block(frames, lambda: self._procedure_at().name)
        try:
            run_calls(batch, catalog, run)
        finally:
            end_block(decimals, call.pid)
            guard.mode = Mode.FRAMEWORK
            for number in numbers:
                catalog.entries[number][3].close()
            call.at = -1
        if call.fault is not None:
            raise call.fault  # a procedure swallowed it
        if rows is not None:
            rows.uncertain = call.undone
        return 0 if rows is None else rows.digest()

    def _run_straight(self, batch: Invocations, catalog: Catalog, run: BatchAttempt) -> None:
        """The hot loop: no savepoints, every call runs."""
        call, entries, progress, refused = self._call, catalog.entries, self._progress, self._call.refused
        append, failed = run.bodies.append, False
        for at, (number, params) in enumerate(zip(batch.procedures, batch.params, strict=True)):
            function, decode, encode, tx = entries[number]
            call.at = at
            if progress is not None:
                progress(at)
            try:
                body = encode(function(tx, *params) if decode is None else function(tx, *decode(params)))
                if attempts and (tried := process_guard.take_attempt()) is not None:
                    raise tried
                if refused:
                    raise refused[0]
                append(body)
            except BaseException as error:  # noqa: BLE001 - whatever a procedure raises is its outcome
                run.statuses[at] = self._failed(error, append)
                failed = True
            if getrefcount(tx) > tx.references_max:
                catalog.retire(number)
            if failed:  # looked at when the exception is gone: its text, and its end, are code of the application, and may write
                failed = False
                if call.wrote == at:
                    raise NeedsSavepoints

    def _run_guarded(self, batch: Invocations, catalog: Catalog, run: BatchAttempt) -> None:
        """A savepoint per call, and a look at its key and at the skips first."""
        run.txn_ids = list(batch.txn_ids)
        for at in range(len(batch.txn_ids)):
            number = batch.procedures[at]
            self._call.at = at
            key = NO_KEY if batch.keys is None else batch.keys[at]
            request = catalog.requests.hash_of(batch, at) if key != NO_KEY else 0
            # A repetition is answered from its outcome, a skipped call fails without running, any other runs.
            known = self._judge(key, request, partial(catalog.requests.former, batch, at), run)
            if known is not None:
                run.statuses[at] = known.status
                run.bodies.append(known.body)
                run.txn_ids[at] = known.txn_id or batch.txn_ids[at]
                continue
            if at in batch.skips:
                run.statuses[at] = Status.FAILED
                run.bodies.append(SKIPPED)
            else:
                if self._progress is not None:
                    self._progress(at)
                tx = (entry := catalog.entries[number])[3]
                run.statuses[at] = self._run_in_savepoint(entry, batch.params[at], run, keyed=key != NO_KEY)
                if getrefcount(tx) > tx.references_max:
                    catalog.retire(number)
            if key != NO_KEY:
                run.keep_outcome(key, at, request, catalog.requests.made_from(batch, at))

    def _judge(self, key: bytes, request: int, former: FormerHashes, run: BatchAttempt) -> KnownOutcome | None:
        if key == NO_KEY:
            return None
        guard = self._state.guard
        guard.mode = Mode.FRAMEWORK  # it may read a stored outcome
        try:
            return self._known.judge(key, request, run.fresh, kind=run.kind, former=former)
        finally:
            guard.mode = Mode.PROCEDURE

    def _run_in_savepoint(self, entry: Entry, params: list[Any], run: BatchAttempt, *, keyed: bool) -> int:
        function, decode, encode, tx = entry
        self._control("SAVEPOINT call")
        try:
            body = encode(function(tx, *params) if decode is None else function(tx, *decode(params)))
            if attempts and (tried := process_guard.take_attempt()) is not None:
                raise tried
            if self._call.refused:
                raise self._call.refused[0]
            if keyed and len(body) > self._known.keys.policy.stored_result_bytes_max:
                raise ResultTooLarge(
                    f"the result has {len(body)} bytes; a call with an idempotency key may return at most "
                    f"{self._known.keys.policy.stored_result_bytes_max}, because its result is stored for retries"
                )
            run.bodies.append(body)
            status = int(Status.OK)
        except BaseException as error:  # noqa: BLE001 - whatever a procedure raises is its outcome
            status = self._failed(error, run.bodies.append)
        if status != Status.OK:  # when the exception is gone: see _run_straight
            self._control("ROLLBACK TO call")
            self._call.undone = True
        self._control("RELEASE call")
        return status

    def _failed(self, error: BaseException, append: Callable[[bytes], None]) -> int:
        """Status of a call that raised, its body appended. Raises: failures of the machine, also met while reading it."""
        self._call.raise_fault(error)
        try:
            status, body = outcome_of(error)
        except BaseException as fault:
            self._call.raise_fault(fault)
            raise
        refused = self._call.refused  # last: what reads the exception may run code of the application
        if (instead := process_guard.take_attempt() or (refused[0] if refused else None)) is not None:
            error, (status, body) = instead, outcome_of(instead)
        refused.clear()
        append(body)
        if self._tracer is not None and status == Status.FAILED:
            self._tracer.add(error, self._call.txn_ids[self._call.at], self._procedure_at(), describe_failure(body))
        return int(status)

    def _control(self, sql: str) -> None:
        """Runs transaction control of our own while a procedure's turn is on."""
        guard = self._state.guard
        guard.mode = Mode.FRAMEWORK
        self._cursor.execute(sql)
        guard.mode = Mode.PROCEDURE

    def begin_group(self) -> None:
        """From now on batches share one transaction, which makes replay cheaper: one commit, one position for all of them.

        Until `end_group`, `position` is ahead of the file; if the process ends before, the file is where the group began.
        """
        self._changes.drop_kept()
        self._batch.begin_group()

    def end_group(self) -> None:
        """Commits the group; no-op without one.

        Raises: EnvironmentFault, and then nothing of the group is applied; the state must be opened again.
        """
        self._batch.end_group()

    def changed_rows(self) -> list[ChangedRow]:
        """The rows that the last batch changed, by table and key; [] when digests are switched off."""
        return [] if self._rows is None else self._rows.changed_rows()

    def apply_schema(self, *, index: int, term: int, checksum: int, txn_id: int, change: StatedChange) -> None:
        """Runs a schema record: its migrations, as they ran when it was rehearsed, and its statements; or commits what is kept.

        Raises:
            EnvironmentFault: the machine failed; nothing is applied.
            BatchRefused: it does not follow on the position, or SQLite refuses a statement; MigrationDiverged.
        """
        check_index(index, self._state)
        self._changes.apply_change(Position(index, term, checksum, txn_id), change)
        self._catalogs.clear()  # what is prepared and checked in them is of tables that may be others now

    def rehearse_change(self, *, catalog: int, at: int, keep: bool) -> Rehearsal | None:
        """Does what leads to the tables of that code on the state as it is: migrations that it lacks, then additions.

        Args:
            at: transaction id that the migrations see as theirs; of the same time on all partitions.
            keep: the transaction stays open until `apply_schema` of an equal change commits it, or anything else that changes
                the state, or `drop_rehearsal`, takes it back. Meanwhile the connection sees it: no copy of the state begins.

        Returns:
            The change, to be logged; None when nothing has to change.

        Raises:
            MigrationFailed, SchemaConflict, DefinitionError, EnvironmentFault (the machine failed); nothing is changed.
        """
        try:
            return self._changes.rehearse_change(catalog=catalog, at=at, keep=keep)
        finally:
            self._catalogs.pop(catalog, None)  # the log may never name it, or name other code by this number

    def drop_rehearsal(self) -> None:
        """Takes back what `rehearse_change` keeps; no-op without it."""
        self._changes.drop_kept()

    def advance(self, *, index: int, term: int, checksum: int) -> None:
        """Notes an entry that changes no rows.

        Raises:
            EnvironmentFault: the machine failed; nothing is noted.
            BatchRefused: it does not follow on the state's position.
        """
        check_index(index, self._state)
        self._changes.pass_entry(Position(index, term, checksum, self._state.position.txn_id))

    def read(self, calls: Sequence[tuple[int, list[Any]]], *, catalog: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Runs read-only calls on one frozen state: see `Reader.read`."""
        if self._reader is None:
            self._reader = Reader(self._state, self._databases, self._millis_of, self._facts, self._tracer)
        return self._reader.read(calls, catalog=catalog)

    @property
    def changes(self) -> Changes | None:
        """The rows that changed; None until `gather_changes`."""
        return self._rows.changes if self._rows is not None else None

    def gather_changes(self) -> Changes | None:
        """From now on it is known which rows change after a cut; None when row digests, which show that, are off."""
        if self._rows is not None:
            self._rows.changes = self._rows.changes or Changes()
        return self.changes

    def close(self) -> None:
        """Closes the reader; the state stays open."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
