"""What a source answers: to whom it gives itself, what it holds meanwhile, and that nothing stays held."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.cluster.copying.copied_groups import GroupNotCopied
from cmdlog.cluster.copying.copy_desk import LAG_MAX, CopyDesk
from cmdlog.cluster.copying.copy_frames import ChunkPlace
from cmdlog.cluster.copying.copy_sessions import SILENT_S
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyManifest,
    CopyRefused,
    CopyRequest,
    CopyWait,
    RefusalCode,
)
from cmdlog.cluster.copying.held_files import CATCH_UP_S
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.cluster.copying.copykit import (
    LIFE,
    RECIPIENT,
    REQUEST,
    SHAPE,
    SOURCE,
    WISH,
    MadeUpNode,
    admitted,
    make_snapshot,
    peer,
    reach,
)

LINK, OTHER = object(), object()
PEER = peer()


@pytest.fixture
def node(tmp_path: Path) -> MadeUpNode:
    """It has one partition with a snapshot."""
    made = MadeUpNode(tmp_path)
    made.hold(b"content of the image")
    return made


@pytest.fixture
def desk(node: MadeUpNode) -> CopyDesk:
    """Of that node."""
    return node.desk()


def begun(desk: CopyDesk, request: CopyRequest = REQUEST, link: object = LINK) -> CopyManifest:
    """The manifest."""
    answer = desk.begin_copy(peer(request.incarnation, request.node), request, link)
    assert isinstance(answer, CopyManifest)
    return answer


def refusal(ask: Callable[[], object]) -> str:
    """The code."""
    with pytest.raises(CopyRefused) as refused:
        ask()
    assert refused.value.why
    return refused.value.code


def test_copy_begins_with_everything_held(node: MadeUpNode, desk: CopyDesk) -> None:
    """Files, an anchor at the snapshot's block, groups and the rest of the manifest; the end lets go of all."""
    node.faults, node.peers = [b"record"], {NodeId(SOURCE): PeerRecord(b"life of1"), NodeId(3): PeerRecord(b"life of3")}
    manifest = begun(desk)
    assert manifest.peers == node.peers
    assert (manifest.source, manifest.log, manifest.faults, manifest.rate) == (SOURCE, SHAPE, (b"record",), 0)
    assert [file.name.split("/")[1] for file in manifest.files] == ["manifest.json", "image.sqlite"]
    assert (manifest.partitions[0].index, manifest.groups[0].last_index, manifest.groups[CLUSTER_GROUP].commit) == (90, 90, 100)
    assert node.anchors == {f"copy-{RECIPIENT}-0": 45}
    assert len(node.held_folders()) == 1
    held = desk.locate(PEER, ChunkPlace(manifest.copy, 1, 11, 9), LINK)
    assert Path(held.path).read_bytes()[11:] == b"the image"
    desk.end(PEER, CopyEnd(manifest.copy, CopyEnding.FAILED, "no room"), LINK)
    assert (node.anchors, node.held_folders()) == ({}, [])


def test_log_is_held_until_the_recipient_has_caught_up(node: MadeUpNode, desk: CopyDesk) -> None:
    """Its files are there, and it has yet to restore them and to read what came after; but not for ever."""
    for caught_up in (True, False):
        desk.end(PEER, CopyEnd(begun(desk).copy, CopyEnding.DONE, ""), LINK)
        assert node.held_folders() == []
        node.now += CATCH_UP_S - 1
        desk.expire()
        assert list(node.anchors) == [f"copy-{RECIPIENT}-0"]
        if caught_up:
            node.members[RECIPIENT] = ClusterMember(RECIPIENT, LIFE, "", "", MemberStage.MEMBER)
        else:
            node.now += 2
        desk.expire()
        assert node.anchors == {}
        node.members[RECIPIENT] = admitted()


