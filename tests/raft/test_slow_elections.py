"""A group finds its leader soon, and in few terms, however slow its disks and however long the ways between its nodes."""

from __future__ import annotations

import pytest

from cmdlog.raft import RaftSettings, Role
from cmdlog.raft.messages import Campaign, VoteReply, VoteRequest
from cmdlog.raft.settings import REMEMBERED_TICKS, Pace
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import node, solo
from tests.raft.sim.slow_elections import SYNCS_MS, WAYS_MS, elections

SLICE_SEEDS = 2
SIM_SEEDS = 200
TICKS = RaftSettings().election_ticks


@pytest.mark.parametrize("way_ms", WAYS_MS)
@pytest.mark.parametrize("sync_ms", SYNCS_MS)
@pytest.mark.parametrize("slow", [None, 1, 2], ids=["all slow", "one slow", "two slow"])
def test_there_is_a_leader_within_five_syncs_and_three_time_outs(sync_ms: int, way_ms: int, slow: int | None) -> None:
    """At the first start and whenever a leader was killed; and no more than five terms are spent on it."""
    for seed in range(SLICE_SEEDS):
        judge(seed, sync_ms=sync_ms, way_ms=way_ms, slow=slow)


@pytest.mark.sim
@pytest.mark.parametrize("sync_ms", SYNCS_MS)
@pytest.mark.parametrize("slow", [None, 1, 2], ids=["all slow", "one slow", "two slow"])
def test_the_same_for_many_seeds(sync_ms: int, slow: int | None) -> None:
    """As above."""
    for seed in range(SIM_SEEDS):
        for way_ms in WAYS_MS:
            judge(seed, sync_ms=sync_ms, way_ms=way_ms, slow=slow)


def judge(seed: int, *, sync_ms: int, way_ms: int, slow: int | None) -> None:
    """The elections of one seed."""
    found = elections(seed, sync_ms=sync_ms, way_ms=way_ms, slow=slow)
    assert not [each for each in found if each.too_long(sync_ms) or each.too_many_terms()], f"seed {seed}: {found}"


def test_a_campaign_under_way_is_left_alone() -> None:
    """Asked again to campaign, a node that does begins nothing anew: no term is spent, no vote thrown away."""
    member = solo()
    member.core.campaign()
    asked = member.take()
    member.core.campaign()
    assert (member.take(), len(asked)) == ([], 2)
    member.core.step(VoteReply(node(2), node(1), Term(1), Campaign.PRE, True))
    member.take()
    assert (member.core.role, member.core.term) == (Role.CANDIDATE, 1)
    member.core.campaign()
    assert (member.core.role, member.core.term, member.take()) == (Role.CANDIDATE, 1, [])


@pytest.mark.parametrize("sync_ticks", [1, 6, 25])
def test_a_campaign_waits_for_votes_from_its_durable_vote_on(sync_ticks: int) -> None:
    """While its own disk writes no time-out runs, and afterwards it has more than the answers of such disks take."""
    member = solo(settings=RaftSettings(pre_vote=False))
    member.core.campaign()
    member.synced = False
    member.take()
    for _ in range(sync_ticks):
        member.core.tick()
    assert (member.core.role, member.core.term, member.core.elapsed) == (Role.CANDIDATE, 1, 0)
    assert len(member.sync()) == 2
    assert member.core.timeout >= TICKS // 2 + min(sync_ticks, 2 * TICKS)
    assert member.core.status().campaign_extra_ticks == min(sync_ticks, 2 * TICKS)


def test_a_voter_waits_from_its_durable_vote_on() -> None:
    """The one that it voted for cannot have won before."""
    member = solo()
    member.synced = False
    member.core.step(VoteRequest(node(2), node(1), Term(1), Campaign.REAL, Index(9), Term(1)))
    member.take()
    for _ in range(3 * TICKS):
        member.core.tick()
    assert (member.core.role, member.core.term) == (Role.FOLLOWER, 1)
    member.sync()
    assert member.core.elapsed == 0
    assert member.core.timeout >= 3 * TICKS  # its own disk took two time-outs and more, which count as two


def test_a_node_leaves_the_campaign_to_one_that_asked_first() -> None:
    """It votes for it, and does not ask before that one can have won; but not twice in a row."""
    member = solo()
    for _ in range(member.core.timeout - 1):
        member.core.tick()
    ask = VoteRequest(node(2), node(1), Term(1), Campaign.PRE, Index(9), Term(1))
    member.core.step(ask)
    for _ in range(TICKS):
        member.core.tick()
    roles = [member.core.role]
    for _ in range(2 * TICKS):
        member.core.step(ask)
        member.core.tick()
    assert [*roles, member.core.role] == [Role.FOLLOWER, Role.PRE_CANDIDATE]


@pytest.mark.parametrize(("other", "role"), [(1, Role.PRE_CANDIDATE), (3, Role.FOLLOWER)])
def test_of_two_that_ask_at_the_same_time_one_goes_on(other: int, role: Role) -> None:
    """Logs being equal, the one with the higher number: the other one follows."""
    member = solo(2)
    member.core.campaign()
    member.take()
    member.core.step(VoteRequest(node(other), node(2), Term(1), Campaign.PRE, Index(0), Term(0)))
    assert member.core.role is role


def test_slowness_is_remembered_for_a_while_and_bounded() -> None:
    """The slowest that was seen lately counts, and never more than two time-outs."""
    pace = Pace(TICKS)
    pace.note_sync(6, 10)
    pace.note_sync(1, 10 + REMEMBERED_TICKS)
    pace.note_answer(3, 10)
    assert pace.extra_ticks == 9
    pace.note_sync(1, 11 + REMEMBERED_TICKS)
    assert pace.extra_ticks == 4
    pace.undecided = 100
    assert pace.extra_ticks == 2 * TICKS
