"""The second pass: applies some partitions' entries from a log to their states, and compares what they did with the live run.

One rule: it follows the plan and decides nothing. Entries are applied through the same `PartitionEngine` as live, each
partition's in index order; code, key policy and catalog versions are those that the log says at that place, since all groups
share one log.

Here the records are given to the partitions; what a partition does with them is in `replay.recover.partition_replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cmdlog.wal.format.control_record import CatalogVersion, GroupConfiguration
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures import Database
from procedures.bundle import bundle_of
from procedures.errors import BundleForged
from procedures.execution.idempotency import KeyPolicy
from procedures.storage.state import PartitionState
from replay.engine import Catalogs
from replay.errors import Divergence, PlanOutdated, Poison
from replay.log.log_fold import is_void
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.partition_replay import Doomed, PartitionReplay, ReplaySetup
from replay.recover.quarantine import Aside, QuarantineFile
from replay.results import PartitionResult
from replay.state.live_rows import LiveRows


class Applier:
    """Feeds records to the engines of some partitions. One thread."""

    def __init__(
        self,
        parts: Iterable[PartitionPlan],
        states: Mapping[int, PartitionState],
        *,
        row_digests: bool,
        progress: Callable[[int, int], None],
        live: Callable[[Mapping[str, Any]], Database | None] = lambda _catalog: None,
        live_rows: LiveRows | None = None,
        quarantine: QuarantineFile | None = None,
        begun: Callable[[int, int, int], None] | None = None,
        careful: bool = False,
        doomed: Mapping[int, Doomed] | None = None,
    ) -> None:
        """`live` gives the running program's own `Database` for a catalog record, if it is the same code.

        It owns the states from here on. `progress` gets (partition, calls applied so far); `begun` (partition, index,
        IN_BATCH) before each batch, IDLE after it, and if `careful`, (partition, index, position) before each call. `doomed`
        names by partition the calls that are known not to end.
        """
        self.catalogs = _Catalogs()
        self._live, self._progress = live, progress
        self._hashes: dict[int, str] = {}
        setting = ReplaySetup(self.catalogs, self._hashes, row_digests, progress, begun, careful, live_rows, quarantine)
        self._lanes = {
            part.partition: PartitionReplay(part, states[part.partition], setting, (doomed or {}).get(part.partition, {}))
            for part in parts
        }
        self._policy = KeyPolicy()

    @property
    def finished(self) -> bool:
        """Every partition is at its end, or has stopped, and nothing waits for a digest."""
        return all(lane.finished for lane in self._lanes.values())

    @property
    def stopped(self) -> list[Divergence | Poison]:
        """Why partitions have stopped, by partition."""
        return [lane.stopped for _, lane in sorted(self._lanes.items()) if lane.stopped is not None]

    @property
    def aside(self) -> list[Aside]:
        """What was set aside, of the partitions in which something was."""
        return [lane.aside for _, lane in sorted(self._lanes.items()) if lane.aside.calls]

    def know(self, plan: Plan) -> None:
        """What holds where the log begins, when its first records do not say it."""
        for value in plan.catalogs:
            self._add_catalog(int(value["version"]), value)
        if plan.key_policy:
            self._take_policy(GroupConfiguration(key_policy=plan.key_policy))

    def take(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record of the log. A partition whose call diverges or cannot be run stops; see `stopped`.

        Raises: EnvironmentFault of the disk (nothing of the entry was applied), BatchRefused.
        """
        if record.partition == CLUSTER_GROUP:
            self._cluster(record)
            return
        lane = self._lanes.get(record.partition)
        if lane is None:
            return
        if record.is_entry:
            if lane.wants(record.index) and not is_void(lane.plan.voids, lsn, record.index):
                lane.put(record)
        elif record.kind is RecordKind.DIGEST:
            lane.put_digest(record)

    def finish(self) -> list[PartitionResult]:
        """Applies what still waits. Returns where every partition is now.

        Raises: PlanOutdated when an end of the plan was not reached, or holds another entry; what `take` raises.
        """
        results = []
        for lane in self._lanes.values():
            lane.drain()
            position, plan, result = lane.state.position, lane.plan, lane.result
            result.index, result.term, result.checksum = position.index, position.term, position.checksum
            result.txn_id = position.txn_id
            results.append(result)
            if lane.stopped is not None:
                continue
            if position.index != plan.to_index:
                raise PlanOutdated(f"partition {plan.partition} ends at index {position.index}, the plan says {plan.to_index}")
            if plan.to_term and (position.term, position.checksum) != (plan.to_term, plan.to_checksum):
                raise PlanOutdated(
                    f"partition {plan.partition} holds a different entry at index {plan.to_index} than the plan says"
                )
            self._progress(plan.partition, result.calls)
        return results

    def close(self) -> None:
        """Closes the states; what was not finished is rolled back to the last committed entry."""
        for lane in self._lanes.values():
            lane.close()

    def _cluster(self, record: Record) -> None:
        if record.kind is RecordKind.CATALOG:
            catalog = CatalogVersion.from_record(record)
            self._add_catalog(catalog.version, catalog.value)
        elif record.kind is RecordKind.CONFIGURATION:
            self._take_policy(GroupConfiguration.from_record(record))
        elif record.kind is RecordKind.CHECKPOINT:
            state = GroupState.from_checkpoint(record)
            for version, stated in state.catalogs.items():
                self._add_catalog(version, stated.value)
            if state.configuration is not None:
                self._take_policy(GroupConfiguration.from_json(state.configuration))

    def _add_catalog(self, version: int, value: Mapping[str, Any]) -> None:
        if version in self._hashes:
            return
        self._hashes[version] = str(value.get("hash", ""))
        live = self._live(value)
        if live is not None:
            self.catalogs.add_live(version, live)
            return
        try:
            self.catalogs.add_bundle(version, bundle_of(version, value))
        except BundleForged as error:
            self.catalogs.add_broken(version, error)

    def _take_policy(self, configuration: GroupConfiguration) -> None:
        policy = KeyPolicy(**configuration.key_policy)
        if policy == self._policy:
            return
        self._policy = policy
        for lane in self._lanes.values():
            lane.put_policy(policy)


class _Catalogs(Catalogs):
    """Changed code is reported where a call needs it, not where the log names it."""

    def __init__(self) -> None:
        super().__init__()
        self._broken: dict[int, BundleForged] = {}

    def add_broken(self, version: int, error: BundleForged) -> None:
        self._broken[version] = error

    def __call__(self, version: int) -> Database:
        if version in self._broken:
            raise self._broken[version]
        return super().__call__(version)
