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

from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures import Database
from procedures.bundle import Bundle
from procedures.errors import SchemaConflict
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing
from replay.errors import DivergencePlace, RemoteError, ReplayError, WorkerFailed
from replay.fork import unfinished
from replay.fork.bind_calls import Fitting
from replay.fork.rerun import CallUnfit, ForkPlace, Missing, OtherCode, PartitionRerun, is_void
from replay.fork.tally import RerunTally
from replay.log.scan import Scan, ScannedStream
from replay.log.source import LogSource
from replay.loop.entry_queue import EntryQueue
from replay.loop.replay_loop import ReplayLoop
from replay.recover.execute import RecoveryProgress, Target
from replay.recover.partition_replay import IN_BATCH
from replay.recover.worker_pool import Incident, ReplayWorker, WorkerPool, start_process
from replay.results import PartitionResult
from replay.state.trust import STATE_FOLDER, StateLock, state_path

TOLD: Final[Mapping[str, type[Exception]]] = {
    of.__name__: of for of in (CallUnfit, CatalogMissing, DiskFull, SchemaConflict, WriteFailed)
}
Tell = Callable[[RecoveryProgress], None]


class CallStuck(ReplayError):
    """A call that the other code does not come back from."""

    exit_code = 16  # as of a call that a recovery cannot replay
    hint = (
        "repair the procedure, remove the new directory and fork again; or give the call more time with --call-timeout-s, and "
        "the same command goes on from there"
    )

    def __init__(self, place: DivergencePlace) -> None:
        self.place = place
        super().__init__(f"a call that does not come back in {place}: {place.got}")


@dataclass(frozen=True, slots=True)
class Rest:
    """The log behind the fork."""

    source: LogSource
    scan: Scan
    places: Mapping[int, ForkPlace]


@dataclass(frozen=True, slots=True)
class ForkCode:
    """The other code, and what becomes of calls that do not fit it."""

    db: Database
    bundle: Bundle
    missing: Missing

    def fitting(self, found: Scan) -> Fitting:
        """What the calls of the log are in it."""
        return Fitting(self.db, self.bundle.hash, catalogs_of(found), slots_of(found))


def catalogs_of(found: Scan) -> dict[int, dict[str, Any]]:
    """Version -> value of its record."""
    return {version: catalog.value for version, catalog in found.catalogs.items()}


def slots_of(found: Scan) -> Any:
    """Which slots each partition has, as the log's newest configuration says."""
    return (found.groups.state(CLUSTER_GROUP).configuration or {}).get("slots", ())


def run_here(rest: Rest, target: Target, code: ForkCode, tell: Tell) -> tuple[list[PartitionResult], RerunTally]:
    """Everything behind the fork, in this process."""
    found = rest.scan
    records = found.kept if found.kept is not None else rest.source.read(from_block=found.from_block)
    other = OtherCode(code.db, code.fitting(found), code.missing)
    return run_calls(target.directory, rest.places, found.streams, records, other, progress=_meter(rest, tell))


def run_watched(
    rest: Rest, target: Target, code: ForkCode, tell: Tell, *, hang_after_s: float
) -> tuple[list[PartitionResult], RerunTally]:
    """The same in a process of its own. Raises: CallStuck; WorkerFailed when no call is to blame; what `run_here` raises."""
    workers = _ForkWorkers(rest, target, code, _meter(rest, tell))
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
    begun: Callable[[int, int, int], None] = lambda _partition, _index, _position: None,
    careful: bool = False,
) -> tuple[list[PartitionResult], RerunTally]:
    """Runs the calls of all partitions after the fork, each from where an earlier run has come.

    `begun` is given what is about to run, each call of a batch if it is `careful`.

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
                begun=begun, careful=careful, done=unfinished.done_of(state), keep=unfinished.keep,
            )  # fmt: skip
            reruns.append(rerun)
            to_index, voids = streams[p].to_index, streams[p].voids
            queues[p] = EntryQueue(p, rerun, after_index=rerun.done.at, to_index=to_index, voids=voids, progress=progress)
        ReplayLoop(queues).run(records, os.path.join(out, STATE_FOLDER))
        results, tally = [rerun.finish() for rerun in reruns], RerunTally()
        for rerun in reruns:
            tally.add(rerun.done.tally)
        return results, tally


def _meter(rest: Rest, tell: Tell) -> Callable[[int, int], None]:
    calls: Counter[int] = Counter()
    total, began = sum(stream.calls for stream in rest.scan.streams.values()), time.monotonic()

    def note(partition: int, done: int) -> None:
        calls[partition] = done
        tell(RecoveryProgress(calls.total(), total, time.monotonic() - began))

    return note


class _ForkWorkers:
    """The process that runs the other code, and the more careful one that follows when it was ended."""

    def __init__(self, rest: Rest, target: Target, code: ForkCode, progress: Callable[[int, int], None]) -> None:
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
            raise TOLD[error["kind"]](error["message"]) if error["kind"] in TOLD else RemoteError(error)

    def follow(self, worker: ReplayWorker, incident: Incident) -> ReplayWorker:
        """After the second time the call is known. Raises: CallStuck, WorkerFailed."""
        if not worker.careful:
            return self.start(careful=True)
        place = _place_of(self._rest, incident)
        if incident.position == IN_BATCH:
            raise WorkerFailed(f"the other code ended its process in {place}, outside of a call: {incident.words}")
        raise CallStuck(place)


def _place_of(rest: Rest, incident: Incident) -> DivergencePlace:
    """The call in words that an operator knows it by."""
    found = rest.scan
    for lsn, record in rest.source.read(from_block=found.from_block):
        if record.kind is not RecordKind.BATCH or (record.partition, record.index) != (incident.partition, incident.index):
            continue
        if is_void(found.streams[record.partition], lsn, record.index):
            continue
        batch, at = decode_batch(record), max(incident.position, 0)
        name = Bundle.from_bytes(str(found.catalogs[batch.catalog].value["bundle"]).encode()).procedures[batch.procedures[at]]
        return DivergencePlace(
            record.partition, record.index, batch.txn_ids[at], incident.position, str(name["name"]), "", incident.words
        )
    return DivergencePlace(incident.partition, incident.index, 0, incident.position, "?", "", incident.words)


def _order(rest: Rest, target: Target, code: ForkCode) -> dict[str, Any]:
    found = rest.scan
    return {
        "directory": rest.source.directory,
        "from_block": int(found.from_block),
        "target": target.directory,
        "bundle": code.bundle.to_bytes().decode(),
        "missing": code.missing,
        "catalogs": catalogs_of(found),
        "slots": slots_of(found),
        "places": [asdict(place) for place in rest.places.values()],
        "streams": {p: stream_json(stream) for p, stream in found.streams.items()},
    }


def stream_json(stream: ScannedStream) -> dict[str, Any]:
    """What a process needs to know of a partition's entries; `stream_of` reads it."""
    return {
        "to_index": stream.to_index,
        "to_calls": stream.to_calls,
        "taken_out": list(stream.taken_out),
        "voids": list(stream.voids),
    }


def stream_of(value: Mapping[str, Any]) -> ScannedStream:
    return ScannedStream(
        to_index=value["to_index"],
        to_calls=value["to_calls"],
        taken_out=[(index, batch, position) for index, batch, position in value["taken_out"]],
        voids=[(block, offset, index) for block, offset, index in value["voids"]],
    )
