"""The intake: everything that callers place, why calls are refused, and the version of the code that they are bound to.

One rule: a call is placed whole or refused, and of a refused one nothing is logged. It runs the version that it was bound to when
it was placed: what waits during a switch keeps the version that ran until then; what is placed later is bound to the next one, or
is not placed at all. Both are decided under the lock of the pipelines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from cmdlog.node.outcome import (
    CallRefused,
    CallTooLarge,
    CodeChanged,
    Done,
    LogFullRefusal,
    MigratingRefusal,
    Overloaded,
    UnknownOutcome,
    when_all,
)
from cmdlog.node.sequencing.block_builder import BlockBuilder, Opening
from cmdlog.node.sequencing.flight import CALL_OVERHEAD_BYTES, CallRow, Flight, Pending
from cmdlog.node.sequencing.partition_pipeline import Limits, PipelineSet
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS

ROOM_LOOK_BYTES: Final = 64 << 20  # with more room than this the log is not asked at every call


class Closed(IntEnum):
    """What keeps calls out of all partitions. A caller gets the first as its error."""

    NODE = 0  # it stops, or has failed: it is never opened again
    LEADER = 1  # another node leads, or none, or this one takes over
    MIGRATION = 2  # the tables change
    MAJORITY = 3  # no majority takes entries into its logs; reads of one partition are served


class Admission:
    """The one gate before a call: each reason closes it by itself, and is opened by itself. Under the pipelines' lock.

    A call is counted here from its placing until it is answered. `pending_bytes` is about what the next `take` would return;
    `held_bytes` of calls cannot be taken before a site answers.
    """

    def __init__(self, limits: Limits, *, room_bytes: Callable[[], int], why_full: Callable[[], str]) -> None:
        self.limits, self._room_bytes, self.why_full = limits, room_bytes, why_full
        self.inflight_calls = self.inflight_bytes = 0
        self.pending_bytes = self.held_bytes = 0
        self._closed: dict[Closed, CallRefused] = {}  # by reason, for all partitions
        self._closed_partitions: dict[int, CallRefused] = {}  # whose sites cannot run, or whose states diverged
        self._room_seen = 0  # when the log was last asked, less what was taken since

    def admit(self, partitions: Iterable[int], calls: int, size_bytes: int, *, overhead_bytes: int) -> None:
        """Counts calls of these partitions in. `overhead_bytes`: what the log needs besides them. Raises: CallRefused."""
        limits = self.limits
        if self._closed_partitions:
            for partition in partitions:
                self.raise_closed_partition(partition)
        if self._closed:
            raise self._closed[min(self._closed)].again()
        if self.inflight_calls + calls > limits.inflight_calls_max:
            raise Overloaded(f"{self.inflight_calls} calls are in flight, limit inflight_calls_max={limits.inflight_calls_max}")
        if self.inflight_bytes + size_bytes > limits.inflight_bytes_max:
            raise Overloaded(f"{self.inflight_bytes} bytes are in flight, limit inflight_bytes_max={limits.inflight_bytes_max}")
        need = self.pending_bytes + self.held_bytes + size_bytes + overhead_bytes
        if self._room_seen < need + ROOM_LOOK_BYTES:
            self._room_seen = self._room_bytes()
            if self._room_seen < need:
                raise LogFullRefusal(self.why_full())
        self.inflight_calls += calls
        self.inflight_bytes += size_bytes
        self.pending_bytes += size_bytes

    # -- the gate --------------------------------------------------------------------------------------------------------

    def close(self, reason: Closed, refusal: CallRefused) -> None:
        """From now on every call is refused for this reason."""
        self._closed[reason] = refusal

    def open(self, reason: Closed) -> None:
        """Calls are no longer refused for this reason; other reasons stay."""
        self._closed.pop(reason, None)

    def is_closed(self, reason: Closed) -> bool:
        """Whether calls are refused for this reason."""
        return reason in self._closed

    def close_partition(self, partition: int, refusal: CallRefused) -> None:
        """From now on calls to this partition are refused."""
        self._closed_partitions[partition] = refusal

    def open_partition(self, partition: int) -> None:
        """Calls to this partition are no longer refused for its own sake."""
        self._closed_partitions.pop(partition, None)

    @property
    def closed_partitions(self) -> Collection[int]:
        """Whose calls are refused for their own sake."""
        return self._closed_partitions.keys()

    @property
    def refusal(self) -> CallRefused | None:
        """Why every call, and every read, is refused."""
        first = min(self._closed, default=Closed.MAJORITY)
        return None if first is Closed.MAJORITY else self._closed[first]

    @property
    def suspension(self) -> CallRefused | None:
        """Why calls are refused although this node leads, and reads of one partition are not."""
        return self._closed.get(Closed.MAJORITY)

    def raise_refusal(self) -> None:
        """Raises: CallRefused, when every call and read is refused."""
        if (refusal := self.refusal) is not None:
            raise refusal.again()

    def raise_closed(self, reason: Closed) -> None:
        """Raises: CallRefused, when calls are refused for this reason."""
        if reason in self._closed:
            raise self._closed[reason].again()

    def raise_closed_partition(self, partition: int) -> None:
        """Raises: CallRefused, when calls to this partition are refused for its own sake."""
        if partition in self._closed_partitions:
            raise self._closed_partitions[partition].again()

    # -- what is in flight -----------------------------------------------------------------------------------------------

    def end_take(self, closed_bytes: int, block_bytes_max: int, *, holds_rest: bool) -> None:
        """Calls of this size are in batches now, for a block of at most that size; whether the rest waits for a site's answer."""
        rest = self.pending_bytes + self.held_bytes - closed_bytes
        self.pending_bytes, self.held_bytes = (0, rest) if holds_rest else (rest, 0)
        self._room_seen -= block_bytes_max

    def let_go(self) -> None:
        """What was held may be taken."""
        self.pending_bytes += self.held_bytes
        self.held_bytes = 0

    def release(self, flight: Flight) -> None:
        """All its calls are answered, or will be at once."""
        self.inflight_calls -= len(flight.dones)
        self.inflight_bytes -= flight.size_bytes

    def release_lax(self, flight: Flight) -> None:
        """Its calls that do not wait are answered, or will be at once; `release_rest` follows."""
        self.inflight_calls -= flight.lax_calls

    def release_rest(self, flight: Flight) -> None:
        """The others of its calls are answered, too."""
        self.inflight_calls -= len(flight.lax) - flight.lax_calls
        self.inflight_bytes -= flight.size_bytes

    def forget(self, pendings: Collection[Pending]) -> None:
        """Nothing of them will be taken."""
        size = sum([pending.size_bytes for pending in pendings])
        self.inflight_calls -= sum([len(pending.rows) for pending in pendings])
        self.inflight_bytes -= size
        self.pending_bytes, self.held_bytes = max(self.pending_bytes + self.held_bytes - size, 0), 0  # `take` parts them again

    def clear(self) -> None:
        """Everything under way was dropped."""
        self.inflight_calls = self.inflight_bytes = self.pending_bytes = self.held_bytes = 0


