"""What the driver may rely on of its network, TLS between nodes, the settings, and ticks."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from cmdlog.cluster.transport.peer_network import Endpoint
from cmdlog.cluster.transport.peer_transport import (
    BadPeerCertificate,
    NoticeKind,
    PeerTls,
    Ticker,
    TransportSettings,
    fault_text,
    make_peer_tls,
)
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import HeartbeatBundle
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.layout import FrameFault
from cmdlog.raft.wire.secure_frames import Seal
from tests.cluster.transport.netkit import GROUP, ONE, QUICK, THREE, TWO, appended, beats, identity_of, joined, make_node, running
from tests.cluster.transport.worlds import LoopbackWorld, linked
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LoopbackWorld]:
    """Three nodes that know each other, all connected."""
    made = LoopbackWorld(tmp_path)
    try:
        assert made.until(lambda: linked(made))
        yield made
    finally:
        made.close()


def test_messages_come_in_their_order_and_once(world: LoopbackWorld) -> None:
    """From each sender to each receiver, though others speak."""
    for index in range(1, 101):
        world.transports[ONE].send([appended(ONE, TWO, index), appended(ONE, THREE, index)])
        world.transports[TWO].send([appended(TWO, THREE, index)])
    wanted = list(range(1, 101))
    heard = [(TWO, ONE), (THREE, ONE), (THREE, TWO)]
    assert world.until(lambda: all(len(world.handlers[node].indexes_of(sender)) == 100 for node, sender in heard))
    assert [world.handlers[node].indexes_of(sender) for node, sender in heard] == [wanted] * 3
    assert world.handlers[ONE].heard == {}


def test_heartbeats_and_messages_share_a_parcel(world: LoopbackWorld) -> None:
    """A parcel with both is delivered whole."""
    parcel = Parcel(TWO, appended(ONE, TWO, 1).messages, beats(ONE, TWO, {0: 4, 2: 7}).bundles)
    world.transports[ONE].send([parcel])
    assert world.until(lambda: len(world.handlers[TWO].heard.get(ONE, [])) == 2)
    (_, bundle), (group, _) = sorted(world.handlers[TWO].heard[ONE], key=lambda addressed: addressed[0], reverse=True)
    assert isinstance(bundle, HeartbeatBundle)
    assert (list(bundle.groups), list(bundle.rounds), group) == ([0, 2], [4, 7], GROUP)


def test_ticks_come_by_themselves(world: LoopbackWorld) -> None:
    """To every node, whether or not anybody speaks."""
    before = {node: handler.ticks for node, handler in world.handlers.items()}
    assert world.until(lambda: all(handler.ticks >= before[node] + 5 for node, handler in world.handlers.items()))


def test_a_handler_is_called_by_one_thread(world: LoopbackWorld) -> None:
    """So a driver needs no lock between ticks, messages and notices."""
    world.transports[ONE].send([appended(ONE, TWO, 1)])
    assert world.until(lambda: world.handlers[TWO].indexes_of(ONE))
    assert all(len(handler.threads) == 1 for handler in world.handlers.values())


def test_nodes_confirm_each_other_before_anything_else(world: LoopbackWorld) -> None:
    """Each has pinned each other's incarnation durably, and knows that the others have pinned its own."""
    for node, book in world.books.items():
        assert book.confirmed == {ONE, TWO, THREE} - {node}
        assert {other: record.incarnation for other, record in book.records.items()} == {
            other: identity_of(other).incarnation for other in (ONE, TWO, THREE) if other != node
        }


def test_what_goes_to_nobody_is_dropped(world: LoopbackWorld) -> None:
    """A parcel for a node that is no peer, or for this one, costs nothing and stops nothing."""
    world.transports[ONE].send([appended(ONE, ONE, 1), Parcel(NodeId(9)), appended(ONE, TWO, 2)])
    assert world.until(lambda: world.handlers[TWO].indexes_of(ONE))
    assert world.handlers[ONE].heard == {}


def test_a_cut_stops_one_direction_and_healing_brings_it_back(world: LoopbackWorld) -> None:
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


def test_a_node_that_was_started_again_is_the_same_peer(world: LoopbackWorld) -> None:
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


def test_an_emptied_disk_is_refused_until_it_is_admitted(world: LoopbackWorld) -> None:
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


def test_who_is_no_peer_any_more_is_not_heard(world: LoopbackWorld) -> None:
    """`set_peers` ends the connections with nodes that it leaves out."""
    world.transports[ONE].set_peers({THREE: ("127.0.0.1", 1)})
    assert world.until(lambda: world.handlers[TWO].has(NoticeKind.DISCONNECTED, ONE))
    world.transports[TWO].send([appended(TWO, ONE, 1), appended(TWO, THREE, 1)])
    assert world.until(lambda: world.handlers[THREE].indexes_of(TWO))
    assert world.handlers[ONE].indexes_of(TWO) == []


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


