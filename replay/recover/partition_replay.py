"""One partition's replay: applies its entries, compares each batch with the live run, stops or sets calls aside at a difference.

One rule: a batch is compared while the transaction around it is open, so everything from its begin on can be taken back. Entries
come from `replay.loop`, each batch with its digest. (What has no digest, the last calls before a crash, is applied
without; a digest that comes too late is compared, but then nothing can be rolled back.)

At a difference the batch is run twice more from the state before it, each time watched call by call and rolled back
(`replay.recover.divergence`). That names the call, the rows that it changed, and whether it does the same thing twice.

A partition that stops is left before the batch in question; the others are replayed to their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.control_record import SchemaChange
from cmdlog.wal.format.record import Record, RecordKind, decode_digest
from cmdlog.wal.ids import Lsn
from cmdlog.wal.skips import VOID
from procedures.errors import BundleError, EnvironmentFault, MigrationDiverged
from procedures.execution.executor import Applied, Invocations
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.raised_errors import is_raised, repr_of
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing, Catalogs, PartitionEngine, SharedTransaction, invocations, stated_change
from replay.errors import MIGRATION, Divergence, DivergencePlace, Poison
from replay.loop import PartitionStopped, UncomparedBatches
from replay.plan.node_plan import PartitionPlan
from replay.recover.divergence import (
    RERUNS,
    UNSTEADY,
    BatchProblem,
    DivergenceReporter,
    Trial,
    changers,
    compare_with_live,
    unsteady_call,
)
from replay.recover.quarantine import QuarantineFile
from replay.recover.skipped_calls import NONE, SkippedCalls
from replay.results import PartitionResult
from replay.state.live_rows import LiveRows
from replay.state.touched_rows import CallRows

IN_BATCH: Final = -1  # given to `ReplaySetup.report_running`: the batch begins; which call runs is not said
IDLE: Final = -2  # nothing of an application is running

FatalCalls = Mapping[int, tuple[int, str, str]]  # index -> position, "hang" or "death", reason: a process did not survive it


def pass_over(_partition: int, _index: int, _position: int) -> None:
    """For a run that no other process watches."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """What the partitions of one run share."""

    row_digests: bool
    live_rows: LiveRows | None = None
    quarantine: QuarantineFile | None = None  # None: nothing is set aside
    report_running: Callable[[int, int, int], object] = pass_over  # partition, index, IN_BATCH before a batch, IDLE after it
    careful: bool = False  # … and the position before each call
    catalogs: Catalogs = field(default_factory=Catalogs)


def stop_at_migration(
    record: Record, error: MigrationDiverged | CatalogMissing | BundleError, hashes: Mapping[int, str]
) -> PartitionStopped:
    """Why a SCHEMA entry is not applied: its migration differs from the live run, or its code is not at hand."""
    change = stated_change(SchemaChange.from_record(record), record)
    diverged = error if isinstance(error, MigrationDiverged) else None
    name = diverged.migration if diverged is not None else ", ".join(run.name for run in change.migrations)
    place = DivergencePlace(
        record.partition,
        record.index,
        txn_id=change.at,
        position=-1,
        procedure=f"{MIGRATION} {name}",
        expected=diverged.expected if diverged is not None else "",
        got=diverged.got if diverged is not None else str(error),
        catalog=change.catalog,
        source_hash=hashes.get(change.catalog, ""),
        kind="divergence" if diverged is not None else "code",
    )
    return PartitionStopped(Divergence(place) if diverged is not None else Poison(place))


def _stop(problem: BatchProblem, place: DivergencePlace) -> PartitionStopped:
    return PartitionStopped(Divergence(place) if problem.kind == "divergence" else Poison(place))


class PartitionReplay:
    """The policy of a recovery for one partition. One thread."""

    def __init__(self, part: PartitionPlan, state: PartitionState, setup: ReplaySetup, fatal_calls: FatalCalls) -> None:
        self.plan, self.state, self._setup, self._fatal_calls = part, state, setup, fatal_calls
        self.result = PartitionResult(part.partition)
        self.distrusted_from = part.to_index + 1  # the log's digests of entries from there on are not given
        self._skips = {index: frozenset(positions) for index, positions in part.skips.items()}
        self._reporter = DivergenceReporter(setup.catalogs, setup.live_rows)
        self._skipped = SkippedCalls(part.partition, self._reporter, setup.quarantine, state.connection)
        self.aside = self._skipped.aside
        self._policy = KeyPolicy()
        self._call_rows: CallRows | None = None  # only when something was set aside
        self._group: list[tuple[Record, Record | None]] = []  # batches of the open transaction with their digests
        self._before = (0, 0, 0, 0, 0)  # counts when it began
        self._tried_again = -1  # index of a batch in which the machine failed once
        self._engine = self._make_engine()
        self._transaction = SharedTransaction(self._engine.executor)
        self._uncompared: UncomparedBatches[tuple[Batch, Applied]] = UncomparedBatches()

    @property
    def calls(self) -> int:
        return self.result.calls

    @property
    def awaits_digest(self) -> bool:
        return bool(self._uncompared)

    def apply_entry(self, _lsn: Lsn, record: Record, digest: Record | None) -> None:
        """Raises: PartitionStopped; EnvironmentFault of the disk (nothing of the entry was applied), BatchRefused."""
        if record.index in self.plan.dropped or VOID in self._skips.get(record.index, NONE):
            self._commit()
            self._engine.executor.advance(index=record.index, term=record.term, checksum=record.checksum)
            self.result.entries += 1
        elif record.kind is RecordKind.BATCH:
            self._batch(record, digest)
        else:
            self._commit()
            self._control(record)
            self.result.entries += 1
        if record.index == self.plan.to_index:
            self._commit()

    def _control(self, record: Record) -> None:
        """An entry without calls. Raises: PartitionStopped at a migration that cannot be run, or differs from the live run."""
        rows = self._call_rows if record.kind is RecordKind.SCHEMA else None
        try:
            with nullcontext() if rows is None else rows.schema_change():
                self._engine.apply(record)
        except (MigrationDiverged, CatalogMissing, BundleError) as error:
            raise stop_at_migration(record, error, self._setup.catalogs.hashes) from error

    def compare_late(self, digest: Record) -> None:
        """Nothing can be rolled back now; the state is removed. Raises: PartitionStopped."""
        found = self._uncompared.pop(digest)
        if found is None:
            return
        batch, applied = found
        self.result.digests += 1
        problem = self._compare(batch, applied, digest)
        if problem is not None:
            place = self._reporter.place(self.state.connection, batch, self._named(batch, problem))
            raise PartitionStopped(Divergence(place))

    def change_key_policy(self, policy: KeyPolicy) -> None:
        self._commit()  # a batch that is run again, since a later one of its group failed, belongs to the policy before
        self._policy = self._engine.executor.key_policy = policy

    def close(self) -> None:
        """Closes the state. An open transaction may not have been compared, so it is dropped."""
        self.state.close()

    # -- the ordinary way --------------------------------------------------------------------------------------------------

    def _batch(self, record: Record, digest: Record | None) -> None:
        while True:
            try:
                problem = self._attempt(record, digest)
            except (EnvironmentFault, CatalogMissing, BundleError) as error:
                problem = self._fault(record, error)
            if problem is None:
                return
            if problem.kind != "again":
                self._resolve(record, problem)

    def _attempt(self, record: Record, digest: Record | None) -> BatchProblem | None:
        """Applies the batch in the open transaction, or in one that it begins; None when all is as in the live run."""
        if self._fatal_calls and record.index in self._fatal_calls and record.index not in self._skipped:
            position, kind, reason = self._fatal_calls[record.index]
            return BatchProblem(kind, reason, position)
        batch = decode_batch(record)
        if not self._transaction.is_open:
            result = self.result
            self._before = (result.entries, result.calls, result.batches, result.digests, result.distrusted)
            self._transaction.ensure_open()
        self._setup.report_running(self.plan.partition, record.index, IN_BATCH)
        calls = self._calls(batch)
        if record.index in self._skipped and not self._reporter.procedures(batch):
            self._pass_over(record, calls)
            return None
        applied = self._engine.executor.apply(calls)
        self._setup.report_running(self.plan.partition, record.index, IDLE)
        problem = None
        if digest is None:
            self._uncompared.add(record, (batch, applied._replace(bodies=[])))  # a body keeps the 4 KiB that orjson wrote it into
        else:
            problem = self._compare(batch, applied, digest)
            self.result.digests += 1
        if self._call_rows is not None:
            problem = self._skipped.check_batch(batch, calls, applied, problem, self._call_rows)
        if problem is None:
            self._count(record, digest, len(applied.bodies))
        return problem

    def _count(self, record: Record, digest: Record | None, calls: int) -> None:
        self.result.entries += 1
        self.result.calls += calls
        self.result.batches += 1
        self.result.distrusted += record.index >= self.distrusted_from
        self._group.append((record, digest))
        self._transaction.count(calls)
        if self._transaction.is_full or self._call_rows is not None:
            self._commit()

    def _calls(self, batch: Batch) -> Invocations:
        """Those that are run: `until` may fall inside a batch."""
        index = batch.record.index
        skips = self._skips.get(index, NONE) | self._skipped.positions(index)
        return invocations(batch, skips, self.plan.to_calls if index == self.plan.to_index else -1)

    def _compare(self, batch: Batch, applied: Applied, digest: Record) -> BatchProblem | None:
        return compare_with_live(batch, applied, decode_digest(digest), self._skipped.positions(applied.index))

    def _commit(self) -> None:
        self._transaction.commit()
        self._group.clear()

    def _pass_over(self, record: Record, calls: Invocations) -> None:
        """Every call of the batch was set aside since its code is missing: the entry is noted, nothing is run."""
        self._commit()
        self._engine.executor.advance(index=record.index, term=record.term, checksum=record.checksum)
        self.result.entries += 1
        self.result.calls += len(calls.txn_ids)

    # -- what is not as it was live ----------------------------------------------------------------------------------------

    def _fault(self, record: Record, error: EnvironmentFault | CatalogMissing | BundleError) -> BatchProblem:
        """Raises: EnvironmentFault of the disk, which is no fault of the call; KeyboardInterrupt."""
        if isinstance(error, EnvironmentFault):
            if error.kind in ("io", "disk_full"):
                raise error
            if is_raised(error.__cause__, KeyboardInterrupt):
                call = f"{error.procedure}, transaction {error.txn_id}" if error.procedure else f"partition {record.partition}"
                raise KeyboardInterrupt(f"in {call}, index {record.index}") from error
            self._go_back()
            if self._tried_again != record.index:  # memory may be short for a moment
                self._tried_again = record.index
                return BatchProblem("again", "", -1)
            return BatchProblem("fault", f"{error.kind}: {repr_of(error.__cause__)}", error.position)
        self._go_back()
        return BatchProblem("code", str(error), -1)

    def _go_back(self) -> None:
        """Takes the state back to the last good batch, committed. Raises: PartitionStopped when one of those differs now."""
        group, self._group = self._group, []
        if self._transaction.is_open:
            result = self.result
            result.entries, result.calls, result.batches, result.digests, result.distrusted = self._before
        for record, _ in group:
            self._uncompared.forget(record.index)
        self._reopen()
        for record, digest in group:
            self._batch(record, digest)
        self._commit()

    def _resolve(self, record: Record, problem: BatchProblem) -> None:
        """Sets calls aside, or accepts what they do now, so that the batch can be applied. Raises: PartitionStopped."""
        self._setup.report_running(self.plan.partition, record.index, IDLE)
        self._go_back()
        batch = decode_batch(record)
        trials = self._trials(batch, problem)
        if problem.kind == "divergence" and problem.position < 0:
            position = unsteady_call(trials)  # answers are equal; who changes rows in two ways is to blame
            problem = replace(problem, position=position)
        problem = self._named(batch, problem)
        positions = [problem.position] if problem.position >= 0 else self._suspects(batch, problem, trials)
        place = self._reporter.place(self.state.connection, batch, problem, trials, positions)
        if self._setup.quarantine is None:
            raise _stop(problem, place)
        if problem.kind == "divergence" and self._skipped and not place.reruns.startswith(UNSTEADY):
            assert problem.live is not None
            self._skipped.accept_difference(batch, problem.live, trials[0])
            return
        if not positions:
            raise _stop(problem, place)
        self._quarantine(batch, positions, problem, place, trials)
        if problem.kind == "divergence":
            self._quarantine_unsteady(batch)

    def _quarantine_unsteady(self, batch: Batch) -> None:
        """A batch with a gap cannot be compared with the live run's rows. So trials find what else in it is nondeterministic."""
        while True:
            trials = [self._run_and_undo(batch) for _ in range(RERUNS)]
            at = unsteady_call(trials)
            if at < 0:
                return
            problem = BatchProblem("divergence", UNSTEADY, at)
            self._quarantine(batch, [at], problem, self._reporter.place(self.state.connection, batch, problem, trials), trials)

    def _trials(self, batch: Batch, problem: BatchProblem) -> list[Trial]:
        """The batch, run from the state before it, as often as it makes sense to."""
        if problem.kind in ("hang", "death", "code"):
            return []
        if problem.kind == "fault":
            return [self._run_and_undo(batch)]
        return [self._run_and_undo(batch) for _ in range(RERUNS)]

    def _run_and_undo(self, batch: Batch) -> Trial:
        """Runs the batch watched, and rolls it back."""
        rows = CallRows(self.state.connection)
        engine = PartitionEngine(
            self.state, self._setup.catalogs, digest_rows=True, policy=self._policy, progress=rows.begin_call
        )
        executor = engine.executor
        try:
            executor.begin_group()
            applied = executor.apply(self._calls(batch))
            changed = {(row.table, row.key): row for row in executor.changed_rows()}
            return Trial(
                applied.statuses, applied.result_hashes, applied.rows_digest, changed, rows.take_positions(applied.statuses)
            )
        except EnvironmentFault as fault:
            if fault.kind in ("io", "disk_full"):
                raise
            return Trial((), (), 0, {}, rows.take_positions(bytes(batch.count)))
        finally:
            self._reopen()

    def _suspects(self, batch: Batch, problem: BatchProblem, trials: Sequence[Trial]) -> list[int]:
        """The calls that may have caused it where no single call can be named."""
        if problem.kind == "code":
            return self._run_positions(batch)
        if problem.kind != "divergence":
            return []
        return changers(trials[0])

    def _named(self, batch: Batch, problem: BatchProblem) -> BatchProblem:
        """With its position, if the batch has a single call."""
        runs = self._run_positions(batch)
        return replace(problem, position=runs[0]) if problem.position < 0 and len(runs) == 1 else problem

    def _run_positions(self, batch: Batch) -> list[int]:
        """Of the batch's calls that are run."""
        calls = self._calls(batch)
        return [at for at in range(len(calls.txn_ids)) if at not in calls.skips]

    def _quarantine(
        self, batch: Batch, positions: Sequence[int], problem: BatchProblem, place: DivergencePlace, trials: Sequence[Trial]
    ) -> None:
        """On disk first; then as if the calls had never been. Raises: PartitionStopped when it would be too many."""
        if told := self._skipped.too_many(len(positions)):
            raise _stop(problem, replace(place, reruns=f"{place.reruns}; {told}" if place.reruns else told))
        self._skipped.add_calls(self.state.connection, batch, positions, problem=problem, place=place, trials=trials)
        self._reopen()

    def _make_engine(self) -> PartitionEngine:
        setup = self._setup
        self._call_rows = CallRows(self.state.connection) if self.aside.calls else None
        progress: Callable[[int], object] | None = self._call_rows.begin_call if self._call_rows is not None else None
        if setup.careful:
            progress = self._report_call
        return PartitionEngine(self.state, setup.catalogs, digest_rows=setup.row_digests, policy=self._policy, progress=progress)

    def _report_call(self, position: int) -> None:
        if self._call_rows is not None:
            self._call_rows.begin_call(position)
        self._setup.report_running(self.plan.partition, self.state.position.index + 1, position)

    def _reopen(self) -> None:
        """Drops whatever is not committed, from the file and from memory."""
        self.state.close()
        self.state = PartitionState.open(self.state.path, partition=self.plan.partition)
        self._engine = self._make_engine()
        self._transaction.abandon(self._engine.executor)
