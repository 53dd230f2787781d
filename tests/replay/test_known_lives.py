"""What a directory knows of the nodes' disks: the log's MEMBER entries, and the book that the node itself writes."""

from __future__ import annotations

from pathlib import Path

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import Stated
from replay.log.collect_evidence import BOOK_PATH, known_lives, lives_of_log, peers_met
from replay.log.evidence import PINNED, KnownLife, KnownStart, PeersMet

ME = Identity(b"cluster-number-1", 1, b"my-life!")
FIRST, SECOND = b"1st-life", b"2nd-life"


def test_entries_say_life_and_former_lives_with_their_place() -> None:
    """Also of a node whose next life is not known yet."""
    expected = ClusterMember(2, b"", "h:1", "", MemberStage.EXPECTED, former=(FIRST,))
    found = lives_of_log([Stated(7, 3, expected.to_json()), Stated(4, 1, ClusterMember(3, SECOND, "h:2", "").to_json())])
    assert found == {2: KnownLife("", frozenset({FIRST.hex()}), (3, 7)), 3: KnownLife(SECOND.hex(), frozenset(), (1, 4))}


def test_the_book_is_read_as_the_node_writes_it(tmp_path: Path) -> None:
    """Pins, lives that were replaced, and who has confirmed this node."""
    first = PeerBook.open(RealFiles(), str(tmp_path), ME).start
    book = PeerBook.open(RealFiles(), str(tmp_path), ME)
    book.pin(Peer(NodeId(2), FIRST))
    book.admit(NodeId(2), SECOND)
    book.acquaint(Peer(NodeId(3), FIRST), ProcessStart(7, b"process1"))
    met = peers_met(RealFiles(), str(tmp_path), ME)
    assert met.lives == {
        2: KnownLife(SECOND.hex(), frozenset({FIRST.hex()}), PINNED),
        3: KnownLife(FIRST.hex(), frozenset(), PINNED),
    }
    assert met.confirmed == {3}
    assert met.start == KnownStart(ME.incarnation.hex(), 2, book.start.process.hex())
    assert met.start.earlier == (first.process.hex(),)
    assert met.peers == {3: KnownStart(FIRST.hex(), 7, b"process1".hex())}


def test_a_book_of_another_life_or_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    """It is only evidence: a node's own start judges it."""
    assert peers_met(RealFiles(), str(tmp_path), ME) == PeersMet()
    PeerBook.open(RealFiles(), str(tmp_path), ME).pin(Peer(NodeId(2), FIRST))
    assert peers_met(RealFiles(), str(tmp_path), Identity(ME.cluster_id, 1, b"new-life")) == PeersMet()
    path = tmp_path.joinpath(*BOOK_PATH)
    whole = path.read_bytes()
    for damaged in (whole.replace(b'"starts": 1', b'"starts": 2'), whole[:-9], b"[]", b"{}"):
        path.write_bytes(damaged)
        assert peers_met(RealFiles(), str(tmp_path), ME) == PeersMet()


def test_the_log_counts_before_the_book_and_both_end_lives() -> None:
    """The book may lag, or know an end that the log no longer states."""
    log = {2: KnownLife("b", frozenset({"a"}), (2, 9))}
    book = {2: KnownLife("a", frozenset({"z"}), PINNED), 3: KnownLife("c", frozenset(), PINNED)}
    assert known_lives(log, book) == {2: KnownLife("b", frozenset({"a", "z"}), (2, 9)), 3: book[3]}
