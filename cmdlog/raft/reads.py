"""Reads that a node has taken, and that have no answer yet.

One rule: plain data of one node in one role; `roles.reads` decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cmdlog.raft.configuration import NodeId
from cmdlog.wal.ids import Index


@dataclass(frozen=True, slots=True)
class Waiting:
    """Reads of one requester that a round from `round` on will answer with `index`."""

    round: int
    index: Index
    requester: NodeId
    contexts: tuple[int, ...]


class Reads:
    """Reads under way at one node in one role. Invariant: `waiting` ascends by round; no round in it is confirmed."""

    def __init__(self) -> None:
        self.round = 0  # the latest one begun
        self.commit_sent = Index(0)  # the commit mark that it carried
        self.waiting: deque[Waiting] = deque()
        self.parked: list[tuple[NodeId, tuple[int, ...]]] = []  # until an entry of the leader's term is committed
        self.count = 0  # reads waiting or parked
        self.asked: dict[
            int, tuple[int, int]
        ] = {}  # at a follower: number on the wire -> (context, tick at which it is given up)
        self.to_ask: list[int] = []

    def contexts(self, node: NodeId) -> list[int]:
        """The node's own reads that have no answer."""
        parked = [context for requester, contexts in self.parked if requester == node for context in contexts]
        waiting = [context for read in self.waiting if read.requester == node for context in read.contexts]
        return [*(context for context, _ in self.asked.values()), *parked, *waiting]
