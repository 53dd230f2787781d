"""A running node's life ends once, and why is on disk before the process ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.rejoin.life_end import ASK_TICKS, STAGGER_TICKS, STUCK_TICKS, CopyNeeded, LifeEnd
from cmdlog.member.rejoin.rejoin_record import MemberRemoved, RejoinFile, RejoinReason, read_tombstone
from cmdlog.raft import SnapshotDescriptor
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, Index
from tests.member.rejoin.copykit import FILES, LIFE, RECIPIENT, OfferedCopy, ScriptedSource, ground_of, member_of, standing_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # the copy comes from a running node


class Running:
    """A node that runs, as the end of its life sees it."""

    def __init__(self, directory: Path, offer: OfferedCopy, *sources: ScriptedSource) -> None:
        (directory / "cluster").mkdir(parents=True)
        self.directory, self.failures = str(directory), list[BaseException]()
        self.led, self.can_write, self.stuck = True, True, list[object]([None])
        self.roll = MemberRoll(GroupStates(), offer.cluster)
        self.state_third(MemberStage.MEMBER)
        self.connected = {of.node for of in self.roll.members} - {RECIPIENT}
        self.life = LifeEnd(
            ground_of(directory, offer.cluster, *sources), LIFE, self.roll, self._fail,
            can_write=lambda: self.can_write,
            connected=lambda: self.connected,
        )  # fmt: skip

    def state_third(self, stage: MemberStage) -> None:
        """The cluster has another node, and states this of it."""
        third = ClusterMember(3, b"life-six", "127.0.0.1:9", "http://127.0.0.1:9", stage)
        self.roll.observe(1, encode_json(RecordKind.MEMBER, third.to_json(), partition=CLUSTER_GROUP, term=1, index=1))

    def note_ticks(self, ticks: int) -> None:
        self.life.note_ticks(ticks, is_led=self.led, stuck_at=self.stuck[0])

    def _fail(self, error: BaseException) -> None:
        """What follows from the end is on disk already."""
        assert RejoinFile(FILES, self.directory).read_record() or read_tombstone(FILES, self.directory)
        self.failures.append(error)

    def reason(self) -> RejoinReason | None:
        """Why a copy is wanted."""
        record = RejoinFile(FILES, self.directory).read_record()
        return None if record is None else record.reason


def stated(offer: OfferedCopy, stage: MemberStage, life: bytes, *former: bytes) -> ClusterMember:
    """What the cluster states of the node."""
    return replace(member_of(offer.cluster, RECIPIENT, life, stage), former=former)


def test_node_that_is_too_far_back_wants_a_copy_once(offer: OfferedCopy, tmp_path: Path) -> None:
    """Several groups may say so at once."""
    node = Running(tmp_path, offer)
    for group in (0, 1):
        node.life.end_too_far_back(group, SnapshotDescriptor(Index(9)))
    (failure,) = node.failures
    assert isinstance(failure, CopyNeeded)
    assert node.reason() is RejoinReason.TOO_FAR_BACK
    assert node.life.too_far_back == {0, 1}


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ((MemberStage.MEMBER, LIFE, ()), None),
        ((MemberStage.LEAVING_OLD, LIFE, ()), None),
        ((MemberStage.ADMITTED, LIFE, (b"life-one",)), None),
        ((MemberStage.EXPECTED, b"", ()), None),
        ((MemberStage.EXPECTED, b"", (LIFE,)), RejoinReason.REPLACED),
        ((MemberStage.EXPECTED, b"", (b"life-one",)), RejoinReason.REPLACED),
        ((MemberStage.JOINING, b"life-six", (LIFE,)), RejoinReason.REPLACED),
        ((MemberStage.REMOVED, b"life-six", (LIFE,)), RejoinReason.REPLACED),
    ],
)
def test_life_is_over_when_the_cluster_states_another_one(
    offer: OfferedCopy, tmp_path: Path, member: tuple[MemberStage, bytes, tuple[bytes, ...]], reason: RejoinReason | None
) -> None:
    """Not while it leaves, and not while no other life is known."""
    node = Running(tmp_path, offer)
    stage, life, former = member
    node.life.judge(stated(offer, stage, life, *former))
    assert node.reason() is reason
    assert len(node.failures) == (reason is not None)


def test_removed_node_leaves_a_tombstone(offer: OfferedCopy, tmp_path: Path) -> None:
    """With its last entries."""
    node = Running(tmp_path, offer)
    node.life.judge(replace(stated(offer, MemberStage.REMOVED, LIFE), ended={0: (2, 9)}))
    (failure,) = node.failures
    assert isinstance(failure, MemberRemoved)
    found = read_tombstone(FILES, node.directory)
    assert found is not None
    assert (found.incarnation, found.ended) == (LIFE, {0: (2, 9)})


def test_node_without_a_leader_asks_the_others(offer: OfferedCopy, tmp_path: Path) -> None:
    """Nobody sends entries to a node that is no member; one that is led does not ask."""
    source = ScriptedSource(offer)
    source.standing = lambda _wish: standing_of(source, stated(offer, MemberStage.REMOVED, LIFE))
    node = Running(tmp_path, offer, source)
    node.note_ticks(10 * ASK_TICKS)
    assert source.wishes == []
    node.led = False
    node.note_ticks(ASK_TICKS)
    wait_for(lambda: node.failures)
    assert [wish.reason for wish in source.wishes] == [""]


def test_node_that_has_not_begun_is_not_believed(offer: OfferedCopy, tmp_path: Path) -> None:
    """It knows no more than its cluster file."""
    source = ScriptedSource(offer, begun=False)
    source.standing = lambda _wish: standing_of(source, stated(offer, MemberStage.REMOVED, LIFE))
    node = Running(tmp_path, offer, source)
    node.led = False
    for _ in range(2):
        node.note_ticks(ASK_TICKS)
        wait_for(lambda: source.wishes)
    assert node.failures == []


def test_node_whose_full_log_moves_not_at_all_is_copied(offer: OfferedCopy, tmp_path: Path) -> None:
    """Any progress, or room, begins the wait from its start. So does the loss of the leader: its vote is needed."""
    node = Running(tmp_path, offer)
    for at in ({0: 7}, {0: 8}, None, {0: 8}):
        node.stuck[0] = at
        node.note_ticks(STUCK_TICKS)
    node.led = False
    node.note_ticks(2 * STUCK_TICKS)
    node.led, node.can_write = True, False  # a copy would find no room either
    node.note_ticks(2 * STUCK_TICKS)
    node.can_write = True
    node.note_ticks(STUCK_TICKS)
    node.note_ticks(STUCK_TICKS)
    assert node.failures == [], "those of a lower number go first"
    node.note_ticks(STAGGER_TICKS)
    assert node.reason() is RejoinReason.TOO_FAR_BACK


def test_node_whose_vote_is_needed_does_not_leave(offer: OfferedCopy, tmp_path: Path) -> None:
    """Another one is away, or is being copied: the rest could admit neither."""
    node = Running(tmp_path, offer)
    node.stuck[0] = {0: 8}
    node.connected.remove(3)
    for _ in range(3):
        node.note_ticks(10 * STUCK_TICKS)
    assert node.failures == []
    node.connected.add(3)
    node.state_third(MemberStage.ADMITTED)
    node.note_ticks(1)
    assert node.failures == []
    node.state_third(MemberStage.MEMBER)
    node.note_ticks(1)
    assert node.reason() is RejoinReason.TOO_FAR_BACK