class Intake:
    """Thread-safe, by the lock of the pipelines."""

    def __init__(self, pipelines: PipelineSet, *, admission: Admission, builder: BlockBuilder, opening: Opening) -> None:
        self._pipelines, self._admission, self._builder, self._opening = pipelines, admission, builder, opening
        self._lock, self._streams, self._busy = pipelines.lock, pipelines.by_partition, pipelines.busy
        self._step_bytes = builder.step_overhead_bytes

    # -- calls and entries -----------------------------------------------------------------------------------------------

    def add(self, partition: int, procedure: int, params: bytes, key: bytes, done: Done, *, lax: bool, catalog: int = 0) -> None:
        """Places one call, bound to this version of the code (0: any); `done` gets its outcome.

        Raises: CallRefused, and nothing is logged.
        """
        size_bytes = len(params) + CALL_OVERHEAD_BYTES
        with self._lock:
            if catalog not in (0, self._builder.catalog):
                raise self._changed(catalog)
            self._admission.admit((partition,), 1, size_bytes, overhead_bytes=self._step_bytes + self._opening.bytes)
            self._busy[partition] = stream = self._streams[partition]
            now = 0.0 if stream.open.rows else self._pipelines.now()
            stream.open.extend(((partition, procedure, params, key, done, lax),), size_bytes, now)

    def add_many(self, calls: Sequence[CallRow], *, catalog: int = 0) -> None:
        """Places calls (partition, procedure, params, key, done, lax) in order, all or none; as `add`. Raises: CallRefused."""
        now, by_partition = self._pipelines.now(), _group_calls(calls)
        sizes = {partition: _size_of_calls(rows) for partition, rows in by_partition.items()}
        with self._lock:
            if catalog not in (0, self._builder.catalog):
                raise self._changed(catalog)
            overhead_bytes = self._step_bytes + self._opening.bytes
            self._admission.admit(by_partition, len(calls), sum(sizes.values()), overhead_bytes=overhead_bytes)
            for partition, rows in by_partition.items():
                self._busy[partition] = stream = self._streams[partition]
                stream.open.extend(rows, sizes[partition], now)

    def add_everywhere(
        self, procedure: int, params: bytes, key: bytes, dones: Sequence[Done], *, lax: bool, catalog: int = 0
    ) -> None:
        """Places one call in every stream, under one TxnId and in one block; one `done` per stream, in partition order."""
        size = len(params) + CALL_OVERHEAD_BYTES
        total = size * len(self._streams)
        if total + self._step_bytes > self._admission.limits.batch_bytes_max:
            raise CallTooLarge(
                f"the call takes {total} bytes over all partitions, limit {self._admission.limits.batch_bytes_max}"
            )
        now = self._pipelines.now()
        with self._lock:
            if catalog not in (0, self._builder.catalog):
                raise self._changed(catalog)
            self._admission.admit(self._streams, len(self._streams), total, overhead_bytes=self._step_bytes + self._opening.bytes)
            for stream, done in zip(self._streams.values(), dones, strict=True):
                stream.close_open()
                row = (stream.partition, procedure, params, key, done, lax)
                stream.closed.append(Pending([row], size, now, everywhere=True))
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

    def _changed(self, catalog: int) -> CodeChanged:
        return CodeChanged(f"the call was bound to version {catalog} of the code, version {self._builder.catalog} runs")


def _group_calls(calls: Sequence[CallRow]) -> Mapping[int, Sequence[CallRow]]:
    """Each partition's, in their order; usually all are of one."""
    if len({call[0] for call in calls}) == 1:
        return {calls[0][0]: calls}
    found = defaultdict[int, list[CallRow]](list)
    for call in calls:
        found[call[0]].append(call)
    return found


def _size_of_calls(rows: Sequence[CallRow]) -> int:
    return sum([len(row[2]) for row in rows]) + CALL_OVERHEAD_BYTES * len(rows)
