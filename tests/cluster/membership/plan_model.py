"""A model of a cluster whose leader follows the plan: groups that commit at once, or stop in the middle of a change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from cmdlog.cluster.membership.member_plan import (
    ChangeGroups,
    GiveLeadership,
    StateFaults,
    StateMember,
    Step,
    following,
    next_step,
)
from cmdlog.cluster.membership.membership_view import GroupSight, MembershipView, Seat, spare_voters
from cmdlog.raft.confchange import leave_joint
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP

LIVES = {node: bytes([node]) * 8 for node in range(1, 10)}


def member_of(node: int, stage: MemberStage = MemberStage.MEMBER, incarnation: bytes | None = None) -> ClusterMember:
    """A node on loopback."""
    life = LIVES[node] if incarnation is None else incarnation
    return ClusterMember(node, life, f"127.0.0.1:{7000 + node}", f"http://127.0.0.1:{8000 + node}", stage)


@dataclass(frozen=True)
class Model:
    """One moment."""

    members: tuple[ClusterMember, ...]
    groups: tuple[tuple[int, Configuration], ...]
    up: frozenset[int]
    leader: int
    behind: frozenset[int] = frozenset()  # nodes that have not caught up
    failed: frozenset[int] = frozenset()
    sequence: int = 0

    @cached_property
    def view(self) -> MembershipView:
        """As the leader sees it; who is down has been so for long."""
        members = {member.node: member for member in self.members}
        sights = {group: self._sight(group, of) for group, of in self.groups}
        silent = frozenset(range(1, 10)) - self.up
        pinned = {node: member.incarnation for node, member in members.items()}
        return MembershipView(self.leader, members, sights, self.sequence, self.failed, silent, pinned)

    @cached_property
    def step(self) -> Step:
        """What the plan does."""
        return next_step(self.view)

    def _sight(self, group: int, configuration: Configuration) -> GroupSight:
        live = self.up.intersection(configuration.members())
        return GroupSight(configuration, (1, 10 + group % 7), True, live, live - self.behind, live - self.behind)

    @property
    def under_way(self) -> list[ClusterMember]:
        quiet = {MemberStage.MEMBER, MemberStage.EXPECTED, MemberStage.REMOVED}
        return [member for member in self.members if member.stage not in quiet]

    def with_member(self, member: ClusterMember) -> Model:
        others = [of for of in self.members if of.node != member.node]
        return replace(self, members=tuple(sorted([*others, member], key=lambda of: of.node)))

    def with_group(self, group: int, configuration: Configuration) -> Model:
        return replace(self, groups=tuple((g, configuration if g == group else of) for g, of in self.groups))


def cluster_of(voters: int, *, groups: tuple[int, ...] = (0, 1, CLUSTER_GROUP), learners: int = 0) -> Model:
    """Nodes 1 to `voters`, all of them up; the next ones are learners."""
    configuration = Configuration(nodes(range(1, voters + 1)), learners=nodes(range(voters + 1, voters + learners + 1)))
    up = frozenset(range(1, voters + learners + 1))
    return Model(tuple(member_of(node) for node in sorted(up)), tuple((g, configuration) for g in groups), up, 1)


def outcomes(model: Model, step: Step) -> Iterator[Model]:
    """Every state in which the step may leave the cluster: done, or interrupted after some of its groups."""
    if isinstance(step, StateMember):
        yield model.with_member(step.member)
    elif isinstance(step, StateFaults):
        assert step.faults.sequence == model.sequence + 1
        yield replace(model, failed=frozenset(step.faults.failed), sequence=step.faults.sequence)
    elif isinstance(step, GiveLeadership):
        yield from led_by_others(model)
    elif isinstance(step, ChangeGroups):
        changed = model
        for group in step.groups:
            after = following(model.view.groups[group], step.act, step.node)
            assert after is not None
            yield changed.with_group(group, after)
            changed = changed.with_group(group, leave_joint(after) if after.joint else after)
            yield changed


def led_by_others(model: Model) -> Iterator[Model]:
    """Another voter of all groups leads."""
    for node in sorted(model.up):
        if node != model.leader and model.view.seats_of(node) == {Seat.VOTER}:
            yield replace(model, leader=node)


def joint_over(model: Model) -> Model:
    """Each leader ends its joint configuration by itself, if it has the majorities."""
    for group, configuration in model.groups:
        if configuration.joint and spare_voters(configuration, model.up) >= 0:
            model = model.with_group(group, leave_joint(configuration))
    return model


def run_to_rest(model: Model, *, steps_max: int = 60) -> tuple[Model, Step]:
    """The plan without any further trouble."""
    step: Step = next_step(model.view)
    for _ in range(steps_max):
        model = joint_over(model)
        step = next_step(model.view)
        results = list(outcomes(model, step))
        if not results:
            return model, step
        model = results[-1]
    raise AssertionError(f"the plan does not rest: {step} in {model}")
