"""The second pass: applies some partitions' entries from a log to their states, and compares what they did with the live run.

One rule: it follows the plan and decides nothing. Entries are applied through the same `PartitionEngine` as live, each
partition's in index order; code, key policy and catalog versions are those that the log says at that place, since all groups
share one log.

The live run's digest of a batch stands a few blocks behind it. So what a batch did is kept until its digest comes by; the first
difference is a `Divergence` that names the call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cmdlog.wal.batch import Batch, decode_batch
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from cmdlog.wal.record import Kind, Record, decode_digest
from procedures import Database
from procedures.bundle import Bundle
from procedures.executor import Applied
from procedures.outcomes import KeyPolicy, Status
from procedures.state import PartitionState
from replay.engine import Catalogs, PartitionEngine, invocations
from replay.errors import Divergence, Place, PlanOutdated
from replay.plan import PartitionPlan

PENDING_MAX: Final = 1024  # batches of a partition that wait for their digest; it stands a few blocks behind in the log
GROUP_CALLS_MAX: Final = (
    2000  # in one SQLite transaction: small batches replay half again as fast, and a kill costs a tenth of a second
)
REPORT_EVERY_CALLS: Final = 2000  # so a progress display moves ten times a second and costs nothing

Progress = Callable[[int, int], None]  # partition, calls applied so far


@dataclass(slots=True)
class Result:
    """What was done for one partition."""

    partition: int
    entries: int = 0
    calls: int = 0
    digests: int = 0  # batches whose results were compared with the live run's
    index: int = 0
    term: int = 0
    checksum: int = 0
    txn_id: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Lane:
    """One partition's engine, its plan, and what waits for digests."""

    engine: PartitionEngine
    plan: PartitionPlan
    skips: Mapping[int, frozenset[int]]
    result: Result
    pending: OrderedDict[int, tuple[Batch, Applied, bool]]  # index -> batch, what it did, whether all of its calls ran
    reported: int = 0
    grouped: int = 0  # calls in the open transaction, 0 = none is open


