"""Worker processes that replay, seen from the process that started them: orders, messages, and calls that they do not survive.

One rule: a process may die or hang at any call, and it is known at which. Each worker writes to a few shared bytes what it is
about to run. One that hangs is killed. After the first time the process is started again and says so before each call instead of
each batch; after the second time the call is known. What follows from that is decided by who uses the pool: a recovery skips the
call or stops before it (`run_workers`), a fork ends with it (`replay.fork.run`).
"""

from __future__ import annotations

import mmap
import os
import selectors
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

import orjson

from cmdlog.child_process import PIPE, ChildProcess, describe_end, encode_order, hint_at_end
from cmdlog.work_progress import Followed
from procedures.execution.hash_seed import PINNED
from replay.errors import Divergence, DivergencePlace, Poison, RemoteError, WorkerFailed
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.partition_replay import IDLE, IN_BATCH, FatalCalls
from replay.recover.progress import RecoveryMeter
from replay.recover.quarantine import aside_from_json
from replay.recover.target import PartitionsDone, Target, remaining_plan
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
    fatal_calls: dict[int, dict[int, tuple[int, str, str]]] = field(default_factory=dict)
    incidents: int = 0
    was_killed: bool = False  # or the process that it follows, while no call ran
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


@dataclass(frozen=True, slots=True)
class Incident:
    """What was running when a process ended before its work was done."""

    partition: int
    index: int
    position: int  # IN_BATCH when it does not say each call
    words: str


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
    recovery = _RecoveryWorkers(plan, target, meter, terms)
    pool = WorkerPool("a replay process", terms.hang_after_s, recovery.read_message, recovery.follow)
    try:
        for share in share_out(plan.partitions, count):
            pool.add(recovery.start([part.partition for part in share]))
        pool.listen()
    finally:
        pool.close()
    return recovery.done


class WorkerPool:
    """Reads what worker processes say until all are done, and watches that they get on."""

    def __init__(
        self,
        kind: str,
        hang_after_s: float,
        read_message: Callable[[ReplayWorker, dict[str, Any]], None],
        on_incident: Callable[[ReplayWorker, Incident | None], ReplayWorker],
    ) -> None:
        """`kind` names a process in errors. `read_message` marks a worker as done; `on_incident` gives the next, or raises.

        Without an incident, a signal ended the process while no call ran: the next one does the same work. That happens once.
        """
        self.workers: list[ReplayWorker] = []
        self._kind, self._hang_after_s = kind, hang_after_s
        self._read_message, self._on_incident = read_message, on_incident
        self._selector = selectors.DefaultSelector()

    def add(self, worker: ReplayWorker) -> None:
        self.workers.append(worker)
        worker.seen_at = time.monotonic()
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def listen(self) -> None:
        """Until all are done. Raises: WorkerFailed when no call is to blame; what `read_message` and `on_incident` raise."""
        followed = Followed(lambda: sum(worker.process.progress() for worker in self.workers))
        while self._selector.get_map():
            for key, _ in self._selector.select(CELL_LOOK_S):
                self._read(key.data)
            now = time.monotonic()
            followed.follow()
            for worker in self.workers:
                if not worker.done and not worker.killed and worker.hangs(now, self._hang_after_s):
                    worker.killed = f"it ran for more than {self._hang_after_s:g} s"
                    worker.process.kill()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._selector.close()

    def _read(self, worker: ReplayWorker) -> None:
        data = os.read(worker.stdout.fileno(), 1 << 16)
        *lines, worker.buffer = (worker.buffer + data).split(b"\n")
        for line in lines:
            self._read_message(worker, orjson.loads(line))
        if data:
            return
        self._selector.unregister(worker.stdout)
        code = worker.process.wait()
        if not worker.done:
            self._replace(worker, code)

    def _replace(self, worker: ReplayWorker, code: int) -> None:
        """A process that ended before its work did."""
        running = worker.running()
        is_killed = running is None and code < 0 and not worker.was_killed
        if not is_killed and (code == DEFECT_CODE or running is None or worker.incidents >= INCIDENTS_MAX):
            again = ", as the one before it" if worker.was_killed else ""
            output = "" if code < 0 else "; see its output above"
            raise WorkerFailed(f"{self._kind} ended: {describe_end(code)}{again}{output}", hint=hint_at_end(code))
        worker.done = True
        ended = f"the process ended: {describe_end(code)}"
        follower = self._on_incident(worker, None if running is None else Incident(*running, worker.killed or ended))
        follower.incidents = worker.incidents + (running is not None)
        follower.was_killed = worker.was_killed or is_killed
        self.add(follower)


