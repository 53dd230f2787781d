"""Leaders that lose one group under calls on all partitions, and skips that reach some groups alone: nothing is half."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from cmdlog.member.leading.leadership import Standing
from cmdlog.raft import RaftCore
from cmdlog.wal.skips import VOID
from tests.cluster.lists_app import list_names
from tests.cluster.sim.cluster_faults import LOST_TICKS
from tests.cluster.sim.joint_recovery import Mounted, plan_recovery, recover_states
from tests.cluster.sim.list_images import capture_image
from tests.cluster.sim.sim_cluster import SimCluster
from tests.cluster.sim.sim_member import PARTITIONS, SimMember
from tests.wal.sim.simfiles import SimFiles

SLICE: Final = 3
SEEDS: Final = 100
STEPS_MAX: Final = 20_000
SKIPS: Final = 20
LISTS_OF: Final = list_names(PARTITIONS)


class Story:
    """A cluster whose clients wait for what the story has them call; everything is kept in the logs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = world = SimCluster(seed)
        world.keeps_all, world.loss = True, 0.0
        for client in world.clients:
            client.stopped = True
        self.lead()

    def left_out(self, position: int) -> int:
        """How many entries sites were told to leave out, by position or VOID."""
        return sum(at == position for _, _, at in self.world.left_out)

    def lead(self) -> SimMember:
        """The leader, once there is one."""
        self.until(lambda: any(member.leads for member in self.world.members.values()))
        (leader,) = [member for member in self.world.members.values() if member.leads]
        return leader

    def until(self, condition: Callable[[], bool]) -> None:
        """Things happen until that is so."""
        for _ in range(STEPS_MAX):
            if condition():
                return
            self.world.step()
            self.world.check()
        raise AssertionError(self.world.describe())

    def settle(self) -> None:
        """Everything under way ends, and the clients have retried it."""
        for client in self.world.clients:
            client.stopped = False
        self.world.settle()

    def call(self, *, keyed: bool = True) -> None:
        """Some client that waits for nothing begins a call on all partitions."""
        free = [client for client in self.world.clients if client.under_way is None]
        self.rng.choice(free).ask("append_all", next(self.world.values), keyed=keyed)

    def lose_group(self, leader: SimMember, group: int) -> None:
        """Another node campaigns for it, whose entries from the leader are lost; the leader leads the others on."""
        term = leader.driver.views()[group].term
        while leader.driver.views()[group].term == term:
            for member in self.rng.sample([other for other in self.world.members.values() if other is not leader], 2):
                for _ in range(self.rng.randint(LOST_TICKS // 2, LOST_TICKS)):
                    member.driver.ask(group, RaftCore.tick)
            for _ in range(200):
                self.world.step()
        self.world.unheard.clear()

    def capture(self, partition: int) -> None:
        """Snapshots of this partition alone, each of what its member has run."""
        for member in self.world.members.values():
            capture_image(member, partition)

    def judge(self) -> None:
        """All states are alike, no call is half, and a recovery of the logs makes the same."""
        world = self.world
        self.settle()
        world.final_reads()
        world.check_end()
        everywhere = {operation.value for operation in world.history.operations if len(operation.keys) > 1}
        states = world.machines[1].states.values()
        shared = [everywhere.intersection(*state.lists.values()) for state in states]
        assert shared[0] == shared[1], "a call on all partitions is half"
        self.check_recovery()

    def check_recovery(self) -> None:
        """A recovery of the logs makes what the members hold."""
        states = self.world.machines[1].states
        for partition, state in recover_states(self.disks, PARTITIONS).items():
            assert (state.lists, state.keys) == (states[partition].lists, states[partition].keys)

    def recovery_starts(self) -> list[int]:
        """The entry with which a recovery begins, by partition; 0 where it begins with none."""
        plan = plan_recovery(Mounted(self.disks), self.world.machines)
        parts = [part for leg in plan.legs for part in leg.partitions]
        return [min(part.from_index for part in parts if part.partition == p) for p in range(PARTITIONS)]

    @property
    def disks(self) -> dict[int, SimFiles]:
        """What is left when no process runs."""
        return {node: machine.files for node, machine in self.world.machines.items()}


def lost_groups(seed: int) -> int:
    """Three times a leader loses one group while calls on all partitions are under way; how many entries were void."""
    story = Story(seed)
    for _ in range(3):
        leader, group = story.lead(), story.rng.randrange(PARTITIONS)
        story.world.unheard = {(leader.node, group)}
        last = {p: leader.groups.cores[p].log.last for p in range(PARTITIONS)}  # type: ignore[index]
        for _ in range(story.rng.randint(1, 3)):
            story.call(keyed=story.rng.random() < 0.8)
        story.until(lambda: _has_more(leader, last))  # noqa: B023 -- it is over before the next turn
        for _ in range(story.rng.randint(0, 200)):
            story.world.step()
        if leader.leads:
            story.lose_group(leader, group)
        if story.rng.random() < 0.3:
            story.world.crash(leader.node, power=story.rng.random() < 0.5)
        story.settle()
    story.judge()
    for partition in range(PARTITIONS):
        story.capture(partition)
        story.check_recovery()
    return story.left_out(VOID)


def _has_more(leader: SimMember, last: Mapping[int, int]) -> bool:
    return not leader.leads or all(leader.groups.cores[p].log.last > at for p, at in last.items())  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLICE))
