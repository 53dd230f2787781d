"""The worker processes of a recovery, seen from their parent: orders, what they report, and calls that they do not survive.

One rule: a process may die or hang at any call, and the recovery knows at which. Each worker writes to a few shared bytes what
it is about to run. One that hangs is killed. After the first time the process is started again and says so before each call
instead of each batch; after the second time the call is known, and the next process stops before it, or sets it aside.
"""

from __future__ import annotations

import mmap
import os
import selectors
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

import orjson

from cmdlog.child_process import PIPE, ChildProcess
from procedures.hash_seed import PINNED
from replay.errors import Divergence, DivergencePlace, Poison, RemoteError, WorkerFailed
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.partition_replay import IDLE, IN_BATCH, Doomed
from replay.recover.progress import RecoveryMeter
from replay.recover.quarantine import aside_from_json
from replay.recover.target import PartitionsDone, Target, gone_on
from replay.results import PartitionResult

CELL: Final = struct.Struct("<IQi")  # partition, index, position of the call
CELL_LOOK_S: Final = 0.5
DEFECT_CODE: Final = 70  # exit code of a worker that failed by itself, as opposed to the call that it ran
CLOSER_LOOK_S: Final = 60.0  # a batch that runs for so long is run again, call by call: that costs little if nothing is wrong
INCIDENTS_MAX: Final = 100  # of one worker: calls that end their process are rare, or something else is wrong


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all workers of a run."""

    quarantine: bool
    hang_after_s: float
    hash_seed: str = PINNED


@dataclass(slots=True)
class ReplayWorker:
    """One process, and what is known of its partitions."""

    partitions: Sequence[int]
    process: ChildProcess
    cell: mmap.mmap
    careful: bool
    buffer: bytes = b""
    seen: bytes = b""
    seen_at: float = 0.0
    killed: str = ""  # why, when it was us
    doomed: dict[int, dict[int, tuple[int, str, str]]] = field(default_factory=dict)
    incidents: int = 0
    done: bool = False

    @property
    def stdout(self) -> IO[bytes]:
        return cast("IO[bytes]", self.process.stdout)

    def running(self) -> tuple[int, int, int] | None:
        """(partition, index, position) of what runs; None when nothing of an application does."""
        partition, index, position = CELL.unpack_from(self.cell)
        return None if not index or position == IDLE else (partition, index, position)

    def hangs(self, now: float, after_s: float) -> bool:
        """Whether the same call has been running for so long, or the same batch for longer than is usual."""
        after_s = after_s if self.careful else min(after_s, CLOSER_LOOK_S)
        cell = self.cell[: CELL.size]
        if cell != self.seen or self.running() is None:
            self.seen, self.seen_at = cell, now
        return now - self.seen_at > after_s

    def close(self) -> None:
        self.process.close()
        self.cell.close()


def share_out(parts: Sequence[PartitionPlan], count: int) -> list[list[PartitionPlan]]:
    """Partitions for each worker, so that the largest load is small: largest first, each to the worker with the least."""
    loads: list[tuple[int, list[PartitionPlan]]] = [(0, []) for _ in range(count)]
    for part in sorted(parts, key=lambda part: (-part.bytes, part.partition)):
        at = min(range(count), key=lambda i: loads[i][0])
        loads[at][1].append(part)
        loads[at] = (loads[at][0] + part.bytes, loads[at][1])
    return [of for _, of in loads if of]


def run_workers(plan: Plan, target: Target, count: int, meter: RecoveryMeter, terms: Terms) -> PartitionsDone:
    """Runs the plan in so many processes. Raises what the first failing one says; the others are ended."""
    for part in plan.partitions:
        if part.source != "state":
            target.trust.revoke(part.partition)  # about to be replaced
    crew = _Crew(plan, target, meter, terms)
    try:
        for share in share_out(plan.partitions, count):
            crew.start([part.partition for part in share])
        return crew.listen()
    finally:
        crew.close()


class _Crew:
    def __init__(self, plan: Plan, target: Target, meter: RecoveryMeter, terms: Terms) -> None:
        self._plan, self._target, self._meter, self._terms = plan, target, meter, terms
        self._selector = selectors.DefaultSelector()
        self._workers: list[ReplayWorker] = []
        self._done = PartitionsDone()

    def start(self, partitions: Sequence[int]) -> None:
        """A worker for these partitions."""
        self._add(_spawn(self._plan, partitions, self._target, self._terms, careful=False, doomed={}))

    def listen(self) -> PartitionsDone:
        """Reads the workers' lines until all are done."""
        while self._selector.get_map():
            for key, _ in self._selector.select(CELL_LOOK_S):
                self._read(key.data)
            now = time.monotonic()
            for worker in self._workers:
                if not worker.done and not worker.killed and worker.hangs(now, self._terms.hang_after_s):
                    worker.killed = f"it ran for more than {self._terms.hang_after_s:g} s"
                    worker.process.kill()
        return self._done

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._selector.close()

    def _add(self, worker: ReplayWorker) -> None:
        self._workers.append(worker)
        worker.seen_at = time.monotonic()
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _read(self, worker: ReplayWorker) -> None:
        data = os.read(worker.stdout.fileno(), 1 << 16)
        *lines, worker.buffer = (worker.buffer + data).split(b"\n")
        for line in lines:
            self._heed(worker, orjson.loads(line))
        if data:
            return
        self._selector.unregister(worker.stdout)
        code = worker.process.wait()
        if not worker.done:
            self._replace(worker, code)

    def _heed(self, worker: ReplayWorker, message: dict[str, Any]) -> None:
        done = self._done
        if "progress" in message:
            self._meter.note(*message["progress"])
        elif "opened" in message:
            self._target.trust.grant(message["opened"])
        elif "stopped" in message:
            kind: type[Divergence | Poison] = Divergence if message["kind"] == Divergence.__name__ else Poison
            done.stops.append(kind(DivergencePlace.from_json(message["stopped"])))
        elif "aside" in message:
            done.aside.append(aside_from_json(message["aside"]))
        elif "done" in message:
            worker.done = True
            done.results += [PartitionResult(**result) for result in message["done"]]
        else:
            raise RemoteError(message["error"])

    def _replace(self, worker: ReplayWorker, code: int) -> None:
        """A process that ended before its work did. Raises: WorkerFailed when no call is to blame."""
        running = worker.running()
        words = worker.killed or (
            f"the process was ended by signal {-code}" if code < 0 else f"the process ended with code {code}"
        )
        if code == DEFECT_CODE or running is None or worker.incidents >= INCIDENTS_MAX:
            raise WorkerFailed(f"a replay process ended with code {code}; see its output above")
        partition, index, position = running
        doomed = {p: dict(of) for p, of in worker.doomed.items()}
        if worker.careful:
            if position == IN_BATCH:
                raise WorkerFailed(f"a replay process failed in the batch of partition {partition} at index {index}: {words}")
            doomed.setdefault(partition, {})[index] = (position, "hang" if worker.killed else "death", words)
        worker.done = True
        rest = gone_on(self._plan, self._target, worker.partitions)
        for part in rest.partitions:
            if part.partition in worker.partitions:
                self._meter.go_on(part.partition, part.calls)
        follower = _spawn(rest, worker.partitions, self._target, self._terms, careful=True, doomed=doomed)
        follower.incidents = worker.incidents + 1
        self._add(follower)


