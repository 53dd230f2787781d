"""What a read waits for on the leader: a majority that says that no other node leads. Reads share such rounds, one at a time.

One rule: a read is placed only after a round that began after the read came, so it sees every call that was answered before.
While a round is on its way, what comes waits for the next one (etcd does the same): however fast reads come, there is one
question to consensus, and one message to each peer and back, in a round trip.

A round ends when consensus answers it, when it is older than `ROUND_TICKS`, or with the node. Its reads are answered then, each
once; what is refused is safe to repeat.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from cmdlog.cluster.replication import Replication
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import CallRefused, Done, NoLeader, Overloaded
from cmdlog.raft import ProposalRefused, RaftCore, RaftError, Refusal
from cmdlog.wal.ids import CLUSTER_GROUP

ROUND_TICKS: Final = 40  # two of the longest election time-outs: a leader without a majority has stepped down long before

Answered = Callable[[bool], None]
"""Gets whether this node led when the read came; if that is not known the read is safe to repeat."""


class _Round:
    """Reads that one question to consensus answers."""

    __slots__ = ("_ticks", "context", "reads")

    def __init__(self) -> None:
        self.reads: list[Answered] = []
        self.context = 0  # of the question
        self._ticks = 0  # that have passed since the first read came

    def ask_under(self, context: int) -> None:
        """The question's answer will have this context."""
        self.context = context

    def pass_time(self, ticks: int) -> bool:
        """Whether its reads have waited for too long now."""
        if self.reads:
            self._ticks += ticks
        return self._ticks > ROUND_TICKS

    def answer(self, *, leads: bool) -> None:
        for read in self.reads:
            read(leads)


class ReadRounds:
    """Any thread; the driver's lock may be held by none but who calls `lose_all`."""

    def __init__(self, driver: Replication, machine: SequencedMachine, *, reads_max: int) -> None:
        self._driver, self._machine, self._reads_max = driver, machine, reads_max
        self._lock = threading.Lock()  # taken after the driver's
        self._next = _Round()  # not begun
        self._under_way: _Round | None = None
        self.begun = 0  # since the start

    def add(self, read: Answered) -> None:
        """The read waits for the next round, which begins at once if none is under way. Raises: Overloaded."""
        with self._lock:
            if len(self._next.reads) >= self._reads_max:
                raise Overloaded(f"{self._reads_max} reads wait to be confirmed, limit inflight_calls_max={self._reads_max}")
            self._next.reads.append(read)
            waits = self._under_way is not None
        if not waits:
            self.begin_waiting()

    def place_confirmed(self, place: Callable[[], object], done: Done) -> None:
        """Places a read when it is known that this node leads; else `done` gets the refusal. Raises: Overloaded."""

        def confirmed(leads: bool) -> None:
            try:
                if not leads:
                    raise NoLeader("another node may lead by now; the read is safe to repeat")
                place()
            except CallRefused as refusal:
                done(refusal)

        self.add(confirmed)

    def wait_until_confirmed(self) -> None:
        """Returns when it is known that this node leads; blocking. Raises: NoLeader, Overloaded."""
        answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.add(answered.put)
        if not answered.get():
            raise NoLeader("another node may lead by now; the query is safe to repeat")

    def begin_waiting(self) -> None:
        """Begins a round for the reads that wait, unless one is under way; called when one may have ended."""
        while self._next.reads and (begun := self._take_next()) is not None:
            self._ask(begun)

    def tick(self, ticks: int) -> None:
        """So much time has passed: refuses what has waited for too long."""
        expired: list[_Round] = []
        with self._lock:
            if self._under_way is not None and self._under_way.pass_time(ticks):
                expired.append(self._under_way)
                self._under_way = None
            if self._next.pass_time(ticks):
                expired.append(self._next)
                self._next = _Round()
        for late in expired:
            self._machine.forget_read(late.context)
            late.answer(leads=False)
        self.begin_waiting()

    def lose_all(self) -> None:
        """Nothing is answered any more: refuses all reads."""
        with self._lock:
            lost = [round_ for round_ in (self._under_way, self._next) if round_ is not None]
            self._under_way, self._next = None, _Round()
        for round_ in lost:
            round_.answer(leads=False)

    def _take_next(self) -> _Round | None:
        with self._lock:
            if self._under_way is not None or not self._next.reads:
                return None
            self._under_way, self._next = self._next, _Round()
            self.begun += 1
            return self._under_way

    def _ask(self, begun: _Round) -> None:
        """Asks consensus after the last of its reads has come."""
        with self._driver.lock:
            if self._driver.failure is None:
                begun.ask_under(self._machine.await_read(lambda index: self._end(begun, leads=index is not None)))
                try:
                    self._driver.ask(CLUSTER_GROUP, partial(_ask_as_leader, context=begun.context))
                    return
                except (RaftError, KeyError):
                    self._machine.forget_read(begun.context)
        self._end(begun, leads=False)

    def _end(self, ended: _Round, *, leads: bool) -> None:
        """What waits for the next round stays: who is called by the driver must not ask it, see `begin_waiting`."""
        with self._lock:
            if self._under_way is not ended:
                return  # its reads were refused before
            self._under_way = None
        ended.answer(leads=leads)


def _ask_as_leader(core: RaftCore, context: int) -> None:
    """A follower would pass the question on, and hear what its leader has committed: nothing about its own state."""
    if core.leader != core.id:
        raise ProposalRefused(Refusal.NOT_LEADER)
    core.read_index(context)
