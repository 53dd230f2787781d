"""The contract of a `PeerTransport`, held by TCP on loopback and by the simulated network alike; and its settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.transport.peer_transport import NoticeKind, TransportSettings, fault_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import HeartbeatBundle
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.layout import FrameFault
from tests.cluster.transport.netkit import GROUP, ONE, THREE, TWO, appended, beats, identity_of
from tests.cluster.transport.worlds import LoopbackWorld, SimulatedWorld, World, linked

pytestmark = pytest.mark.slow


@pytest.fixture(params=[LoopbackWorld, SimulatedWorld], ids=["loopback", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Three nodes that know each other, all connected."""
    made: World = request.param(tmp_path)
    try:
        assert made.until(lambda: linked(made))
        yield made
    finally:
        made.close()


def test_messages_come_in_their_order_and_once(world: World) -> None:
    """From each sender to each receiver, though others speak."""
    for index in range(1, 101):
        world.transports[ONE].send([appended(ONE, TWO, index), appended(ONE, THREE, index)])
        world.transports[TWO].send([appended(TWO, THREE, index)])
    wanted = list(range(1, 101))
    heard = [(TWO, ONE), (THREE, ONE), (THREE, TWO)]
    assert world.until(lambda: all(len(world.handlers[node].indexes_of(sender)) == 100 for node, sender in heard))
    assert [world.handlers[node].indexes_of(sender) for node, sender in heard] == [wanted] * 3
    assert world.handlers[ONE].heard == {}


def test_heartbeats_and_messages_share_a_parcel(world: World) -> None:
    """A parcel with both is delivered whole."""
    parcel = Parcel(TWO, appended(ONE, TWO, 1).messages, beats(ONE, TWO, {0: 4, 2: 7}).bundles)
    world.transports[ONE].send([parcel])
    assert world.until(lambda: len(world.handlers[TWO].heard.get(ONE, [])) == 2)
    (_, bundle), (group, _) = sorted(world.handlers[TWO].heard[ONE], key=lambda addressed: addressed[0], reverse=True)
    assert isinstance(bundle, HeartbeatBundle)
    assert (list(bundle.groups), list(bundle.rounds), group) == ([0, 2], [4, 7], GROUP)


def test_ticks_come_by_themselves(world: World) -> None:
    """To every node, whether or not anybody speaks."""
    before = {node: handler.ticks for node, handler in world.handlers.items()}
    assert world.until(lambda: all(handler.ticks >= before[node] + 5 for node, handler in world.handlers.items()))


def test_a_handler_is_called_by_one_thread(world: World) -> None:
    """So a driver needs no lock between ticks, messages and notices."""
    world.transports[ONE].send([appended(ONE, TWO, 1)])
    assert world.until(lambda: world.handlers[TWO].indexes_of(ONE))
    assert all(len(handler.threads) == 1 for handler in world.handlers.values())


def test_nodes_confirm_each_other_before_anything_else(world: World) -> None:
    """Each has pinned each other's incarnation durably, and knows that the others have pinned its own."""
    for node, book in world.books.items():
        assert book.confirmed == {ONE, TWO, THREE} - {node}
        assert {other: record.incarnation for other, record in book.records.items()} == {
            other: identity_of(other).incarnation for other in (ONE, TWO, THREE) if other != node
        }


def test_what_goes_to_nobody_is_dropped(world: World) -> None:
    """A parcel for a node that is no peer, or for this one, costs nothing and stops nothing."""
    world.transports[ONE].send([appended(ONE, ONE, 1), Parcel(NodeId(9)), appended(ONE, TWO, 2)])
    assert world.until(lambda: world.handlers[TWO].indexes_of(ONE))
    assert world.handlers[ONE].heard == {}


def test_a_cut_stops_one_direction_and_healing_brings_it_back(world: World) -> None:
    """What is sent meanwhile may be lost; the other nodes hear each other all the time."""
    world.cut(ONE, TWO)
    world.transports[ONE].send([appended(ONE, TWO, 1), appended(ONE, THREE, 1)])
    assert world.until(lambda: world.handlers[THREE].indexes_of(ONE))
    assert world.handlers[TWO].indexes_of(ONE) == []
    world.heal()

    def arrives() -> list[int]:
        world.transports[ONE].send([appended(ONE, TWO, 2)])
        return world.handlers[TWO].indexes_of(ONE)

    assert world.until(arrives)