def tls_files(folder: Path) -> dict[str, Path]:
    """A certificate, its key and its authority."""
    folder.mkdir()
    authority, paths = trustme.CA(), {name: folder / f"{name}.pem" for name in ("certificate", "key", "authority")}
    issued = authority.issue_cert("node.example")
    issued.private_key_pem.write_to_path(paths["key"])
    paths["certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(paths["authority"])
    return paths


def issued(
    folder: Path, authority: trustme.CA, *trusted: trustme.CA, name: str = "node.example", expired: bool = False
) -> PeerTls:
    """TLS of a node whose certificate is of that authority, and that trusts these, or its own."""
    folder.mkdir()
    paths = {name: folder / f"{name}.pem" for name in ("certificate", "key", "authority")}
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    leaf = authority.issue_cert(name, not_before=now - 2 * day, not_after=now - day if expired else now + day)
    leaf.private_key_pem.write_to_path(paths["key"])
    paths["certificate"].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    paths["authority"].write_bytes(b"".join(each.cert_pem.bytes() for each in trusted or (authority,)))
    return make_peer_tls(**paths)


def is_hung_up_on(sock: socket.socket) -> bool:
    """Whether the other end closes, with or without a reason."""
    try:
        return sock.recv(1) == b""
    except OSError:
        return True


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> PeerTls:
    """Of the cluster."""
    return make_peer_tls(**tls_files(tmp_path_factory.mktemp("tls") / "ours"))


def test_nodes_speak_over_tls(tmp_path: Path, tls: PeerTls) -> None:
    """The seal covers heads alone, since TLS protects the rest; large messages come whole."""
    with joined(tmp_path, endpoint=Endpoint(tls=tls)) as (one, two):
        assert Endpoint(tls=tls).seal is Seal.HEADS
        assert Endpoint().seal is Seal.WHOLE
        one.network.send([appended(ONE, TWO, 1, 3 << 20), appended(ONE, TWO, 2)])
        wait_for(lambda: two.handler.indexes_of(ONE) == [1, 2])


def test_a_caller_without_a_certificate_is_refused(tmp_path: Path, tls: PeerTls) -> None:
    """And so is one that speaks no TLS at all."""
    one = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls))
    two = make_node(tmp_path, 2)
    bare = ssl.create_default_context()
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.peer(TWO).last_error and two.peer(ONE).last_error)
        with socket.create_connection(one.address, timeout=PATIENCE_S) as plain, bare.wrap_socket(plain) as wrapped:
            assert is_hung_up_on(wrapped)
        assert one.book.records == {}


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, tls: PeerTls) -> None:
    """By both ends."""
    foreign = make_peer_tls(**tls_files(tmp_path / "foreign"))
    one, two = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls)), make_node(tmp_path, 2, endpoint=Endpoint(tls=foreign))
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: "certificate" in one.peer(TWO).last_error.lower())
        wait_for(lambda: "certificate" in two.peer(ONE).last_error.lower())
        assert one.book.records == two.book.records == {}


def test_an_expired_certificate_is_refused_as_such(tmp_path: Path) -> None:
    """The end that sees it says so; the one that has it is closed after its own handshake, and names what may be."""
    authority = trustme.CA()
    good, old = issued(tmp_path / "good", authority), issued(tmp_path / "old", authority, expired=True)
    one, two = make_node(tmp_path, 1, endpoint=Endpoint(tls=good)), make_node(tmp_path, 2, endpoint=Endpoint(tls=old))
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: "certificate has expired" in one.peer(TWO).last_error)
        wait_for(lambda: "our certificate, which may have expired" in two.peer(ONE).last_error)
        assert one.book.records == two.book.records == {}


def test_names_do_not_count_and_authorities_may_change(tmp_path: Path) -> None:
    """In the middle of a change every node trusts both, and some have a certificate of the new one."""
    former, new = trustme.CA(), trustme.CA()
    first = Endpoint(tls=issued(tmp_path / "first", former, former, new, name="another.example"))
    second = Endpoint(tls=issued(tmp_path / "second", new, former, new, name="10.0.0.9"))
    one, two = make_node(tmp_path, 1, endpoint=first), make_node(tmp_path, 2, endpoint=second)
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.book.records and two.book.records)


def test_a_caller_that_never_begins_tls_is_hung_up_on(tmp_path: Path, tls: PeerTls) -> None:
    """It counts as a stranger from the first moment."""
    one = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls), settings=replace(QUICK, hello_s=0.3))
    with running(one), socket.create_connection(one.address, timeout=PATIENCE_S) as stranger:
        assert stranger.recv(1) == b""
        wait_for(lambda: one.network.status().strangers == 0)


@pytest.mark.parametrize("missing", ["certificate", "key", "authority"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, missing: str) -> None:
    """One that is missing, and one with something else in it."""
    files = tls_files(tmp_path / "files")
    with pytest.raises(BadPeerCertificate, match="absent"):
        make_peer_tls(**{**files, missing: tmp_path / "absent"})
    files[missing].write_text("nothing of the kind")
    with pytest.raises(BadPeerCertificate, match=missing):
        make_peer_tls(**files)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_ticks_follow_the_clock() -> None:
    """One per unit of time, however often it is asked."""
    clock, given = Clock(), list[int]()
    ticker = Ticker(0.25, given.append, now=clock)
    for _ in range(16):
        clock.now_s += 0.125
        ticker.give_due()
        ticker.give_due()
    assert given == [1] * 8


def test_missed_ticks_come_together_after_a_pause() -> None:
    """A process that was stopped for a minute has a minute's ticks at once, and then again one at a time."""
    clock, given = Clock(), list[int]()
    ticker = Ticker(0.5, given.append, now=clock)
    clock.now_s += 60.2
    ticker.give_due()
    clock.now_s += 0.3
    ticker.give_due()
    assert given == [120, 1]


def test_a_late_tick_does_not_delay_the_next() -> None:
    """The wait is until the next one is due, not a whole unit."""
    clock = Clock()
    ticker = Ticker(0.5, lambda _: None, now=clock)
    clock.now_s += 0.75
    ticker.give_due()
    assert ticker.wait_s == 0.25
    clock.now_s += 10
    assert ticker.wait_s == 0.0
