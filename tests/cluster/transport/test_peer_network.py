"""The network over TCP under attack: strangers, forgers, damage, slow and vanished peers, copies of a node."""

from __future__ import annotations

import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.transport.peer_network import CannotListen, Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import NoticeKind, Ticker
from cmdlog.raft.wire.control_frames import ControlKind, ProcessStart
from cmdlog.raft.wire.secure_frames import Peer, Secret
from tests.cluster.proxy import HOLD, PASS, SWALLOW, Proxy, Rule
from tests.cluster.transport.netkit import (
    ONE,
    QUICK,
    SECRET,
    TWO,
    RawPeer,
    Recorder,
    appended,
    identity_of,
    joined,
    make_node,
    open_book,
    running,
)
from tests.cluster.transport.test_peer_transport import Clock
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
NOWHERE = ("127.0.0.1", 1)  # nobody listens there


# -- strangers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"secret": Secret(b"another secret of 32 bytes......")}, "mac"),
        ({"identity": identity_of(2, cluster=bytes(16))}, "cluster"),
        ({"receiver": 3}, "receiver"),
        ({"node": 1}, "receiver"),
    ],
)
def test_a_stranger_is_answered_nothing(tmp_path: Path, change: dict[str, object], fault: str) -> None:
    """No secret, another cluster, another node, our own id: the connection ends, the reason is counted, nothing is stored."""
    one = make_node(tmp_path, 1)
    with running(one), RawPeer(one.address, **change) as raw:  # type: ignore[arg-type]
        one.network.set_peers({TWO: NOWHERE})
        raw.say(raw.call.encode(raw.secret))
        assert raw.read() == b""
        assert wait_for(lambda: one.network.status().faults) == {fault: 1}
        assert one.book.records == {}


def test_a_stranger_that_says_nothing_is_hung_up_on(tmp_path: Path) -> None:
    """After `hello_s`."""
    one = make_node(tmp_path, 1, settings=replace(QUICK, hello_s=0.05))
    with running(one), socket.create_connection(one.address, timeout=PATIENCE_S) as stranger:
        assert stranger.recv(1) == b""
        wait_for(lambda: one.network.status().strangers == 0)


def test_a_crowd_of_strangers_is_bounded(tmp_path: Path) -> None:
    """By the settings: the one that waits longest makes room."""
    one = make_node(tmp_path, 1, settings=replace(QUICK, strangers_max=1, hello_s=PATIENCE_S))
    with running(one), socket.create_connection(one.address), socket.create_connection(one.address):
        wait_for(lambda: one.network.status().strangers_evicted == 1)


def test_a_hello_alone_pins_nobody(tmp_path: Path) -> None:
    """A recorded one may be of a disk that is long gone."""
    one = make_node(tmp_path, 1)
    with running(one):
        one.network.set_peers({TWO: NOWHERE})
        with RawPeer(one.address) as peer:
            peer.greet()
        wait_for(lambda: one.network.status().strangers == 0)
        assert one.book.records == {}


# -- frames --------------------------------------------------------------------------------------------------------------


def test_frames_of_another_connection_are_refused(tmp_path: Path) -> None:
    """Recorded on one connection of a peer, played on its next one."""
    one = make_node(tmp_path, 1)
    with running(one):
        one.network.set_peers({TWO: NOWHERE})
        with RawPeer(one.address) as first:
            first.introduce()
            frame = first.sealed(1)
            first.say(frame)
            wait_for(lambda: one.handler.indexes_of(TWO))
            process = first.process
        with RawPeer(one.address) as second:
            second.process = process
            assert second.introduce().kind == ControlKind.PINNED
            second.say(frame)
            assert second.hung_up()
        assert wait_for(lambda: one.peer(TWO).faults) == {"session": 1}
        assert one.handler.indexes_of(TWO) == [1]


def test_a_peer_that_only_calls_is_sent_nothing(tmp_path: Path) -> None:
    """What this node says goes by a connection of its own; without one it is dropped and counted."""
    one = make_node(tmp_path, 1)
    with running(one):
        one.network.set_peers({TWO: NOWHERE})
        with RawPeer(one.address) as peer:
            peer.introduce()
            one.network.send([appended(ONE, TWO, 1)])
            assert one.peer(TWO).dropped_messages == 1


