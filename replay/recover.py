"""Carries out a plan: restores, applies, compares, reports.

One rule: whatever breaks it off (a signal, a full disk, a kill), every state file stands whole at an entry's end, and starting
again goes on from there. A state is trusted from the moment in which it was put in place (`replay.trust`), not before.

Little is applied in the calling process; much of it by worker processes (`replay.worker`), partitions spread over them, each
reading the log on its own: decoding and applying is what takes time. Workers run the code bundles of the log, never the program
at hand.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw
import orjson

from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.files import Files
from cmdlog.wal.ids import Lsn
from cmdlog.wal.instance import load_instance
from cmdlog.wal.record import Record
from procedures import Database
from procedures.errors import EnvironmentFault
from procedures.faults import fault_kind
from procedures.state import PartitionState
from replay.apply import Applier, Result
from replay.errors import Divergence, Place, PlanOutdated, Poison, RemoteError, WorkerFailed
from replay.livevalue import LiveRows
from replay.plan import PartitionPlan, Plan, Planned
from replay.reach import source_from
from replay.scan import KEEP_BYTES
from replay.trust import STATE_FOLDER, StateLock, Trust, state_path
from snapshot.catalog import list_archived, list_snapshots, remove_state, restore, set_aside

WORKER_BYTES_MIN: Final = KEEP_BYTES  # of entries to apply; below, starting processes (0.3 s) costs more than they save
DISPLAY_EVERY_S: Final = 0.1

Live = Callable[[Mapping[str, Any]], Database | None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a recovery is."""

    calls: int
    calls_total: int
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Calls per second so far."""
        return self.calls / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def percent(self) -> float:
        return 100.0 * self.calls / self.calls_total if self.calls_total else 100.0

    @property
    def left_s(self) -> float | None:
        """Estimate; None before anything was measured."""
        return (self.calls_total - self.calls) / self.rate if self.rate > 0 else None


@dataclass(frozen=True, slots=True)
class Report:
    """What a recovery did."""

    results: Sequence[Result]  # by partition
    workers: int  # 0: in the calling process
    seconds: float
    notes: Sequence[str] = ()

    @property
    def calls(self) -> int:
        return sum(result.calls for result in self.results)


@dataclass(slots=True)
class Target:
    """Where the recovered states go: the node's own directory, or another one."""

    files: Files
    directory: str  # its folder state/ holds the result
    trust: Trust = field(init=False)

    def __post_init__(self) -> None:
        self.trust = Trust(self.files, self.directory)