def _spawn(
    plan: Plan,
    partitions: Sequence[int],
    target: Target,
    terms: Terms,
    *,
    careful: bool,
    doomed: Mapping[int, Doomed],
) -> ReplayWorker:
    order = {
        "plan": orjson.Fragment(plan.to_json()),
        "partitions": list(partitions),
        "target": target.directory,
        "quarantine": terms.quarantine,
        "careful": careful,
        "doomed": {str(p): {str(index): found for index, found in of.items()} for p, of in doomed.items()},
    }
    process, cell = start_process("replay.recover.worker", order, hash_seed=terms.hash_seed)
    return ReplayWorker(list(partitions), process, cell, careful, doomed={p: dict(of) for p, of in doomed.items()})


def start_process(module: str, order: Mapping[str, Any], *, hash_seed: str = PINNED) -> tuple[ChildProcess, mmap.mmap]:
    """A process of the module with its order, a line of JSON; and the memory in which it says what is about to run."""
    descriptor, cell = _make_cell()
    try:
        process = ChildProcess(module, hash_seed=hash_seed, pass_fds=(descriptor,), stdin=PIPE, stdout=PIPE)
    finally:
        os.close(descriptor)
    try:
        process.order({**order, "cell": descriptor})
    except BrokenPipeError:
        process.kill()  # it ended before it had its order, which is seen when its words are read
    return process, cell


def _make_cell() -> tuple[int, mmap.mmap]:
    """Memory that is shared with a process which gets the descriptor."""
    descriptor = os.memfd_create("replay")
    os.truncate(descriptor, mmap.PAGESIZE)
    return descriptor, mmap.mmap(descriptor, mmap.PAGESIZE)
