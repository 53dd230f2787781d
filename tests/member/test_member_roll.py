"""The roll: what the log lacks of the members that were met, and what it states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.member.member_roll import MemberRoll
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.record import RecordKind, decode_record, encode_commit_mark, encode_empty, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn

CLUSTER = ClusterFile(
    bytes(16), "shop",
    tuple(MemberAddress(node, ("127.0.0.1", 7100 + node), f"http://127.0.0.1:{8100 + node}") for node in (1, 2, 3)),
    {"partitions": 1}, "digest",
)  # fmt: skip
LIVES = {1: b"life-of1", 2: b"life-of2"}


def stated(member: ClusterMember, index: int = 5) -> bytes:
    """The entry that states it."""
    return encode_json(RecordKind.MEMBER, member.to_json(), partition=CLUSTER_GROUP, term=1, index=index)


def test_members_that_were_met_are_missing_until_the_log_states_them() -> None:
    """One whose incarnation is unknown is left out; other entries of the group state nothing."""
    roll = MemberRoll(GroupStates(), CLUSTER)
    missing = roll.missing_members(LIVES)
    assert [(member.node, member.incarnation, member.peer) for member in missing] == [
        (1, b"life-of1", "127.0.0.1:7101"),
        (2, b"life-of2", "127.0.0.1:7102"),
    ]
    roll.observe(4, encode_empty(partition=CLUSTER_GROUP, term=1, index=4))
    assert roll.missing_members(LIVES) == missing
    roll.observe(5, stated(missing[0]))
    assert roll.missing_members(LIVES) == missing[1:]


def test_what_is_stated_is_not_stated_again() -> None:
    """Whatever incarnation is met: another life of a disk belongs to the cluster by a decision alone."""
    roll = MemberRoll(GroupStates(), CLUSTER)
    for member in roll.missing_members(LIVES):
        roll.observe(5, stated(member))
    assert roll.missing_members({**LIVES, 2: b"life-two"}) == []


def test_committed_entries_change_the_members() -> None:
    """One is added, one gets another disk and address, one leaves; each change is seen once it is made."""
    roll, seen = MemberRoll(GroupStates(), CLUSTER), list[tuple[int, tuple[int, ...]]]()
    roll.watch(lambda: seen.append((roll.version, tuple(member.node for member in roll.members))))
    first = ClusterMember(2, b"life-of2", "h:1", "http://h")
    roll.observe(5, stated(first))
    assert roll.member(2).peer == ("127.0.0.1", 7102)  # as the file at hand says
    roll.observe(6, stated(replace(first, stage=MemberStage.EXPECTED, former=(b"life-of2",))))
    assert (roll.member(2).peer, roll.url_of(2)) == (("h", 1), "http://h")
    roll.observe(7, stated(ClusterMember(4, b"", "h:4", "http://h4", MemberStage.EXPECTED)))
    roll.observe(8, stated(ClusterMember(1, b"life-of1", "h:4", "http://h4", MemberStage.REMOVED)))
    assert seen == [(5, (1, 2, 3)), (6, (1, 2, 3)), (7, (1, 2, 3, 4)), (8, (2, 3, 4))]
    assert roll.url_of(1) == roll.url_of(None) == ""
    with pytest.raises(KeyError):
        roll.member(1)
    assert roll.stated[1].stage is MemberStage.REMOVED


def test_failure_sets_are_known() -> None:
    """The newest one; it counts as a change."""
    roll = MemberRoll(GroupStates(), CLUSTER)
    faults = FaultSet(1, (3,), 1, 1, 1)
    roll.observe(9, encode_json(RecordKind.FAULTS, faults.to_json(), partition=CLUSTER_GROUP, term=1, index=9))
    assert (roll.faults, roll.version) == (faults, 9)


def test_a_start_counts_what_is_committed_alone() -> None:
    """The end of a log may be void."""
    states = GroupStates()
    records = [
        stated(ClusterMember(4, b"life-of4", "h:4", "http://h4"), index=2),
        encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=2, closed_txn=0),
        stated(ClusterMember(4, b"life-of4", "h:4", "http://h4", MemberStage.REMOVED), index=3),
        stated(ClusterMember(5, b"life-of5", "h:5", "http://h5"), index=4),
    ]
    for record in records:
        states.observe(Lsn(BlockNumber(1), 0), decode_record(record))
    roll = MemberRoll(states, CLUSTER)
    assert ([member.node for member in roll.members], roll.version) == ([1, 2, 3, 4], 2)


def test_a_start_knows_what_the_log_states() -> None:
    """From the fold of the log, of entries as of checkpoints."""
    member = MemberRoll(GroupStates(), CLUSTER).missing_members(LIVES)[0]
    states = GroupStates()
    for record in (stated(member, index=1), encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=1, closed_txn=0)):
        states.observe(Lsn(BlockNumber(1), 0), decode_record(record))
    assert MemberRoll(states, CLUSTER).missing_members({1: LIVES[1]}) == []
    (checkpoint,) = states.checkpoints(oldest_block=1)
    again = GroupStates()
    again.observe(Lsn(BlockNumber(2), 0), decode_record(checkpoint))
    assert MemberRoll(again, CLUSTER).missing_members({1: LIVES[1]}) == []