def test_copy_never_makes_the_log_full(node: MadeUpNode, desk: CopyDesk) -> None:
    """A log that is short of room goes on; the files stay, and what is fetched is not fetched again."""
    manifest = begun(desk)
    node.is_short = True
    desk.expire()
    assert node.anchors == {}
    assert desk.locate(PEER, ChunkPlace(manifest.copy, 1, 0, 1), LINK).about == manifest.files[1]
    desk.end(PEER, CopyEnd(manifest.copy, CopyEnding.DONE, ""), LINK)
    assert (node.anchors, node.held_folders()) == ({}, [])


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (None, RefusalCode.NOT_ADMITTED),
        (ClusterMember(RECIPIENT, b"", "", "", MemberStage.EXPECTED), RefusalCode.NOT_ADMITTED),
        (ClusterMember(RECIPIENT, LIFE, "", "", MemberStage.JOINING), RefusalCode.NOT_ADMITTED),
        (ClusterMember(RECIPIENT, LIFE, "", "", MemberStage.MEMBER), RefusalCode.NOT_ADMITTED),
        (ClusterMember(RECIPIENT, LIFE, "", "", MemberStage.REMOVED), RefusalCode.DELETED),
        (admitted(b"other..."), RefusalCode.WRONG_RECIPIENT),
        (admitted(b"", former=(LIFE,)), RefusalCode.WRONG_RECIPIENT),
    ],
)
def test_only_the_admitted_life_copies(node: MadeUpNode, desk: CopyDesk, member: ClusterMember | None, code: RefusalCode) -> None:
    """As the node's own committed log says it."""
    node.members = {} if member is None else {RECIPIENT: member}
    assert refusal(lambda: desk.begin_copy(PEER, REQUEST, LINK)) == code
    assert (node.anchors, node.held_folders(), node.asked) == ({}, [], [])


def test_message_about_somebody_else_is_refused(desk: CopyDesk) -> None:
    """A disk that proved to be one life speaks for that one alone."""
    for other in (peer(b"old life"), peer(node=3)):
        assert refusal(lambda other=other: desk.begin_copy(other, REQUEST, LINK)) == RefusalCode.WRONG_RECIPIENT  # type: ignore[misc]
        assert refusal(lambda other=other: desk.ask(other, WISH)) == RefusalCode.WRONG_RECIPIENT  # type: ignore[misc]


def test_wish_is_passed_on(node: MadeUpNode, desk: CopyDesk) -> None:
    """Who is admitted is decided elsewhere."""
    assert desk.ask(PEER, WISH).member == node.members[RECIPIENT]
    assert node.wishes == [WISH]


def test_recipient_that_knows_more_is_refused(desk: CopyDesk) -> None:
    """A newer term in any group: it may have seen entries committed that this node lacks."""
    assert refusal(lambda: begun(desk, CopyRequest(RECIPIENT, LIFE, {0: (4, 10)}))) == RefusalCode.STALE_TERM
    assert begun(desk, CopyRequest(RECIPIENT, LIFE, {0: (3, 0), 7: (9, 9)})).files


def test_recipient_that_consensus_can_serve_is_refused(node: MadeUpNode, desk: CopyDesk) -> None:
    """When no group of it ends before what this node's log still has."""
    node.reaches = {0: reach(base=50), CLUSTER_GROUP: reach(base=5)}
    level = CopyRequest(RECIPIENT, LIFE, {0: (3, 50), CLUSTER_GROUP: (3, 60)})
    assert refusal(lambda: begun(desk, level)) == RefusalCode.NOT_BEHIND
    assert begun(desk, CopyRequest(RECIPIENT, LIFE, {0: (3, 49), CLUSTER_GROUP: (3, 60)})).files


def test_source_that_is_wrong_itself_is_not_copied(node: MadeUpNode, desk: CopyDesk) -> None:
    """It says what is wrong with it."""
    node.problem = "partition 0 differs"
    assert refusal(lambda: begun(desk)) == RefusalCode.UNAVAILABLE


