"""What a read waits for on the leader: a majority that says that no other node leads.

One rule: a read is placed only after that confirmation, so it sees every call that was answered before it was asked.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

from cmdlog.cluster.replication import Replication
from cmdlog.node.member.member_ground import NoLeader
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.raft import RaftError
from cmdlog.wal.ids import CLUSTER_GROUP


class LeaderReads:
    """Any thread."""

    def __init__(self, driver: Replication, machine: SequencedMachine) -> None:
        self._driver, self._machine = driver, machine

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Calls `done` when it is known whether this node led at this moment."""
        with self._driver.lock:
            context = self._machine.await_read(done)
            try:
                self._driver.ask(CLUSTER_GROUP, lambda core: core.read_index(context))
                return
            except (RaftError, KeyError):
                self._machine.forget_read(context)
        done(False)

    def wait_until_confirmed(self) -> None:
        """Returns when it is known that this node leads; blocking. Raises: NoLeader."""
        leads: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.confirm(leads.put)
        if not leads.get():
            raise NoLeader("another node may lead by now; the query is safe to repeat")
