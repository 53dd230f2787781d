"""The history as it was: a partition's entries behind a fork, applied batch by batch with their own code.

One rule: it is the live run again, or it stops: results and rows are compared with the digests of the log.
(`replay.recover.partition_replay` does that for a recovery, where an entry waits for its digest; here each batch is applied when
it comes, since another history goes beside it.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_digest
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures.execution.executor import Applied, Invocations
from procedures.execution.idempotency import KeyPolicy
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine, invocations, replay_calls
from replay.errors import Divergence, DivergencePlace, PlanOutdated
from replay.fork.rerun import ForkPlace
from replay.log.scan import ScannedStream
from replay.loop.shared_transaction import GROUP_CALLS_MAX
from replay.state.row_hooks import Steps, Trail, Trails

PENDING_MAX: Final = 1024  # batches that wait for their digest; it stands a few blocks behind in the log


class LeftSide:
    """One partition behind the fork. One thread."""

    def __init__(
        self, stream: ScannedStream, place: ForkPlace, state: PartitionState, catalogs: Catalogs, *, row_digests: bool
    ) -> None:
        self._stream, self._place, self._state, self._row_digests = stream, place, state, row_digests
        self._trail = Trail(state.connection)
        self._engine = PartitionEngine(
            state, catalogs, digest_rows=row_digests, policy=KeyPolicy(), progress=self._trail.begin_call
        )
        self._pending: dict[int, tuple[Batch, Applied]] = {}
        self._grouped = 0
        self._skips = {index: frozenset(positions) for index, positions in stream.skips.items()}

    def take(self, lsn: Lsn, record: Record) -> tuple[Batch, Applied, Trails] | None:
        """Applies an entry; of a batch, what it did behind the fork. Raises: Divergence."""
        if record.partition == CLUSTER_GROUP:
            self._take_policy(record)
        elif record.partition != self._place.partition:
            return None
        elif record.is_entry:
            if self._state.position.index < record.index <= self._stream.to_index and not self._is_void(lsn, record.index):
                return self._entry(record)
        elif record.kind is RecordKind.DIGEST:
            self._compare(record)
        return None

    def finish(self) -> None:
        """Raises: PlanOutdated when the end was not reached."""
        self._end_group()
        self._trail.close()
        if self._state.position.index != self._stream.to_index:
            raise PlanOutdated(
                f"partition {self._place.partition} ends at index {self._state.position.index}, not at {self._stream.to_index}"
            )

    def _entry(self, record: Record) -> tuple[Batch, Applied, Trails] | None:
        if record.kind is not RecordKind.BATCH:
            self._end_group()
            self._engine.apply(record)
            if record.kind is RecordKind.SCHEMA:
                self._trail.read_tables()
            return None
        if not self._grouped:
            self._engine.executor.begin_group()
        batch = decode_batch(record)
        applied = replay_calls(self._engine.executor, self._calls(batch))
        trails = self._trail.take(applied.statuses, range(len(applied.statuses)))
        self._grouped += len(applied.statuses)
        if self._grouped >= GROUP_CALLS_MAX or record.index == self._stream.to_index:
            self._end_group()
        self._pending[record.index] = batch, replace(applied, bodies=[])  # a body keeps the 4 KiB that orjson wrote it into
        if len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        if record.index == self._place.index and self._place.calls >= 0:
            trails = _behind(trails, self._place.calls)
        return batch, applied, trails

    def _calls(self, batch: Batch) -> Invocations:
        calls = invocations(batch, self._skips.get(batch.record.index, frozenset()))
        end = self._stream.to_calls
        if batch.record.index == self._stream.to_index and 0 <= end < batch.count:
            keys = calls.keys[:end] if calls.keys is not None else None
            return replace(
                calls, txn_ids=calls.txn_ids[:end], procedures=calls.procedures[:end], params=calls.params[:end], keys=keys
            )
        return calls

    def _compare(self, record: Record) -> None:
        found = self._pending.pop(record.index, None)
        if found is None or found[0].record.term != record.term:
            return
        (batch, applied), live = found, decode_digest(record)
        hashes = list(live.result_hashes[: len(applied.result_hashes)])
        if hashes != list(applied.result_hashes):
            at = next(n for n, (a, b) in enumerate(zip(hashes, applied.result_hashes, strict=True)) if a != b)
            raise self._divergence(batch, at, f"{hashes[at]:08x}", f"{applied.result_hashes[at]:08x}")
        whole = len(applied.result_hashes) == batch.count
        if whole and live.rows_digest and applied.rows_digest and live.rows_digest != applied.rows_digest:
            raise self._divergence(batch, -1, f"rows {live.rows_digest:016x}", f"rows {applied.rows_digest:016x}")

    def _divergence(self, batch: Batch, at: int, expected: str, got: str) -> Divergence:
        record = batch.record
        return Divergence(
            DivergencePlace(record.partition, record.index, batch.txn_ids[at], at, "", expected, got, catalog=batch.catalog)
        )

    def _take_policy(self, record: Record) -> None:
        if record.kind is RecordKind.CONFIGURATION:
            configuration = record.json()
        elif record.kind is RecordKind.CHECKPOINT and record.json()["configurations"]:
            configuration = record.json()["configurations"][-1][2]
        else:
            return
        self._engine.executor.key_policy = KeyPolicy(**configuration.get("key_policy", {}))

    def _end_group(self) -> None:
        self._engine.executor.end_group()
        self._grouped = 0

    def _is_void(self, lsn: Lsn, index: int) -> bool:
        return any(index >= first and (lsn.block, lsn.offset) < (block, offset) for block, offset, first in self._stream.voids)


def _behind(trails: Trails, first: int) -> Trails:
    """What the calls from this position on did."""
    found: Trails = {}
    for key, steps in trails.items():
        earlier = [row for at, row in steps.behind if at < first]
        rest = Steps(earlier[-1] if earlier else steps.before)
        rest.behind = [step for step in steps.behind if step[0] >= first]
        if rest.behind:
            found[key] = rest
    return found
