"""A real node as the source of a copy: what its manifest promises can be fetched, and restores to the states that it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.copying.copy_client import CopyClient
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.copying.copy_values import (
    CopyEnding,
    CopyManifest,
    CopyRefused,
    CopyRequest,
    CopyWait,
    LeaderAddress,
    RefusalCode,
)
from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.node.assembly import MACHINE
from cmdlog.node.node import Node
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.format.record import RecordKind
from replay.state.trust import state_path
from snapshot import retention
from snapshot.catalog import FOLDER, Snapshot, list_snapshots, restore
from snapshot.manifest import size_and_crc
from snapshot.table_digest import TableDigest, open_image, table_digests
from tests.member.members import SECRET, Members, member_of, members, number_of, status_of
from tests.node.rig import Pending, ask
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

NEW = 9  # the node that copies
LIFE = b"new life"
WISH = CopyWish(NEW, LIFE, b"", "an empty disk", "127.0.0.1:1", "http://node9")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """One node that leads, with some calls behind it."""
    with members(tmp_path, monkeypatch) as made:
        node = made.join_all()
        for number in range(20):
            ask(node, "bump", id=number, amount=number)
        yield made


def state_member(node: Node, member: ClusterMember) -> None:
    """Commits what the cluster says of a member, as its leader does."""
    done = Pending()
    with member_of(node).consensus.driver.lock:
        member_of(node).consensus.machine.state(RecordKind.MEMBER, member.to_json(), done.done)
    member_of(node).consensus.driver.wake()
    done.wait()
    wait_for(lambda: member_of(node).consensus.roll.stated.get(member.node) == member)


def admit(node: Node, stage: MemberStage = MemberStage.ADMITTED) -> None:
    """The new node's disk has come so far."""
    state_member(node, ClusterMember(NEW, LIFE, WISH.peer, WISH.client, stage))


def client_of(node: Node, life: bytes = LIFE) -> CopyClient:
    """A disk of the new node."""
    cluster_id = node._wal.instance.identity.cluster_id
    return CopyClient(copy_credentials(cluster_id, NEW, life, SECRET), number_of(node), member_of(node).consensus.network.address)


def begin(client: CopyClient) -> CopyManifest:
    """Begins as soon as the source has what a copy needs."""

    def manifest() -> list[CopyManifest]:
        answer = client.begin_copy(CopyRequest(NEW, LIFE))
        return [] if isinstance(answer, CopyWait) else [answer]

    (found,) = wait_for(manifest)
    return found


def fetch(client: CopyClient, manifest: CopyManifest, directory: Path) -> None:
    """Everything that the manifest names."""
    for file in manifest.files:
        path = directory / FOLDER / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as target:
            for piece in client.read_chunks(manifest.copy, file):
                target.write(piece)
        assert size_and_crc(str(path)) == (file.size, file.crc32c)


def digests_of(path: str | Path) -> dict[str, TableDigest]:
    """Of every table of a state file."""
    connection = open_image(path)
    try:
        return table_digests(connection)
    finally:
        connection.close()


def newest(directory: Path, node: Node, partition: int) -> Snapshot:
    """As the copy's files say it."""
    found = list_snapshots(MACHINE.files, str(directory), node._wal.instance.identity)
    return [snapshot for snapshot in found if snapshot.partition == partition][-1]


def held(node: Node) -> tuple[list[str], list[str]]:
    """Anchors and folders of copies."""
    anchors = [name for name in node._wal.anchors.status() if name.startswith("copy-")]
    return anchors, [name for name in os.listdir(Path(node.directory, FOLDER)) if name.startswith("tmp-")]


def test_wish_is_answered_with_what_is_committed(cluster: Members) -> None:
    """Also to a disk that is unknown yet: what it asks for is refused by name; without a reason it only looks."""
    node = cluster.leader()
    with client_of(node) as client:
        looked, refused = client.ask(replace(WISH, reason="")), client.ask(WISH)
        assert (looked.node, looked.begun, looked.leads, looked.member, looked.refusal) == (1, True, True, None, None)
        assert looked.leader == LeaderAddress(1, looked.roll[0].peer)
        assert [(address.node, address.client) for address in looked.roll] == [(1, "http://node1")]
        assert refused.refusal is not None
        assert refused.refusal.code == WishRefusal.NOT_EXPECTED.value
        admit(node)
        member = client.ask(WISH).member
    assert member is not None
    assert (member.stage, member.incarnation) == (MemberStage.ADMITTED, LIFE)


