"""What a leader sees of its groups: who is live, whole and level, and for how long a node has been silent."""

from __future__ import annotations

from cmdlog.cluster.membership.leader_sight import see_groups, silent_ticks
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.core import RaftCore
from cmdlog.raft.messages import AppendReply
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId
from tests.raft.cluster import lead, solo

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
