"""Where a call to a member goes: to its own sequencer while it leads, else to the node that leads; and calls that others send.

One rule: what another node has sent is placed here or refused. So no call goes round, whatever nodes believe about the leader.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from cmdlog.cluster.forwarding.call_channel import CallChannel
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallWindow
from cmdlog.cluster.transport.handshake import ClusterName, HelloCredentials
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.node.forwarding.call_sender import CallSender, WaitingCaller
from cmdlog.node.forwarding.forwarded_calls import ForwardedCalls, FoundCall, Placing
from cmdlog.node.outcome import CallRefused, Durability, NotLeading, NotReady, Reply
from cmdlog.node.placing.router import BoundCode, Placed
from cmdlog.node.sequencing.intake import Admission
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import Route, SlotMap
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Peer

PROCESS_BYTES: Final = 8
SYNC: Final[Durability] = "sync"


class MemberCalls:
    """Any thread."""

    def __init__(
        self,
        ground: MemberGround,
        roll: MemberRoll,
        settings: Settings,
        node: Placing,
        *,
        bound: BoundCode,
        slots: SlotMap,
        admission: Admission,
        name: ClusterName,
    ) -> None:
        self._admission, self._bound, self._roll = admission, bound, roll
        me = Peer(NodeId(ground.node), os.urandom(PROCESS_BYTES))
        self._sender = CallSender(slots, call_bytes_max=settings.call_bytes_max)
        share = len(roll.members)  # so that the links together leave room for callers of this node
        self._channel: CallChannel[WaitingCaller, FoundCall, Reply] = CallChannel(
            HelloCredentials(name, me, CALL_CHANNEL.secret(ground.secret)),
            self._address_of,
            self._sender,
            ForwardedCalls(node, lambda: bound.routes, slots.partition_by_slot),
            window=CallWindow(
                max(1, settings.inflight_calls_max // share), max(settings.call_bytes_max, settings.inflight_bytes_max // share)
            ),
            tls=ground.tls,
        )

    def _address_of(self, node: int) -> tuple[str, int]:
        """Raises: OSError: it cannot be called any more."""
        try:
            return self._roll.member(node).peer
        except KeyError:
            raise OSError(f"node {node} is no member any more") from None

    def start(self, network: PeerNetwork, loop: AbstractEventLoop | None) -> None:
        """Works in this loop; links that come in come by the peers' port. Before the network starts."""
        self._channel.start(loop)
        network.give_sockets(CALL_CHANNEL.preface, self._channel.take_socket)

    def stop(self) -> None:
        """Ends all links; callers that wait get an answer that says so."""
        self._channel.stop()

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self._channel.status())

    def elsewhere(self, bound: Iterable[Route] = ()) -> NotLeading | None:
        """Who takes calls, where this node does not, and knows.

        Raises: NotReady, when a call is bound to code that runs no more: its number would be another procedure's.
        """
        routes = self._bound.routes
        if any(routes.get(route.name) is not route for route in bound):
            raise NotReady("the code of the cluster has just changed; the call is safe to repeat")
        refusal = self._admission.refusal
        return refusal if isinstance(refusal, NotLeading) and refusal.node else None

    def send(self, where: NotLeading, calls: Sequence[Placed], *, txn: int | None = None) -> list[int | None]:
        """Sends calls to the node that leads; their partitions. Raises: CallRefused, when none of them is on its way."""
        return self._sender.send(where, calls, self._channel.send, txn=txn)


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
    # The logged ones first, since they are refused together.
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
