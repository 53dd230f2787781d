"""Nodes of one cluster in one process: real logs, sites and sockets, and a clock that ticks fast."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.node.member import member_node
from cmdlog.node.member.leadership import Standing
from cmdlog.node.member.member_ground import MEMBER_RAFT, MemberGround
from cmdlog.node.member.member_node import MemberNode
from cmdlog.node.member.member_start import make_genesis
from cmdlog.node.outcome import CallOutcome, NotReady, Reply, UnknownOutcome
from cmdlog.node.settings import Settings
from cmdlog.raft.wire.secure_frames import Secret
from procedures import Database
from procedures.bundle import capture_bundle
from tests.node.apps.faulty import db
from tests.node.rig import SMALL, Pending, send
from tests.waiting import wait_for

SECRET = Secret(b"the secret of the cluster in tests")
SETTINGS = Settings(**SMALL, partitions=2, sites=1)
TICK_S = 0.02


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Addresses that nobody listens on at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [("127.0.0.1", sock.getsockname()[1]) for sock in sockets]


def a_cluster(nodes: int = 1, *, app: Database = db, settings: Settings = SETTINGS) -> ClusterFile:
    """The file of a new cluster, as `cmdlog cluster init` makes it."""
    numbers = tuple(range(1, nodes + 1))
    genesis = make_genesis(app, capture_bundle(app, None), settings, numbers)
    members = tuple(
        MemberAddress(node, address, f"http://node{node}") for node, address in zip(numbers, free_addresses(nodes), strict=True)
    )
    return ClusterFile(os.urandom(16), app.name, members, genesis.shape, genesis.digest())


class Members:
    """A cluster below a folder. Closes what it opened."""

    def __init__(self, folder: Path, *, count: int = 1, app: Database = db, **settings: Any) -> None:
        self.folder, self.app, self.settings = folder, app, replace(SETTINGS, **settings)
        self.cluster = a_cluster(count, app=app, settings=self.settings)
        self.nodes: dict[int, MemberNode] = {}

    def join(self, node: int, *, attached: bool = True, **changed: Any) -> MemberNode:
        """Opens a node; `changed`: its cluster, app, raft settings, or where it listens for peers."""
        cluster, raft = changed.get("cluster", self.cluster), changed.get("raft", MEMBER_RAFT)
        ground = MemberGround(cluster, node, SECRET, raft=raft, listen=changed.get("listen"))
        opened = MemberNode.join(str(self.folder / f"n{node}"), changed.get("app", self.app), self.settings, ground)
        self.nodes[node] = opened
        if attached:
            opened.attach(None)
        return opened

    def join_all(self) -> MemberNode:
        """Opens every node; the one that leads then."""
        for node in self.cluster.nodes:
            self.join(node)
        return self.leader()

    def leader(self, *, other_than: int = 0) -> MemberNode:
        """The node that takes calls, once there is one."""
        (found,) = wait_for(
            lambda: [node for number, node in self.nodes.items() if number != other_than and leads(node)][:1], why=self.told
        )
        return found

    def followers(self) -> list[MemberNode]:
        leader = self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    def close(self, node: int) -> None:
        self.nodes.pop(node).close()

    def close_all(self) -> None:
        for node in list(self.nodes):
            self.close(node)

    def told(self) -> str:
        return "\n".join(str(node.cluster_status()) for node in self.nodes.values())


def leads(node: MemberNode) -> bool:
    """Whether it takes calls."""
    return node.cluster_status()["standing"] == Standing.LEADING.value


def number_of(node: MemberNode) -> int:
    """Its number in the cluster file."""
    return int(node.cluster_status()["node"])


def ask_retried(pick: Callable[[], MemberNode], name: str, /, *, key: str, **params: Any) -> Any:
    """The result of a call under its key, at whichever node leads; it is repeated while its outcome is unknown."""
    pending: list[Reply] = []

    def attempt() -> bool:
        with contextlib.suppress(NotReady):
            pending[:] = [send(pick(), name, key=key, **params).wait()]
        return bool(pending) and not isinstance(pending[0], NotReady | UnknownOutcome)

    wait_for(attempt)
    done = Pending()
    done.done(pending[0])
    assert isinstance(pending[0], CallOutcome)
    return done.value()


@contextlib.contextmanager
def members(folder: Path, monkeypatch: pytest.MonkeyPatch, *, count: int = 1, **made_of: Any) -> Iterator[Members]:
    """A cluster whose clock ticks fast; `made_of`: its app and settings."""
    monkeypatch.setattr(member_node, "TICK_S", TICK_S)
    made = Members(folder, count=count, **made_of)
    try:
        yield made
    finally:
        made.close_all()
