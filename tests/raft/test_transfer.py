"""Handing leadership over: it happens, or it is given up, and proposals are taken again."""

from __future__ import annotations

import pytest

from cmdlog.raft import Act, MemberChange, ProposalRefused, RaftSettings, Refusal, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, TimeoutNow
from tests.raft.cluster import Cluster, lead, solo

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def test_a_transfer_to_a_voter_that_has_everything_takes_one_election() -> None:
    """The target leads in the next term, although the others hear from the old leader."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.transfer(C)
    cluster.settle()
    assert (cluster.leaders(), cluster.core(3).term) == ([C], leader.term)


def test_a_target_that_is_behind_is_fed_first() -> None:
    """It is told to campaign when it has the whole log, so that it can win."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.passes = lambda message: not (message.receiver == C and isinstance(message, Append))
    leader.propose([b"x"])
    cluster.settle()
    leader.transfer(C)
    term = leader.term
    cluster.settle()
    assert (cluster.leaders(), cluster.core(3).term) == ([A], term)
    cluster.heal()
    cluster.tick(3)
    assert cluster.leaders() == [C]


def test_proposals_wait_for_the_transfer_and_its_time_out() -> None:
    """A target that is gone costs one time-out."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.cut(3)
    leader.transfer(C)
    with pytest.raises(ProposalRefused) as refused:
        leader.propose([b"x"])
    assert (refused.value.reason, refused.value.leader) == (Refusal.TRANSFERRING, C)
    cluster.tick(cluster.settings.transfer_ticks)
    assert leader.propose([b"x"]) is not None
    assert leader.role is Role.LEADER


def test_a_later_transfer_takes_the_place_of_an_earlier_one() -> None:
    """The operator changed its mind."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.passes = lambda message: message.receiver != C or isinstance(message, Append)
    leader.transfer(C)
    cluster.settle()
    cluster.heal()
    leader.transfer(B)
    cluster.settle()
    assert cluster.leaders() == [B]


def test_only_a_leader_hands_over_and_only_to_another_voter() -> None:
    """Anything else is refused by name."""
    cluster = Cluster()
    leader = cluster.elect(1)
    for core, target, reason in (
        (cluster.core(2), C, Refusal.NOT_LEADER),
        (leader, A, Refusal.NO_SUCH_VOTER),
        (leader, NodeId(9), Refusal.NO_SUCH_VOTER),
    ):
        with pytest.raises(ProposalRefused) as refused:
            core.transfer(target)
        assert refused.value.reason is reason


def test_a_late_timeout_now_is_only_another_election() -> None:
    """It may come after the transfer was given up; what is committed stays."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"x"])
    cluster.settle()
    cluster.core(2).step(TimeoutNow(A, B, leader.term))
    cluster.settle()
    cluster.tick()
    assert cluster.leaders() == [B]
    assert [cluster.applied(member) for member in (1, 2, 3)] == [[b"x"]] * 3


def test_a_transfer_to_a_node_that_leaves_ends_with_its_removal() -> None:
    """Its removal, from an even number, was under way already; no proposal waits for a node that left."""
    cluster = Cluster((1, 2, 3, 4))
    leader = cluster.elect(1)
    cluster.cut(3)
    leader.change((MemberChange(Act.REMOVE, C),))
    leader.transfer(C)
    cluster.settle()
    assert leader.configuration.members() == (A, B, NodeId(4))
    assert leader.propose([b"x"]) is not None


def test_leadership_is_offered_to_nobody_that_is_silent() -> None:
    """Proposals would stop until the transfer times out, for a node that is gone."""
    core = lead(solo())
    with pytest.raises(ProposalRefused) as refused:
        core.transfer(B)
    assert refused.value.reason is Refusal.NOT_HEARD
    core.step(AppendReply(B, A, core.term, core.log.last))
    core.transfer(B)


def test_a_leader_whose_disk_hangs_hands_over() -> None:
    """The others would commit for ever what is applied and answered nowhere here; its memory would grow without end."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.tick(2)
    cluster.members[A].synced = False
    leader.propose([b"x"])
    cluster.tick(12)
    assert leader.role is Role.FOLLOWER
    assert len(cluster.leaders()) == 1


def test_a_leader_whose_disk_hangs_steps_down_when_nobody_takes_over() -> None:
    """The offer is lost; the others elect by their time-outs."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.tick(2)
    cluster.members[A].synced = False
    cluster.passes = lambda message: not isinstance(message, TimeoutNow)
    leader.propose([b"x"])
    cluster.tick(15)
    assert cluster.leaders() == [A]
    cluster.tick(10)
    assert leader.role is Role.FOLLOWER
    cluster.tick(40)
    assert len(cluster.leaders()) == 1


def test_a_leader_whose_disk_hangs_leads_on_where_nobody_else_can() -> None:
    """Alone, or with a majority only with itself, stepping down would help nobody."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.cut(3)
    cluster.tick(12)
    cluster.members[A].synced = False
    cluster.passes = lambda message: 3 not in (message.sender, message.receiver) and not isinstance(message, TimeoutNow)
    leader.propose([b"x"])
    cluster.tick(40)
    assert leader.role is Role.LEADER
    alone = Cluster((1,))
    alone.tick()
    alone.members[A].synced = False
    alone.core(1).propose([b"x"])
    alone.tick(40)
    assert alone.core(1).role is Role.LEADER


def test_what_the_own_disk_has_not_written_is_bounded() -> None:
    """Commits by the others release no memory of a leader whose disk is slow."""
    cluster = Cluster(settings=RaftSettings(undurable_bytes_max=100))
    leader = cluster.elect(1)
    cluster.tick(2)
    member = cluster.members[A]
    member.synced = False
    leader.propose([b"x" * 60])
    cluster.settle()
    assert (leader.log.commit, leader.proposed_bytes, leader.log.writing_bytes) == (2, 0, 60)
    with pytest.raises(ProposalRefused) as refused:
        leader.propose([b"y" * 60])
    assert refused.value.reason is Refusal.UNDURABLE_BYTES
    member.sync()
    leader.propose([b"y" * 60])
    assert leader.log.untaken_bytes == 60
