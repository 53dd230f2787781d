"""The intake: everything that callers place, and the version of the code that it is bound to.

One rule: a call is placed whole or refused, and of a refused one nothing is logged. It runs the version that it was bound to when
it was placed: what waits during a switch keeps the version that ran until then; what is placed later is bound to the next one, or
is not placed at all. Both are decided under the lock of the pipelines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cmdlog.node.outcome import CallRefused, CallTooLarge, CodeChanged, Done, MigratingRefusal, UnknownOutcome, when_all
from cmdlog.node.sequencing.admission import Admission, Closed
from cmdlog.node.sequencing.block_builder import BlockBuilder, Opening
from cmdlog.node.sequencing.flight import CALL_OVERHEAD_BYTES, CallRow, Pending
from cmdlog.node.sequencing.partition_pipeline import PipelineSet
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS


class Intake:
    """Thread-safe, by the lock of the pipelines."""

    def __init__(self, pipelines: PipelineSet, *, admission: Admission, builder: BlockBuilder, opening: Opening) -> None:
        self._pipelines, self._admission, self._builder, self._opening = pipelines, admission, builder, opening
        self._lock, self._streams, self._busy = pipelines.lock, pipelines.by_partition, pipelines.busy

    # -- calls and entries -----------------------------------------------------------------------------------------------

    def add(self, partition: int, procedure: int, params: bytes, key: bytes, done: Done, *, lax: bool, catalog: int = 0) -> None:
        """Places one call, bound to this version of the code (0: any); `done` gets its outcome.

        Raises: CallRefused, and nothing is logged.
        """
        size = len(params) + CALL_OVERHEAD_BYTES
        with self._lock:
            self._check_bound(catalog)
            self._admit((partition,), 1, size)
            self._busy[partition] = stream = self._streams[partition]
            pending = stream.open
            if not pending.params:
                pending.open_at(self._pipelines.now())
            pending.append(procedure, params, key, done, lax)

    def add_many(self, calls: Sequence[CallRow], *, catalog: int = 0) -> None:
        """Places calls (partition, procedure, params, key, done, lax) in order, all or none; as `add`. Raises: CallRefused."""
        now, by_partition = self._pipelines.now(), _group_calls(calls)
        with self._lock:
            self._check_bound(catalog)
            self._admit(by_partition, len(calls), sum([len(call[2]) for call in calls]) + CALL_OVERHEAD_BYTES * len(calls))
            for partition, rows in by_partition.items():
                self._busy[partition] = stream = self._streams[partition]
                stream.open.extend(rows, now)

    def add_everywhere(
        self, procedure: int, params: bytes, key: bytes, dones: Sequence[Done], *, lax: bool, catalog: int = 0
    ) -> None:
        """Places one call in every stream, under one TxnId and in one block; one `done` per stream, in partition order."""
        size = len(params) + CALL_OVERHEAD_BYTES
        total = size * len(self._streams)
        if total + self._builder.step_overhead_bytes > self._admission.limits.batch_bytes_max:
            raise CallTooLarge(
                f"the call takes {total} bytes over all partitions, limit {self._admission.limits.batch_bytes_max}"
            )
        now = self._pipelines.now()
        with self._lock:
            self._check_bound(catalog)
            self._admit(self._streams, len(self._streams), total)
            for stream, done in zip(self._streams.values(), dones, strict=True):
                stream.close_open()
                step = Pending(everywhere=True, opened_at=now)
                step.append(procedure, params, key, done, lax)
                stream.closed.append(step)
                self._busy[stream.partition] = stream

    def add_entries(self, entries: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        """Places control entries that go into one block. Each group commits by itself: `done` as `when_all` calls it."""
        told = when_all(len(entries), done)
        with self._lock:
            for partition, kind, value in entries:
                self.add_entry(partition, kind, value, told)

    def add_entry(self, partition: int, kind: RecordKind, value: dict[str, Any], done: Done) -> None:
        """Places a control entry ahead of what waits; `done` is called once it is durable, or with an unknown outcome."""
        with self._lock:
            ended, proposes = self._pipelines.ended, self._pipelines.proposes
            if not ended and proposes:
                self._busy[partition] = stream = self._streams[partition]
                stream.entries.append((kind, value, done))
        if ended or not proposes:
            done(UnknownOutcome("the node has failed" if ended else "this node does not lead"))
        self._pipelines.wake_log()

    def end_session(self, session: bytes, partitions: Iterable[int]) -> None:
        """The next batches of these partitions say that the session has ended; none is made for that alone."""
        with self._lock:
            for partition in partitions:
                self._streams[partition].ended.append(session)

    def refuse(self, reason: Closed, refusal: CallRefused) -> None:
        """From now on every call is refused for this reason."""
        with self._lock:
            self._admission.close(reason, refusal)

    # -- the version of the code -----------------------------------------------------------------------------------------

    @property
    def code_version(self) -> int:
        """The version that calls run that are placed now."""
        return self._builder.catalog

    def switch_code(self, version: int, bind: Callable[[], None]) -> None:
        """Calls that are placed from now on run this version. `bind` is called under the lock: it binds calls to that code."""
        with self._pipelines.lock:
            for pipeline in self._pipelines.by_partition.values():
                pipeline.bind_waiting(self._builder.catalog)
            self._builder.run_catalog(version)
            bind()

    def hold_calls(self) -> None:
        """Calls are refused while tables change, but for those that were placed before.

        Raises: CallRefused, if calls are refused for another reason.
        """
        with self._pipelines.lock:
            if not self._admission.is_closed(Closed.MIGRATION):
                self._admission.raise_refusal()
            self._admission.close(Closed.MIGRATION, MigratingRefusal("the tables change; the call was not logged"))

    def accept_calls(self) -> None:
        """The change is over. What else refuses calls stays."""
        with self._pipelines.lock:
            self._admission.open(Closed.MIGRATION)

    def reserve_txn(self) -> int:
        """A TxnId after all that were given, before all that will be."""
        with self._pipelines.lock:
            return self._builder.reserve_tick() << PARTITION_BITS | MULTI_PARTITION

    # -- inside, under the lock ------------------------------------------------------------------------------------------

    def _check_bound(self, catalog: int) -> None:
        """Whether a call that was bound to this version may be placed; 0 is any. Raises: CodeChanged."""
        if catalog and catalog != self._builder.catalog:
            raise CodeChanged(f"the call was bound to version {catalog} of the code, version {self._builder.catalog} runs")

    def _admit(self, partitions: Iterable[int], calls: int, size_bytes: int) -> None:
        overhead_bytes = self._builder.step_overhead_bytes + self._opening.bytes
        self._admission.admit(partitions, calls, size_bytes, overhead_bytes=overhead_bytes)


def _group_calls(calls: Sequence[CallRow]) -> Mapping[int, Sequence[CallRow]]:
    """Each partition's, in their order; usually all are of one."""
    if len({call[0] for call in calls}) == 1:
        return {calls[0][0]: calls}
    found = defaultdict[int, list[CallRow]](list)
    for call in calls:
        found[call[0]].append(call)
    return found
