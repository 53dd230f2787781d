"""What is read off a view: seats, spare voters, whose change is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.membership.membership_view import Seat, see_groups, silent_ticks, spare_voters
from cmdlog.raft.configuration import Configuration, NodeId, nodes
from cmdlog.raft.core import RaftCore
from cmdlog.raft.messages import AppendReply
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.format.cluster_record import MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId
from tests.cluster.membership.plan_model import cluster_of, member_of
from tests.raft.cluster import lead, solo


@pytest.mark.parametrize(
    ("voters", "outgoing", "live", "spare"),
    [
        ({1, 2, 3}, (), {1, 2, 3}, 1),
        ({1, 2, 3}, (), {1, 2}, 0),
        ({1, 2, 3}, (), {1}, -1),
        ({1, 2}, (), {1, 2}, 0),
        ({1}, (), {1}, 0),
        ({1, 2}, {1, 2, 3, 4}, {1, 2}, -1),
        ({1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3}, 0),
    ],
)
def test_spare_voters_of_both_halves(voters: set[int], outgoing: set[int], live: set[int], spare: int) -> None:
    """As many as may be lost until one half has no majority."""
    configuration = Configuration(nodes(voters), outgoing=nodes(outgoing))
    assert spare_voters(configuration, frozenset(live)) == spare


def test_seats_and_mixed_nodes() -> None:
    """A node with two seats is on its way."""
    model = cluster_of(3)
    assert model.view.seats_of(3) == {Seat.VOTER}
    assert model.view.mixed() == ()
    half = model.with_group(0, cluster_of(2, learners=1).view.groups[0].configuration)
    assert half.view.seats_of(3) == {Seat.VOTER, Seat.LEARNER}
    assert half.view.mixed() == (3,)
    assert half.view.present() == (1, 2, 3)


def test_a_group_settles_when_its_configuration_is_committed_and_not_joint() -> None:
    """Both."""
    sight = cluster_of(3).view.groups[0]
    assert sight.settled
    assert not replace(sight, committed=False).settled
    joint = Configuration(nodes((1, 2)), outgoing=nodes((1, 2, 3)))
    assert not replace(sight, configuration=joint).settled


def test_a_change_under_way_is_found_by_its_stage() -> None:
    """A node that is only expected waits for its disk, and holds nobody up."""
    model = cluster_of(3).with_member(member_of(4, MemberStage.EXPECTED, b""))
    assert model.view.under_way is None
    joining = model.with_member(member_of(4, MemberStage.JOINING)).view.under_way
    assert joining is not None
    assert joining.node == 4
    assert model.view.stage_of(9) is MemberStage.MEMBER


A, B, C, L = (NodeId(number) for number in (1, 2, 3, 4))


def led() -> tuple[RaftGroups, RaftCore]:
    """Node 1 leads 1 to 3 and learner 4; 2 has all of its log, 3 said nothing in this term, 4 has the first entry."""
    member = solo(learners=(4,), terms=(1, 1, 1))
    core = lead(member)
    groups = RaftGroups(A)
    groups.add(PartitionId(CLUSTER_GROUP), core)
    while (round_ := groups.collect()) is not None:
        groups.durable(round_.number)
    for peer, match in ((B, core.log.last), (L, 1)):
        core.step(AppendReply(peer, A, core.term, Index(match)))
    groups.collect()
    return groups, core


def test_live_whole_and_level_nodes() -> None:
    """Heard from in this term; with all that is committed; close enough to the end."""
    groups, core = led()
    sight = see_groups(groups, diverged=(), after=0)[CLUSTER_GROUP]
    assert core.log.commit == core.log.last == 4
    assert sight.live == {A, B, L}
    assert sight.whole == {A, B}
    assert sight.level == {A, B, L}  # a thousand entries may be missing
    assert (sight.committed, sight.place) == (True, (0, 0))


def test_a_node_that_diverged_is_not_whole() -> None:
    """Whatever its log holds."""
    groups, _ = led()
    assert see_groups(groups, diverged={B}, after=0)[CLUSTER_GROUP].whole == {A}


def test_a_node_is_level_once_it_has_the_newest_entry_about_members() -> None:
    """The failure set that lists it: its log then shows that it knows it."""
    groups, _ = led()
    assert see_groups(groups, diverged=(), after=2)[CLUSTER_GROUP].level == {A, B}


def test_silence_counts_from_the_last_word_or_from_the_election() -> None:
    """In ticks of this node."""
    groups, core = led()
    for _ in range(7):
        core.ticks += 1  # without what a leader does meanwhile
    core.step(AppendReply(B, A, core.term, core.log.last))
    silent = silent_ticks(groups)
    assert silent[B] == 0
    assert silent[C] >= silent[L] == 7
