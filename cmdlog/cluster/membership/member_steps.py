"""What the leading node does next about the members: the steps of a plan.

One rule: each step can be repeated, and its result is seen in the logs alone: every leader continues the plan of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.raft.configuration import Act
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet


@dataclass(frozen=True, slots=True)
class ChangeGroups:
    """One change of one node in these groups, each compared with the configuration that was seen there."""

    act: Act
    node: int
    groups: tuple[int, ...]  # ascending
    forced: bool = False  # an operator has overruled what speaks against it


@dataclass(frozen=True, slots=True)
class StateMember:
    """A MEMBER entry."""

    member: ClusterMember


@dataclass(frozen=True, slots=True)
class StateFaults:
    """A FAULTS entry."""

    faults: FaultSet


@dataclass(frozen=True, slots=True)
class GiveLeadership:
    """Another node has to lead before anything else happens."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is under way that this node cannot hasten."""

    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""


Step = ChangeGroups | StateMember | StateFaults | GiveLeadership | Wait | Rest