def test_source_that_lags_lets_wait(node: MadeUpNode, desk: CopyDesk) -> None:
    """Until it has the entries that made the recipient a learner."""
    node.members[RECIPIENT] = admitted(admitted={0: (3, 101)})
    answer = desk.begin_copy(PEER, REQUEST, LINK)
    assert isinstance(answer, CopyWait)
    assert "has not caught up" in answer.why
    node.reaches[0] = reach(101)
    assert begun(desk).files


@pytest.mark.parametrize("lacks", ["none", "before the log", "long before the recipient"])
def test_fresh_snapshot_is_taken_where_one_is_needed(node: MadeUpNode, desk: CopyDesk, lacks: str) -> None:
    """Asked for once, however often the recipient asks; then the copy begins."""
    if lacks == "none":
        node.snapshots.clear()
    elif lacks == "before the log":
        node.reaches[0] = reach(base=91)
    else:
        node.reaches[0] = reach(90 + LAG_MAX + 1)
        node.members[RECIPIENT] = admitted(admitted={0: (3, 90 + LAG_MAX + 1)})
    for _ in range(3):
        answer = desk.begin_copy(PEER, REQUEST, LINK)
        assert isinstance(answer, CopyWait)
        assert "snapshots of partitions [0]" in answer.why
    assert node.asked == [[0]]
    node.hold(b"fresh", index=95)
    node.taking.set_result({})
    assert begun(desk).partitions[0].index == 95


def test_snapshot_that_cannot_be_taken_is_named(node: MadeUpNode, desk: CopyDesk) -> None:
    """And taken again when the recipient asks again."""
    node.snapshots.clear()
    assert isinstance(desk.begin_copy(PEER, REQUEST, LINK), CopyWait)
    node.taking.set_exception(OSError("no room"))
    assert refusal(lambda: begun(desk)) == RefusalCode.UNAVAILABLE
    assert isinstance(desk.begin_copy(PEER, REQUEST, LINK), CopyWait)
    assert node.asked == [[0], [0]]


