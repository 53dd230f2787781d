"""Stages of the demo in which disks fail and members change, while clients are at work.

One rule: whatever an operator does here is done by `cmdlog cluster`; a disk fails below a process that was killed.

A majority that is lost with its disks takes what only it had acknowledged. Here it is lost when every node has everything, so
that nothing acknowledged may be missing afterwards either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cmdlog.cli.demo.cluster.cluster_nodes import DemoCluster


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """What happens to a node, and what ends it."""

    stage: str
    what: str  # with the node's number for {}
    choose: Callable[[int], int]  # the node, of the one that leads
    strike: Callable[[int], object]
    mend: Callable[[int], object]
    deposes: bool = False  # the node led, and another one leads before it is mended
    level: bool = False  # it strikes when nothing is under way, and every node has everything


def member_faults(nodes: DemoCluster) -> Sequence[ClusterFault]:
    """One stage each, in order: three members at the end, of which two have seen nothing of the beginning."""

    def follower(leader: int) -> int:
        return next(node for node in nodes.nodes if node != leader)

    def lose_majority(survivor: int) -> None:
        nodes.wipe(*(node for node in nodes.nodes if node != survivor))
        nodes.recover_alone(survivor)

    def replace_lost(survivor: int) -> None:
        nodes.replace(*(node for node in nodes.nodes if node != survivor))

    return (
        ClusterFault("wipe", "node {} and its disk are gone, and replaced", led, nodes.wipe, nodes.replace, deposes=True),
        ClusterFault("damage", "node {} reads its log back wrong, and heals", follower, nodes.damage, nodes.start_voting),
        ClusterFault("join", "node {} joins", lambda _: nodes.joining, nodes.add, nodes.start_voting),
        ClusterFault("retire", "node {} retires", led, nodes.retire, lambda _: None),
        ClusterFault("survive", "only node {} is left, and continues alone", follower, lose_majority, replace_lost, level=True),
    )


def led(leader: int) -> int:
    """The node of the stage is the one that leads."""
    return leader
