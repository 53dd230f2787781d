"""What the log of a recovered node says of its cluster: one voter, a shape of its own, and that all lives of before are over."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.fault_log import make_record
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.recover.to_directory import begin_alone, with_stated_set

ME = Identity(b"cluster-number-1", 1, b"new-life")
SHAPE = {"partitions": 1, "slots": [[0, 16384, 0]], "key_policy": {"window_ms": 5}}
ALONE = {"voters": [1], "learners": [], "epoch": 1}
FORCED = {"voters": [1], "outgoing": [], "learners": [], "epoch": 8, "forced": True, "auto_leave": True, "learners_next": [2]}


def logged(cluster: dict[str, Any], partition: dict[str, Any], *members: ClusterMember) -> GroupStates:
    """What the old log ended with."""
    groups = GroupStates()
    stated = {member.node: Stated(6, 2, member.to_json()) for member in members}
    groups.by_partition[CLUSTER_GROUP] = GroupState(
        term=3, commit=9, last_index=9, last_term=3, configurations=[Stated(9, 3, cluster)], members=stated
    )
    groups.by_partition[0] = GroupState(term=3, commit=40, last_index=40, last_term=2, configurations=[Stated(40, 2, partition)])
    return groups


@pytest.mark.parametrize("voters", [ALONE, FORCED])
def test_nodes_can_agree_on_what_is_stated(voters: dict[str, Any]) -> None:
    """Every configuration is one of consensus, of one epoch; the shape holds apart from it, and reads as before."""
    groups = logged({**SHAPE, **voters}, voters)
    begin_alone(groups, ME)
    for state in groups.by_partition.values():
        (stated,) = state.configurations
        found = Configuration.from_bytes(orjson.dumps(stated.value))
        forced = "forced" in voters
        assert found == Configuration(voters=nodes([1]), forced=forced, epoch=8 if forced else 0)
    cluster = groups.state(CLUSTER_GROUP)
    assert cluster.shape is not None
    assert cluster.shape.value == SHAPE
    assert groups.cluster.partitions == 1


def test_a_shape_that_has_its_place_stays() -> None:
    """As in a member's log."""
    groups = logged(ALONE, ALONE)
    groups.state(CLUSTER_GROUP).shape = Stated(2, 1, SHAPE)
    begin_alone(groups, ME)
    shape = groups.state(CLUSTER_GROUP).shape
    assert shape is not None
    assert shape.value == SHAPE


def test_all_lives_of_before_are_over() -> None:
    """The others are no members any more, with the ends of what is known of them."""
    first = ClusterMember(1, b"old-life", "h:1", "http://1", admitted={0: (1, 4)})
    expected = ClusterMember(3, b"", "h:3", "http://3", MemberStage.EXPECTED, former=(b"3rd-life",))
    groups = logged({**SHAPE, **FORCED}, FORCED, first, ClusterMember(2, b"2nd-life", "h:2", "http://2"), expected)
    begin_alone(groups, ME)
    said = {node: ClusterMember.from_json(of.value) for node, of in groups.state(CLUSTER_GROUP).members.items()}
    assert 1 not in said  # it states its new life itself, with the address that it has then
    for node, life in ((2, b"2nd-life"), (3, b"3rd-life")):
        assert (said[node].stage, said[node].incarnation, said[node].former) == (MemberStage.REMOVED, b"", (life,))
        assert said[node].ended == {CLUSTER_GROUP: (3, 9), 0: (2, 40)}


def test_a_set_whose_record_a_crash_prevented_is_continued() -> None:
    """It was committed: the next record gets the number after it. One that is there, or does not follow, changes nothing."""
    first = make_record(ME.cluster_id, None, failed={2}, epoch=0, term=2, author=1)
    second = FaultSet(2, (2, 3), 0, 3, 1, ((0, 7, 3),), "silent")
    found = with_stated_set([first], Stated(8, 3, second.to_json()), ME.cluster_id)
    assert [(record.sequence, set(record.failed)) for record in found] == [(1, {2}), (2, {2, 3})]
    assert found[1].previous_checksum == first.checksum
    assert with_stated_set(found, Stated(8, 3, second.to_json()), ME.cluster_id) == found
    assert with_stated_set([], Stated(8, 3, second.to_json()), ME.cluster_id) == ()
    assert with_stated_set([first], None, ME.cluster_id) == (first,)