def test_failed_beginning_holds_nothing(node: MadeUpNode, desk: CopyDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone, a log that lacks something, a partition that has moved on."""
    os.unlink(Path(node.snapshots[0].path) / "image.sqlite")
    assert refusal(lambda: begun(desk)) == RefusalCode.FILE_LOST
    assert (node.anchors, node.held_folders()) == ({}, [])
    node.hold(b"whole again", index=91)

    def fail(_: object) -> None:
        raise GroupNotCopied("the log ends early")

    monkeypatch.setattr(node, "cluster_state", fail)
    broken = node.desk()
    with pytest.raises(GroupNotCopied):
        broken.begin_copy(PEER, REQUEST, LINK)
    assert (node.anchors, node.held_folders()) == ({}, [])


def test_partition_that_moves_on_meanwhile_begins_again(node: MadeUpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was cut between the choice of the snapshot and the look at the groups."""
    reaches = iter([{0: reach(), CLUSTER_GROUP: reach()}, {0: reach(base=95), CLUSTER_GROUP: reach()}])
    desk = node.desk()
    monkeypatch.setattr(MadeUpNode, "reaches", property(lambda _: next(reaches)), raising=False)
    assert refusal(lambda: desk.begin_copy(PEER, REQUEST, LINK)) == RefusalCode.FILE_LOST
    assert (node.anchors, node.held_folders()) == ({}, [])


def test_second_beginning_replaces_the_first(node: MadeUpNode, desk: CopyDesk) -> None:
    """By the same connection; another one's is refused while the first is there."""
    first = begun(desk)
    assert refusal(lambda: begun(desk, link=OTHER)) == RefusalCode.ALREADY_COPYING
    second = begun(desk)
    assert refusal(lambda: desk.locate(PEER, ChunkPlace(first.copy, 0, 0, 1), LINK)) == RefusalCode.UNKNOWN_COPY
    assert (len(node.held_folders()), len(node.anchors)) == (1, 1)
    desk.leave(LINK)
    assert begun(desk, link=OTHER).copy not in (first.copy, second.copy)


def test_no_more_copies_at_once_than_allowed(node: MadeUpNode) -> None:
    """A third node waits until one of the others is done."""
    node.members |= {number: admitted(b"life of%d" % number, number) for number in (3, 4)}
    desk = node.desk()
    copies = [begun(desk, CopyRequest(number, b"life of%d" % number), object()) for number in (3, 4)]
    assert refusal(lambda: begun(desk)) == RefusalCode.BUSY
    assert desk.cancel(3, "by an operator") == 1
    assert refusal(lambda: desk.locate(peer(b"life of3", 3), ChunkPlace(copies[0].copy, 0, 0, 1), LINK)) == RefusalCode.CANCELLED
    assert begun(desk).files
    assert desk.cancel(3, "again") == 0


@pytest.mark.parametrize("place", [(2, 0, 1), (1, 0, 21), (1, 20, 1), (1, 1 << 60, 1)])
def test_bytes_that_are_not_there_are_refused(desk: CopyDesk, place: tuple[int, int, int]) -> None:
    """Another file, or beyond its end."""
    manifest = begun(desk)
    assert refusal(lambda: desk.locate(PEER, ChunkPlace(manifest.copy, *place), LINK)) == RefusalCode.BAD_REQUEST


def test_silent_copy_expires(node: MadeUpNode, desk: CopyDesk) -> None:
    """After a minute without a piece, whether its connection is there or not; each piece begins the minute again."""
    manifest = begun(desk)
    place = ChunkPlace(manifest.copy, 0, 0, 1)
    node.now = SILENT_S - 1
    desk.locate(PEER, place, LINK)
    desk.note_sent(manifest.copy, 1)
    node.now = 2 * SILENT_S - 2
    desk.expire()
    assert node.anchors
    assert desk.status()["copies"][0]["sent_bytes"] == 1
    node.now = 2 * SILENT_S
    desk.expire()
    assert (node.anchors, node.held_folders(), desk.status()["copies"]) == ({}, [], [])
    assert refusal(lambda: desk.locate(PEER, place, LINK)) == RefusalCode.UNKNOWN_COPY
    desk.note_sent(manifest.copy, 1)


def test_recipient_that_lost_its_place_gets_no_more(node: MadeUpNode, desk: CopyDesk) -> None:
    """Replaced or removed while it copies."""
    manifest = begun(desk)
    node.members[RECIPIENT] = admitted(b"next one", former=(LIFE,))
    assert refusal(lambda: desk.locate(PEER, ChunkPlace(manifest.copy, 0, 0, 1), LINK)) == RefusalCode.WRONG_RECIPIENT


def test_closed_desk_gives_nothing(node: MadeUpNode, desk: CopyDesk) -> None:
    """What was held is let go of."""
    manifest = begun(desk)
    desk.close()
    assert (node.anchors, node.held_folders()) == ({}, [])
    assert refusal(lambda: desk.locate(PEER, ChunkPlace(manifest.copy, 0, 0, 1), LINK)) == RefusalCode.UNAVAILABLE
    assert refusal(lambda: begun(desk)) == RefusalCode.UNAVAILABLE
    assert node.held_folders() == []


def test_every_partition_is_held(tmp_path: Path) -> None:
    """Each with its chain, numbered over all of them."""
    node = MadeUpNode(tmp_path, partitions=(0, 1, 2))
    for partition in node.partitions:
        node.hold(b"image %d" % partition, partition, 80 + partition)
    node.snapshots[1] = make_snapshot(tmp_path, 1, 90, b"delta", base=node.snapshots[1])
    manifest = begun(node.desk())
    assert [(file.file, file.partition) for file in manifest.files] == list(enumerate([0, 0, 1, 1, 1, 1, 2, 2]))
    assert {partition: place.index for partition, place in manifest.partitions.items()} == {0: 80, 1: 90, 2: 82}
    assert sorted(node.anchors.values()) == [40, 41, 45]
