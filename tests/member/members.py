"""Nodes of one cluster in one process: real logs, sites and sockets, and a clock that a test can hurry.

One rule: a leader keeps its place however busy the machine is. An election time-out is seconds long, and passes quickly only
while a test waits for an election (`Members.leader`, `Members.wait_hurried`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.cluster.transport import peer_network
from cmdlog.cluster.transport.peer_transport import Ticker
from cmdlog.member import member, member_ground
from cmdlog.member.leading.leadership import Standing
from cmdlog.member.member import Member
from cmdlog.member.member_ground import MEMBER_RAFT, MemberGround
from cmdlog.member.member_start import join, make_genesis
from cmdlog.member.rejoin import admission, copy_fetch
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NotReady, Reply, UnknownOutcome
from cmdlog.node.settings import Settings
from cmdlog.raft.wire.secure_frames import Secret
from procedures import Database
from procedures.code.bundle import capture_bundle
from tests.node.apps.faulty import db
from tests.node.rig import SMALL, Pending, send
from tests.waiting import wait_for

SECRET = Secret(b"the secret of the cluster in tests")
SETTINGS = Settings(**SMALL, partitions=2, sites=1)
T = TypeVar("T")
TICK_S: Final = 0.02
ASK_EVERY_S: Final = 0.05  # of a node that waits for its copy
HURRY_TICKS: Final = 3  # that pass at each look of who waits for an election, beside those of the time
STEADY_RAFT: Final = replace(MEMBER_RAFT, election_ticks=100)  # two seconds of silence and more, before a follower campaigns


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


class HurriedClock:
    """Monotonic time, and what was added to it."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead_s

    def hurry(self) -> None:
        """A few ticks pass at once. One thread."""
        self._ahead_s += HURRY_TICKS * TICK_S


class Members:
    """A cluster below a folder. Closes what it opened."""

    def __init__(self, folder: Path, *, count: int = 1, app: Database = db, **settings: Any) -> None:
        self.folder, self.app, self.settings = folder, app, replace(SETTINGS, **settings)
        self.clock = HurriedClock()
        self.cluster = a_cluster(count, app=app, settings=self.settings)
        self.nodes: dict[int, Node] = {}

    def join(self, node: int, *, attached: bool = True, **changed: Any) -> Node:
        """Opens a node; `changed`: its cluster, app, raft settings, or where it listens for peers."""
        cluster, raft = changed.get("cluster", self.cluster), changed.get("raft", STEADY_RAFT)
        ground = MemberGround(cluster, node, SECRET, raft=raft, listen=changed.get("listen"))
        opened = join(str(self.folder / f"n{node}"), changed.get("app", self.app), self.settings, ground)
        self.nodes[node] = opened
        if attached:
            opened.attach(None)
        return opened

    def join_all(self) -> Node:
        """Opens every node; the one that leads then."""
        for node in self.cluster.nodes:
            self.join(node)
        return self.leader()

    def leader(self, *, other_than: int = 0) -> Node:
        """The node that takes calls, once there is one."""
        (found,) = self.wait_hurried(
            lambda: [node for number, node in list(self.nodes.items()) if number != other_than and leads(node)][:1]
        )
        return found

    def wait_hurried(self, condition: Callable[[], T]) -> T:
        """What the condition found; until then time passes quickly for consensus, so that who is not heard is soon given up."""

        def look() -> T:
            if not (found := condition()):
                self.clock.hurry()
            return found

        return wait_for(look, why=self.told)

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    def close(self, node: int) -> None:
        self.nodes.pop(node).close()

    def close_all(self) -> None:
        """Closes every node. None offers its leadership: it would wait for seconds for those that have just been closed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member, "HAND_OVER_S", 0.0)
            for node in list(self.nodes):
                self.close(node)

    def told(self) -> str:
        return "\n".join(str(status_of(node)) for node in self.nodes.values())


def member_of(node: Node) -> Member:
    """What replicates its log."""
    assert isinstance(node.replicator, Member)
    return node.replicator


def status_of(node: Node) -> dict[str, Any]:
    """Its view of the cluster."""
    return member_of(node).cluster.status()


def leads(node: Node) -> bool:
    """Whether it takes calls."""
    return status_of(node)["standing"] == Standing.LEADING.value


def number_of(node: Node) -> int:
    """Its number in the cluster file."""
    return int(status_of(node)["node"])


def ask_retried(pick: Callable[[], Node], name: str, /, *, key: str, **params: Any) -> Any:
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
    """A cluster with a clock of its own; `made_of`: its app and settings."""
    made = Members(folder, count=count, **made_of)
    monkeypatch.setattr(member_ground, "TICK_S", TICK_S)
    monkeypatch.setattr(peer_network, "Ticker", partial(Ticker, now=made.clock.now))
    for asking in (admission, copy_fetch):
        monkeypatch.setattr(asking, "ASK_SOON_S", ASK_EVERY_S)
    monkeypatch.setattr(admission, "ASK_EVERY_S", ASK_EVERY_S)
    try:
        yield made
    finally:
        made.close_all()
