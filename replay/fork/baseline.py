"""The history as it was: a partition's entries after a fork, applied batch by batch with their own code.

One rule: it is the live run again, or it stops: results and rows are compared with the digests of the log. (A recovery,
`replay.recover.partition_replay`, also finds out which call differs, and why; here the difference is an error of the whole run.)
"""

from __future__ import annotations

from contextlib import nullcontext

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_digest
from cmdlog.wal.ids import Lsn
from cmdlog.wal.skips import VOID
from procedures.execution.executor import Applied
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine, SharedTransaction, invocations
from replay.errors import Divergence, DivergencePlace, PlanOutdated
from replay.fork.rerun import ForkPlace
from replay.log.scan import ScannedStream
from replay.loop import UncomparedBatches
from replay.recover.divergence import compare_with_live
from replay.state.touched_rows import RowTrail, Steps, Trails


class Baseline:
    """The policy of the live history for one partition after the fork. One thread."""

    def __init__(
        self, stream: ScannedStream, place: ForkPlace, state: PartitionState, catalogs: Catalogs, *, row_digests: bool
    ) -> None:
        self.state, self._stream, self._place = state, stream, place
        self._trail = RowTrail(state.connection)
        self._engine = PartitionEngine(
            state, catalogs, digest_rows=row_digests, policy=KeyPolicy(), progress=self._trail.begin_call
        )
        self._transaction = SharedTransaction(self._engine.executor)
        self._uncompared: UncomparedBatches[tuple[Batch, Applied]] = UncomparedBatches()
        self._skips = {index: frozenset(positions) for index, positions in stream.skips.items()}

    @property
    def awaits_digest(self) -> bool:
        return bool(self._uncompared)

    def apply_entry(self, _lsn: Lsn, record: Record, digest: Record | None) -> tuple[Batch, Applied, Trails] | None:
        """Applies an entry; of a batch, what it did after the fork. Raises: Divergence."""
        if record.kind is RecordKind.BATCH and VOID not in self._skips.get(record.index, ()):
            return self._run_batch(record, digest)
        self._transaction.commit()
        with self._trail.schema_change() if record.kind is RecordKind.SCHEMA else nullcontext():
            self._engine.apply(record, self._skips)
        return None

    def compare_late(self, digest: Record) -> None:
        """Raises: Divergence."""
        if (found := self._uncompared.pop(digest)) is not None:
            self._compare(*found, digest)

    def change_key_policy(self, policy: KeyPolicy) -> None:
        self._engine.executor.key_policy = policy

    def finish(self) -> None:
        """Raises: PlanOutdated when the end was not reached."""
        self._transaction.commit()
        self._trail.close()
        if self.state.position.index != self._stream.to_index:
            raise PlanOutdated(
                f"partition {self._place.partition} ends at index {self.state.position.index}, not at {self._stream.to_index}"
            )

    def _run_batch(self, record: Record, digest: Record | None) -> tuple[Batch, Applied, Trails]:
        self._transaction.ensure_open()
        batch, last = decode_batch(record), record.index == self._stream.to_index
        calls = invocations(batch, self._skips.get(record.index, frozenset()), self._stream.to_calls if last else -1)
        applied = self._engine.executor.apply(calls)
        trails = self._trail.take_rows(applied.statuses, range(len(applied.statuses)))
        if digest is not None:
            self._compare(batch, applied, digest)
        else:
            self._uncompared.add(record, (batch, applied._replace(bodies=[])))  # a body keeps the 4 KiB that orjson wrote it into
        self._transaction.count(len(applied.statuses))
        if self._transaction.is_full or last:
            self._transaction.commit()
        if record.index == self._place.index and self._place.calls >= 0:
            trails = _from_call(trails, self._place.calls)
        return batch, applied, trails

    def _compare(self, batch: Batch, applied: Applied, digest: Record) -> None:
        live = decode_digest(digest)
        problem = compare_with_live(batch, applied, live)
        if problem is None:
            return
        at = problem.position
        expected, got = f"rows {live.rows_digest:016x}", f"rows {applied.rows_digest:016x}"
        if at >= 0:
            expected, got = f"{live.result_hashes[at]:08x}", f"{applied.result_hashes[at]:08x}"
        record = batch.record
        raise Divergence(
            DivergencePlace(record.partition, record.index, batch.txn_ids[at], at, "", expected, got, catalog=batch.catalog)
        )


def _from_call(trails: Trails, first: int) -> Trails:
    """What the calls from this position on did."""
    found: Trails = {}
    for key, steps in trails.items():
        earlier = [row for at, row in steps.behind if at < first]
        rest = Steps(earlier[-1] if earlier else steps.before)
        rest.behind = [step for step in steps.behind if step[0] >= first]
        if rest.behind:
            found[key] = rest
    return found
