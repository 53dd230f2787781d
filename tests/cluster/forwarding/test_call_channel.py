"""Channels over TCP: links are made when they are wanted, end in a word to everyone who waits, and come back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.forwarding.call_channel import CallChannel
from cmdlog.cluster.forwarding.call_link import LinkOver, WindowFull
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallWindow
from cmdlog.cluster.transport.peer_network import Endpoint
from cmdlog.cluster.transport.peer_transport import Address, PeerTls, TransportSettings, make_peer_tls
from cmdlog.raft.configuration import NodeId
from tests.cluster.forwarding.callkit import ROOM, Answers, Placer, calls, credentials
from tests.cluster.proxy import HOLD, Proxy
from tests.cluster.transport.netkit import QUICK, joined, make_node, running
from tests.cluster.transport.test_peer_transport import is_hung_up_on, tls_files
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow  # sockets

Channel = CallChannel[str, str, Any]


class Node:
    """One channel with a port of its own."""

    def __init__(
        self, number: int, addresses: dict[int, Address], *, window: CallWindow = ROOM, tls: PeerTls | None = None,
        settings: TransportSettings = QUICK, placer: Placer | None = None,
    ) -> None:  # fmt: skip
        self.number, self.answers, self.placer = number, Answers(), placer or Placer()
        self.channel: Channel = CallChannel(
            credentials(number),
            lambda node: addresses[node],
            self.answers,
            self.placer,
            window=window,
            tls=tls,
            settings=settings,
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        addresses[number] = self.listener.getsockname()[:2]
        self.address = addresses[number]
        self.channel.start()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        """As the peers' port does."""
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                assert sock.recv(1) in {CALL_CHANNEL.preface, b""}
                sock.setblocking(False)
                self.channel.take_socket(sock)

    def settled(self, done: str) -> list[str]:
        return [kind for kind, _ in self.answers.of(done)]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.channel.stop()
        self._thread.join()


Make = Callable[..., Node]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes nodes that know each other's addresses; `make.addresses` can be changed."""
    addresses: dict[int, Address] = {}
    nodes: list[Node] = []

    def made(number: int, **given: Any) -> Node:
        nodes.append(Node(number, addresses, **given))
        return nodes[-1]

    made.addresses = addresses  # type: ignore[attr-defined]
    yield made
    for node in nodes:
        node.close()


def test_ten_thousand_calls_are_placed_once_and_answered_once(make: Make) -> None:
    """From four threads, in both directions at once; each thread's calls in its order."""
    nodes = make(1, window=CallWindow(100_000, 1 << 30)), make(2, window=CallWindow(100_000, 1 << 30))

    def load(sender: Node, receiver: int, letter: str) -> None:
        for number in range(2500):
            with contextlib.suppress(WindowFull):  # before the link is ready it is narrower
                sender.channel.send(receiver, calls(f"{letter}{number}"))
                continue
            wait_for(lambda: sender.channel.status().waiting == 0)
            sender.channel.send(receiver, calls(f"{letter}{number}"))

    threads = [
        threading.Thread(target=load, args=(nodes[at % 2], 2 - at % 2, letter)) for at, letter in enumerate("abcd")
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: [len(node.answers.settled) for node in nodes] == [5000, 5000])
    for node in nodes:
        assert all(settled[0][0] == "answered" and len(settled) == 1 for settled in node.answers.settled.values())
        placed = [text.decode() for text in node.placer.placed]
        assert len(placed) == len(set(placed)) == 5000
        for letter in {text[0] for text in placed}:
            assert [text for text in placed if text[0] == letter] == [f"{letter}{number}" for number in range(2500)]
    status = nodes[0].channel.status()
    assert (status.sent, status.waiting, status.taken, status.placed) == (5000, 0, 5000, 0)


def test_called_end_that_stops_loses_what_it_has_not_answered(make: Make) -> None:
    """Those are lost, not unsent; the next call is refused or makes a link, and works when the node is back."""
    placer = Placer(waits=True)
    one, two = make(1), make(2, placer=placer)
    one.channel.send(2, calls("a", "b"))
    wait_for(lambda: len(placer.held) == 2)
    placer.release(1)
    wait_for(lambda: one.settled("a") == ["answered"])
    two.close()
    wait_for(lambda: one.settled("b") == ["lost"])

    def refused() -> bool:
        with contextlib.suppress(LinkOver):
            one.channel.send(2, calls("c"))
            return False
        return True

    wait_for(refused)
    assert set(one.settled("c")) <= {"unsent"}
    assert one.channel.status().links[2] != ""
    make(2)

    def answered() -> bool:
        with contextlib.suppress(LinkOver):
            one.channel.send(2, calls("d"))
        return "answered" in one.settled("d")

    wait_for(answered)
    assert one.channel.status().links == {2: ""}


