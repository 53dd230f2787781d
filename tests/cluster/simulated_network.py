"""A network in memory, with its own time: what the driver of the Raft groups runs over when a test plays years in seconds.

One rule: everything that happens follows from the seed. Nothing moves but in `advance`; all calls of handlers come from there.

It satisfies `PeerTransport`, and as TCP does, it delivers in order, once, between nodes that have pinned each other. Loss,
duplicates and reordering go beyond that: consensus has to bear them, so a simulation may ask for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sortedcontainers import SortedList

from cmdlog.cluster.transport.peer_book import PeerBook, PeerRefused
from cmdlog.cluster.transport.peer_transport import Address, NetworkStatus, NoticeKind, PeerHandler, PeerNotice
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.layout import NO_GROUP, Addressed


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How messages travel. Shares are of 1."""

    delay_s: tuple[float, float] = (0.0005, 0.002)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: bool = False


class SimulatedNetwork:
    """All nodes and what is under way between them. One thread."""

    def __init__(self, seed: int, *, tick_s: float = 0.1, weather: Weather | None = None) -> None:
        self.tick_s, self.weather, self.now_s = tick_s, weather or Weather(), 0.0
        self.lost = 0  # frames
        self._rng = random.Random(seed)
        self._nodes: dict[NodeId, SimulatedTransport] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()  # (from, to)
        self._linked: set[frozenset[NodeId]] = set()
        self._events: SortedList[tuple[float, int, Callable[[], None]]] = SortedList(key=lambda event: event[:2])
        self._numbers = 0
        self._arrives_s: dict[tuple[NodeId, NodeId], float] = {}  # the last frame of each direction

    def attach(self, book: PeerBook, handler: PeerHandler) -> SimulatedTransport:
        """A node starts; its peers come with `set_peers`. An earlier transport of it is over."""
        node = book.me.node
        self.detach(node)
        transport = SimulatedTransport(self, book, handler)
        self._nodes[node] = transport
        self._at(self.now_s + self._rng.random() * self.tick_s, lambda: self._tick(transport))
        return transport

    def detach(self, node: NodeId) -> None:
        """A node stops, in whatever it does."""
        if self._nodes.pop(node, None) is not None:
            for pair in sorted(filter(lambda pair: node in pair, self._linked), key=sorted):
                self._unlink(pair)

    def pause(self, node: NodeId, seconds: float) -> None:
        """A node neither ticks nor hears for so long; then it has its missed ticks first, and what waited."""
        self._nodes[node].paused_until_s = self.now_s + seconds

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing goes that way."""
        self._cuts.add((sender, receiver))

    def partition(self, *sides: Iterable[NodeId]) -> None:
        """Nothing goes between nodes of different sides."""
        parts = [set(side) for side in sides]
        self._cuts |= {(a, b) for part in parts for other in parts if part is not other for a in part for b in other}

    def heal(self) -> None:
        """Everything goes again."""
        self._cuts.clear()

    def advance(self, seconds: float) -> None:
        """Lets so much time pass."""
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = self._events.pop(0)
            event()
        self.now_s = until_s

    def advance_until(self, condition: Callable[[], object], limit_s: float = 600.0) -> bool:
        """Lets time pass until the condition is true; whether it became so."""
        until_s = self.now_s + limit_s
        while not condition():
            if self.now_s > until_s or not self._events:
                return False
            self.advance(max(0.0, self._events[0][0] - self.now_s))
        return True

    # -- what transports ask ---------------------------------------------------------------------------------------------

    def carry(self, sender: NodeId, parcel: Parcel) -> None:
        """Takes a frame under way, or loses it."""
        receiver, weather = parcel.receiver, self.weather
        frame: list[Addressed] = [*((NO_GROUP, bundle) for bundle in parcel.bundles), *parcel.messages]
        if frozenset((sender, receiver)) not in self._linked or self._rng.random() < weather.loss:
            self.lost += 1
            return
        source = self._nodes[sender]
        for _ in range(1 + (self._rng.random() < weather.duplication)):
            at_s = self.now_s + self._rng.uniform(*weather.delay_s)
            if not weather.reordering:
                at_s = max(at_s, self._arrives_s.get((sender, receiver), 0.0))
                self._arrives_s[sender, receiver] = at_s
            self._at(at_s, lambda: self._deliver(source, receiver, frame))

    def _deliver(self, source: SimulatedTransport, receiver: NodeId, frame: list[Addressed]) -> None:
        target = self._nodes.get(receiver)
        sender = source.node
        gone = target is None or self._nodes.get(sender) is not source
        if target is None or gone or (sender, receiver) in self._cuts or frozenset((sender, receiver)) not in self._linked:
            self.lost += 1
        elif target.paused_until_s > self.now_s:
            self._at(target.paused_until_s, lambda: self._deliver(source, receiver, frame))
        else:
            target.give_due()
            target.handler.on_messages(sender, frame)

    def _tick(self, transport: SimulatedTransport) -> None:
        if self._nodes.get(transport.node) is not transport:
            return
        if transport.paused_until_s <= self.now_s:
            transport.give_due()
            self._call_others(transport)
        self._at(max(transport.paused_until_s, self.now_s + self.tick_s), lambda: self._tick(transport))

    def _call_others(self, transport: SimulatedTransport) -> None:
        """Pins, confirmations and refusals as over TCP: nodes that are no peers of each other never hear of each other."""
        for node in transport.peers:
            other, pair = self._nodes.get(node), frozenset((transport.node, node))
            if (
                other is None
                or pair in self._linked
                or not {(transport.node, node), (node, transport.node)}.isdisjoint(self._cuts)
            ):
                continue
            if transport.node not in other.peers or other.paused_until_s > self.now_s:
                continue
            ends = ((transport, other), (other, transport))
            try:
                for one, another in ends:
                    one.book.check(another.book.me, another.book.start)
                fresh = [(one, one.book.acquaint(another.book.me, another.book.start), another) for one, another in ends]
            except PeerRefused as error:
                transport.handler.on_notice(PeerNotice(NoticeKind.REFUSED_BY_PEER, node, error.kind))
                continue
            self._linked.add(pair)
            for one, is_new, another in fresh:
                if is_new:
                    one.handler.on_notice(PeerNotice(NoticeKind.CONFIRMED, another.node, another.book.me.incarnation.hex()))
                one.handler.on_notice(PeerNotice(NoticeKind.CONNECTED, another.node))

    def drop_peer(self, node: NodeId, other: NodeId) -> None:
        """They are no peers any more."""
        if (pair := frozenset((node, other))) in self._linked:
            self._unlink(pair)

    def _unlink(self, pair: frozenset[NodeId]) -> None:
        self._linked.discard(pair)
        for node in sorted(pair):
            if (transport := self._nodes.get(node)) is not None:
                (other,) = pair - {node}
                transport.handler.on_notice(PeerNotice(NoticeKind.DISCONNECTED, other))

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        self._numbers += 1
        self._events.add((at_s, self._numbers, event))


class SimulatedTransport:
    """One node's end; a `PeerTransport`."""

    def __init__(self, network: SimulatedNetwork, book: PeerBook, handler: PeerHandler) -> None:
        self._network, self.book, self.handler = network, book, handler
        self.node = book.me.node
        self.peers: tuple[NodeId, ...] = ()
        self.paused_until_s = 0.0
        self._origin_s, self._given = network.now_s, 0

    def send(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            if parcel.receiver in self.peers:
                self._network.carry(self.node, parcel)

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        before, self.peers = self.peers, tuple(sorted(node for node in peers if node != self.node))
        for node in before:
            if node not in self.peers:
                self._network.drop_peer(self.node, node)

    def status(self) -> NetworkStatus:
        return NetworkStatus(listens_on=f"simulated:{self.node}")

    def give_due(self) -> None:
        """Ticks that have come due, as one number."""
        due = int((self._network.now_s - self._origin_s) / self._network.tick_s) - self._given
        if due > 0:
            self._given += due
            self.handler.on_tick(due)