def test_restored_copy_equals_the_states(cluster: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table of every partition; the snapshots are chains, since deltas were taken between calls."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 100.0)
    node = cluster.leader()
    admit(node)
    for round_ in range(3):
        for number in range(20):
            ask(node, "bump", id=number, amount=round_)
        node.take_snapshot()
    with client_of(node) as client:
        manifest = begin(client)
        assert held(node)[0] == [f"copy-{NEW}-0", f"copy-{NEW}-1"]
        me = node._wal.instance.identity.incarnation
        assert manifest.peers[NodeId(number_of(node))] == PeerRecord(me, start=member_of(node).consensus.network.book.start)
        fetch(client, manifest, tmp_path / "copy")
        status = status_of(node)["copying"]["copies"]
        assert [(copy["node"], copy["percent"], copy["sent_bytes"]) for copy in status] == [(NEW, 100.0, manifest.size)]
        client.end(manifest.copy, CopyEnding.DONE)
        with pytest.raises(CopyRefused) as refused:
            next(client.read_chunks(manifest.copy, manifest.files[0]))
    assert refused.value.code == RefusalCode.UNKNOWN_COPY
    wait_for(lambda: held(node)[1] == [])
    cluster.close(number_of(node))
    for partition in range(2):
        snapshot = newest(tmp_path / "copy", node, partition)
        place = manifest.partitions[partition]
        assert snapshot.manifest is not None
        assert (snapshot.manifest.index, snapshot.manifest.term, snapshot.manifest.txn_id) == (
            place.index,
            place.term,
            place.txn_id,
        )
        target = str(tmp_path / f"restored-{partition}.sqlite")
        restore(snapshot, target)
        assert digests_of(target) == digests_of(state_path(node.directory, partition))
    assert any(file.name.endswith("delta.sqlite") for file in manifest.files)


def test_retention_takes_nothing_from_a_copy(cluster: Members, tmp_path: Path) -> None:
    """Snapshots that are gone at the source are read to their end; what held them is gone after the copy."""
    node = cluster.leader()
    admit(node)
    with client_of(node) as client:
        manifest = begin(client)
        for _ in range(6):
            for number in range(4):
                ask(node, "bump", id=number, amount=1)
            node.take_snapshot()
        names = {snapshot["name"] for snapshot in node.snapshots()}
        assert not {file.name.split("/")[0] for file in manifest.files} & names
        fetch(client, manifest, tmp_path / "copy")
        client.end(manifest.copy, CopyEnding.DONE)
    admit(node, MemberStage.MEMBER)
    wait_for(lambda: held(node) == ([], []))


def test_node_that_stops_lets_go(cluster: Members) -> None:
    """Its directory keeps nothing of a copy under way."""
    node = cluster.leader()
    admit(node)
    with client_of(node) as client:
        begin(client)
        assert all(held(node))
        cluster.close(1)
        wait_for(lambda: held(node)[1] == [])


def test_follower_is_copied_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that knows that the recipient is admitted, and reaches as far."""
    with members(tmp_path, monkeypatch, count=3) as made:
        leader = made.join_all()
        for number in range(20):
            ask(leader, "bump", id=number, amount=number)
        admit(leader)
        follower = made.followers()[0]
        wait_for(lambda: NEW in member_of(follower).consensus.roll.stated)
        with client_of(follower) as client:
            standing = client.ask(WISH)
            assert standing.leader is not None
            assert (standing.leads, standing.leader.node) == (False, number_of(leader))
            manifest = begin(client)
            fetch(client, manifest, tmp_path / "copy")
            client.end(manifest.copy, CopyEnding.DONE)
        assert manifest.source == number_of(follower)
        assert [address.node for address in standing.roll] == [1, 2, 3, NEW]
