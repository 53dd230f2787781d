"""Who leads: all groups at one node, confirmed, and one take-over per set of terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replicated_machine import GroupRequest, GroupStanding
from cmdlog.member.leading.leadership import ASK_AGAIN_TICKS, Leadership, Standing
from cmdlog.raft import RaftCore, Role, RoleReason, SoftState
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness
from cmdlog.raft.state import Handover
from cmdlog.wal.ids import CLUSTER_GROUP, Term

US, OTHER = NodeId(1), NodeId(2)


class World:
    """Node 1, with the cluster group and two partitions."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.refuses = False
        self.events: list[object] = []
        self.named: list[NodeId | None] = []
        self.leadership = Leadership(US, LeaderFitness(US), self)

    def begin_leading(self, terms: tuple[int, ...]) -> None:
        self.events.append(terms)

    def end_leading(self, leader: NodeId | None, _reason: str) -> None:
        self.events.append(("over", leader))

    def name_leader(self, leader: NodeId | None, *, follows: bool, ticks: int = 0) -> None:
        self.named.append(leader)

    def see(self, *groups: GroupStanding) -> None:
        self.asked = [group for group, _ in self.leadership.changed(views(*groups))]

    def tick(self, *groups: GroupStanding, ticks: int = ASK_AGAIN_TICKS) -> list[int]:
        self.asked = []
        for _ in range(ticks):
            self.asked += [group for group, _ in self.leadership.ticked(views(*groups))]
        return self.asked


def views(*groups: GroupStanding) -> dict[int, GroupStanding]:
    """The cluster group first."""
    return dict(zip((CLUSTER_GROUP, 0, 1), groups, strict=True))


def view(leader: NodeId | None, term: int = 3, *, confirmed: bool = True) -> GroupStanding:
    """A group as this node sees it."""
    return GroupStanding(Term(term), leader, leader == US, leader == US and confirmed)


OURS, THEIRS, NOBODYS = view(US), view(OTHER), view(None)


def test_a_take_over_begins_when_every_group_is_confirmed() -> None:
    """An unconfirmed group may hide entries that were acknowledged."""
    world = World()
    world.see(OURS, OURS, view(US, confirmed=False))
    world.see(view(US, confirmed=False), OURS, OURS)
    world.see(OURS, OURS, THEIRS)
    assert world.leadership.standing is Standing.FOLLOWING
    assert world.events == []
    world.see(OURS, view(US, 4), OURS)
    assert world.leadership.standing.value == "taking_over"
    assert world.events == [(3, 4, 3)]
    world.see(OURS, view(US, 4), OURS)
    assert world.events == [(3, 4, 3)]


def test_calls_are_taken_in_the_terms_that_began() -> None:
    """A take-over of other terms, or of none, has no effect; nor has a second one."""
    world = World()
    assert not world.leadership.take_calls(())
    world.see(OURS, OURS, OURS)
    assert not world.leadership.take_calls((3, 3, 2))
    assert world.leadership.take_calls((3, 3, 3))
    assert world.leadership.standing is Standing.LEADING
    assert not world.leadership.take_calls((3, 3, 3))


def test_one_lost_group_ends_the_leadership() -> None:
    """Who leads now is named, and an old take-over takes no calls."""
    world = World()
    world.see(OURS, OURS, OURS)
    world.see(THEIRS, OURS, OURS)
    assert world.leadership.standing is Standing.FOLLOWING
    assert world.leadership.leader == OTHER
    assert world.events == [(3, 3, 3), ("over", OTHER)]
    assert not world.leadership.take_calls((3, 3, 3))
    world.see(THEIRS, THEIRS, OURS)
    assert len(world.events) == 2


def test_a_new_term_is_a_new_take_over() -> None:
    """Between two views a group may have been led by another node: what that one committed is not run yet."""
    world = World()
    world.see(OURS, OURS, OURS)
    assert world.leadership.take_calls((3, 3, 3))
    world.see(OURS, view(US, 5), OURS)
    assert world.leadership.standing is Standing.TAKING_OVER
    assert world.events == [(3, 3, 3), ("over", US), (3, 5, 3)]
    assert not world.leadership.take_calls((3, 3, 3))
    assert world.leadership.take_calls((3, 5, 3))


def test_the_leader_of_the_cluster_group_campaigns_for_groups_without_a_leader() -> None:
    """Not for those that somebody leads, who hands them over; and not at every tick."""
    world = World()
    assert world.tick(OURS, NOBODYS, OURS, ticks=ASK_AGAIN_TICKS - 1) == []
    assert world.tick(OURS, NOBODYS, OURS, ticks=1) == [0]
    assert world.tick(OURS, NOBODYS, THEIRS, ticks=ASK_AGAIN_TICKS - 1) == []
    assert world.tick(OURS, NOBODYS, THEIRS, ticks=1) == [0]
    assert world.tick(OURS, OURS, OURS) == []