def test_a_node_that_was_started_again_is_the_same_peer(world: World) -> None:
    """Its incarnation is the one that is known, and its start is a later one."""
    world.stop(TWO)
    assert world.until(lambda: world.handlers[ONE].has(NoticeKind.DISCONNECTED, TWO))
    world.start(TWO)
    assert world.until(lambda: world.handlers[TWO].has(NoticeKind.CONNECTED, ONE))
    assert world.books[TWO].confirmed == {ONE, THREE}

    def arrives() -> list[int]:
        world.transports[ONE].send([appended(ONE, TWO, 1)])
        return world.handlers[TWO].indexes_of(ONE)

    assert world.until(arrives)
    assert world.books[ONE].records[TWO].start == world.books[TWO].start


def test_an_emptied_disk_is_refused_until_it_is_admitted(world: World) -> None:
    """It has forgotten its votes: nobody hears it, and it is confirmed by nobody; `admit` makes it a peer again."""
    world.stop(TWO)
    emptied = identity_of(TWO, incarnation=b"2nd-life")
    world.start(TWO, emptied)
    assert world.until(lambda: world.handlers[TWO].has(NoticeKind.REFUSED_BY_PEER, ONE))
    assert world.until(lambda: world.handlers[TWO].has(NoticeKind.REFUSED_BY_PEER, THREE))
    assert set(world.handlers[TWO].details(NoticeKind.REFUSED_BY_PEER)) == {"unknown_incarnation"}
    assert world.books[TWO].confirmed == frozenset()
    assert world.handlers[TWO].heard == {}
    for node in (ONE, THREE):
        world.books[node].admit(TWO, emptied.incarnation)
    assert world.until(lambda: world.books[TWO].confirmed == {ONE, THREE})


def test_who_is_no_peer_any_more_is_not_heard(world: World) -> None:
    """`set_peers` ends the connections with nodes that it leaves out."""
    world.transports[ONE].set_peers({THREE: ("127.0.0.1", 1)})
    assert world.until(lambda: world.handlers[TWO].has(NoticeKind.DISCONNECTED, ONE))
    world.transports[TWO].send([appended(TWO, ONE, 1), appended(TWO, THREE, 1)])
    assert world.until(lambda: world.handlers[THREE].indexes_of(TWO))
    assert world.handlers[ONE].indexes_of(TWO) == []


# -- the simulation alone ------------------------------------------------------------------------------------------------


def history(folder: Path, seed: int) -> list[tuple[int, list[int]]]:
    """Ticks and messages of each node, after a stormy while."""
    world = SimulatedWorld(folder, seed)
    world.until(lambda: linked(world))
    world.cut(ONE, TWO)
    for index in range(50):
        world.transports[ONE].send([appended(ONE, TWO, index), appended(ONE, THREE, index)])
        world.network.advance(0.05)
        if index == 25:
            world.heal()
            world.network.pause(THREE, 3.0)
    return [(handler.ticks, handler.indexes_of(ONE)) for handler in world.handlers.values()]


def test_a_simulated_history_follows_from_its_seed(tmp_path: Path) -> None:
    """The same seed gives the same history."""
    assert history(tmp_path / "a", 7) == history(tmp_path / "b", 7)


def test_a_simulated_pause_gives_missed_ticks_before_what_waited(tmp_path: Path) -> None:
    """As the real ticker does."""
    world = SimulatedWorld(tmp_path)
    world.until(lambda: linked(world))
    world.network.pause(TWO, 5.0)
    handler, ticks = world.handlers[TWO], list[int]()
    before, handler.before_messages = handler.ticks, lambda: ticks.append(handler.ticks)
    world.transports[ONE].send([appended(ONE, TWO, 1)])
    world.network.advance(6.0)
    assert len(ticks) == 1
    assert ticks[0] >= before + 49


# -- settings and words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"pause_s_min": 0.0},
        {"pause_s_min": 3.0},
        {"silence_s": 0.6},
        {"tick_s": 0.0},
        {"queue_bytes_max": 0},
        {"strangers_max": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    """Each names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong)) if "tick_s" not in wrong else "times"):
        TransportSettings(**wrong)


def test_faults_are_shown_by_their_words() -> None:
    """Without those that never occurred."""
    assert fault_text(Counter({FrameFault.MAC: 2, FrameFault.LENGTH: 0})) == {"mac": 2}
