"""The second pass: applies some partitions' entries from a log to their states, and compares what they did with the live run.

One rule: it follows the plan and decides nothing. Entries are applied through the same `PartitionEngine` as live, each
partition's in index order; code, key policy and catalog versions are those that the log states at that place, since all groups
share one log.

The order is that of `replay.loop`; what a partition does with an entry is in `replay.recover.partition_replay`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.divergence_file import DivergenceFile
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record
from cmdlog.wal.ids import Lsn
from procedures.storage.state import PartitionState
from replay.errors import PlanOutdated
from replay.loop import EntryQueue, ReplayLoop
from replay.machine_errors import named_fault
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.partition_replay import FatalCalls, PartitionReplay, ReplaySetup
from replay.recover.target import PartitionsDone, Target
from replay.results import PartitionResult
from replay.state.state_lock import StateLock
from replay.state.trust import state_path
from snapshot.catalog import list_archived, list_snapshots, remove_state, restore


def replay_partitions(
    plan: Plan,
    parts: Sequence[PartitionPlan],
    target: Target,
    records: Iterable[tuple[Lsn, Record]],
    setup: ReplaySetup,
    *,
    opened: Callable[[int], None],
    progress: Callable[[int, int], None],
    fatal_calls: Mapping[int, FatalCalls] | None = None,
) -> PartitionsDone:
    """Brings the states of these partitions from the plan's starting points to its end, or to where they stop. One thread.

    `opened` is given each partition whose state was put in place, `progress` (partition, calls applied so far); `fatal_calls`
    names by partition the calls that are known not to end. What was not finished is taken back to the last entry that is
    committed.

    Raises: PlanOutdated when a source is not what the plan states, an end of it was not reached, or holds another entry;
    SnapshotDamaged, Locked; what `ReplayLoop.run` raises.
    """
    with contextlib.ExitStack() as ending:
        replays, queues = list[PartitionReplay](), dict[int, EntryQueue]()
        for part in parts:
            partition, path = part.partition, state_path(target.directory, part.partition)
            ending.callback(StateLock(path).close)  # a site of a dead node may still write to it
            state = _open_state(plan, part, target.files, path)
            ending.callback(state.close)
            opened(partition)
            replay = PartitionReplay(part, state, setup, (fatal_calls or {}).get(partition, {}))
            ending.callback(replay.close)  # it may have opened the state again
            replays.append(replay)
            queues[partition] = EntryQueue(
                partition, replay, after_index=part.from_index, to_index=part.to_index, voids=part.voids, progress=progress
            )
        diverged = {partition: of.index for partition, of in DivergenceFile(target.files, plan.directory).by_partition().items()}
        for replay in replays:
            if (since := diverged.get(replay.plan.partition)) is not None:
                replay.distrusted_from = since
                replay.result.distrust = (
                    f"digests of {plan.directory} from entry {since} on are of a state that other nodes did not have"
                )
        loop = ReplayLoop(queues, setup.catalogs, diverged=diverged)
        loop.put_beginning(plan.catalogs, plan.key_policy)
        loop.run(records, target.state_folder)
        results = [_result(replay, queues[replay.plan.partition]) for replay in replays]
    stops = [queue.stopped for _, queue in sorted(queues.items()) if queue.stopped is not None]
    return PartitionsDone(results, stops, [replay.aside for replay in replays if replay.aside.calls])


def _open_state(plan: Plan, part: PartitionPlan, files: Files, path: str) -> PartitionState:
    """Opens the partition's state at the plan's starting point: kept, restored, or new.

    Raises: PlanOutdated, SnapshotDamaged.
    """
    try:
        if part.source == "empty":
            remove_state(path)
        elif part.source == "snapshot":
            _restore_snapshot(plan, part, files, path)
        state = PartitionState.open(path, partition=part.partition)
        position = state.position
    except (apsw.Error, OSError, MemoryError) as error:
        raise named_fault(error, path) from error
    if (position.index, position.term, position.checksum) != (part.from_index, part.from_term, part.from_checksum):
        state.close()
        raise PlanOutdated(f"{path} is at index {position.index}, the plan begins at {part.from_index}")
    return state


def _restore_snapshot(plan: Plan, part: PartitionPlan, files: Files, path: str) -> None:
    origin = plan.origins.get(part.partition, plan.directory)
    identity = load_instance(files, origin).identity
    for list_all in (list_snapshots, list_archived):
        for snapshot in list_all(files, origin, identity):
            if snapshot.name == part.name:
                restore(snapshot, path)
                return
    raise PlanOutdated(f"snapshot {part.name} no longer exists")


def _result(replay: PartitionReplay, queue: EntryQueue) -> PartitionResult:
    position, plan, result = replay.state.position, replay.plan, replay.result
    result.index, result.term, result.checksum = position.index, position.term, position.checksum
    result.txn_id = position.txn_id
    if queue.stopped is not None:
        return result
    if position.index != plan.to_index:
        raise PlanOutdated(f"partition {plan.partition} ends at index {position.index}, the plan ends it at {plan.to_index}")
    if plan.to_term and (position.term, position.checksum) != (plan.to_term, plan.to_checksum):
        raise PlanOutdated(f"partition {plan.partition} holds a different entry at index {plan.to_index} than the plan")
    return result
