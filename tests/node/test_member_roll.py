"""The roll: what the log lacks of the members that were met, and what it states."""

from __future__ import annotations

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.node.member.member_roll import MemberRoll
from cmdlog.wal.format.control_record import ClusterMember
from cmdlog.wal.format.record import RecordKind, decode_record, encode_empty, encode_json
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


def test_another_incarnation_is_stated_too() -> None:
    """The log states the newest life of a disk."""
    roll = MemberRoll(GroupStates(), CLUSTER)
    for member in roll.missing_members(LIVES):
        roll.observe(5, stated(member))
    assert roll.missing_members(LIVES) == []
    assert [member.node for member in roll.missing_members({**LIVES, 2: b"life-two"})] == [2]


def test_a_start_knows_what_the_log_states() -> None:
    """From the fold of the log, of entries as of checkpoints."""
    member = MemberRoll(GroupStates(), CLUSTER).missing_members(LIVES)[0]
    states = GroupStates()
    states.observe(Lsn(BlockNumber(1), 0), decode_record(stated(member, index=1)))
    assert MemberRoll(states, CLUSTER).missing_members({1: LIVES[1]}) == []
    (checkpoint,) = states.checkpoints(oldest_block=1)
    again = GroupStates()
    again.observe(Lsn(BlockNumber(2), 0), decode_record(checkpoint))
    assert MemberRoll(again, CLUSTER).missing_members({1: LIVES[1]}) == []
