"""Stale reads on a replica: `consistency=stale` of a node that is one of several.

One rule: a replica answers from its own state, with or without a majority, unless that state is known to be wrong (it diverged),
or lacks a transaction that the caller has seen. In that case it asks how far the partition's leader has committed, runs all up to
there, and then reads: a caller's own calls on other partitions may be newer than anything that this partition has, so its
position alone does not prove that nothing is missing. The wait has a bound; what is refused is safe to repeat.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVar

from cmdlog.cluster.replication import Replication
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import CallOutcome, CallRefused, Done, NotLeading, NotReady, Reply
from cmdlog.node.placing.local_calls import StaleReads
from cmdlog.node.queries.query import RunQuery
from cmdlog.node.slot_map import Route
from cmdlog.procedure_calls import QueryParameters
from cmdlog.raft import RaftError
from replay.state.trust import read_position, state_path

CATCH_UP_TICKS: Final = 20  # about the longest election time-out: the answer of a leader, and running what it has committed

T = TypeVar("T")


class _Wait:
    """Somebody waits until these partitions have been run far enough."""

    __slots__ = ("_ticks", "done", "needs", "unknown")

    def __init__(self, partitions: Iterable[int], done: Callable[[bool], None]) -> None:
        self.unknown = set(partitions)  # how far is not known yet
        self.needs: dict[int, int] = {}  # partition -> index
        self.done = done
        self._ticks = 0  # that have passed since

    def pass_time(self, ticks: int) -> bool:
        """Whether it has waited for too long now."""
        self._ticks += ticks
        return self._ticks > CATCH_UP_TICKS


class ReplicaProgress:
    """How far each partition is run here, and who waits for more. Any thread; `done` is called under no lock of this class."""

    def __init__(self, driver: Replication, machine: SequencedMachine, run_up_to: Callable[[], Mapping[int, int]]) -> None:
        """`run_up_to`: the last index that each partition's site has answered."""
        self._driver, self._machine, self.run_up_to = driver, machine, run_up_to
        self._lock = threading.Lock()  # taken after the driver's
        self._run: dict[int, int] = {}
        self._waits: list[_Wait] = []

    def catch_up(self, partitions: Iterable[int], done: Callable[[bool], None]) -> None:
        """Calls `done` when all that is committed at this moment is run on these partitions; False when that cannot be had."""
        wait = _Wait(partitions, done)
        with self._lock:
            self._waits.append(wait)
        for partition in sorted(wait.unknown):
            self._ask(wait, partition)

    def executed(self, partition: int, index: int) -> None:
        """A site has run the entry."""
        with self._lock:
            self._run[partition] = index
            waits = bool(self._waits)
        if waits:
            self._end_reached()

    def tick(self, ticks: int) -> None:
        """So much time has passed."""
        with self._lock:
            late = [wait for wait in self._waits if wait.pass_time(ticks)]
        for wait in late:
            self._end(wait, reached=False)

    def lose_all(self) -> None:
        """Nothing is run any more."""
        with self._lock:
            waits = list(self._waits)
        for wait in waits:
            self._end(wait, reached=False)

    def _ask(self, wait: _Wait, partition: int) -> None:
        with self._driver.lock:
            if self._driver.failure is None:
                context = self._machine.await_read(partial(self._learn, wait, partition))
                try:
                    self._driver.ask(partition, lambda core: core.read_index(context))
                    return
                except (RaftError, KeyError):
                    self._machine.forget_read(context)
        self._end(wait, reached=False)

    def _learn(self, wait: _Wait, partition: int, index: int | None) -> None:
        """The partition's leader had committed so far."""
        if index is None:
            self._end(wait, reached=False)
            return
        run = self.run_up_to()
        with self._lock:
            wait.unknown.discard(partition)
            wait.needs[partition] = index
            for known, upto in run.items():
                self._run[known] = max(self._run.get(known, 0), upto)
        self._end_reached()

    def _end_reached(self) -> None:
        with self._lock:
            run = self._run
            reached = [
                wait
                for wait in self._waits
                if not wait.unknown and all(run.get(partition, 0) >= index for partition, index in wait.needs.items())
            ]
        for wait in reached:
            self._end(wait, reached=True)

    def _end(self, wait: _Wait, *, reached: bool) -> None:
        with self._lock:
            if wait not in self._waits:
                return
            self._waits.remove(wait)
        wait.done(reached)


class ReplicaReads(StaleReads):
    """Any thread. `alone` is what a node without others would do."""

    def __init__(
        self,
        alone: StaleReads,
        progress: ReplicaProgress,
        lock: AbstractContextManager[Any],
        *,
        diverged: Callable[[], Mapping[int, int]],
        current: Callable[[Route], bool],
        leader: Callable[[], str],
    ) -> None:
        """`lock` is the driver's. `diverged`: the partitions whose state is wrong; `current`: whether the procedure is of the
        code that the sites have; `leader`: its URL for clients, "" when there is none."""
        super().__init__(alone.directory, alone.settings, alone.router, alone.check_ready)
        self._progress, self._lock = progress, lock
        self._diverged, self._is_current, self._leader = diverged, current, leader

    def call(self, route: Route, params: list[Any], *, done: Done, txn: int | None = None) -> int | None:
        """As of a node alone; a call that has to catch up is answered later, or refused."""
        place = partial(self._place, route, params)
        partition = None if route.everywhere else self.router.slots.partition_of(route.procedure, params)
        self._check_right(partitions := self._partitions(partition))

        def check_seen(reply: Reply) -> None:
            if txn is None or not isinstance(reply, CallOutcome) or not reply.as_of or min(reply.as_of.values()) >= txn:
                done(reply)
            else:
                self._progress.catch_up(partitions, read_again)

        def read_again(reached: bool) -> None:
            try:
                if not reached:
                    raise self._behind(txn)
                place(done=done)
            except CallRefused as refusal:
                done(refusal)

        return place(done=check_seen)

    def _place(self, route: Route, params: list[Any], *, done: Done) -> int | None:
        """A site knows procedures by their number in the newest code, which it gets under the lock. Raises: CallRefused."""
        with self._lock:
            if not self._is_current(route):
                raise NotReady("the code of the cluster is changing at this moment; repeat the read")
            return super().call(route, params, done=done)

    def query(self, run: RunQuery[T], sql: str, params: QueryParameters, partition: int | None, *, txn: int | None = None) -> T:
        """As of a node alone; it waits where it has to catch up. Raises: NotLeading, when that takes too long."""
        self._check_right(partitions := self._partitions(partition))
        if txn is not None and not all(self._has(p, txn) for p in partitions):
            answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
            self._progress.catch_up(partitions, answered.put)
            if not answered.get():
                raise self._behind(txn)
        return super().query(run, sql, params, partition)

    def _partitions(self, partition: int | None) -> Sequence[int]:
        return range(self.settings.partitions) if partition is None else (partition,)

    def _has(self, partition: int, txn: int) -> bool:
        """Whether its state proves by itself that nothing up to the transaction is missing."""
        position = read_position(state_path(self.directory, partition), partition)
        return not isinstance(position, str) and position.txn_id >= txn

    def _check_right(self, partitions: Iterable[int]) -> None:
        diverged = self._diverged()
        if wrong := [partition for partition in partitions if partition in diverged]:
            raise NotReady(f"partition {wrong[0]} of this replica differs from the leader's since batch {diverged[wrong[0]]}")

    def _behind(self, txn: int | None) -> NotLeading:
        return NotLeading(
            f"this replica is not known to hold transaction {txn}; repeat the read, or ask the leader", self._leader()
        )
