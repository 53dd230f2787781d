"""The part of a fork that runs other code: here, or in a process that is watched.

One rule: a process may die or hang at any call, and the fork knows at which (`replay.recover.worker_pool`). After the second time
the call is known, and the fork ends with it. The same command resumes it once the code is repaired or given more time.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from cmdlog.operator_error import OperatorError
from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.errors import SchemaConflict
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing
from replay.errors import DivergencePlace, RemoteError, ReplayError, WorkerFailed
from replay.fork import unfinished
from replay.fork.bind_calls import CallBinding
from replay.fork.remaining_log import RemainingLog
from replay.fork.rerun import CallUnfit, ForkPlace, Missing, OtherCode, PartitionRerun
from replay.fork.tally import RerunTally
from replay.log.log_fold import is_void
from replay.log.scan import ScannedStream
from replay.loop import EntryQueue, ReplayLoop
from replay.recover.execute import RecoveryProgress, Target
from replay.recover.partition_replay import IN_BATCH
from replay.recover.worker_pool import Incident, ReplayWorker, WorkerPool, start_process
from replay.results import PartitionResult
from replay.state.state_lock import StateLock
from replay.state.trust import STATE_FOLDER, state_path

KNOWN_ERRORS: Final[Mapping[str, type[OperatorError]]] = {
    of.kind: of for of in (CallUnfit, CatalogMissing, DiskFull, SchemaConflict, WriteFailed)
}
ReportProgress = Callable[[RecoveryProgress], None]


class CallStuck(ReplayError):
    """A call of the other code timed out."""

    exit_code = 16  # as of a call that a recovery cannot replay
    hint = (
        "repair the procedure, remove the new directory and fork again; or give the call more time with --call-timeout-s, and "
        "run the same command again to resume"
    )

    def __init__(self, place: DivergencePlace) -> None:
        self.place = place
        super().__init__(f"call timed out in {place}: {place.got}")


@dataclass(frozen=True, slots=True)
class ForkCode:
    """The other code, and how calls that do not fit it are treated."""

    db: Database
    bundle: Bundle
    missing: Missing

    def fitting(self, rest: RemainingLog) -> CallBinding:
        """What the calls of the log are in it."""
        return CallBinding(self.db, self.bundle.hash, rest.catalogs, rest.slots)


def run_here(
    rest: RemainingLog, target: Target, code: ForkCode, progress: ReportProgress
) -> tuple[list[PartitionResult], RerunTally]:
    """Everything after the fork, in this process."""
    other, streams = OtherCode(code.db, code.fitting(rest), code.missing), rest.scan.streams
    return run_calls(target.directory, rest.places, streams, rest.records(), other, progress=_report_total(rest, progress))


def run_watched(
    rest: RemainingLog, target: Target, code: ForkCode, progress: ReportProgress, *, hang_after_s: float
) -> tuple[list[PartitionResult], RerunTally]:
    """The same in a process of its own. Raises: CallStuck; WorkerFailed when no call is to blame; what `run_here` raises."""
    workers = _ForkWorkers(rest, target, code, _report_total(rest, progress))
    pool = WorkerPool("the process that runs the other code", hang_after_s, workers.read_message, workers.follow)
    try:
        pool.add(workers.start(careful=False))
        pool.listen()
    except KeyboardInterrupt:
        found = pool.workers[-1].running() if pool.workers else None
        raise KeyboardInterrupt(f"in {_place_of(rest, Incident(*found, ''))}" if found is not None else "") from None
    finally:
        pool.close()
    return workers.results, workers.tally


def run_calls(
    out: str,
    places: Mapping[int, ForkPlace],
    streams: Mapping[int, ScannedStream],
    records: Iterable[tuple[Lsn, Record]],
    code: OtherCode,
    *,
    progress: Callable[[int, int], None],
    report_running: Callable[[int, int, int], None] = lambda _partition, _index, _position: None,
    careful: bool = False,
) -> tuple[list[PartitionResult], RerunTally]:
    """Runs the calls of all partitions after the fork, each from where an earlier run has come.

    `report_running` is given what is about to run, each call of a batch if it is `careful`.

    Raises: Locked, SchemaConflict, CallUnfit, CodeMissing; what `ReplayLoop.run` raises.
    """
    with ExitStack() as stack:
        reruns, queues = [], {}
        for p in sorted(places):
            path = state_path(out, p)
            stack.callback(StateLock(path).close)
            state = PartitionState.open(path, partition=p)
            stack.callback(state.close)
            rerun = PartitionRerun(
                state, streams[p], places[p], code,
                report_running=report_running, careful=careful, done=unfinished.done_of(state), keep=unfinished.save_progress,
            )  # fmt: skip
            reruns.append(rerun)
            to_index, voids = streams[p].to_index, streams[p].voids
            queues[p] = EntryQueue(p, rerun, after_index=rerun.done.at, to_index=to_index, voids=voids, progress=progress)
        ReplayLoop(queues).run(records, os.path.join(out, STATE_FOLDER))
        results, tally = [rerun.finish() for rerun in reruns], RerunTally()
        for rerun in reruns:
            tally.add(rerun.done.tally)
        return results, tally


def _report_total(rest: RemainingLog, progress: ReportProgress) -> Callable[[int, int], None]:
    calls: Counter[int] = Counter()
    total, began = sum(stream.calls for stream in rest.scan.streams.values()), time.monotonic()

    def report(partition: int, done: int) -> None:
        calls[partition] = done
        progress(RecoveryProgress(calls.total(), total, time.monotonic() - began))

    return report


class _ForkWorkers:
    """The process that runs the other code, and the more careful one that follows when it was ended."""

    def __init__(self, rest: RemainingLog, target: Target, code: ForkCode, progress: Callable[[int, int], None]) -> None:
        self.results: list[PartitionResult] = []
        self.tally = RerunTally()
        self._rest, self._progress = rest, progress
        self._order = _order(rest, target, code)

    def start(self, *, careful: bool) -> ReplayWorker:
        process, cell = start_process("replay.fork.worker", {**self._order, "careful": careful})
        return ReplayWorker(sorted(self._rest.places), process, cell, careful)

    def read_message(self, worker: ReplayWorker, message: dict[str, Any]) -> None:
        """One line of a worker. Raises: the error that it names."""
        if "progress" in message:
            self._progress(*message["progress"])
        elif "done" in message:
            worker.done = True
            self.results = [PartitionResult(**result) for result in message["done"]]
            self.tally = RerunTally.of_kept(message["tally"])
        else:
            error = message["error"]
            raise KNOWN_ERRORS[error["kind"]](error["message"]) if error["kind"] in KNOWN_ERRORS else RemoteError(error)

    def follow(self, worker: ReplayWorker, incident: Incident | None) -> ReplayWorker:
        """After the second time the call is known. Raises: CallStuck, WorkerFailed."""
        if incident is None or not worker.careful:
            return self.start(careful=worker.careful or incident is not None)
        place = _place_of(self._rest, incident)
        if incident.position == IN_BATCH:
            raise WorkerFailed(f"the other code ended its process in {place}, outside of a call: {incident.words}")
        raise CallStuck(place)


def _place_of(rest: RemainingLog, incident: Incident) -> DivergencePlace:
    """Describes the call as an operator knows it."""
    found = rest.scan
    for lsn, record in rest.source.read(from_block=found.from_block):
        if record.kind is not RecordKind.BATCH or (record.partition, record.index) != (incident.partition, incident.index):
            continue
        if is_void(found.streams[record.partition].voids, lsn, record.index):
            continue
        batch, at = decode_batch(record), max(incident.position, 0)
        name = bundle_of(batch.catalog, found.catalogs[batch.catalog].value).procedures[batch.procedures[at]]
        return DivergencePlace(
            record.partition, record.index, batch.txn_ids[at], incident.position, str(name["name"]), "", incident.words
        )
    return DivergencePlace(incident.partition, incident.index, 0, incident.position, "?", "", incident.words)


def _order(rest: RemainingLog, target: Target, code: ForkCode) -> dict[str, Any]:
    found = rest.scan
    return {
        "directory": rest.source.directory,
        "from_block": int(found.from_block),
        "target": target.directory,
        "bundle": code.bundle.to_bytes().decode(),
        "missing": code.missing,
        "catalogs": rest.catalogs,
        "slots": rest.slots,
        "places": [asdict(place) for place in rest.places.values()],
        "streams": {p: stream.to_json() for p, stream in found.streams.items()},
    }