def test_silent_link_is_lost(make: Make) -> None:
    """Bytes that pass no more, on a connection that stays."""
    one, two = make(1), make(2, placer=Placer(waits=True))
    with Proxy(two.address) as proxy:
        make.addresses[2] = proxy.address  # type: ignore[attr-defined]
        one.channel.send(2, calls("a"))
        wait_for(lambda: two.placer.held)
        proxy.set_rules(back=HOLD)
        wait_for(lambda: one.settled("a") == ["lost"])


def test_nobody_listens(make: Make) -> None:
    """The call is unsent; further ones are refused at once for a pause."""
    make.addresses[3] = ("127.0.0.1", 1)  # type: ignore[attr-defined]
    one = make(1)
    one.channel.send(3, calls("a"))
    wait_for(lambda: one.settled("a") == ["unsent"])


def test_stop_settles_everyone(make: Make) -> None:
    """Of the caller; and the called end's answers leave before it hangs up."""
    one, two = make(1), make(2, placer=Placer(waits=True))
    one.channel.send(2, calls("a", "b"))
    wait_for(lambda: len(two.placer.held) == 2)
    two.placer.release(1)
    two.channel.stop()
    wait_for(lambda: (one.settled("a"), one.settled("b")) == (["answered"], ["lost"]))
    one.channel.stop()
    with pytest.raises(LinkOver):
        one.channel.send(2, calls("c"))
    one.channel.stop()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> PeerTls:
    """Of the cluster."""
    return make_peer_tls(**tls_files(tmp_path_factory.mktemp("tls") / "ours"))


def test_links_speak_over_tls(make: Make, tls: PeerTls) -> None:
    """Both ends show a certificate; one without gets no link."""
    one, two, three = make(1, tls=tls), make(2, tls=tls), make(3)
    one.channel.send(2, calls("a", "b" * 100_000))
    wait_for(lambda: one.settled("b" * 100_000) == ["answered"])
    three.channel.send(2, calls("c"))
    wait_for(lambda: three.settled("c") == ["unsent"])
    assert two.placer.placed[0] == b"a"


def test_channel_shares_the_port_of_peers(tmp_path: Path, make: Make) -> None:
    """The first byte says whose a connection is: consensus and calls come by one address."""
    one, two = make(1), make(2)
    node = make_node(tmp_path, 2)
    with running(node):
        node.network.give_sockets(CALL_CHANNEL.preface, two.channel.take_socket)
        make.addresses[2] = node.address  # type: ignore[attr-defined]
        one.channel.send(2, calls("a"))
        wait_for(lambda: one.settled("a") == ["answered"])
        with socket.create_connection(node.address, timeout=PATIENCE_S) as stranger:
            stranger.sendall(b"\xff" * 200)
            assert is_hung_up_on(stranger)
        wait_for(lambda: node.network.status().faults == {"length": 1})


def test_peers_meet_where_calls_are_taken(tmp_path: Path) -> None:
    """A port that takes links for calls takes hellos of consensus as before, with TLS or without."""
    with joined(tmp_path, endpoint=Endpoint()) as (one, two):
        for node in (one, two):
            node.network.give_sockets(CALL_CHANNEL.preface, lambda sock: sock.close())
        one.network.set_peers({})
        wait_for(lambda: not two.connected(NodeId(1)))
        one.network.set_peers({NodeId(2): two.address})
        wait_for(lambda: one.connected(NodeId(2)) and two.connected(NodeId(1)))


def test_thread_that_cannot_reach_the_loop_is_no_error(make: Make) -> None:
    """A socket that comes when the channel has stopped is closed."""
    one = make(1)
    one.channel.stop()
    ours, theirs = socket.socketpair()
    with ours:
        one.channel.take_socket(theirs)
        assert theirs.fileno() == -1
