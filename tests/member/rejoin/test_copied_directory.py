"""What a copied node's log and book of peers begin with."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.transport.peer_book import PeerBook, PeerRecord
from cmdlog.member.rejoin.copied_directory import bring_peers, decode_lineage, first_records, newer_vote, read_votes
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.directory.instance import Identity, Instance, write_instance
from cmdlog.wal.errors import Foreign
from cmdlog.wal.fault_record import encode_fault, make_record
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.format.segment import SEGMENT_BYTES_MIN, SEGMENTS_MIN
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import Snapshot
from tests.member.rejoin.copykit import FILES, LIFE, RECIPIENT, OfferedCopy
from tests.member.rejoin.test_rejoin_steps import old_directory
from tests.wal.sim.simfiles import SimFiles

pytestmark = pytest.mark.slow  # the copy comes from a running node


def test_every_group_begins_where_its_state_ends(offer: OfferedCopy) -> None:
    """Committed up to there; its term is the highest that either node knew, its vote this node's own or none."""
    manifest = offer.admitting(LIFE)
    snapshots = {p: Snapshot("", p, place.index, 1, None, name=f"s{p}") for p, place in manifest.partitions.items()}
    records = [decode_record(data) for data in first_records(manifest, {0: (9, 1), 1: (1, 1)}, snapshots)]
    assert [(record.kind, int(record.partition)) for record in records] == [
        (RecordKind.CHECKPOINT, group) for group in (0, 1, CLUSTER_GROUP)
    ]
    groups = {int(record.partition): GroupState.from_checkpoint(record) for record in records}
    assert (groups[0].term, groups[0].vote) == (9, 1)
    assert (groups[1].term, groups[1].vote) == (manifest.groups[1].term, None)
    for partition, place in manifest.partitions.items():
        state = groups[partition]
        assert (state.last_index, state.last_checksum, state.commit) == (place.index, place.checksum, place.index)
        assert state.commit_term == place.term
        assert [mark["name"] for mark in state.snapshots] == [f"s{partition}"]
    assert {catalog.stated_block for catalog in groups[CLUSTER_GROUP].catalogs.values()} == {2}


def test_fault_records_of_another_cluster_are_refused(offer: OfferedCopy) -> None:
    """Those of this one are taken in their order."""
    cluster = offer.cluster.cluster_id
    record = make_record(cluster, None, failed=[3], epoch=1, term=2, author=1)
    assert decode_lineage(cluster, (encode_fault(cluster, record),)) == [record]
    for data in (encode_fault(bytes(16), record), encode_fault(cluster, replace(record, author=2))[:-1]):
        with pytest.raises(Foreign):
            decode_lineage(cluster, (data,))


# -- the book of peers ---------------------------------------------------------------------------------------------------

OLD, NEW = Identity(bytes(range(16)), RECIPIENT, b"life-old"), Identity(bytes(range(16)), RECIPIENT, LIFE)
THREE = Peer(NodeId(3), b"lifethre")
FOUR, FIVE = ProcessStart(4, b"process4"), ProcessStart(5, b"process5")


def old_book(owner: Identity, start: ProcessStart) -> SimFiles:
    """A disk with the old directory in quarantine; it had met this start of node 3."""
    files = SimFiles()
    for folder in ("/quarantine", "/quarantine/old", "/quarantine/old/log"):
        files.mkdir(folder)
    write_instance(files, "/quarantine/old", Instance(owner, SEGMENT_BYTES_MIN, SEGMENTS_MIN, 4096))
    PeerBook.open(files, "/quarantine/old", owner).acquaint(THREE, start)
    return files


def brought(files: SimFiles, offer: OfferedCopy, start: ProcessStart | None) -> ProcessStart | None:
    """Which start of node 3 the made directory knows, after a loss of power; the source had met `start`."""
    met = {THREE.node: PeerRecord(THREE.incarnation, start=start), NodeId(RECIPIENT): PeerRecord(OLD.incarnation)}
    bring_peers(files, "/", NEW, replace(offer.manifest, peers=met), quarantine="old")
    book = PeerBook.open(files.power_cut(random.Random(0), "none"), "/", NEW)
    assert (book.start.number, set(book.records), book.confirmed) == (1, {THREE.node}, frozenset())
    return book.records[THREE.node].start


@pytest.mark.parametrize(("theirs", "ours"), [(FOUR, FIVE), (FIVE, FOUR), (None, FIVE)])
def test_a_copied_directory_knows_what_either_had_met(
    offer: OfferedCopy, theirs: ProcessStart | None, ours: ProcessStart
) -> None:
    """The source of the copy, and the directory that was here before. Who it was itself is in no book of its own."""
    assert brought(old_book(OLD, ours), offer, theirs) == FIVE


def test_a_copied_directory_knows_what_its_source_had_met_where_nothing_was_before(offer: OfferedCopy) -> None:
    """An empty disk has no old directory."""
    assert brought(SimFiles(), offer, FOUR) == FOUR


@pytest.mark.parametrize("owner", [replace(OLD, node_id=7), replace(OLD, cluster_id=bytes(16))])
def test_the_book_of_another_node_is_not_taken_over(offer: OfferedCopy, owner: Identity) -> None:
    """Somebody has put another directory here."""
    assert brought(old_book(owner, FIVE), offer, FOUR) == FOUR


@pytest.mark.parametrize("name", ["instance.json", "cluster/peers.json"])
def test_an_old_book_that_cannot_be_read_is_left_out(offer: OfferedCopy, name: str) -> None:
    """The directory may be made again because it was damaged."""
    files = old_book(OLD, FIVE)
    files.overwrite(f"/quarantine/old/{name}", 20, b"damage")
    assert brought(files, offer, FOUR) == FOUR


@pytest.mark.parametrize(
    ("before", "other", "after"),
    [
        ((3, 1), (2, 2), (3, 1)),
        ((3, None), (3, 2), (3, 2)),
        ((3, 1), (3, None), (3, 1)),
        ((3, 1), (4, None), (4, None)),
    ],
)
def test_the_higher_term_holds_and_a_vote_stays(
    before: tuple[int, int | None], other: tuple[int, int | None], after: tuple[int, int | None]
) -> None:
    """A term never falls; within one a vote is never lost."""
    assert newer_vote(before, other) == after


@pytest.mark.parametrize("damaged", ["nothing", "hardstate", "log"])
def test_either_home_of_the_votes_is_enough(offer: OfferedCopy, tmp_path: Path, damaged: str) -> None:
    """The hard state file and the log both have them."""
    directory = old_directory(tmp_path, offer)
    votes = read_votes(FILES, str(directory))
    assert votes[0] == (2, 1)
    if damaged == "hardstate":
        (directory / "log" / "hardstate").write_bytes(bytes(1 << 17))
    elif damaged == "log":
        for segment in (directory / "log").glob("seg-*"):
            segment.write_bytes(bytes(segment.stat().st_size))
    if damaged != "hardstate":  # without it the log cannot be opened at all
        assert read_votes(FILES, str(directory)) == votes


def test_nothing_is_read_of_an_empty_directory(tmp_path: Path) -> None:
    """It shows no votes."""
    assert read_votes(FILES, str(tmp_path)) == {}