class Applier:
    """Feeds records to the engines of some partitions. One thread."""

    def __init__(
        self,
        parts: Iterable[PartitionPlan],
        states: Mapping[int, PartitionState],
        *,
        row_digests: bool,
        progress: Progress,
        live: Callable[[Mapping[str, Any]], Database | None] = lambda _catalog: None,
    ) -> None:
        """`live` gives the running program's own `Database` for a catalog record, if it is the same code."""
        self.catalogs = Catalogs()
        self._live, self._progress = live, progress
        self._versions: set[int] = set()
        self._lanes: dict[int, _Lane] = {}
        for part in parts:
            state = states[part.partition]
            engine = PartitionEngine(state, self.catalogs, digest_rows=row_digests, policy=KeyPolicy())
            skips = {index: frozenset(positions) for index, positions in part.skips.items()}
            self._lanes[part.partition] = _Lane(engine, part, skips, Result(part.partition), OrderedDict())
        self._unfinished = sum(lane.engine.state.position.index < lane.plan.to_index for lane in self._lanes.values())

    @property
    def finished(self) -> bool:
        """Every partition stands at its end, and nothing waits for a digest."""
        return not self._unfinished and not any(lane.pending for lane in self._lanes.values())

    def know(self, catalogs: Iterable[Mapping[str, Any]], key_policy: Mapping[str, int]) -> None:
        """What holds where the log begins, for one whose first records do not say it."""
        for value in catalogs:
            self._add_catalog(value)
        self._policy({"key_policy": key_policy})

    def take(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record of the log.

        Raises: Divergence, CodeMissing, BundleForged, EnvironmentFault (nothing of the entry was applied), BatchRefused.
        """
        if record.partition == CLUSTER_GROUP:
            self._cluster(record)
            return
        lane = self._lanes.get(record.partition)
        if lane is None:
            return
        if record.is_entry:
            self._entry(lane, lsn, record)
        elif record.kind is Kind.DIGEST:
            self._digest(lane, record)

    def close(self) -> list[Result]:
        """Where every partition stands now.

        Raises: PlanOutdated when an end of the plan was not reached, or holds another entry.
        """
        results = []
        for lane in self._lanes.values():
            position, plan, result = lane.engine.state.position, lane.plan, lane.result
            result.index, result.term, result.checksum = position.index, position.term, position.checksum
            result.txn_id = position.txn_id
            if position.index != plan.to_index:
                raise PlanOutdated(f"partition {plan.partition} ends at index {position.index}, the plan says {plan.to_index}")
            if plan.to_term and (position.term, position.checksum) != (plan.to_term, plan.to_checksum):
                raise PlanOutdated(f"partition {plan.partition} holds another entry at index {plan.to_index} than the plan says")
            self._progress(plan.partition, result.calls)
            results.append(result)
        return results

    def _cluster(self, record: Record) -> None:
        if record.kind is Kind.CATALOG:
            self._add_catalog(record.json())
        elif record.kind is Kind.CONFIGURATION:
            self._policy(record.json())
        elif record.kind is Kind.CHECKPOINT:
            value = record.json()
            for stated in value["catalogs"]:
                self._add_catalog(stated[3])
            if value["configurations"]:
                self._policy(value["configurations"][-1][2])

    def _add_catalog(self, value: Mapping[str, Any]) -> None:
        version = int(value["version"])
        if version in self._versions:
            return
        self._versions.add(version)
        live = self._live(value)
        if live is not None:
            self.catalogs.add_live(version, live)
        else:
            self.catalogs.add_bundle(version, Bundle.from_bytes(str(value["bundle"]).encode()))

    def _policy(self, configuration: Mapping[str, Any]) -> None:
        policy = KeyPolicy(**configuration.get("key_policy", {}))
        for lane in self._lanes.values():
            lane.engine.executor.key_policy = policy

    def _entry(self, lane: _Lane, lsn: Lsn, record: Record) -> None:
        plan, index = lane.plan, record.index
        if not lane.engine.state.position.index < index <= plan.to_index or _is_void(plan, lsn, index):
            return
        if index != lane.engine.state.position.index + 1:
            raise PlanOutdated(f"partition {plan.partition}: entry {lane.engine.state.position.index + 1} is not there any more")
        applied: Applied | None
        if record.kind is Kind.BATCH:
            if not lane.grouped:
                lane.engine.executor.begin_group()
            applied = self._batch(lane, record)
            lane.grouped += len(applied.bodies)
            lane.result.calls += len(applied.bodies)
            if lane.result.calls - lane.reported >= REPORT_EVERY_CALLS:
                lane.reported = lane.result.calls
                self._progress(plan.partition, lane.reported)
        else:
            _end_group(lane)
            lane.engine.apply(record)
        lane.result.entries += 1
        if lane.grouped >= GROUP_CALLS_MAX or index == plan.to_index:
            _end_group(lane)
        if index == plan.to_index:
            self._unfinished -= 1

    def _batch(self, lane: _Lane, record: Record) -> Applied:
        batch, plan = decode_batch(record), lane.plan
        calls = invocations(batch, lane.skips.get(record.index, frozenset()))
        whole = record.index != plan.to_index or plan.to_calls < 0 or plan.to_calls == batch.count
        if not whole:
            end = plan.to_calls
            keys = calls.keys[:end] if calls.keys is not None else None
            calls = replace(
                calls, txn_ids=calls.txn_ids[:end], procedures=calls.procedures[:end], params=calls.params[:end], keys=keys
            )
        applied = lane.engine.executor.apply(calls)
        lane.pending[record.index] = batch, applied, whole
        if len(lane.pending) > PENDING_MAX:
            lane.pending.popitem(last=False)
        return applied

    def _digest(self, lane: _Lane, record: Record) -> None:
        if record.index not in lane.pending or lane.pending[record.index][0].record.term != record.term:
            return
        batch, applied, whole = lane.pending.pop(record.index)
        live = decode_digest(record)
        lane.result.digests += 1
        count = len(applied.result_hashes)
        if list(live.result_hashes[:count]) != list(applied.result_hashes):
            at = next(i for i, (a, b) in enumerate(zip(live.result_hashes, applied.result_hashes, strict=False)) if a != b)
            expected = f"answered with hash {live.result_hashes[at]:08x}"
            got = f"{Status(applied.statuses[at]).name} with hash {applied.result_hashes[at]:08x}"
            raise Divergence(self._place(batch, at, expected, got))
        if whole and live.rows_digest and applied.rows_digest and live.rows_digest != applied.rows_digest:
            expected, got = (f"changed rows with digest {digest:016x}" for digest in (live.rows_digest, applied.rows_digest))
            raise Divergence(self._place(batch, -1, expected, got))

    def _place(self, batch: Batch, at: int, expected: str, got: str) -> Place:
        names = [procedure.name for procedure in self.catalogs(batch.catalog).procedure_list]
        procedure = names[batch.procedures[at]] if at >= 0 else ", ".join(sorted({names[n] for n in batch.procedures}))
        record = batch.record
        return Place(record.partition, record.index, batch.txn_ids[max(at, 0)], at, procedure, expected, got)


def _end_group(lane: _Lane) -> None:
    lane.engine.executor.end_group()
    lane.grouped = 0


def _is_void(plan: PartitionPlan, lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log put this entry out of force."""
    return any(index >= first and (lsn.block, lsn.offset) < (block, offset) for block, offset, first in plan.voids)
