"""Changes of members: in force when appended, undone when cut, one at a time, and never the end of the group by accident."""

from __future__ import annotations

import pytest

from cmdlog.raft import (
    Act,
    BadChange,
    ChangeRefused,
    Configuration,
    Drop,
    Franchise,
    MemberChange,
    MembershipGuard,
    RaftSettings,
    Refusal,
    Role,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.messages import KIND_CONFIGURATION, Append, AppendReply, Campaign, Heartbeat, Removed, VoteRequest
from cmdlog.raft.roles.membership import forget_acknowledgements
from cmdlog.raft.wire.secure_frames import cluster_of_epoch
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Disk, column, lead, node, solo
from tests.raft.completeness import suffice, unseeing

A, B, C, D, E = (NodeId(value) for value in (1, 2, 3, 4, 5))
ADD_D = (MemberChange(Act.ADD_LEARNER, D),)
PROMOTE_D = (MemberChange(Act.ADD_VOTER, D),)


def refusal(error: pytest.ExceptionInfo[ChangeRefused]) -> Refusal:
    """The stable part of a refusal."""
    return error.value.reason


def test_a_learner_is_added_catches_up_and_is_promoted() -> None:
    """The way in: entries from the first one on, no vote meanwhile."""
    cluster = Cluster(others=(4,))
    leader = cluster.elect(1)
    leader.propose([b"x"])
    cluster.settle()
    leader.change(ADD_D)
    cluster.settle()
    cluster.tick()
    assert (leader.configuration.learners, cluster.applied(4)) == ((D,), [b"x"])
    leader.change(PROMOTE_D)
    cluster.settle()
    assert cluster.core(4).configuration == Configuration(voters=(A, B, C, D))
    leader.transfer(D)
    cluster.settle()
    assert cluster.leaders() == [D]


def test_a_configuration_is_in_force_when_it_is_appended() -> None:
    """Also when it is not committed: the old majority alone does not decide any more."""
    cluster = Cluster(others=(4, 5))
    leader = cluster.elect(1)
    cluster.cut(4, 5)
    swap = [
        MemberChange(Act.ADD_VOTER, D),
        MemberChange(Act.ADD_VOTER, E),
        MemberChange(Act.REMOVE, B),
        MemberChange(Act.REMOVE, C),
    ]
    leader.change(swap, guard=MembershipGuard.FORCED)
    leader.propose([b"x"])
    cluster.settle()
    assert (leader.configuration.joint, leader.log.commit) == (True, 1)
    cluster.heal()
    cluster.tick(3)
    assert leader.configuration == Configuration(voters=(A, D, E))
    assert cluster.applied(1) == [b"x"]


def test_a_cut_entry_takes_its_configuration_with_it() -> None:
    """A change that the next leader does not have has never been."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut(1)
    cluster.core(1).change(ADD_D)
    cluster.settle()
    assert cluster.core(1).configuration.learners == (D,)
    cluster.tick(60)
    cluster.heal()
    cluster.tick(3)
    assert cluster.leaders() in ([B], [C])
    assert cluster.core(1).configuration == Configuration(voters=(A, B, C))


def test_a_restart_finds_the_configuration_in_the_log() -> None:
    """Committed or not: it is a function of snapshot and log."""
    cluster = Cluster(others=(4,))
    cluster.elect(1).change(ADD_D)
    cluster.settle()
    cluster.restart(1)
    assert (cluster.core(1).configuration.learners, cluster.core(1).configuration_index) == ((D,), 2)


def test_one_change_at_a_time_and_only_after_an_own_commit() -> None:
    """Two that are not committed could win two elections (the bug of single-server changes)."""
    member = solo(terms=[1])
    with pytest.raises(ChangeRefused) as refused:
        member.core.change(ADD_D)
    assert refusal(refused) is Refusal.NOT_LEADER
    core = lead(member)
    with pytest.raises(ChangeRefused) as refused:
        core.change(ADD_D)
    assert refusal(refused) is Refusal.TERM_NOT_COMMITTED
    core.step(AppendReply(B, A, core.term, Index(2)))
    core.change(ADD_D)
    with pytest.raises(ChangeRefused) as refused:
        core.change((MemberChange(Act.ADD_LEARNER, E),))
    assert refusal(refused) is Refusal.CHANGE_PENDING
    core.step(AppendReply(B, A, core.term, Index(3)))
    core.transfer(B)
    with pytest.raises(ChangeRefused) as refused:
        core.change(PROMOTE_D)
    assert refusal(refused) is Refusal.TRANSFERRING


def test_a_change_is_compare_and_set() -> None:
    """Made for another configuration it is refused, and so is one that makes no sense."""
    cluster = Cluster()
    leader = cluster.elect(1)
    base = leader.configuration
    leader.change(ADD_D, base=base)
    cluster.settle()
    with pytest.raises(ChangeRefused) as refused:
        leader.change((MemberChange(Act.ADD_LEARNER, E),), base=base)
    assert refusal(refused) is Refusal.STALE_BASE
    with pytest.raises(BadChange):
        leader.change((MemberChange(Act.ADD_VOTER, A),))


def test_a_voter_must_have_the_configuration_that_made_it_a_learner() -> None:
    """However short the log is: a node that is a member anew has no vote before it has that entry."""
    cluster = Cluster(others=(4,))
    leader = cluster.elect(1)
    cluster.cut(4)
    leader.change(ADD_D)
    cluster.settle()
    with pytest.raises(ChangeRefused) as refused:
        leader.change(PROMOTE_D)
    assert refusal(refused) is Refusal.LAGGING


def test_a_voter_must_have_been_a_learner_that_caught_up() -> None:
    """Else commits would wait for it."""
    cluster = Cluster(others=(4,), settings=RaftSettings(promotion_entries_max=5))
    leader = cluster.elect(1)
    with pytest.raises(ChangeRefused) as refused:
        leader.change(PROMOTE_D)
    assert refusal(refused) is Refusal.LAGGING
    cluster.cut(4)
    leader.change(ADD_D)
    cluster.settle()
    leader.propose([b"x"] * 9)
    cluster.settle()
    with pytest.raises(ChangeRefused) as refused:
        leader.change(PROMOTE_D)
    assert refusal(refused) is Refusal.LAGGING
    cluster.heal()
    cluster.tick(3)
    leader.change(PROMOTE_D)


def test_a_change_that_leaves_no_live_majority_is_refused_unless_forced() -> None:
    """It would be the last one that this group commits."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.cut(3)
    cluster.tick(12)
    remove = (MemberChange(Act.REMOVE, B),)
    with pytest.raises(ChangeRefused) as refused:
        leader.change(remove)
    assert refusal(refused) is Refusal.QUORUM_AT_RISK
    leader.change(remove, guard=MembershipGuard.FORCED)


def test_a_joint_configuration_ends_by_itself_when_it_is_committed() -> None:
    """Both majorities first, then the new one alone; the demoted voter learns on."""
    cluster = Cluster(others=(4, 5))
    leader = cluster.elect(1)
    leader.change(
        (MemberChange(Act.ADD_VOTER, D), MemberChange(Act.ADD_VOTER, E), MemberChange(Act.ADD_LEARNER, B)),
        guard=MembershipGuard.FORCED,
    )
    assert leader.configuration == Configuration((A, C, D, E), (A, B, C), (), (B,), auto_leave=True)
    cluster.settle()
    cluster.tick()
    assert {member.core.configuration for member in cluster.members.values()} == {Configuration((A, C, D, E), learners=(B,))}


def disks(cluster: Cluster, *members: int) -> dict[NodeId, Disk]:
    """What is durable of these nodes, of all by default."""
    return {member: held.disk for member, held in cluster.members.items() if not members or member in members}


def holders(cluster: Cluster, payload: bytes) -> list[NodeId]:
    """Who has an entry durably."""
    return [member for member, disk in disks(cluster).items() if payload in disk.entries.payloads]


def test_a_voter_more_of_an_even_number_commits_nothing_beside_logs_that_suffice() -> None:
    """A and B vote, A is cut off, D becomes a voter: what B and D have is not committed before A knows that D votes."""
    cluster = Cluster((1, 2), others=(4,))
    leader = cluster.elect(2)
    leader.change(ADD_D)
    cluster.settle()
    cluster.tick()
    assert suffice(disks(cluster, 1))
    cluster.cut(1)
    leader.change(PROMOTE_D)
    placed = leader.propose([b"x"])
    cluster.settle()
    assert placed is not None
    assert (leader.log.commit < placed.first, holders(cluster, b"x")) == (True, [B, D])
    cluster.heal()
    cluster.tick(2)
    assert (leader.log.commit > placed.first, leader.configuration) == (True, Configuration((A, B, D)))
    assert [suffice(disks(cluster, member)) for member in (1, 2, 4)] == [False] * 3
    assert unseeing(disks(cluster), holders(cluster, b"x")) == ()


def test_a_voter_less_of_an_even_number_commits_nothing_beside_logs_that_suffice() -> None:
    """A and B vote, B is cut off and removed: A commits nothing by itself, since B's log alone would suffice."""
    cluster = Cluster((1, 2))
    leader = cluster.elect(1)
    cluster.cut(2)
    leader.change((MemberChange(Act.REMOVE, B),))
    placed = leader.propose([b"x"])
    cluster.settle()
    assert placed is not None
    assert (leader.log.commit < placed.first, suffice(disks(cluster, 2))) == (True, True)
    cluster.heal()
    cluster.tick(2)
    assert (leader.log.commit > placed.first, leader.configuration) == (True, Configuration((A,)))
    assert unseeing(disks(cluster), holders(cluster, b"x")) == ()


def test_logs_that_suffice_and_lack_what_is_committed_are_found() -> None:
    """The judge itself: of two voters any log suffices, until one at hand knows of a third voter; a blank disk adds nothing."""
    lagging, ahead, blank = solo(1, voters=(1, 2)).disk, solo(2, voters=(1, 2), terms=(1,)).disk, Disk()
    third = solo(3, voters=(1, 2)).disk
    third.entries = column(1, 1, kinds=bytes([KIND_CONFIGURATION]), payloads=[Configuration((A, B, C)).to_bytes()])
    assert [suffice({A: lagging}), suffice({A: lagging, C: third}), suffice({A: lagging, B: ahead, C: third})] == [True] * 3
    assert [suffice({C: third}), suffice({D: blank}), suffice({})] == [False] * 3
    assert unseeing({A: lagging, B: ahead}, [B]) == (A,)
    assert unseeing({A: lagging, B: ahead, D: blank}, [A, B]) == ()
    assert unseeing({A: lagging, B: ahead, C: third}, [B, C]) == (A,)


def test_a_new_leader_ends_the_joint_configuration_of_its_predecessor() -> None:
    """A crash between the two halves of a change does not leave it half done."""
    cluster = Cluster(others=(4, 5))
    leader = cluster.elect(1)
    cluster.passes = lambda message: not (isinstance(message, AppendReply) and message.index == 2)
    leader.change((MemberChange(Act.ADD_VOTER, D), MemberChange(Act.ADD_VOTER, E)), guard=MembershipGuard.FORCED)
    cluster.settle()
    cluster.cut(1)
    cluster.tick(60)
    (successor,) = [cluster.core(each) for each in cluster.leaders() if each != A]
    assert successor.configuration == Configuration(voters=(A, B, C, D, E))


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    """It does not count itself meanwhile; then it follows, never campaigns, and another leads."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.change((MemberChange(Act.REMOVE, A),))
    assert leader.leader == A
    cluster.settle()
    assert (leader.role, leader.log.commit) == (Role.FOLLOWER, 2)
    cluster.tick(60)
    assert cluster.leaders() in ([B], [C])
    assert leader.leader is None


def test_a_removed_node_campaigns_while_only_it_can_bring_the_removal_to_the_others() -> None:
    """A and B have the entry that leaves C alone, C has not: C cannot win with its shorter log, so one of the others must."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.passes = lambda message: not (isinstance(message, Append) and message.receiver == C and message.entries.last > 2)
    leader.change((MemberChange(Act.REMOVE, A), MemberChange(Act.REMOVE, B)))
    cluster.settle()  # the joint one is committed, and what ends it has not reached C
    cluster.cut(3)
    cluster.tick(25)  # the leader has lost its majority, which is C
    assert (leader.role is not Role.LEADER, leader.configuration.voters) == (True, (C,))
    cluster.heal()
    cluster.tick(100)
    assert cluster.leaders() == [C]
    assert cluster.core(3).configuration == Configuration(voters=(C,))


def test_a_removing_leader_alone_is_no_majority_of_the_others() -> None:
    """Its own log counts nothing for a configuration that it is not in."""
    member = solo()
    core = lead(member)
    core.step(AppendReply(B, A, core.term, Index(1)))
    core.step(AppendReply(C, A, core.term, Index(1)))
    core.change((MemberChange(Act.REMOVE, A),))
    member.take()
    core.step(AppendReply(B, A, core.term, Index(2)))
    assert core.log.commit == 1
    core.step(AppendReply(C, A, core.term, Index(2)))
    assert core.log.commit == 2


def test_a_removed_node_is_told_and_forgotten() -> None:
    """It gets the entry that removes it, so it does not campaign; then the leader has nothing to do with it."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.change((MemberChange(Act.REMOVE, C),))
    cluster.settle()
    removed = cluster.core(3)
    assert removed.configuration.voters == (A, B)
    assert list(leader.progress) == [B]
    cluster.tick(60)
    assert (cluster.leaders(), removed.term) == ([A], leader.term)
    leader.drops.clear()
    leader.step(AppendReply(C, A, leader.term, Index(2)))
    assert leader.drops == {Drop.UNKNOWN_SENDER: 1}


def test_a_node_that_comes_back_starts_anew() -> None:
    """Nothing that was known of its former life counts."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.change((MemberChange(Act.REMOVE, C),))
    cluster.settle()
    leader.change((MemberChange(Act.ADD_LEARNER, C),))
    assert leader.progress[C].match == 0
    cluster.settle()
    assert leader.progress[C].match == leader.log.last


def test_a_learner_counts_for_nothing() -> None:
    """Neither its log nor its vote makes a majority."""
    member = solo(voters=(1, 2), learners=(3, 4))
    core = lead(member)
    for learner in (C, D):
        core.step(AppendReply(learner, A, core.term, Index(1)))
    assert core.log.commit == 0


def test_a_configuration_entry_that_is_none_is_dropped() -> None:
    """A peer's fault; the log stays as it was."""
    member = solo()
    bad = column(1, 1, kinds=bytes([KIND_CONFIGURATION]), payloads=[b"{"])
    member.core.step(Append(B, A, Term(1), Term(0), Index(0), bad))
    assert (member.core.log.last, member.core.drops[Drop.BAD_CONFIGURATION]) == (0, 1)


def test_a_lost_majority_is_recovered_by_force_and_marked() -> None:
    """The survivor goes on alone; the mark stays in every later configuration."""
    cluster = Cluster()
    cluster.elect(1).propose([b"x"])
    cluster.settle()
    cluster.tick()
    cluster.cut(1, 2)
    survivor = cluster.core(3)
    with pytest.raises(ChangeRefused) as refused:
        survivor.force_recovery(9)
    assert refusal(refused) is Refusal.LEADER_ALIVE
    cluster.tick_one(3, 20)
    survivor.force_recovery(9)
    assert survivor.leader is None
    cluster.settle()
    assert survivor.leader == C
    assert survivor.configuration == Configuration(voters=(C,), forced=True, epoch=9)
    survivor.change((MemberChange(Act.ADD_LEARNER, B),))
    cluster.passes = lambda message: A not in {message.sender, message.receiver}
    cluster.core(2).timeout = 99
    cluster.tick(2)
    assert cluster.applied(2) == [b"x"]
    survivor.change((MemberChange(Act.ADD_VOTER, B),))
    cluster.settle()
    assert cluster.core(2).configuration == Configuration(voters=nodes((2, 3)), forced=True, epoch=9)


def test_a_node_that_may_have_forgotten_recovers_nothing() -> None:
    """Its log is no survivor's."""
    with pytest.raises(ChangeRefused) as refused:
        solo(franchise=Franchise.NONE).core.force_recovery(9)
    assert refusal(refused) is Refusal.NO_SUCH_VOTER


def test_entries_before_a_pending_configuration_are_committed_without_it() -> None:
    """What waits for the configuration goes on waiting."""
    member = solo()
    core = lead(member)
    core.step(AppendReply(B, A, core.term, Index(1)))
    core.propose([b"x"])
    core.change((MemberChange(Act.REMOVE, C),))
    member.take()
    core.step(AppendReply(B, A, core.term, Index(2)))
    assert (core.log.commit, list(core.progress)) == (2, [B, C])
    core.step(AppendReply(B, A, core.term, Index(3)))
    assert (core.log.commit, list(core.progress)) == (3, [B])


def test_heartbeats_keep_a_learner_from_nothing() -> None:
    """A learner follows, without ever waiting for an election."""
    member = solo(4, learners=(4,))
    member.core.step(Heartbeat(A, node(4), Term(1), Index(0), 0))
    assert member.core.leader == A


def test_a_new_leader_counts_nobody_as_alive_that_it_has_not_heard() -> None:
    """Right after a change of leaders, removing the last live voter would leave a group that can commit nothing."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.tick(5)
    cluster.cut(3)
    cluster.tick(40)
    cluster.core(1).transfer(B)
    cluster.settle()
    leader = cluster.core(2)
    assert leader.role is Role.LEADER
    with pytest.raises(ChangeRefused) as refused:
        leader.change((MemberChange(Act.REMOVE, A),))
    assert refused.value.reason is Refusal.QUORUM_AT_RISK
    cluster.heal()
    cluster.tick()
    leader.change((MemberChange(Act.REMOVE, A),))


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_that_removes_itself_hands_over(seed: int) -> None:
    """Those who stay have a leader before a tick has passed."""
    cluster = Cluster(seed=seed)
    cluster.elect(1)
    cluster.tick(3)
    cluster.core(1).change((MemberChange(Act.REMOVE, A),))
    cluster.settle()
    assert [core.role for core in map(cluster.core, (1, 2, 3))].count(Role.LEADER) == 1
    assert cluster.core(1).role is Role.FOLLOWER


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_removed_node_that_was_not_told_campaigns_once_and_is_told(pre_vote: bool) -> None:
    """Its removal was committed without its answer, so the leader sends it nothing more; who is asked for a vote says so."""
    cluster = Cluster(settings=RaftSettings(pre_vote=pre_vote))
    leader = cluster.elect(1)
    cluster.tick(2)
    cluster.passes = lambda message: not (message.sender == C and isinstance(message, AppendReply))
    leader.change((MemberChange(Act.REMOVE, C),))
    cluster.settle()
    cluster.heal()
    removed = cluster.core(3)
    assert C not in leader.progress
    assert removed.promotable
    cluster.tick(40)
    assert not removed.promotable
    assert removed.status().removed
    term, asked = removed.term, removed.drops.copy()
    cluster.tick(200)
    assert (removed.role, removed.term, removed.drops) == (Role.FOLLOWER, term, asked)
    assert cluster.leaders() == [A]


def test_a_member_again_after_a_removal_may_campaign_again() -> None:
    """What it was told of an earlier configuration does not bind it once its log has a later one."""
    member = solo(3, terms=(1,), term=1)
    core = member.core
    core.step(Removed(A, C, Term(1), Index(5)))
    assert not core.promotable
    kinds, back = bytes([0, 0, 0, 0, KIND_CONFIGURATION]), Configuration(voters=nodes((1, 2, 3)))
    core.step(
        Append(A, C, Term(1), Term(1), Index(1), column(2, 1, 1, 1, 1, 1, kinds=kinds, payloads=[b""] * 4 + [back.to_bytes()]))
    )
    assert core.configuration_index == 6
    assert core.promotable
    core.step(Removed(A, C, Term(1), Index(5)))
    assert core.promotable


def test_a_node_without_configuration_calls_nobody_removed() -> None:
    """It knows no group yet; and a member that asks is told nothing of the kind."""
    fresh, member = solo(4, voters=()), solo(1)
    for each in (fresh, member):
        each.core.step(VoteRequest(C, each.core.id, Term(1), Campaign.PRE, Index(0), Term(0)))
        assert not any(isinstance(message, Removed) for message in each.take())


def test_a_forced_survivor_leaves_the_terms_and_the_cluster_of_the_others() -> None:
    """A majority that lives after all elects in the terms that follow: same index and term, other entries. The survivor's term
    is beyond them, two survivors draw two epochs, and their frames are those of other clusters."""
    survivors = [solo(member, term=7, terms=(1, 7)) for member in (1, 2)]
    for epoch, member in enumerate(survivors, 40):
        member.core.force_recovery(epoch)
        member.take()
    terms = [member.core.term for member in survivors]
    assert min(terms) > 7 + 1_000_000
    assert terms[0] != terms[1]
    cluster = bytes(range(16))
    named = {cluster_of_epoch(cluster, member.core.configuration.epoch) for member in survivors} | {cluster}
    assert len(named) == 3
    changed = survivors[0].core
    while changed.role is not Role.LEADER:
        changed.tick()
        survivors[0].take()
    changed.change(ADD_D)
    assert changed.configuration.epoch == 40


def test_what_a_former_life_acknowledged_counts_no_more() -> None:
    """A learner that seemed level is one from nothing again; the others keep what they have."""
    member = solo(learners=(4,), terms=(1, 1))
    core = lead(member)
    for peer in (B, D):
        core.step(AppendReply(peer, A, core.term, core.log.last))
    forget_acknowledgements(core, D)
    assert (core.progress[D].match, core.progress[B].match) == (0, core.log.last)
    assert core.live() == {A, B}
    forget_acknowledgements(core, E)  # is no member
    assert sorted(core.progress) == [B, C, D]
