"""What MEMBER and FAULTS say, and what a checkpoint keeps of them."""

from __future__ import annotations

import pytest

from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.record import BadRecord, RecordKind, decode_record, encode_commit_mark, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn

WHOLE = ClusterMember(
    3, b"life-two", "h:1", "http://h:2", MemberStage.LEAVING, {0: (2, 7)}, (b"life-one",), forced=True, ended={1: (3, 9)}
)
PLAIN = ClusterMember(3, b"life-one", "h:1", "http://h:2")
FAULTS = FaultSet(4, (2, 3), 1, 5, 1, ((0, 8, 5),), "silent")


def record_of(kind: RecordKind, value: dict, *, index: int, term: int = 1) -> bytes:  # type: ignore[type-arg]
    """An entry of the cluster group."""
    return encode_json(kind, value, partition=CLUSTER_GROUP, term=term, index=index)


def observed(*records: bytes) -> GroupStates:
    """What they say together."""
    return GroupStates.fold((Lsn(BlockNumber(2), 0), decode_record(record)) for record in records)


@pytest.mark.parametrize("member", [WHOLE, PLAIN])
def test_a_member_is_read_as_it_was_written(member: ClusterMember) -> None:
    """Every field survives; a plain member's payload is what older programs wrote."""
    assert ClusterMember.from_json(member.to_json()) == member
    assert set(PLAIN.to_json()) == {"node", "incarnation", "peer", "client"}


def test_a_failure_set_is_read_as_it_was_written() -> None:
    """Every field survives."""
    assert FaultSet.from_record(decode_record(record_of(RecordKind.FAULTS, FAULTS.to_json(), index=2))) == FAULTS


@pytest.mark.parametrize("change", [{"state": "asleep"}, {"incarnation": 7}, {"admitted": {"0": 1}}, {"former": ["xy"]}])
def test_a_member_that_cannot_be_is_refused(change: dict) -> None:  # type: ignore[type-arg]
    """By kind and place."""
    record = decode_record(record_of(RecordKind.MEMBER, WHOLE.to_json() | change, index=2))
    with pytest.raises(BadRecord, match="MEMBER of partition"):
        ClusterMember.from_record(record)


def test_an_overwritten_entry_lets_the_one_before_hold_again() -> None:
    """Also after a checkpoint that was written between the two."""
    first, second = (record_of(RecordKind.MEMBER, of.to_json(), index=i) for i, of in ((2, PLAIN), (3, WHOLE)))
    faults = [record_of(RecordKind.FAULTS, {**FAULTS.to_json(), "sequence": n}, index=3 + n) for n in (1, 2)]
    committed = encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=2, closed_txn=0)
    before = observed(first, committed, second, *faults)
    (checkpoint,) = before.checkpoints(oldest_block=1)
    cut = record_of(RecordKind.ENVIRONMENT, {}, index=3, term=2)
    for groups in (before, observed(checkpoint)):
        groups.observe(Lsn(BlockNumber(3), 0), decode_record(cut))
        state = groups.state(CLUSTER_GROUP)
        assert ClusterMember.from_json(state.members[3].value) == PLAIN
        assert state.faults is None


def test_what_is_committed_hides_what_was_before() -> None:
    """A checkpoint does not grow with every change of a member."""
    records = [record_of(RecordKind.MEMBER, PLAIN.to_json() | {"peer": f"h:{n}"}, index=n) for n in range(2, 9)]
    committed = encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=7, closed_txn=0)
    groups = observed(*records[:6], committed, *records[6:])
    stated = groups.state(CLUSTER_GROUP).members[3]
    assert (stated.index, stated.before and stated.before.index) == (8, 7)
    assert stated.before is not None
    assert stated.before.before is None
    groups.observe(
        Lsn(BlockNumber(3), 0), decode_record(encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=8, closed_txn=0))
    )
    (checkpoint,) = groups.checkpoints(oldest_block=1)
    assert observed(checkpoint).state(CLUSTER_GROUP).members[3].before is None