def test_a_group_is_handed_to_the_leader_of_the_cluster_group() -> None:
    """By the node that leads it, if it is known who that is."""
    world = World()
    world.tick(THEIRS, OURS, THEIRS, ticks=ASK_AGAIN_TICKS - 1)
    ((_, request),) = world.leadership.ticked(views(THEIRS, OURS, THEIRS))
    assert request.keywords == {"target": OTHER}  # type: ignore[attr-defined]
    assert world.tick(NOBODYS, OURS, NOBODYS) == []


def test_a_follower_asks_for_nothing() -> None:
    """Groups without a leader are the business of the cluster group's leader."""
    world = World()
    assert world.tick(THEIRS, NOBODYS, THEIRS) == []


def test_a_refused_request_is_made_again() -> None:
    """A group may be between two leaders."""
    world = World()
    assert world.tick(OURS, NOBODYS, OURS) == [0]
    assert world.tick(OURS, NOBODYS, OURS) == [0]


class Core:
    """A group that notes what it is asked."""

    def __init__(self, target: NodeId | None = None) -> None:
        self.asked = list[Any]()
        self.handover = None if target is None else Handover(target, 10)

    def campaign(self) -> None:
        self.asked.append("campaign")

    def transfer(self, target: NodeId) -> None:
        self.asked.append(target)


def ask_cores(cores: dict[int, Core], requests: Sequence[GroupRequest]) -> int:
    """Asks these groups; how many."""
    for group, request in requests:
        request(cast(RaftCore, cores[group]))
    return len(requests)


def test_whoever_wins_the_cluster_group_claims_all_others_at_once() -> None:
    """Also those whose leader is remembered: it led all, and may be gone."""
    cores = {0: Core(), 1: Core()}
    leadership = Leadership(US, LeaderFitness(US), World())
    leadership.changed(views(THEIRS, THEIRS, THEIRS))
    ask_cores(cores, leadership.changed(views(OURS, THEIRS, NOBODYS)))
    assert {group: core.asked for group, core in cores.items()} == {0: ["campaign"], 1: ["campaign"]}
    ask_cores(cores, leadership.changed(views(OURS, OURS, NOBODYS)))
    assert cores[0].asked == ["campaign"]


def test_a_campaign_for_the_cluster_group_is_one_for_all_groups() -> None:
    """In one round, so that each node writes its votes in all groups at once; and again for those that nobody leads."""
    cores = {0: Core(), 1: Core()}
    leadership = Leadership(US, LeaderFitness(US), World())
    leadership.changed(views(THEIRS, THEIRS, THEIRS))
    soft = SoftState(Role.PRE_CANDIDATE, None, False, RoleReason.ELECTION_TIMEOUT)
    leadership.roles_changed([(CLUSTER_GROUP, soft, 3)])
    assert ask_cores(cores, leadership.changed(views(NOBODYS, THEIRS, THEIRS))) == 2
    assert [core.asked for core in cores.values()] == [["campaign"]] * 2
    for _ in range(ASK_AGAIN_TICKS):
        ask_cores(cores, leadership.ticked(views(NOBODYS, THEIRS, NOBODYS)))
    assert [len(core.asked) for core in cores.values()] == [1, 2]
    leadership.roles_changed([(CLUSTER_GROUP, replace(soft, role=Role.FOLLOWER), 3)])
    for _ in range(ASK_AGAIN_TICKS):
        assert leadership.ticked(views(NOBODYS, NOBODYS, NOBODYS)) == []
    assert [len(core.asked) for core in cores.values()] == [1, 2]


def test_groups_are_handed_over_as_soon_as_the_leader_is_known() -> None:
    """Without a tick; and an offer that is on its way is not made again, since it would begin the campaign again."""
    cores = {0: Core(), 1: Core(target=OTHER)}
    leadership = Leadership(US, LeaderFitness(US), World())
    assert leadership.changed(views(NOBODYS, OURS, OURS)) == []
    ask_cores(cores, leadership.changed(views(THEIRS, OURS, OURS)))
    assert (cores[0].asked, cores[1].asked) == ([OTHER], [])


def test_news_of_a_leader_are_told() -> None:
    """Once for each; and what a peer says of itself is kept."""
    world, fitness = World(), LeaderFitness(US)
    leadership = world.leadership = Leadership(US, fitness, world)
    for cluster in (THEIRS, THEIRS, NOBODYS):
        leadership.changed(views(cluster, NOBODYS, NOBODYS))
    assert world.named == [OTHER, None]
    leadership.take_fitness(Fitness(OTHER, US, NO_TERM, 2))
    assert fitness.of_peer(OTHER) == 2