class _RecoveryWorkers:
    """What the workers of a recovery do, and how one that was ended is followed by another."""

    def __init__(self, plan: Plan, target: Target, meter: RecoveryMeter, terms: Terms) -> None:
        self.done = PartitionsDone()
        self._plan, self._target, self._meter, self._terms = plan, target, meter, terms

    def start(self, partitions: Sequence[int]) -> ReplayWorker:
        """A worker for these partitions."""
        return _spawn(self._plan, partitions, self._target, self._terms, careful=False, fatal_calls={})

    def read_message(self, worker: ReplayWorker, message: dict[str, Any]) -> None:
        """One line of a worker. Raises: RemoteError."""
        done = self.done
        if "progress" in message:
            self._meter.count_calls(*message["progress"])
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

    def follow(self, worker: ReplayWorker, incident: Incident | None) -> ReplayWorker:
        """Starts a process that goes to the same end more carefully, or without the call. Raises: WorkerFailed."""
        fatal_calls = {p: dict(of) for p, of in worker.fatal_calls.items()}
        if incident is not None and worker.careful:
            partition, index = incident.partition, incident.index
            if incident.position == IN_BATCH:
                raise WorkerFailed(
                    f"a replay process failed in the batch of partition {partition} at index {index}: {incident.words}"
                )
            fatal_calls.setdefault(partition, {})[index] = (
                incident.position, "hang" if worker.killed else "death", incident.words
            )  # fmt: skip
        rest = remaining_plan(self._plan, self._target, worker.partitions)
        for part in rest.partitions:
            if part.partition in worker.partitions:
                self._meter.resume_partition(part.partition, part.calls)
        careful = worker.careful or incident is not None
        return _spawn(rest, worker.partitions, self._target, self._terms, careful=careful, fatal_calls=fatal_calls)


def _spawn(
    plan: Plan,
    partitions: Sequence[int],
    target: Target,
    terms: Terms,
    *,
    careful: bool,
    fatal_calls: Mapping[int, FatalCalls],
) -> ReplayWorker:
    order = {
        "plan": orjson.Fragment(plan.to_json()),
        "partitions": list(partitions),
        "target": target.directory,
        "quarantine": terms.quarantine,
        "careful": careful,
        "fatal_calls": {str(p): {str(index): found for index, found in of.items()} for p, of in fatal_calls.items()},
    }
    process, cell = start_process("replay.recover.worker", order, hash_seed=terms.hash_seed)
    return ReplayWorker(list(partitions), process, cell, careful, fatal_calls={p: dict(of) for p, of in fatal_calls.items()})


def start_process(module: str, order: Mapping[str, Any], *, hash_seed: str = PINNED) -> tuple[ChildProcess, mmap.mmap]:
    """A process of the module with its order, a line of JSON; and the memory in which it states what is about to run."""
    descriptor, cell = _make_cell()
    try:
        told = encode_order({**order, "cell": descriptor})
        return ChildProcess(module, hash_seed=hash_seed, pass_fds=(descriptor,), stdin=told, stdout=PIPE), cell
    finally:
        os.close(descriptor)


def _make_cell() -> tuple[int, mmap.mmap]:
    """Memory that is shared with a process which gets the descriptor."""
    descriptor = os.memfd_create("replay")
    os.truncate(descriptor, mmap.PAGESIZE)
    return descriptor, mmap.mmap(descriptor, mmap.PAGESIZE)