def test_a_flipped_bit_on_the_line_is_survived(tmp_path: Path) -> None:
    """The connection ends, another one follows, and what is sent then arrives."""
    one, two = make_node(tmp_path, 1), make_node(tmp_path, 2)
    with running(one, two), Proxy(two.address) as proxy:
        proxy.set_rules(there=Rule(flip_at=20_000))
        one.network.set_peers({TWO: proxy.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.connected(TWO))

        def arrives() -> bool:
            one.network.send([appended(ONE, TWO, index, 1000) for index in range(1, 40)])
            return bool(two.peer(ONE).faults)

        wait_for(arrives, every_s=0.001)
        proxy.set_rules(there=PASS)

        def last_arrives() -> bool:
            one.network.send([appended(ONE, TWO, 77)])
            return 77 in two.handler.indexes_of(ONE)

        wait_for(last_arrives)


# -- peers that are slow, gone or back -----------------------------------------------------------------------------------


def test_a_one_way_cut_is_noticed_and_heals(tmp_path: Path) -> None:
    """The answers do not come: the caller drops the connection, says so, and calls again until it is heard."""
    settings = replace(QUICK, silence_s=0.2)
    one, two = make_node(tmp_path, 1, settings=settings), make_node(tmp_path, 2, settings=settings)
    with running(one, two), Proxy(two.address) as proxy:
        one.network.set_peers({TWO: proxy.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.connected(TWO))
        proxy.set_rules(back=HOLD)
        wait_for(lambda: one.peer(TWO).connected_since_s is None)
        wait_for(lambda: proxy.connections > 1)
        proxy.set_rules(back=PASS)
        wait_for(lambda: one.connected(TWO))


def test_a_half_open_connection_is_dropped(tmp_path: Path) -> None:
    """Everything that is sent is taken and lost, as by a machine that is gone: both ends notice."""
    settings = replace(QUICK, silence_s=0.2, hello_s=0.3)
    one, two = make_node(tmp_path, 1, settings=settings), make_node(tmp_path, 2, settings=settings)
    with running(one, two), Proxy(two.address) as proxy:
        one.network.set_peers({TWO: proxy.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.connected(TWO))
        proxy.set_rules(there=SWALLOW, back=SWALLOW)
        wait_for(lambda: one.peer(TWO).connected_since_s is None and two.peer(ONE).calls_since_s is None)
        proxy.set_rules(there=PASS, back=PASS)
        proxy.close_connections()
        wait_for(lambda: one.connected(TWO))


# -- who may be a peer ---------------------------------------------------------------------------------------------------


def copy_of(folder: Path, node: int) -> Path:
    """The directory of a node, elsewhere."""
    target = folder / "copy"
    shutil.copytree(folder / f"node-{node}", target / f"node-{node}")
    return target


def test_two_copies_do_not_take_turns(tmp_path: Path) -> None:
    """When the one that was connected is gone the other takes its place; what comes back then is refused for good."""
    with joined(tmp_path, 2) as (one, two):
        elsewhere = copy_of(tmp_path, 2)
        two.network.stop()
        wait_for(lambda: one.peer(TWO).calls_since_s is None)
        copy = make_node(elsewhere, 2)
        with running(copy):
            one.network.set_peers({TWO: copy.address})
            copy.network.set_peers({ONE: one.address})
            wait_for(lambda: one.connected(TWO))
            assert one.book.records[TWO].start == copy.book.start
        wait_for(lambda: one.peer(TWO).calls_since_s is None)
        back = make_node(tmp_path, 2)  # the first directory's second start, as the copy's was
        with running(back):
            back.network.set_peers({ONE: one.address})
            wait_for(lambda: back.handler.has(NoticeKind.DUPLICATE, ONE))
            assert back.peer(ONE).met_later
            assert not one.peer(TWO).met_later
            assert one.book.records[TWO].start == copy.book.start
            assert one.network.status().duplicates


@pytest.mark.parametrize("calls", [True, False], ids=["calls", "is called"])
def test_a_restored_backup_is_refused(tmp_path: Path, calls: bool) -> None:
    """Its directory has an earlier count of starts than the peers have seen: it has forgotten votes that they may count."""
    with joined(tmp_path, 2) as (one, two):
        backup = copy_of(tmp_path, 2)
        two.network.stop()
        for _ in range(2):
            again = make_node(tmp_path, 2)
            with running(again):
                again.network.set_peers({ONE: one.address})
                wait_for(lambda again=again: one.book.records[TWO].start == again.book.start)  # type: ignore[misc]
            wait_for(lambda: one.peer(TWO).calls_since_s is None)
        restored = make_node(backup, 2)
        with running(restored):
            restored.network.set_peers({ONE: one.address if calls else NOWHERE})
            one.network.set_peers({TWO: NOWHERE if calls else restored.address})
            wait_for(lambda: restored.handler.has(NoticeKind.REFUSED_BY_PEER, ONE))
            assert "earlier_start" in restored.handler.details(NoticeKind.REFUSED_BY_PEER)
            assert restored.peer(ONE).met_later
            assert restored.peer(ONE).was_called


def test_an_admitted_incarnation_ends_the_connections_of_the_one_before(tmp_path: Path) -> None:
    """It was connected when the cluster replaced it, and is refused by name from then on."""
    with joined(tmp_path, 2) as (one, two):
        one.book.admit(TWO, b"2nd-life")
        wait_for(lambda: one.peer(TWO).connected_since_s is None and one.peer(TWO).calls_since_s is None)
        wait_for(lambda: "stale_incarnation" in two.handler.details(NoticeKind.REFUSED_BY_PEER))


# -- what the driver is given --------------------------------------------------------------------------------------------


class StoppedNetwork:
    """A network whose thread does not run, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.book, self.handler, self.clock = open_book(folder, identity_of(1)), Recorder(), Clock()
        self.network = PeerNetwork(self.book, SECRET, Endpoint())
        self.network._handlers.append(self.handler)
        self.network._ticker = Ticker(0.5, self.network._give_ticks, now=self.clock)
        self.book.acquaint(PEER, ProcessStart(1, b"process2"))

    def deliver(self) -> None:
        """A frame of node 2 has come in."""
        self.network._deliver(PEER, appended(TWO, ONE, 1).messages)  # type: ignore[arg-type]


PEER = Peer(TWO, identity_of(2).incarnation)


def test_missed_ticks_come_before_what_waited(tmp_path: Path) -> None:
    """After a pause of the process, also when the socket is read before the timer runs."""
    stopped, seen = StoppedNetwork(tmp_path), list[int]()
    stopped.handler.before_messages = lambda: seen.append(stopped.handler.ticks)
    stopped.clock.now_s += 5.0
    stopped.deliver()
    assert seen == [10]


def test_nothing_of_a_replaced_incarnation_is_delivered(tmp_path: Path) -> None:
    """From the moment that `admit` returns, whatever is in the socket."""
    stopped = StoppedNetwork(tmp_path)
    stopped.deliver()
    stopped.book.admit(TWO, b"2nd-life")
    stopped.deliver()
    assert stopped.handler.indexes_of(TWO) == [1]


# -- the thread ----------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    """Said at the start, with the address."""
    one = make_node(tmp_path, 1)
    with running(one), pytest.raises(CannotListen, match=str(one.address[1])):
        make_node(tmp_path, 2, endpoint=Endpoint(port=one.address[1]))


def test_stopping_twice_and_sending_after_it_is_harmless(tmp_path: Path) -> None:
    """Nothing is sent any more, and the thread has ended."""
    before = threading.active_count()
    one = make_node(tmp_path, 1)
    one.network.stop()
    one.network.stop()
    one.network.send([appended(ONE, TWO, 1)])
    one.network.set_peers({TWO: NOWHERE})
    assert threading.active_count() <= before


def test_a_handler_that_fails_stops_nothing(tmp_path: Path) -> None:
    """Its defect is logged; ticks and messages continue."""
    with joined(tmp_path, 2) as (one, two):
        heard = list[int]()

        def fail_once() -> None:
            heard.append(1)
            if len(heard) == 1:
                raise RuntimeError("a defect of the driver")

        two.handler.before_messages = fail_once
        one.network.send([appended(ONE, TWO, 1)])
        wait_for(lambda: heard)
        one.network.send([appended(ONE, TWO, 2)])
        wait_for(lambda: two.handler.indexes_of(ONE) == [2])


def test_many_threads_may_send(tmp_path: Path) -> None:
    """Each thread's messages keep their order."""
    with joined(tmp_path, 2) as (one, two):

        def send(base: int) -> None:
            for index in range(base, base + 200):
                one.network.send([appended(ONE, TWO, index)])

        threads = [threading.Thread(target=send, args=(1 + 1000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: len(two.handler.indexes_of(ONE)) == 800)
        heard = two.handler.indexes_of(ONE)
        for number in range(4):
            assert [index for index in heard if index // 1000 == number] == list(range(1 + 1000 * number, 201 + 1000 * number))
