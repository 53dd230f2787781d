"""One partition's replay: applies its entries, compares each batch with the live run, stops or sets calls aside where they
differ.

One rule: a batch is applied when its digest is at hand. The live run's digest of a batch comes a few blocks after it, so entries
wait for it here; then a difference is seen while the transaction around the batch is still open, and everything from its
beginning on can be rolled back. (What has no digest, the last calls before a crash, is applied without; a digest that comes too
late is compared, but then nothing can be rolled back.)

At a difference the batch is run twice more from the state before it, each time watched call by call and rolled back
(`replay.recover.divergence`). That names the call, the rows that it changed, and whether it does the same thing twice.

A partition that stops is before the batch in question; the others continue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import Digest, Record, RecordKind, decode_digest
from procedures.errors import BundleError, EnvironmentFault
from procedures.execution.executor import Applied, Invocations
from procedures.execution.idempotency import KeyPolicy
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing, Catalogs, PartitionEngine, invocations, replay_calls
from replay.errors import Divergence, DivergencePlace, EntryMissing, Poison
from replay.plan.node_plan import PartitionPlan
from replay.recover.divergence import RERUNS, UNSTEADY, BatchProblem, Trial, changers, differing_calls, unsteady_call
from replay.recover.divergence_report import Teller
from replay.recover.quarantine import QuarantineFile
from replay.recover.skipped_calls import NONE, SetAside
from replay.results import PartitionResult
from replay.state.live_rows import LiveRows
from replay.state.touched_rows import CallRows

WAITING_MAX: Final = 1024  # entries of a partition that wait for a digest; it comes a few blocks later in the log
WAITING_BYTES_MAX: Final = 32 << 20
LATE_MAX: Final = 1024  # batches that were applied before their digest was met
GROUP_CALLS_MAX: Final = (
    2000  # in one SQLite transaction: small batches replay half again as fast, and a kill costs a tenth of a second
)
IN_BATCH: Final = -1  # passed to `ReplaySetup.begun`: the batch begins; which call runs is not reported
IDLE: Final = -2  # nothing of an application is running
REPORT_EVERY_CALLS: Final = 2000  # so a progress display moves ten times a second and costs nothing

Doomed = Mapping[int, tuple[int, str, str]]  # index -> position, "hang" or "death", reason: calls that a process did not survive


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """What the partitions of one run share."""

    catalogs: Catalogs
    hashes: Mapping[int, str]  # catalog version -> hash of its bundle
    row_digests: bool
    progress: Callable[[int, int], None]  # partition, calls applied so far
    begun: Callable[[int, int, int], None] | None  # partition, index, position, for who watches
    careful: bool  # `begun` gets each call
    live_rows: LiveRows | None
    quarantine: QuarantineFile | None  # None: nothing is set aside


class _Stop(Exception):
    """The partition stops."""

    def __init__(self, error: Divergence | Poison) -> None:
        self.error = error


def _stop(problem: BatchProblem, place: DivergencePlace) -> _Stop:
    return _Stop(Divergence(place) if problem.kind == "divergence" else Poison(place))


class PartitionReplay:
    """One partition. Its caller gives it the entries that are in force, in index order, and the digests. One thread."""

    def __init__(self, part: PartitionPlan, state: PartitionState, setting: ReplaySetup, doomed: Doomed) -> None:
        self.plan, self.state, self._setting, self._doomed = part, state, setting, doomed
        self.result = PartitionResult(part.partition)
        self.stopped: Divergence | Poison | None = None
        self._skips = {index: frozenset(positions) for index, positions in part.skips.items()}
        self._teller = Teller(setting.catalogs, setting.hashes, setting.live_rows)
        self._set_aside = SetAside(part.partition, self._teller, setting.quarantine, state.connection)
        self.aside = self._set_aside.aside
        self._policy = KeyPolicy()
        self._call_rows: CallRows | None = None  # only when something was set aside
        self._waiting: deque[Record | KeyPolicy] = deque()
        self._waiting_bytes = 0
        self._taken = 0  # index of the last entry that was put
        self._late: OrderedDict[int, tuple[Batch, Applied]] = OrderedDict()  # applied before their digest was met
        self._group: list[tuple[Record, Record | None]] = []  # batches of the open transaction with their digests
        self._grouped = 0  # calls in it, 0 = none is open
        self._before: tuple[int, int, int] | None = None  # counts when it began
        self._reported = 0
        self._tried_again = -1  # index of a batch in which the machine failed once
        self._engine = self._make_engine()

    @property
    def finished(self) -> bool:
        """It is at its end and waits for nothing, or has stopped."""
        return self.stopped is not None or (self.state.position.index >= self.plan.to_index and not self._late)

    def wants(self, index: int) -> bool:
        """Whether an entry is to be applied, and is none that has been."""
        return self.stopped is None and max(self.state.position.index, self._taken) < index <= self.plan.to_index

    def put(self, record: Record) -> None:
        """The next entry, if it is wanted. Raises: EntryMissing when one before it did not come."""
        expected = max(self.state.position.index, self._taken) + 1
        if record.index != expected:
            raise EntryMissing(f"partition {self.plan.partition}: entry {expected} is not in the log, entry {record.index} is")
        self._taken = record.index
        self._waiting.append(record)
        self._waiting_bytes += len(record.raw)
        if record.kind is not RecordKind.BATCH and len(self._waiting) == 1:
            self._drain(record.index)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            first = self._waiting[0]
            self._drain(first.index if isinstance(first, Record) else 0)

    def put_policy(self, policy: KeyPolicy) -> None:
        """In force for the entries that follow."""
        if self._waiting:
            self._waiting.append(policy)
        else:
            self._take_policy(policy)

    def put_digest(self, record: Record) -> None:
        """What the live run did in a batch; the batches before it that have none get none."""
        if self.stopped is None:
            self._drain(record.index, record)

    def drain(self) -> None:
        """There are no more digests."""
        self._drain(self.plan.to_index)
        self._late.clear()

    def close(self) -> None:
        """Closes the state. What is in an open transaction may not have been compared, so it is rolled back."""
        self.state.close()

    def _drain(self, index: int, digest: Record | None = None) -> None:
        """Applies what waits, up to the index."""
        waiting = self._waiting
        try:
            while waiting:
                first = waiting[0]
                if isinstance(first, KeyPolicy):
                    self._take_policy(first)
                    waiting.popleft()
                    continue
                if first.index > index:
                    break
                waiting.popleft()
                self._waiting_bytes -= len(first.raw)
                if digest is not None and first.index == index and first.term == digest.term:
                    self._entry(first, digest)
                    digest = None
                else:
                    self._entry(first, None)
            if digest is not None and digest.index in self._late:
                self._compare_late(digest)
        except _Stop as stop:
            self.stopped = stop.error
            waiting.clear()
            self._late.clear()

    def _take_policy(self, policy: KeyPolicy) -> None:
        self._end_group()  # a batch that is run again, since a later one of its group failed, belongs to the policy before
        self._policy = self._engine.executor.key_policy = policy

    # -- the ordinary way --------------------------------------------------------------------------------------------------

    def _entry(self, record: Record, digest: Record | None) -> None:
        if record.index in self.plan.dropped:
            self._end_group()
            self._engine.executor.advance(index=record.index, term=record.term, checksum=record.checksum)
            self.result.entries += 1
        elif record.kind is RecordKind.BATCH:
            self._batch(record, digest)
        else:
            self._end_group()
            self._engine.apply(record)
            if record.kind is RecordKind.SCHEMA and self._call_rows is not None:
                self._call_rows.read_tables()
            self.result.entries += 1
        if record.index == self.plan.to_index:
            self._end_group()

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
        if self._doomed and record.index in self._doomed and record.index not in self._set_aside:
            position, kind, reason = self._doomed[record.index]
            return BatchProblem(kind, reason, position)
        batch = decode_batch(record)
        if self._before is None:
            self._begin_group()
        if self._setting.begun is not None:
            self._setting.begun(self.plan.partition, record.index, IN_BATCH)
        calls = self._calls(batch)
        if record.index in self._set_aside and not self._teller.procedures(batch):
            self._pass_over(record, calls)
            return None
        applied = replay_calls(self._engine.executor, calls)
        if self._setting.begun is not None:
            self._setting.begun(self.plan.partition, record.index, IDLE)
        problem = None
        if digest is None:
            self._late[record.index] = batch, replace(applied, bodies=[])  # a body keeps the 4 KiB that orjson wrote it into
            if len(self._late) > LATE_MAX:
                self._late.popitem(last=False)
        else:
            problem = self._compare(batch, applied, decode_digest(digest))
            self.result.digests += 1
        if self._call_rows is not None:
            problem = self._set_aside.look(batch, calls, applied, problem, self._call_rows)
        if problem is None:
            self._count(record, digest, len(applied.bodies))
        return problem

    def _count(self, record: Record, digest: Record | None, calls: int) -> None:
        result = self.result
        result.entries += 1
        result.calls += calls
        self._group.append((record, digest))
        self._grouped += calls
        if self._grouped >= GROUP_CALLS_MAX or self._call_rows is not None:
            self._end_group()
        if result.calls - self._reported >= REPORT_EVERY_CALLS:
            self._reported = result.calls
            self._setting.progress(self.plan.partition, result.calls)

    def _calls(self, batch: Batch) -> Invocations:
        index = batch.record.index
        calls = invocations(batch, self._skips.get(index, NONE) | self._set_aside.positions(index))
        if self._is_whole(batch):
            return calls
        end = self.plan.to_calls
        keys = calls.keys[:end] if calls.keys is not None else None
        return replace(
            calls, txn_ids=calls.txn_ids[:end], procedures=calls.procedures[:end], params=calls.params[:end], keys=keys
        )

    def _is_whole(self, batch: Batch) -> bool:
        """Whether all calls of the batch are run: `until` may fall inside one."""
        return batch.record.index != self.plan.to_index or self.plan.to_calls < 0 or self.plan.to_calls == batch.count

    def _compare(self, batch: Batch, applied: Applied, live: Digest) -> BatchProblem | None:
        aside = self._set_aside.positions(applied.index)
        if list(live.result_hashes[: len(applied.result_hashes)]) != list(applied.result_hashes):
            at = differing_calls(live.result_hashes, applied.result_hashes, aside)
            if at:
                return BatchProblem("divergence", "", at[0], applied, live)
        rows = live.rows_digest and applied.rows_digest and live.rows_digest != applied.rows_digest
        if rows and not aside and self._is_whole(batch):
            return BatchProblem("divergence", "", -1, applied, live)
        return None

    def _compare_late(self, digest: Record) -> None:
        """Nothing can be rolled back any more; the state is removed. Raises: _Stop."""
        batch, applied = self._late.pop(digest.index)
        if batch.record.term != digest.term:
            return
        self.result.digests += 1
        problem = self._compare(batch, applied, decode_digest(digest))
        if problem is not None:
            raise _Stop(Divergence(self._teller.place(self.state.connection, batch, self._named(batch, problem))))

    def _begin_group(self) -> None:
        self._before = (self.result.entries, self.result.calls, self.result.digests)
        self._engine.executor.begin_group()

    def _end_group(self) -> None:
        self._engine.executor.end_group()
        self._group.clear()
        self._grouped, self._before = 0, None

    def _pass_over(self, record: Record, calls: Invocations) -> None:
        """Every call of the batch was set aside since its code is missing: the entry is noted, nothing is run."""
        self._end_group()
        self._engine.executor.advance(index=record.index, term=record.term, checksum=record.checksum)
        self.result.entries += 1
        self.result.calls += len(calls.txn_ids)

    # -- what is not as it was live ----------------------------------------------------------------------------------------

    def _fault(self, record: Record, error: EnvironmentFault | CatalogMissing | BundleError) -> BatchProblem:
        """Raises: EnvironmentFault of the disk, which is no fault of the call; KeyboardInterrupt."""
        if isinstance(error, EnvironmentFault):
            if error.kind in ("io", "disk_full"):
                raise error
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt(f"in {error.procedure}, transaction {error.txn_id}, index {record.index}") from error
            self._go_back()
            if self._tried_again != record.index:  # memory may be short for a moment
                self._tried_again = record.index
                return BatchProblem("again", "", -1)
            return BatchProblem("fault", f"{error.kind}: {error.__cause__!r}", error.position)
        self._go_back()
        return BatchProblem("code", str(error), -1)

    def _go_back(self) -> None:
        """Brings the state to where the last good batch left it, committed. Raises: _Stop when one of those now behaves
        differently."""
        group, self._group, self._grouped = self._group, [], 0
        if self._before is not None:
            self.result.entries, self.result.calls, self.result.digests = self._before
            self._before = None
        for record, _ in group:
            self._late.pop(record.index, None)
        self._reopen()
        for record, digest in group:
            self._batch(record, digest)
        self._end_group()

    def _resolve(self, record: Record, problem: BatchProblem) -> None:
        """Sets calls aside, or accepts what they do now, so that the batch can be applied. Raises: _Stop."""
        if self._setting.begun is not None:
            self._setting.begun(self.plan.partition, record.index, IDLE)
        self._go_back()
        batch = decode_batch(record)
        trials = self._trials(batch, problem)
        if problem.kind == "divergence" and problem.position < 0:
            position = unsteady_call(trials)  # answers are equal; who changes rows in two ways is to blame
            problem = replace(problem, position=position)
        problem = self._named(batch, problem)
        positions = [problem.position] if problem.position >= 0 else self._suspects(batch, problem, trials)
        place = self._teller.place(self.state.connection, batch, problem, trials, positions)
        if self._setting.quarantine is None:
            raise _stop(problem, place)
        if problem.kind == "divergence" and self._set_aside and not place.reruns.startswith(UNSTEADY):
            assert problem.live is not None
            self._set_aside.accept(batch, problem.live, trials[0])
            return
        if not positions:
            raise _stop(problem, place)
        self._quarantine(batch, positions, problem, place, trials)
        if problem.kind == "divergence":
            self._quarantine_unsteady(batch)

    def _quarantine_unsteady(self, batch: Batch) -> None:
        """A batch with a gap cannot be compared with the live run's rows. So trials find what else in it is nondeterministic."""
        while True:
            trials = [self._try(batch) for _ in range(RERUNS)]
            at = unsteady_call(trials)
            if at < 0:
                return
            problem = BatchProblem("divergence", UNSTEADY, at)
            self._quarantine(batch, [at], problem, self._teller.place(self.state.connection, batch, problem, trials), trials)

    def _trials(self, batch: Batch, problem: BatchProblem) -> list[Trial]:
        """The batch, run from the state before it, as often as it makes sense to."""
        if problem.kind in ("hang", "death", "code"):
            return []
        if problem.kind == "fault":
            return [self._try(batch)]
        return [self._try(batch) for _ in range(RERUNS)]

    def _try(self, batch: Batch) -> Trial:
        """Runs the batch watched, and rolls it back."""
        rows = CallRows(self.state.connection)
        engine = PartitionEngine(
            self.state, self._setting.catalogs, digest_rows=True, policy=self._policy, progress=rows.begin_call
        )
        executor = engine.executor
        try:
            executor.begin_group()
            applied = replay_calls(executor, self._calls(batch))
            changed = {(row.table, row.key): row for row in executor.changed_rows()}
            return Trial(applied.statuses, applied.result_hashes, applied.rows_digest, changed, rows.take(applied.statuses))
        except EnvironmentFault as fault:
            if fault.kind in ("io", "disk_full"):
                raise
            return Trial((), (), 0, {}, rows.take(bytes(batch.count)))
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
        """On disk first; then as if the calls had never been. Raises: _Stop when it would be too many."""
        if told := self._set_aside.too_many(len(positions)):
            raise _stop(problem, replace(place, reruns=f"{place.reruns}; {told}" if place.reruns else told))
        self._set_aside.add(self.state.connection, batch, positions, problem=problem, place=place, trials=trials)
        self._reopen()

    def _make_engine(self) -> PartitionEngine:
        setting = self._setting
        self._call_rows = CallRows(self.state.connection) if self._set_aside else None
        progress: Callable[[int], object] | None = self._call_rows.begin_call if self._call_rows is not None else None
        if setting.careful and setting.begun is not None:
            progress = self._tell_call
        return PartitionEngine(
            self.state, setting.catalogs, digest_rows=setting.row_digests, policy=self._policy, progress=progress
        )

    def _tell_call(self, position: int) -> None:
        if self._call_rows is not None:
            self._call_rows.begin_call(position)
        if self._setting.begun is not None:
            self._setting.begun(self.plan.partition, self.state.position.index + 1, position)

    def _reopen(self) -> None:
        """Drops whatever is not committed, from the file and from memory."""
        self.state.close()
        self.state = PartitionState.open(self.state.path, partition=self.plan.partition)
        self._engine = self._make_engine()