def execute(
    planned: Planned | Plan,
    target: Target,
    *,
    workers: int | None = None,
    live: Live | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> Report:
    """Brings every partition's state to the plan's end.

    `workers` None: as many as there are cores, if there is enough to do. `live` (code of the calling program) implies none.
    Raises: Divergence (the partition's state is removed), CodeMissing, BundleForged, EnvironmentFault, PlanOutdated, WalError.
    """
    plan = planned if isinstance(planned, Plan) else planned.plan
    began = time.monotonic()
    meter = _Meter(plan, began, progress)
    count = _worker_count(plan, workers) if live is None else 0
    done = _run_workers(plan, target, count, meter) if count else _run_here(planned, target, meter, live)
    done.raise_stops(target)
    done.results.sort(key=lambda result: result.partition)
    return Report(done.results, count, time.monotonic() - began, plan.notes)


@dataclass(slots=True)
class Done:
    """What came of the partitions."""

    results: list[Result] = field(default_factory=list)
    stops: list[Divergence | Poison] = field(default_factory=list)

    def raise_stops(self, target: Target) -> None:
        """Raises: Divergence or Poison of the first partition that stopped, naming the others."""
        if not self.stops:
            return
        for stop in self.stops:
            if isinstance(stop, Divergence):
                target.trust.discard(stop.place.partition)
        first, *others = sorted(self.stops, key=lambda stop: stop.place.partition)
        raise type(first)(first.place, others)


@dataclass(frozen=True, slots=True)
class Held:
    """A partition's state, and the lock that keeps a site of a dead node from writing beside us."""

    state: PartitionState
    lock: StateLock

    def close(self) -> None:
        self.state.close()
        self.lock.close()


def prepare(plan: Plan, part: PartitionPlan, files: Files, directory: str) -> Held:
    """Opens the partition's state at the plan's starting point: kept, restored, or new.

    Raises: PlanOutdated, SnapshotDamaged, Locked.
    """
    path = state_path(directory, part.partition)
    lock = StateLock(path)
    try:
        if part.source != "state":
            remove_state(path)
        if part.source == "snapshot":
            identity = load_instance(files, plan.directory).identity
            found = {snapshot.name: snapshot for snapshot in list_snapshots(files, plan.directory, identity)}
            if part.name not in found:
                found = {snapshot.name: snapshot for snapshot in list_archived(files, plan.directory, identity)}
            if part.name not in found:
                raise PlanOutdated(f"snapshot {part.name} is not there any more")
            restore(found[part.name], path)
        state = PartitionState.open(path, partition=part.partition)
        position = state.position
        if (position.index, position.term, position.checksum) != (part.from_index, part.from_term, part.from_checksum):
            state.close()
            raise PlanOutdated(f"{path} stands at index {position.index}, the plan begins at {part.from_index}")
    except apsw.Error as error:
        lock.close()
        raise _disk_error(fault_kind(error), error) from error
    except BaseException:
        lock.close()
        raise
    return Held(state, lock)


def put_aside(files: Files, plan: Plan) -> list[str]:
    """Takes the snapshots that the log contradicts out of sight, before new entries could make them look right.

    Returns their names. Only for a recovery in place.
    """
    wrong = {name for part in plan.partitions for name in part.set_aside}
    identity = load_instance(files, plan.directory).identity if wrong else None
    for snapshot in list_snapshots(files, plan.directory, identity) if identity else ():
        if snapshot.name in wrong:
            set_aside(files, snapshot)
    return sorted(wrong)


class _Meter:
    """Adds up what the partitions report and tells it on at a bearable rate."""

    def __init__(self, plan: Plan, began: float, tell: Callable[[Progress], None]) -> None:
        self._total, self._began, self._tell = plan.calls, began, tell
        self._calls: dict[int, int] = {}
        self._told_at = 0.0

    def note(self, partition: int, calls: int) -> None:
        self._calls[partition] = calls
        now, done = time.monotonic(), sum(self._calls.values())
        if now - self._told_at >= DISPLAY_EVERY_S or done >= self._total:
            self._told_at = now
            self._tell(Progress(done, self._total, now - self._began))


def _worker_count(plan: Plan, wanted: int | None) -> int:
    busy = sum(part.entries > 0 for part in plan.partitions)
    if wanted is not None:
        return min(wanted, busy)
    if plan.log_bytes < WORKER_BYTES_MIN:
        return 0
    return min(os.cpu_count() or 1, busy)


def _run_here(planned: Planned | Plan, target: Target, meter: _Meter, live: Live | None) -> Done:
    plan = planned if isinstance(planned, Plan) else planned.plan
    held: dict[int, Held] = {}
    try:
        for part in plan.partitions:
            _doubt(target, part)
            held[part.partition] = prepare(plan, part, target.files, target.directory)
            target.trust.grant(part.partition)
        applier = Applier(
            plan.partitions,
            {partition: of.state for partition, of in held.items()},
            row_digests=plan.row_digests,
            progress=meter.note,
            live=live or (lambda _catalog: None),
            live_rows=live_rows(plan, target.files, target.directory),
        )
        return Done(apply_all(applier, _records(planned, target)), applier.stopped)
    finally:
        for of in held.values():
            of.close()


def live_rows(plan: Plan, files: Files, directory: str) -> LiveRows:
    """Where the rows of the live run are looked up when a call diverges."""
    return LiveRows(files, plan.directory, os.path.join(directory, STATE_FOLDER))


def apply_all(applier: Applier, records: Iterable[tuple[Lsn, Record]]) -> list[Result]:
    """Feeds the records until every partition is at its end; closes the states."""
    try:
        for lsn, record in records:
            if applier.finished:
                break
            applier.take(lsn, record)
        return applier.finish()
    except EnvironmentFault as fault:
        raise _disk_error(fault.kind, fault) from fault
    finally:
        applier.close()


def _disk_error(kind: str | None, error: Exception) -> Exception:
    """What a fault of the machine means to an operator; itself when it is not the disk's."""
    if kind == "disk_full":
        return DiskFull(str(error))
    return WriteFailed(str(error)) if kind == "io" else error


def _records(planned: Planned | Plan, target: Target) -> Iterable[tuple[Lsn, Record]]:
    if isinstance(planned, Plan):
        source = source_from(target.files, planned.directory, planned.from_block, planned.gaps)
        return source.read(from_block=planned.from_block, upto_block=planned.last_block)
    if planned.scan.kept is not None:
        return planned.scan.kept
    return planned.source.read(from_block=planned.plan.from_block, upto_block=planned.plan.last_block)


def _doubt(target: Target, part: PartitionPlan) -> None:
    """A state file that is about to be replaced is not trusted from here on."""
    if part.source != "state":
        target.trust.revoke(part.partition)


def share_out(parts: Sequence[PartitionPlan], count: int) -> list[list[PartitionPlan]]:
    """Partitions for each worker, so that the largest load is small: largest first, each to who has least."""
    loads: list[tuple[int, list[PartitionPlan]]] = [(0, []) for _ in range(count)]
    for part in sorted(parts, key=lambda part: (-part.bytes, part.partition)):
        at = min(range(count), key=lambda i: loads[i][0])
        loads[at][1].append(part)
        loads[at] = (loads[at][0] + part.bytes, loads[at][1])
    return [of for _, of in loads if of]


def _run_workers(plan: Plan, target: Target, count: int, meter: _Meter) -> Done:
    shares = share_out(plan.partitions, count)
    for part in plan.partitions:
        _doubt(target, part)
    processes = [_spawn(plan, [part.partition for part in share], target) for share in shares]
    try:
        return _listen(processes, target, meter)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _spawn(plan: Plan, partitions: Sequence[int], target: Target) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "replay.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,  # Ctrl-C reaches the terminal's whole group; what becomes of workers is decided here
    )
    order = {"plan": orjson.Fragment(plan.to_json()), "partitions": partitions, "target": target.directory}
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(order))
    process.stdin.close()
    return process