def test_a_leader_that_loses_one_group_leaves_no_call_half(seed: int) -> None:
    """Keys, sessions and calls without: each is run on all or on none; the retry runs; recoveries agree."""
    lost_groups(seed)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_many_leaders_lose_one_group() -> None:
    """As `make torture` runs them."""
    assert sum(map(lost_groups, range(SLICE, SEEDS))) > SEEDS


def half_skip(seed: int) -> int:
    """A call on all partitions hangs, its skip is committed in some groups alone, and the leader is gone; entries left out."""
    story = Story(seed)
    leader, group = story.lead(), story.rng.randrange(PARTITIONS)
    leader.sites.hang(0)
    story.call()
    story.until(lambda: bool(leader.sites.waiting[0]))
    story.world.unheard = {(leader.node, group)}
    leader.sites.go_on(0)
    leader.skip(0)
    last = {p: leader.groups.cores[p].log.commit for p in range(PARTITIONS)}  # type: ignore[index]
    other = 1 - group
    story.until(lambda: not leader.leads or leader.groups.cores[other].log.commit > last[other])  # type: ignore[index]
    for _ in range(story.rng.randint(0, 100)):
        story.world.step()
    story.world.unheard.clear()
    if story.world.members.get(leader.node) is leader:
        story.world.crash(leader.node, power=story.rng.random() < 0.5)
    story.judge()
    for partition in range(PARTITIONS):
        story.capture(partition)
        story.check_recovery()
    return story.left_out(0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLICE))
def test_half_a_skip_is_one_on_all_partitions(seed: int) -> None:
    """The next leader states it where it lacks, before anybody runs the call; its outcome is kept on all."""
    half_skip(seed)


def slow_successor(seed: int) -> None:
    """A call is answered, its leader is gone, and the site of the next one hangs in it and gives up on it, again and again."""
    story = Story(seed)
    world, rng, partition = story.world, story.rng, story.rng.randrange(PARTITIONS)
    leader = story.lead()
    for member in world.members.values():
        if member is not leader:
            member.sites.hang(partition)
    client = rng.choice(world.clients)
    client.ask("append", LISTS_OF[partition], next(world.values), keyed=rng.random() < 0.5)
    story.until(lambda: client.under_way is None)
    world.crash(leader.node, power=rng.random() < 0.5)
    story.until(lambda: any(map(waits_for(partition), world.members.values())))
    (successor,) = filter(waits_for(partition), world.members.values())
    for _ in range(SKIPS):
        successor.skip(partition)
        successor.sites.hang(partition)
        for _ in range(rng.randint(0, 50)):
            world.step()
    assert not any(member.leads for member in world.members.values())
    for member in world.members.values():
        member.sites.go_on(partition)
    story.judge()
    assert not world.left_out


def waits_for(partition: int) -> Callable[[SimMember], bool]:
    """Whether a member takes over, and its site has something to run."""
    return lambda member: member.leadership.standing is Standing.TAKING_OVER and bool(member.sites.waiting[partition])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLICE))
def test_an_answered_call_is_never_skipped_by_a_successor(seed: int) -> None:
    """However slow it is: it takes no calls before it has run what was acknowledged, and may not decide about it."""
    slow_successor(seed)


def between_snapshots(seed: int) -> bool:
    """Snapshots of single partitions, calls on all between them, and all power is lost; whether starts differ."""
    story = Story(seed)
    world, rng = story.world, story.rng
    for _ in range(rng.randint(2, 4)):
        for _ in range(rng.randint(1, 4)):
            story.call(keyed=rng.random() < 0.8)
            story.until(lambda: any(client.under_way is None for client in world.clients))
        for _ in range(rng.randint(0, 300)):
            world.step()
        story.capture(rng.randrange(PARTITIONS))
        if rng.random() < 0.4:
            leader = story.lead()
            group = rng.randrange(PARTITIONS)
            world.unheard = {(leader.node, group)}
            story.call()
            for _ in range(rng.randint(50, 300)):
                world.step()
            if leader.leads:
                story.lose_group(leader, group)
            story.settle()
    for node in world.machines:
        world.crash(node, power=True)
    starts = story.recovery_starts()
    world.check_alternative(recover_states(story.disks, PARTITIONS))
    story.judge()
    return len(set(starts)) > 1


@pytest.mark.slow
def test_members_start_from_snapshots_of_single_partitions() -> None:
    """The calls on all partitions that lie between two snapshots are run where the state lacks them, and nothing runs twice."""
    assert sum(map(between_snapshots, range(SLICE))) > SLICE // 2


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_many_starts_from_snapshots_of_single_partitions() -> None:
    """As `make torture` runs them."""
    assert sum(map(between_snapshots, range(SLICE, SEEDS))) > SEEDS // 2
