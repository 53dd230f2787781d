"""Three nodes on loopback TCP through proxies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import NoticeKind
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.directory.instance import Identity
from tests.cluster.proxy import HOLD, PASS, Proxy
from tests.cluster.transport.netkit import ONE, THREE, TWO, NetNode, Recorder, make_node
from tests.waiting import eventually

NODES = (ONE, TWO, THREE)


class LoopbackWorld:
    """Each node calls each other one through a proxy of its own. `handlers`, `books` and `transports` are those that run now."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, dict[NodeId, NetNode]()
        self._lives = 0
        self.handlers: dict[NodeId, Recorder] = {}
        self.books: dict[NodeId, PeerBook] = {}
        self.transports: dict[NodeId, PeerNetwork] = {}
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
        """Whether the condition became true."""
        return eventually(condition)

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing goes that way any more."""
        self._proxies[sender, receiver].set_rules(there=HOLD)
        self._proxies[receiver, sender].set_rules(back=HOLD)

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.set_rules(there=PASS, back=PASS)

    def stop(self, node: NodeId) -> None:
        self._running.pop(node).network.stop()

    def start(self, node: NodeId, identity: Identity | None = None) -> None:
        """Starts a node again, as another process of the same directory, or of an emptied one."""
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


def linked(world: LoopbackWorld) -> bool:
    """Whether every node has connected with every other since it was started."""
    return all(world.handlers[node].has(NoticeKind.CONNECTED, other) for node in NODES for other in NODES if other != node)