def _listen(processes: Sequence[subprocess.Popen[bytes]], target: Target, meter: _Meter) -> Done:
    """Reads the workers' lines until all are done. Raises what the first failing one says."""
    done = Done()
    with selectors.DefaultSelector() as selector:
        buffers = {process.pid: b"" for process in processes}
        for process in processes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                process = key.data
                data = os.read(key.fd, 1 << 16)
                *lines, buffers[process.pid] = (buffers[process.pid] + data).split(b"\n")
                for line in lines:
                    _heed(orjson.loads(line), target, meter, done)
                if data:
                    continue
                selector.unregister(key.fileobj)
                if process.wait() != 0:
                    raise WorkerFailed(f"a replay process ended with code {process.returncode}; its own words are above")
    return done


def _heed(message: dict[str, Any], target: Target, meter: _Meter, done: Done) -> None:
    if "progress" in message:
        meter.note(*message["progress"])
    elif "opened" in message:
        target.trust.grant(message["opened"])
    elif "done" in message:
        done.results += [Result(**result) for result in message["done"]]
    elif "stopped" in message:
        kind: type[Divergence | Poison] = Divergence if message["kind"] == Divergence.__name__ else Poison
        done.stops.append(kind(Place.from_json(message["stopped"])))
    else:
        raise RemoteError(message["error"])
