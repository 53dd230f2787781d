"""Which nodes should not lead, and why: what this node knows of itself, and what its peers have said.

One rule: hints, for liveness alone. Under any leader nothing that was acknowledged is lost; but a node that cannot run calls
should not take them while another one can.

The reasons have an order, and leadership goes from a node to one with lesser reasons alone. So it never comes back for the same
reasons, and stays where it is when no node is better.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.layout import NO_GROUP

REPEAT_TICKS: Final = 5  # until the reasons are said again: messages may be lost
FORGET_TICKS: Final = 20  # without a word, until a peer is taken for fit again


class Unfitness(enum.IntFlag):
    """Why a node should not lead; a later one weighs more than all before it. Numbers of the wire, for ever."""

    LOG_FULL = 1  # its log, or its volume, has no room for calls
    STUCK = 2  # a site cannot run, or its take-over did not come to an end
    DIVERGED = 4  # a partition's state is another one than a majority's, or than its leader's
    STOPPING = 8  # it ends in order

    @property
    def names(self) -> list[str]:
        """For people."""
        return [str(reason.name).lower() for reason in Unfitness if reason in self]


FIT: Final = Unfitness(0)


class LeaderFitness:
    """Under the driver's lock."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.own = FIT
        self._news = False
        self._ticks = 0
        self._said: dict[NodeId, tuple[int, Unfitness]] = {}  # peer -> tick, reasons

    def set_own(self, reasons: Unfitness) -> bool:
        """What holds for this node from now on; whether that is new."""
        new = reasons != self.own
        self.own = reasons
        self._news = self._news or new
        return new

    def take_fitness(self, message: Fitness) -> None:
        """What a peer says of itself. Reasons of a newer version count, too."""
        self._said[message.sender] = self._ticks, Unfitness(message.reasons)

    def meet_peer(self, node: NodeId) -> None:
        """A connection to the peer begins: what it said before was of an earlier life, maybe; it hears what this node says."""
        self._said.pop(node, None)
        self._news = self._news or self.own != FIT

    def of_peer(self, node: NodeId) -> Unfitness:
        """What holds for a peer, as far as it has said."""
        at, reasons = self._said.get(node, (self._ticks, FIT))
        return reasons if self._ticks - at < FORGET_TICKS else FIT

    def find_successor(self, able: Sequence[NodeId]) -> NodeId | None:
        """The first of the fittest, among those that are fitter than this node."""
        fitter = [node for node in able if self.of_peer(node) < self.own]
        return min(fitter, key=self.of_peer, default=None)

    def due_parcels(self, peers: Iterable[NodeId]) -> list[Parcel]:
        """A tick has passed: what the peers are to know."""
        self._ticks += 1
        if not self._news and (not self.own or self._ticks % REPEAT_TICKS):
            return []
        self._news = False
        return [Parcel(peer, [(NO_GROUP, Fitness(self.node, peer, NO_TERM, int(self.own)))]) for peer in peers]
