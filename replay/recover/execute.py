"""Carries out a plan: restores, applies, compares, reports.

One rule: whatever interrupts it (a signal, a full disk, a kill), every state file is intact at the end of an entry, and a new
start resumes from there. A state is trusted from the moment in which it was put in place (`replay.state.trust`), not before.

Little is applied in the calling process, if it runs under the hash seed of sites; the rest by worker processes
(`replay.recover.worker`), partitions spread over them, each reading the log on its own: decoding and applying is what takes time.
Workers run the code bundles of the log, never the program at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

from cmdlog.signal_handlers import sigterm_raises
from cmdlog.wal.files import Files
from cmdlog.wal.process_limits import worker_count
from procedures.execution import hash_seed as hashseed
from replay.engine import Catalogs, LiveCode
from replay.errors import Divergence, Interrupted
from replay.log.scan import KEEP_BYTES
from replay.plan.node_plan import Plan, Planned
from replay.recover.applier import replay_partitions
from replay.recover.partition_replay import ReplaySetup
from replay.recover.progress import RecoveryMeter, RecoveryProgress
from replay.recover.quarantine import Aside, QuarantineFile, aside_from_json
from replay.recover.target import HANG_AFTER_S, PartitionsDone, Target, remaining_plan
from replay.recover.worker_pool import Terms, run_workers
from replay.results import PartitionResult
from replay.state.live_rows import LiveRows
from replay.state.trust import STATE_FOLDER, state_path

__all__ = ["RecoveryProgress", "RecoveryReport", "Target", "execute"]

WORKER_BYTES_MIN: Final = KEEP_BYTES  # of entries to apply; below, starting processes (0.3 s) costs more than they save

UNPINNED: Final = (
    "this process has its own hash seed, so sets of strings may iterate in another order: start it with PYTHONHASHSEED=0, "
    "as sites and `cmdlog recover` are"
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery did."""

    results: Sequence[PartitionResult]  # by partition
    workers: int  # 0: in the calling process
    seconds: float
    notes: Sequence[str] = ()
    aside: Sequence[Aside] = ()  # calls that were set aside, by partition
    already: bool = False  # an earlier run has done it; nothing was done

    @property
    def calls(self) -> int:
        return sum(result.calls for result in self.results)

    def kept(self) -> dict[str, Any]:
        """Its form in the target directory, for the same command run again; `of_kept` reads it."""
        return {
            "results": [result.to_json() for result in self.results],
            "workers": self.workers,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "aside": [aside.to_json() for aside in self.aside],
        }

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> RecoveryReport:
        results = [PartitionResult(**result) for result in value["results"]]
        aside = [aside_from_json(aside) for aside in value["aside"]]
        return cls(results, value["workers"], value["seconds"], value["notes"], aside, already=True)


class ReplayTerms(TypedDict, total=False):
    """How a plan is carried out, as `execute` takes it."""

    workers: int | None
    progress: Callable[[RecoveryProgress], None]
    quarantine: bool
    hang_after_s: float
    hash_seed: str


def execute(
    planned: Planned,
    target: Target,
    *,
    workers: int | None = None,
    live: LiveCode | None = None,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
    quarantine: bool = False,
    go_on: bool = False,
    hang_after_s: float = HANG_AFTER_S,
    hash_seed: str = hashseed.PINNED,
) -> RecoveryReport:
    """Brings every partition's state to the plan's end. A partition whose call cannot be replayed stops; the others continue.

    `workers` None: as many as there are cores if there is enough to do, else none or, where the hash seed differs from that of
    sites, one. 0: the caller answers for the seed. `live` (code of the calling program) implies none. `quarantine` sets such
    calls aside, in `quarantine.jsonl` of the target, and continues: not for a recovery in place, whose log still holds them. It
    implies a worker, and so does a limit of time that was chosen: a call that hangs can be ended in another process only.
    `go_on`: the states in the target, if trusted, are what an earlier run of this plan has reached. `hash_seed` is that of
    workers; a test that looks for what depends on it chooses another one.

    Raises: Divergence (the partition's state is removed) or Poison, when all partitions have ended; BundleForged, PlanOutdated,
    WalError, Interrupted.
    """
    began = time.monotonic()
    whole = planned.plan
    if go_on:
        planned = replace(planned, plan=remaining_plan(whole, target, [part.partition for part in whole.partitions]))
    plan = planned.plan
    count = _worker_count(plan, workers) if live is None else 0
    if (quarantine or hang_after_s < HANG_AFTER_S) and live is None:
        count = max(count, 1)
    meter = RecoveryMeter(whole, began, progress)
    for part in plan.partitions if go_on else ():
        meter.resume_partition(part.partition, part.calls)
    with terminable():
        for part in plan.partitions:
            if part.source != "state":
                target.trust.revoke(part.partition)  # about to be replaced
        if count:
            done = run_workers(plan, target, count, meter, Terms(quarantine, hang_after_s, hash_seed))
        else:
            done = _run_here(planned, target, meter, live, quarantine=quarantine)
    if done.stops:
        try:
            done.raise_stops(target, plan.directory, quarantine=quarantine)
        except Divergence as error:
            if live is not None and not hashseed.is_pinned():
                error.hint = f"{error.hint}; {UNPINNED}"
            raise
    meter.end()
    done.results.sort(key=lambda result: result.partition)
    aside = sorted(done.aside, key=lambda aside: aside.partition)
    return RecoveryReport(done.results, count, time.monotonic() - began, plan.notes, aside)


def replay_into(files: Files, folder: str, planned: Planned) -> dict[int, str]:
    """Replays the plan in an empty folder; partition -> path of its state. Raises: as `execute`."""
    os.mkdir(os.path.join(folder, STATE_FOLDER))
    execute(planned, Target(files, folder))
    return {part.partition: state_path(folder, part.partition) for part in planned.plan.partitions}


def terminable() -> AbstractContextManager[None]:
    """Within it, a SIGTERM that would end the process at once raises `Interrupted`, so that workers are also ended."""
    return sigterm_raises(lambda: Interrupted("the recovery was terminated"))


def _worker_count(plan: Plan, wanted: int | None) -> int:
    busy = [part for part in plan.partitions if part.entries > 0]
    if wanted is not None:
        return min(wanted, len(busy))
    if sum(part.bytes for part in busy) < WORKER_BYTES_MIN:
        return 0 if hashseed.is_pinned() else min(1, len(busy))
    return min(worker_count(), len(busy))


def _run_here(
    planned: Planned, target: Target, meter: RecoveryMeter, live: LiveCode | None, *, quarantine: bool
) -> PartitionsDone:
    plan = planned.plan
    setup = ReplaySetup(
        plan.row_digests,
        LiveRows(target.files, plan.directory, target.state_folder),
        QuarantineFile(target.directory) if quarantine else None,
        catalogs=Catalogs(live),
    )
    return replay_partitions(
        plan,
        plan.partitions,
        target,
        planned.records(),
        setup,
        opened=target.trust.grant,
        progress=meter.count_calls,
    )
