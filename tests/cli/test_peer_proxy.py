"""The demo's network: what passes, what a one-way cut holds, and what is closed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from cmdlog.cli.demo.cluster.peer_proxy import PeerProxies
from tests.waiting import PATIENCE_S

NODE = 2
SILENCE_S = 0.05  # how long bytes that must not arrive are waited for


@pytest.fixture
def wire() -> Iterator[tuple[PeerProxies, socket.socket, socket.socket]]:
    """A caller connected by the proxy to the node that it calls: the proxies, and both ends."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxies = stack.enter_context(PeerProxies({1: 1, NODE: listener.getsockname()[1]}))
        caller = stack.enter_context(socket.create_connection(("127.0.0.1", proxies.ports[NODE]), timeout=PATIENCE_S))
        node = stack.enter_context(listener.accept()[0])
        node.settimeout(PATIENCE_S)
        yield proxies, caller, node


def arrives(end: socket.socket, data: bytes) -> bool:
    """Exactly these bytes come next."""
    found = b""
    while len(found) < len(data) and (more := end.recv(len(data) - len(found))):
        found += more
    return found == data


def is_silent(end: socket.socket) -> bool:
    """Nothing has come, and the connection is open."""
    end.settimeout(SILENCE_S)
    try:
        return end.recv(1) is None
    except TimeoutError:
        return True
    finally:
        end.settimeout(PATIENCE_S)


def test_bytes_pass_both_ways(wire: tuple[PeerProxies, socket.socket, socket.socket]) -> None:
    """Also more than one piece of them."""
    _, caller, node = wire
    for near, far in ((caller, node), (node, caller)):
        near.sendall(b"x" * 100_000)
        assert arrives(far, b"x" * 100_000)


def test_cut_holds_what_goes_to_the_node_alone(wire: tuple[PeerProxies, socket.socket, socket.socket]) -> None:
    """The other direction passes; and when the cut is healed, what waited arrives, in order."""
    proxies, caller, node = wire
    proxies.cut(NODE)
    caller.sendall(b"one")
    node.sendall(b"back")
    assert arrives(caller, b"back")
    assert is_silent(node)
    caller.sendall(b"two")
    proxies.heal(NODE)
    assert arrives(node, b"onetwo")


def test_cut_of_another_node_changes_nothing(wire: tuple[PeerProxies, socket.socket, socket.socket]) -> None:
    """Each node has its own."""
    proxies, caller, node = wire
    proxies.cut(1)
    caller.sendall(b"one")
    assert arrives(node, b"one")


def test_end_that_hangs_up_ends_the_other(wire: tuple[PeerProxies, socket.socket, socket.socket]) -> None:
    """A killed process is seen through the proxy, also while bytes to it are held."""
    proxies, caller, node = wire
    proxies.cut(NODE)
    caller.sendall(b"one")
    node.close()
    with contextlib.suppress(ConnectionResetError):
        assert caller.recv(1) == b""


def test_node_that_does_not_listen_hangs_up() -> None:
    """As its kernel would."""
    with PeerProxies({NODE: 1}) as proxies:
        caller = socket.create_connection(("127.0.0.1", proxies.ports[NODE]), timeout=PATIENCE_S)
        with caller, contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b""


def test_closed_proxies_hang_up_and_listen_no_more(wire: tuple[PeerProxies, socket.socket, socket.socket]) -> None:
    """Also twice; and with bytes that are held."""
    proxies, caller, _ = wire
    proxies.cut(NODE)
    caller.sendall(b"one")
    proxies.close()
    proxies.close()
    with contextlib.suppress(ConnectionResetError):
        assert caller.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", proxies.ports[NODE]), timeout=PATIENCE_S)
