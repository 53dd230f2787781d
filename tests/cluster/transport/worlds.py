"""Two worlds with the same face: three nodes on loopback TCP through proxies, and three on the simulated network.

One rule: a test of the contract knows only `World`. Time passes in `until`, whatever time is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_transport import Address, NetworkStatus, NoticeKind
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import Parcel
from cmdlog.wal.directory.instance import Identity
from tests.cluster.proxy import HOLD, PASS, Proxy
from tests.cluster.simulated_network import SimulatedNetwork
from tests.cluster.transport.netkit import ONE, THREE, TWO, NetNode, Recorder, identity_of, make_node, open_book
from tests.waiting import eventually

NODES = (ONE, TWO, THREE)


class PeerTransport(Protocol):
    """A network, as the driver sees it. Every method may be called from any thread, and none blocks."""

    def send(self, parcels: Iterable[Parcel]) -> None:
        """Queues messages for their receivers; what finds no room, or no connection, is dropped and counted."""
        ...

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """From now on these are the nodes to speak with, and no others."""
        ...

    def status(self) -> NetworkStatus:
        """What is shown to people."""
        ...


class World(Protocol):
    """Three nodes. `handlers`, `books` and `transports` are those of the processes that run now."""

    handlers: dict[NodeId, Recorder]
    books: dict[NodeId, PeerBook]
    transports: dict[NodeId, PeerTransport]

    def until(self, condition: Callable[[], object]) -> bool:
        """Lets time pass; whether the condition became true."""
        ...

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing goes that way any more."""
        ...

    def heal(self) -> None:
        """Everything goes again."""
        ...

    def start(self, node: NodeId, identity: Identity | None = None) -> None:
        """Starts a node again, as another process of the same directory, or of an emptied one."""
        ...

    def stop(self, node: NodeId) -> None:
        """Ends the node's process."""
        ...

    def close(self) -> None: ...


def linked(world: World) -> bool:
    """Whether every node has connected with every other since it was started."""
    return all(world.handlers[node].has(NoticeKind.CONNECTED, other) for node in NODES for other in NODES if other != node)


class LoopbackWorld:
    """Each node calls each other one through a proxy of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, dict[NodeId, NetNode]()
        self._lives = 0
        self.handlers: dict[NodeId, Recorder] = {}
        self.books: dict[NodeId, PeerBook] = {}
        self.transports: dict[NodeId, PeerTransport] = {}
        self._proxies: dict[tuple[NodeId, NodeId], Proxy] = {}
        for node in NODES:
            self._make(node, None)
        for caller in NODES:
            for called in NODES:
                if caller != called:
                    self._proxies[caller, called] = Proxy(self._running[called].address)
        for node in NODES:
            self._introduce(node)

    def _make(self, node: NodeId, identity: Identity | None) -> None:
        if identity is not None:
            self._lives += 1
        folder = self._folder / (f"life-{self._lives}" if identity else "life-0")
        made = make_node(folder, node, identity=identity)
        self._running[node] = made
        self.handlers[node], self.books[node], self.transports[node] = made.handler, made.book, made.network

    def _introduce(self, node: NodeId) -> None:
        self._running[node].network.set_peers(
            {called: proxy.address for (caller, called), proxy in self._proxies.items() if caller == node}
        )

    def until(self, condition: Callable[[], object]) -> bool:
        return eventually(condition)

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        self._proxies[sender, receiver].set_rules(there=HOLD)
        self._proxies[receiver, sender].set_rules(back=HOLD)

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.set_rules(there=PASS, back=PASS)

    def stop(self, node: NodeId) -> None:
        self._running.pop(node).network.stop()

    def start(self, node: NodeId, identity: Identity | None = None) -> None:
        self._make(node, identity)
        for (_, called), proxy in self._proxies.items():
            if called == node:
                proxy.target = self._running[node].address
        self._introduce(node)

    def close(self) -> None:
        for node in self._running.values():
            node.network.stop()
        for proxy in self._proxies.values():
            proxy.stop()


class SimulatedWorld:
    """Time is the network's."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._folder, self._lives = folder, 0
        self.network = SimulatedNetwork(seed)
        self.handlers: dict[NodeId, Recorder] = {}
        self.books: dict[NodeId, PeerBook] = {}
        self.transports: dict[NodeId, PeerTransport] = {}
        for node in NODES:
            self.start(node)

    def until(self, condition: Callable[[], object]) -> bool:
        return self.network.advance_until(condition)

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        self.network.cut(sender, receiver)

    def heal(self) -> None:
        self.network.heal()

    def stop(self, node: NodeId) -> None:
        self.network.detach(node)

    def start(self, node: NodeId, identity: Identity | None = None) -> None:
        if identity is not None:
            self._lives += 1
        folder = self._folder / (f"life-{self._lives}" if identity else "life-0") / f"node-{node}"
        self.handlers[node], self.books[node] = Recorder(), open_book(folder, identity or identity_of(node))
        transport = self.network.attach(self.books[node], self.handlers[node])
        transport.set_peers(dict.fromkeys(NODES, ("simulated", 0)))
        self.transports[node] = transport

    def close(self) -> None:
        return
