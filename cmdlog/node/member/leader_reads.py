"""What a read waits for on the leader: a majority that says that no other node leads.

One rule: a read is placed only after that confirmation, so it sees every call that was answered before it was asked.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from cmdlog.cluster.replication import Replication
from cmdlog.node.member.member_ground import NoLeader
from cmdlog.node.member.read_rounds import ReadRounds
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import CallRefused, Done, Durability
from cmdlog.node.placing.router import Encoded, Placed

if TYPE_CHECKING:
    from cmdlog.node.node import Node

SYNC: Final[Durability] = "sync"


class LeaderReads:
    """Any thread."""

    def __init__(self, driver: Replication, machine: SequencedMachine, *, reads_max: int) -> None:
        self.rounds = ReadRounds(driver, machine, reads_max=reads_max)

    def place_confirmed(self, place: Callable[[], object], done: Done) -> None:
        """Places a read when it is known that this node leads; else `done` gets the refusal. Raises: Overloaded."""

        def confirmed(leads: bool) -> None:
            try:
                if not leads:
                    raise NoLeader("another node may lead by now; the read is safe to repeat")
                place()
            except CallRefused as refusal:
                done(refusal)

        self.rounds.add(confirmed)

    def wait_until_confirmed(self) -> None:
        """Returns when it is known that this node leads; blocking. Raises: NoLeader, Overloaded."""
        answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.rounds.add(answered.put)
        if not answered.get():
            raise NoLeader("another node may lead by now; the query is safe to repeat")


def place_apart(
    calls: Sequence[Placed],
    place_read: Callable[..., int | None],
    place_logged: Callable[[Sequence[Placed]], list[int | None]],
) -> list[int | None]:
    """Places the logged ones of these calls together, then the reads one by one, as `Node.call_many` and `Node.call` do;
    partitions in the order of the calls, None of a read that is refused.

    The logged ones promise to be durable, whatever they say: one that does not would be run before a majority has it. A refusal
    of them is raised before a read is placed; that of a read is given to its `done`.
    """
    logged = [(route, params, key, done, SYNC) for route, params, key, done, _ in calls if not route.read_only]
    partitions = iter(place_logged(logged) if logged else ())

    def place(call: Placed) -> int | None:
        route, params, key, done, _ = call
        if not route.read_only:
            return next(partitions)
        try:
            return place_read(route, params, key=key, done=done)
        except CallRefused as refusal:
            done(refusal)
            return None

    return [place(call) for call in calls]


def call_decoded(self: Node, calls: Sequence[Encoded]) -> None:
    """`Node.call_encoded` of a member: calls that it may have to send on are bound once more. Raises: CallRefused, for all."""
    self.call_many([(route, orjson.loads(body), key, done, durability) for route, _, body, key, done, durability in calls])
