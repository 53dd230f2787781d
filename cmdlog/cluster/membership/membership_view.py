"""What the leading node knows of the members at one moment: the input of every decision here.

One rule: values. MEMBER entries and failure set are what is committed; configurations are those in force, which count from the
moment they are appended, with a word on whether they are committed.

`see_groups` takes it from the groups that this node leads, under the driver's lock, at one moment of all groups.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cmdlog.raft.configuration import Configuration
from cmdlog.raft.core import RaftCore
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.quorum import majority
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP


def see_groups(groups: RaftGroups, *, diverged: Collection[int], after: int) -> dict[int, GroupSight]:
    """Every group. `diverged` nodes hold nothing whole; a node is level once it has the cluster group's entry `after`: the
    failure set that lists it."""
    return {
        int(group): _see_group(core, diverged, after if group == CLUSTER_GROUP else 0) for group, core in groups.cores.items()
    }


def silent_ticks(groups: RaftGroups) -> dict[int, int]:
    """Of every other node the ticks since it was heard from in any group, or since this node leads."""
    silent: dict[int, int] = {}
    for core in groups.cores.values():
        for node, progress in core.progress.items():
            ticks = core.ticks - progress.heard
            silent[node] = min(ticks, silent.get(node, ticks))
    return silent


def _see_group(core: RaftCore, diverged: Collection[int], after: int) -> GroupSight:
    log, live = core.log, core.live()
    at = core.configuration_index
    needed = max(at, log.last - core.settings.promotion_entries_max, after)
    matches = {node: progress.match for node, progress in core.progress.items()} | {core.id: log.last}
    term = log.term_at(at)
    return GroupSight(
        core.configuration,
        (log.base_term if term is None else term, at),
        at <= log.commit,
        frozenset(live),
        frozenset(node for node in live if node not in diverged and matches.get(node, 0) >= log.commit),
        frozenset(node for node in live if matches.get(node, 0) >= needed),
    )


UNDER_WAY: Final = frozenset({MemberStage.LEAVING_OLD, MemberStage.JOINING, MemberStage.ADMITTED, MemberStage.LEAVING})
"""Stages of a change; there is one node in any of them at a time."""
NOWHERE: Final = frozenset({MemberStage.EXPECTED, MemberStage.REMOVED})
"""Stages of a node that is in no group."""


class Seat(enum.Enum):
    """What a node is in one group."""

    OUT = "out"
    LEARNER = "learner"
    VOTER = "voter"


@dataclass(frozen=True, slots=True)
class GroupSight:
    """One group, as its leader sees it."""

    configuration: Configuration
    place: tuple[int, int]  # term and index of the entry that states it
    committed: bool
    live: frozenset[int]  # heard from in this term within an election time-out; the leader itself is one
    whole: frozenset[int]  # of these, who hold everything that is committed, and are not known to have diverged
    level: frozenset[int]  # of these, whose logs end so close to the leader's that they may vote

    @property
    def settled(self) -> bool:
        """Whether no change is under way."""
        return self.committed and not self.configuration.joint

    def seat_of(self, node: int) -> Seat:
        """In a settled group."""
        if node in self.configuration.voters:
            return Seat.VOTER
        return Seat.LEARNER if node in self.configuration.learners else Seat.OUT


@dataclass(frozen=True, slots=True)
class MembershipView:
    """See the module."""

    node: int  # leads all groups
    members: Mapping[int, ClusterMember]  # the newest committed MEMBER entry of each node
    groups: Mapping[int, GroupSight]
    sequence: int  # of the failure set in force; 0: there never was one
    failed: frozenset[int]
    silent: frozenset[int]  # nodes that the detector gives up
    pinned: Mapping[int, bytes]  # node -> incarnation from which this node takes messages
    epoch: int = 0  # generation of the cluster group's configuration
    term: int = 0  # of the cluster group
    unfit: frozenset[int] = frozenset()  # nodes that say they should not lead

    @property
    def under_way(self) -> ClusterMember | None:
        """The node whose change is under way."""
        return next((self.members[node] for node in sorted(self.members) if self.members[node].stage in UNDER_WAY), None)

    @property
    def settled(self) -> bool:
        """Whether no group's configuration is changing."""
        return all(sight.settled for sight in self.groups.values())

    def stage_of(self, node: int) -> MemberStage:
        """A voter that the log does not state yet is a member of the first hour."""
        member = self.members.get(node)
        return MemberStage.MEMBER if member is None else member.stage

    def seats_of(self, node: int) -> frozenset[Seat]:
        """Of all groups, settled or not."""
        return frozenset(sight.seat_of(node) for sight in self.groups.values())

    def present(self) -> tuple[int, ...]:
        """Every node of some group, ascending."""
        return tuple(sorted({node for sight in self.groups.values() for node in sight.configuration.members()}))

    def mixed(self) -> tuple[int, ...]:
        """Nodes that have come through a change in some groups alone, ascending."""
        return tuple(node for node in self.present() if len(self.seats_of(node)) > 1)

    def is_live(self, node: int) -> bool:
        """Whether it is heard from in every group."""
        return all(node in sight.live for sight in self.groups.values())


def spare_voters(configuration: Configuration, live: frozenset[int]) -> int:
    """How many of the live voters may be lost until nothing is committed; below 0: nothing is now."""
    halves = [half for half in (configuration.voters, configuration.outgoing) if half]
    return min(len(live.intersection(half)) - majority(len(half)) for half in halves)
