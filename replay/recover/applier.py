"""The second pass: applies some partitions' entries from a log to their states, and compares what they did with the live run.

One rule: it follows the plan and decides nothing. Entries are applied through the same `PartitionEngine` as live, each
partition's in index order; code, key policy and catalog versions are those that the log says at that place, since all groups
share one log.

The order is that of `replay.loop`; what a partition does with an entry is in `replay.recover.partition_replay`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cmdlog.wal.format.control_record import CatalogVersion
from cmdlog.wal.format.record import Record
from cmdlog.wal.ids import Lsn
from procedures import Database
from procedures.storage.state import PartitionState
from replay.errors import Divergence, PlanOutdated, Poison
from replay.loop.entry_queue import EntryQueue
from replay.loop.replay_loop import ReplayLoop
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.partition_replay import FatalCalls, PartitionReplay, ReplaySetup
from replay.recover.quarantine import Aside
from replay.results import PartitionResult


class Applier:
    """Replays some partitions of a plan. One thread."""

    def __init__(
        self,
        parts: Iterable[PartitionPlan],
        states: Mapping[int, PartitionState],
        setup: ReplaySetup,
        *,
        progress: Callable[[int, int], None],
        live: Callable[[Mapping[str, Any]], Database | None] = lambda _catalog: None,
        fatal_calls: Mapping[int, FatalCalls] | None = None,
    ) -> None:
        """`live` gives the running program's own `Database` for a catalog record, if it is the same code.

        It owns the states from here on. `progress` is given (partition, calls applied so far); `fatal_calls` names by partition
        the calls that are known not to end.
        """
        self._catalogs, self._live = setup.catalogs, live
        self._replays = [
            PartitionReplay(part, states[part.partition], setup, (fatal_calls or {}).get(part.partition, {})) for part in parts
        ]
        self._queues = {replay.plan.partition: _queue(replay, progress) for replay in self._replays}
        self._loop = ReplayLoop(self._queues, self._add_catalog)

    @property
    def stopped(self) -> list[Divergence | Poison]:
        """Why partitions have stopped, by partition."""
        return [queue.stopped for _, queue in sorted(self._queues.items()) if queue.stopped is not None]

    @property
    def aside(self) -> list[Aside]:
        """What was set aside, of the partitions in which something was."""
        found = sorted(self._replays, key=lambda replay: replay.plan.partition)
        return [replay.aside for replay in found if replay.aside.calls]

    def begin_with(self, plan: Plan) -> None:
        """What holds where the log begins, when its first records do not say it."""
        for value in plan.catalogs:
            self._add_catalog(CatalogVersion(int(value["version"]), dict(value)))
        if plan.key_policy:
            self._loop.put_key_policy(plan.key_policy)

    def run(self, records: Iterable[tuple[Lsn, Record]]) -> list[PartitionResult]:
        """Replays the records until every partition is at its end, or has stopped (`stopped`); closes the states.

        What was not finished is taken back to the last entry that is committed.

        Raises: PlanOutdated when an end of the plan was not reached, or holds another entry; what `ReplayLoop.run` raises.
        """
        folder = next((os.path.dirname(replay.state.path) for replay in self._replays), "")
        try:
            self._loop.run(records, folder)
            return [self._result(replay) for replay in self._replays]
        finally:
            for replay in self._replays:
                replay.close()

    def _add_catalog(self, catalog: CatalogVersion) -> None:
        self._catalogs.add_logged(catalog, self._live)

    def _result(self, replay: PartitionReplay) -> PartitionResult:
        position, plan, result = replay.state.position, replay.plan, replay.result
        result.index, result.term, result.checksum = position.index, position.term, position.checksum
        result.txn_id = position.txn_id
        if self._queues[plan.partition].stopped is not None:
            return result
        if position.index != plan.to_index:
            raise PlanOutdated(f"partition {plan.partition} ends at index {position.index}, the plan says {plan.to_index}")
        if plan.to_term and (position.term, position.checksum) != (plan.to_term, plan.to_checksum):
            raise PlanOutdated(f"partition {plan.partition} holds a different entry at index {plan.to_index} than the plan says")
        return result


def _queue(replay: PartitionReplay, progress: Callable[[int, int], None]) -> EntryQueue:
    plan, after = replay.plan, replay.state.position.index
    return EntryQueue(plan.partition, replay, after_index=after, to_index=plan.to_index, voids=plan.voids, progress=progress)
