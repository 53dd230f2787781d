"""The part of a fork that runs other code: here, or in a process that is watched.

One rule: a process may die or hang at any call, and the fork knows at which. As in a recovery (`replay.recover.worker_pool`) the
process writes to a few shared bytes what it is about to run. One that hangs is killed and started again from where the states
are, now reporting each call before it runs. After the second hang the call is known and the fork ends; it can be resumed when
the call is repaired or given more time.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn
from procedures import Database
from procedures.bundle import Bundle
from procedures.errors import SchemaConflict
from procedures.execution.executor import Applied
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing
from replay.errors import DivergencePlace, RemoteError, ReplayError, WorkerFailed
from replay.fork import unfinished
from replay.fork.bind_calls import Fitting
from replay.fork.digest_lookahead import digests_first
from replay.fork.rerun import CallUnfit, ForkPlace, Missing, Rerun, RerunProgress, RerunTally
from replay.log.log_fold import is_void
from replay.log.scan import Scan, ScannedStream
from replay.log.source import LogSource
from replay.recover.execute import RecoveryProgress, Target
from replay.recover.partition_replay import IDLE, IN_BATCH
from replay.recover.worker_pool import CELL_LOOK_S, DEFECT_CODE, ReplayWorker, start_process
from replay.results import PartitionResult
from replay.state.state_lock import StateLock
from replay.state.trust import state_path

TOLD: Final[Mapping[str, type[OperatorError]]] = {
    of.kind: of for of in (CallUnfit, CatalogMissing, DiskFull, SchemaConflict, WriteFailed)
}
Tell = Callable[[RecoveryProgress], None]


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
class Rest:
    """The log after the fork point."""

    source: LogSource
    scan: Scan
    places: Mapping[int, ForkPlace]


@dataclass(frozen=True, slots=True)
class ForkCode:
    """The other code, and how calls that do not fit it are treated."""

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
    return found.groups.cluster.slots


def run_here(rest: Rest, target: Target, code: ForkCode, tell: Tell) -> tuple[list[PartitionResult], RerunTally]:
    """Runs everything after the fork point in this process."""
    found = rest.scan
    records = found.kept if found.kept is not None else rest.source.read(from_block=found.from_block)
    hands = Hands(code.db, code.fitting(found), code.missing, _meter(rest, tell))
    return hands.run(target.directory, rest.places, found.streams, records)


def run_watched(
    rest: Rest, target: Target, code: ForkCode, tell: Tell, *, hang_after_s: float
) -> tuple[list[PartitionResult], RerunTally]:
    """The same in a process of its own. Raises: CallStuck; WorkerFailed when no call is to blame; what `run_here` raises."""
    watch = _Watch(rest, target, code, _meter(rest, tell), hang_after_s)
    found = watch.run(careful=False)
    if isinstance(found, Incident):
        found = watch.run(careful=True)
    if not isinstance(found, Incident):
        return found
    if found.position == IN_BATCH:
        raise WorkerFailed(f"the other code ended its process in {watch.place(found)}, outside of a call: {found.words}")
    raise CallStuck(watch.place(found))


@dataclass(frozen=True, slots=True)
class Incident:
    """What was running when a process ended before its work was done."""

    partition: int
    index: int
    position: int  # IN_BATCH when it does not say each call
    words: str


class Hands:
    """Runs the calls of all partitions; `begun` gets what is about to run, each call of a batch if it is `careful`."""

    def __init__(
        self,
        db: Database,
        fitting: Fitting,
        missing: Missing,
        progress: Callable[[int, int], None],
        *,
        begun: Callable[[int, int, int], None] = lambda _partition, _index, _position: None,
        careful: bool = False,
    ) -> None:
        self._db, self._fitting, self._missing = db, fitting, missing
        self._progress, self._begun, self._careful = progress, begun, careful
        self._partition, self._index, self._ran = 0, 0, list[int]()

    def run(
        self,
        out: str,
        places: Mapping[int, ForkPlace],
        streams: Mapping[int, ScannedStream],
        records: Iterable[tuple[Lsn, Record]],
    ) -> tuple[list[PartitionResult], RerunTally]:
        """Resumes after what an earlier run has done. Raises: Locked, SchemaConflict, what `Rerun.run` raises."""
        with ExitStack() as stack:
            states, done = {}, dict[int, RerunProgress]()
            for p in sorted(places):
                path = state_path(out, p)
                stack.callback(StateLock(path).close)
                states[p] = PartitionState.open(path, partition=p)
                stack.callback(states[p].close)
                if (found := unfinished.done_of(states[p])) is not None:
                    done[p] = found
            rerun = Rerun(
                states, streams, places, db=self._db, fitting=self._fitting, missing=self._missing, progress=self._progress,
                begins=self._begins, begin_call=self._begin_call if self._careful else None, ended=self._ended,
                done=done, keep=unfinished.keep,
            )  # fmt: skip
            return rerun.run(digests_first(records, rerun.wants)), rerun.tally

    def _begins(self, record: Record, ran: list[int]) -> None:
        self._partition, self._index, self._ran = record.partition, record.index, ran
        self._begun(self._partition, self._index, IN_BATCH)

    def _begin_call(self, n: int) -> None:
        self._begun(self._partition, self._index, self._ran[n])

    def _ended(self, _batch: Batch, _ran: list[int], _applied: Applied) -> None:
        self._begun(self._partition, self._index, IDLE)


def _meter(rest: Rest, tell: Tell) -> Callable[[int, int], None]:
    calls: Counter[int] = Counter()
    total, began = sum(stream.calls for stream in rest.scan.streams.values()), time.monotonic()

    def note(partition: int, done: int) -> None:
        calls[partition] = done
        tell(RecoveryProgress(calls.total(), total, time.monotonic() - began))

    return note


class _Watch:
    """One process at a time."""

    def __init__(self, rest: Rest, target: Target, code: ForkCode, note: Callable[[int, int], None], hang_after_s: float) -> None:
        self._rest, self._note, self._hang_after_s = rest, note, hang_after_s
        self._order = _order(rest, target, code)
        self._done: tuple[list[PartitionResult], RerunTally] | None = None

    def run(self, *, careful: bool) -> tuple[list[PartitionResult], RerunTally] | Incident:
        """The result, or how the process ended. Raises: KeyboardInterrupt naming the call; WorkerFailed; what the process
        says."""
        worker = _spawn({**self._order, "careful": careful}, sorted(self._rest.places), careful=careful)
        try:
            code = self._listen(worker)
            if self._done is not None:
                return self._done
            running = worker.running()
            if code == DEFECT_CODE or running is None:
                raise WorkerFailed(f"the process that runs the other code ended with code {code}; see its output above")
            ended = f"the process was ended by signal {-code}" if code < 0 else f"the process ended with code {code}"
            return Incident(*running, worker.killed or ended)
        except KeyboardInterrupt:
            found = worker.running()
            raise KeyboardInterrupt(f"in {self.place(Incident(*found, ''))}" if found is not None else "") from None
        finally:
            worker.close()

    def place(self, incident: Incident) -> DivergencePlace:
        """Describes the call as an operator knows it."""
        found = self._rest.scan
        for lsn, record in self._rest.source.read(from_block=found.from_block):
            if record.kind is not RecordKind.BATCH or (record.partition, record.index) != (incident.partition, incident.index):
                continue
            if is_void(found.streams[record.partition].voids, lsn, record.index):
                continue
            batch, at = decode_batch(record), max(incident.position, 0)
            name = Bundle.from_bytes(str(found.catalogs[batch.catalog].value["bundle"]).encode()).procedures[batch.procedures[at]]
            return DivergencePlace(
                record.partition, record.index, batch.txn_ids[at], incident.position, str(name["name"]), "", incident.words
            )
        return DivergencePlace(incident.partition, incident.index, 0, incident.position, "?", "", incident.words)

    def _listen(self, worker: ReplayWorker) -> int:
        """Reads from the process until it ends, or is killed because it hangs; its exit code."""
        worker.seen_at = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            while True:
                if selector.select(CELL_LOOK_S):
                    if not (data := os.read(worker.stdout.fileno(), 1 << 16)):
                        return worker.process.wait()
                    *lines, worker.buffer = (worker.buffer + data).split(b"\n")
                    for line in lines:
                        self._heed(orjson.loads(line))
                if not worker.killed and worker.hangs(time.monotonic(), self._hang_after_s):
                    worker.killed = f"it ran for more than {self._hang_after_s:g} s"
                    worker.process.kill()

    def _heed(self, message: dict[str, Any]) -> None:
        if "progress" in message:
            self._note(*message["progress"])
        elif "done" in message:
            self._done = [PartitionResult(**result) for result in message["done"]], RerunTally.of_kept(message["tally"])
        else:
            error = message["error"]
            raise TOLD[error["kind"]](error["message"]) if error["kind"] in TOLD else RemoteError(error)


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
        "streams": {p: stream.to_json() for p, stream in found.streams.items()},
    }


def _spawn(order: Mapping[str, Any], partitions: list[int], *, careful: bool) -> ReplayWorker:
    process, cell = start_process("replay.fork.worker", order)
    return ReplayWorker(partitions, process, cell, careful)
