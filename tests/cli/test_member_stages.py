"""The stages in which members change: whom each happens to, and that the survivor of a majority is what is left of it."""

from __future__ import annotations

from typing import cast

import pytest

from cmdlog.cli.demo.cluster.cluster_nodes import DemoCluster
from cmdlog.cli.demo.cluster.member_stages import ClusterFault, led, member_faults


class Recorded:
    """Nodes that only say what is done to them."""

    joining = 4

    def __init__(self) -> None:
        self.nodes = [1, 2, 3]
        self.done: list[tuple[str, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> object:
        return lambda *nodes: self.done.append((name, nodes))


@pytest.fixture
def recorded() -> Recorded:
    """Three members, and one that may join."""
    return Recorded()


def stage(recorded: Recorded, name: str) -> ClusterFault:
    """One of the stages, by its name."""
    return next(fault for fault in member_faults(cast("DemoCluster", recorded)) if fault.stage == name)


@pytest.mark.parametrize(("name", "node"), [("wipe", 2), ("damage", 1), ("join", 4), ("retire", 2), ("survive", 1)])
def test_stages_happen_to_their_nodes(recorded: Recorded, name: str, node: int) -> None:
    """To the leader, which is node 2 here, to a follower, or to the one that joins."""
    assert stage(recorded, name).choose(2) == node
    assert led(2) == 2


def test_only_a_lost_leader_has_to_be_followed_by_another(recorded: Recorded) -> None:
    """And only a majority that is lost is waited for: nothing but that could take acknowledged calls with it."""
    faults = member_faults(cast("DemoCluster", recorded))
    assert [fault.stage for fault in faults if fault.deposes] == ["wipe"]
    assert [fault.stage for fault in faults if fault.level] == ["survive"]


def test_survivor_is_alone_and_the_others_get_new_disks(recorded: Recorded) -> None:
    """Everybody else is wiped before it continues, and replaced afterwards."""
    fault = stage(recorded, "survive")
    fault.strike(3)
    fault.mend(3)
    assert recorded.done == [("wipe", (1, 2)), ("recover_alone", (3,)), ("replace", (1, 2))]
