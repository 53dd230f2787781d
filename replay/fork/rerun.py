"""Applies the entries after a fork with one other version of the code, and compares what the calls answer with the live run.

One rule: only the code differs. The calls, their order, their transaction ids, keys and skips are those of the log; the tables
are what this code finds and makes when it is started there. So SCHEMA entries of the log, which belong to the code that is
replaced, pass without effect, and what this code's tables lack is made before the first call, as at a start with changed code.

A stream that is forked has other entries than the log: the schema change, and the second half of a batch that the fork cuts.
Its indexes are the log's plus `shift`.

An interrupted run can be resumed: what was done so far (`RerunProgress`) is handed to `keep` within each transaction that makes
it so. Entries come with their digests (`replay.loop`), so nothing is half compared when a transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

import orjson

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.control_record import SchemaChange
from cmdlog.wal.format.record import Record, RecordKind, decode_digest
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITION_BITS, Lsn
from cmdlog.wal.skips import VOID
from procedures import Database
from procedures.execution.executor import Applied, Invocations
from procedures.idempotency.known_outcome import KeyPolicy, Status
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine, SharedTransaction
from replay.errors import ReplayError
from replay.fork.bind_calls import CallBinding, Fit, Unfit
from replay.fork.tally import Difference, RerunProgress
from replay.log.scan import ScannedStream
from replay.loop import UncomparedBatches
from replay.plan.node_plan import PartitionPlan
from replay.recover.partition_replay import IDLE, IN_BATCH
from replay.results import PartitionResult

VERSION: Final = 1  # of the only code that runs here
Missing = Literal["refuse", "skip"]


class CallUnfit(ReplayError):
    """A call of the log cannot run with the other code."""

    exit_code = 13
    hint = "give the code a procedure of that name and parameters, or skip such calls with --skip-missing"


@dataclass(frozen=True, slots=True)
class ForkPlace:
    """Where a partition leaves its log: after `index`, or after the first `calls` calls of it."""

    partition: int
    index: int = 0
    term: int = 0  # 0: not known
    checksum: int = 0
    calls: int = -1  # -1 = all

    @classmethod
    def of_plan(cls, part: PartitionPlan) -> Self:
        """Where the plan of what is before the fork ends."""
        return cls(part.partition, part.to_index, part.to_term, part.to_checksum, part.to_calls)


@dataclass(frozen=True, slots=True)
class OtherCode:
    """The code that runs after the fork, and what becomes of calls that do not fit it."""

    db: Database
    fitting: CallBinding
    missing: Missing


@dataclass(frozen=True, slots=True)
class RerunBatch:
    """A batch that the other code has run."""

    block: int
    batch: Batch
    ran: list[int]  # positions in the batch
    calls: Invocations
    applied: Applied


class PartitionRerun:
    """The policy of a fork for one partition. One thread."""

    def __init__(
        self,
        state: PartitionState,
        stream: ScannedStream,
        place: ForkPlace,
        code: OtherCode,
        *,
        report_running: Callable[[int, int, int], None] = lambda _partition, _index, _position: None,
        begin_call: Callable[[int], object] | None = None,
        careful: bool = False,
        done: RerunProgress | None = None,
        keep: Callable[[PartitionState, RerunProgress], None] = lambda _state, _done: None,
    ) -> None:
        """Brings the tables to those of the code. Raises: SchemaConflict.

        `report_running` is given (partition, index, IN_BATCH) before each batch, IDLE after it, and if `careful`, (partition,
        index, position) before each call; `begin_call` which of the calls that run it is. `done`, if an earlier run has applied
        something; `keep` stores that in the state's open transaction.
        """
        self._stream, self._place, self._code = stream, place, code
        self._report_running, self._keep = report_running, keep
        self._skips = stream.skips
        self._running: tuple[int, list[int]] = 0, []  # index, positions of the calls that run
        catalogs = Catalogs()
        catalogs.add_live(VERSION, code.db, code.fitting.facts)
        hook = self._begin_call if careful else begin_call
        self._engine = PartitionEngine(state, catalogs, digest_rows=False, policy=KeyPolicy(), progress=hook)
        self._transaction = SharedTransaction(self._engine.executor)
        self._uncompared: UncomparedBatches[RerunBatch] = UncomparedBatches()
        self.done = done or _start(stream, place)
        if done is None:
            self._change_schema()

    @property
    def calls(self) -> int:
        return self.done.calls

    @property
    def awaits_digest(self) -> bool:
        return bool(self._uncompared)

    def apply_entry(self, lsn: Lsn, record: Record, digest: Record | None) -> RerunBatch | None:
        """What was run, if it is a batch of which something is. Raises: CallUnfit, CodeMissing, EnvironmentFault."""
        executor, done = self._engine.executor, self.done
        self._transaction.ensure_open()
        done.entries += 1
        at = {"index": record.index + done.shift, "term": record.term, "checksum": record.checksum}
        ran = None
        if record.kind is RecordKind.BATCH:
            ran = self._run_batch(lsn, record, digest)
        elif record.kind is RecordKind.SCHEMA:  # its time passes, its statements are those of other code
            executor.apply_schema(**at, txn_id=SchemaChange.from_record(record).txn_id, change=StatedChange())
        else:
            executor.advance(**at)
        done.at = record.index
        self._transaction.count(1 + (len(ran.ran) if ran is not None else 0))
        if self._transaction.is_full or record.index == self._stream.to_index:
            self._commit()
        return ran

    def compare_late(self, digest: Record) -> None:
        if (ran := self._uncompared.pop(digest)) is not None:
            self._compare(ran, digest)

    def change_key_policy(self, policy: KeyPolicy) -> None:
        self._engine.executor.key_policy = policy

    def finish(self) -> PartitionResult:
        """Commits what is applied."""
        self._commit()
        position, done = self._engine.state.position, self.done
        return PartitionResult(
            self._place.partition,
            entries=done.entries,
            calls=done.calls,
            index=position.index,
            term=position.term,
            checksum=position.checksum,
            txn_id=position.txn_id,
        )

    def _change_schema(self) -> None:
        """As at a start with changed code: its migrations that the state has not, and what the tables lack then."""
        last, executor = self._engine.state.position, self._engine.executor
        at = last.txn_id >> PARTITION_BITS << PARTITION_BITS | CLUSTER_GROUP  # of no call: what is drawn from it is no call's
        rehearsal = executor.rehearse_change(catalog=VERSION, at=at, keep=False)
        if rehearsal is None:
            return
        self._transaction.ensure_open()
        executor.apply_schema(index=last.index + 1, term=last.term, checksum=0, txn_id=last.txn_id, change=rehearsal.change)
        self.done.shift += 1
        self._commit()

    def _run_batch(self, lsn: Lsn, record: Record, digest: Record | None) -> RerunBatch | None:
        batch = decode_batch(record)
        low = max(self._place.calls, 0) if record.index == self._place.index else 0
        cut = record.index == self._stream.to_index and self._stream.to_calls >= 0
        high = self._stream.to_calls if cut else batch.count
        ran, calls = self._bind(batch, range(low, high))
        if not ran:
            last = {"term": record.term, "checksum": record.checksum, "txn_id": batch.txn_ids[high - 1]}
            self._engine.executor.apply_schema(index=calls.index, **last, change=StatedChange())
            return None
        self._running = record.index, ran
        self._report_running(record.partition, record.index, IN_BATCH)
        applied = self._engine.executor.apply(calls)
        self._report_running(record.partition, record.index, IDLE)
        self.done.tally.statuses.update(applied.statuses)
        self.done.calls += len(ran)
        found = RerunBatch(int(lsn.block), batch, ran, calls, applied)
        if digest is not None:
            self._compare(found, digest)
        else:
            bodies = [b"%b" % body for body in applied.bodies]  # orjson's keep 4 KiB each
            self._uncompared.add(record, replace(found, applied=applied._replace(bodies=bodies)))
        return found

    def _begin_call(self, number: int) -> None:
        index, ran = self._running
        self._report_running(self._place.partition, index, ran[number])

    def _bind(self, batch: Batch, wanted: range) -> tuple[list[int], Invocations]:
        """(positions that run, those calls as today's code takes them)."""
        record, all_params = batch.record, batch.params()
        fits = self._code.fitting.procedures(batch.catalog)
        keys, skips = batch.key_list(), self._skips.get(record.index, ())
        ran: list[int] = []
        numbers, params = [], []
        # A call fits and runs, or it is left out, or it ends the fork (`_leave_out`); of a void batch none runs.
        for at in wanted if VOID not in skips else ():
            fit, txn_id = fits[batch.procedures[at]], batch.txn_ids[at]
            try:
                params.append(self._code.fitting.params(fit, all_params[at], txn_id=txn_id, partition=record.partition))
            except Unfit as why:
                self._leave_out(fit, batch, at, str(why))
                continue
            numbers.append(fit.number)
            ran.append(at)
        if skips:
            self.done.gone.append([record.index, list(skips)])
        return ran, Invocations(
            index=record.index + self.done.shift,
            term=record.term,
            checksum=record.checksum,
            catalog=VERSION,
            txn_ids=[batch.txn_ids[at] for at in ran],
            procedures=numbers,
            params=params,
            keys=None if keys is None else [keys[at] for at in ran],
            floors=batch.floors,
            skips=frozenset(n for n, at in enumerate(ran) if at in skips),
            sent=() if keys is None else self._code.fitting.sent(batch, all_params, ran),
        )

    def _leave_out(self, fit: Fit, batch: Batch, at: int, why: str) -> None:
        txn_id, record = batch.txn_ids[at], batch.record
        if self._code.missing == "skip":
            self.done.tally.count_left_out(fit.name, why, txn_id)
            return
        raise CallUnfit(
            f"transaction {txn_id} (partition {record.partition}, index {record.index}, call {at}) ran {fit.was}; "
            f"the code has {fit.now}: {why}"
        )

    def _compare(self, ran: RerunBatch, digest: Record) -> None:
        """With the results of the live run."""
        tally, hashes = self.done.tally, decode_digest(digest).result_hashes
        live = [hashes[at] for at in ran.ran]
        tally.compared += len(live)
        if live == ran.applied.result_hashes:
            return
        others = [n for n, (a, b) in enumerate(zip(live, ran.applied.result_hashes, strict=True)) if a != b]
        tally.changed += len(others)
        n = others[0]
        if tally.first is None or ran.calls.txn_ids[n] < tally.first.txn_id:
            tally.first = self._difference(ran, n, live[n])

    def _difference(self, ran: RerunBatch, n: int, live_hash: int) -> Difference:
        record, at = ran.batch.record, ran.ran[n]
        return Difference(
            txn_id=ran.calls.txn_ids[n],
            partition=record.partition,
            index=record.index,
            position=at,
            procedure=self._code.fitting.procedures(ran.batch.catalog)[ran.batch.procedures[at]].name,
            params=ran.calls.params[n],
            live_hash=live_hash,
            status=Status(ran.applied.statuses[n]).name,
            outcome=orjson.loads(ran.applied.bodies[n]),
            block=ran.block,
        )

    def _commit(self) -> None:
        if self._transaction.is_open:
            self.done.open = self._uncompared.indexes
            self._keep(self._engine.state, self.done)
        self._transaction.commit()


def _start(stream: ScannedStream, place: ForkPlace) -> RerunProgress:
    same_cut = stream.to_index == place.index and stream.to_calls == place.calls
    if place.calls >= 0 and not same_cut:  # the rest of that batch becomes an entry of its own
        return RerunProgress(place.index - 1, shift=1)
    return RerunProgress(place.index)
