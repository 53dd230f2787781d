"""Leadership of all groups goes to one node, without a tick; what comes meanwhile waits, and is proposed when that fails."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest

from cmdlog.cluster.group_transfer import find_successors, offer_groups, resign_groups, under_offer
from cmdlog.cluster.rounds import IDLE_TICKS
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId
from tests.cluster.world import PARTITIONS, SimNode, World


def led_world(seed: int = 3) -> tuple[World, SimNode]:
    """Three nodes of which one leads everything; and that one."""
    world = World(seed)
    world.settle()
    leader = node_leading(world, CLUSTER_GROUP)
    for group in range(PARTITIONS):
        if (other := node_leading(world, group)) is not leader:
            other.driver.ask(group, lambda core: core.transfer(NodeId(leader.node)))
    run_quiet(world)
    world.settle()
    assert {node_leading(world, group).node for group in (CLUSTER_GROUP, *range(PARTITIONS))} == {leader.node}
    return world, leader


def node_leading(world: World, group: int) -> SimNode:
    """The one that leads the group."""
    (found,) = [node for node in world.nodes.values() if node.driver.views()[group].leads]
    return found


def run_quiet(world: World) -> None:
    """Everything under way comes to its end, but on cut links; no message is lost elsewhere, and no tick passes."""
    while world.mail or any(node.kicked for node in world.nodes.values()):
        deliver_all(world)
        world.run_log()


def deliver_all(world: World) -> None:
    """Every message arrives, but those on cut links."""
    while world.mail:
        sender, receiver, messages = world.mail.pop(0)
        if (sender, receiver) not in world.cut:
            world.nodes[receiver].driver.receive(messages)


def test_offered_groups_are_led_by_the_target_without_a_tick() -> None:
    """All of them, each in its next term: no election time-out, no second campaign."""
    world, old = led_world()
    target = old.driver.ask_groups(find_successors)[0]
    terms = {group: view.term for group, view in old.driver.views().items()}
    old.driver.ask_groups(partial(offer_groups, target=target))
    assert old.driver.ask_groups(under_offer)
    run_quiet(world)
    views = world.nodes[target].driver.views()
    assert {group: view.term for group, view in views.items()} == {group: term + 1 for group, term in terms.items()}
    assert all(view.confirmed for view in views.values())
    assert not old.driver.ask_groups(under_offer)


def test_the_successor_that_lacks_least_comes_first() -> None:
    """A node that is behind in one group comes after one that is not; one that is not heard from is none."""
    world, old = led_world()
    others = [node for node in world.nodes if node != old.node]
    core = old.groups.cores[PartitionId(0)]
    assert old.driver.ask_groups(find_successors) == others
    behind = core.progress[NodeId(others[0])]
    behind.match = Index(behind.match - 1)
    assert old.driver.ask_groups(find_successors) == others[::-1]
    core.progress[NodeId(others[1])].heard = -1000
    assert old.driver.ask_groups(find_successors) == others[:1]


def test_entries_wait_while_a_group_is_under_offer() -> None:
    """Consensus takes none then; the target does not answer, so the offer ends, and they are proposed."""
    world, old = led_world()
    for _ in range(2 * IDLE_TICKS):  # nothing is left to be written
        world.tick()
        run_quiet(world)
    target = old.driver.ask_groups(find_successors)[0]
    world.cut = {(old.node, target), (target, old.node)}
    old.driver.ask_groups(partial(offer_groups, target=target))
    old.machine.waiting[0] = deque([71])
    old.driver.wake()
    assert old.driver.pending_bytes == 0, "the log would move to another segment for what it does not get"
    run_quiet(world)
    assert old.machine.waiting[0] == deque([71])
    for _ in range(old.groups.cores[PartitionId(0)].settings.transfer_ticks):
        assert not old.kicked
        old.driver.tick()
        deliver_all(world)
    assert old.kicked, "the log is told, once leadership stays here"
    run_quiet(world)
    assert old.driver.failure is None
    assert old.machine.waiting[0] == deque()
    assert any(b"[71]" in record for _, _, record in old.machine.ran[0])


def test_held_proposals_wait_and_others_come_to_their_end() -> None:
    """What is in the log is committed; the rest is proposed when nothing holds it any more."""
    world, leader = led_world()
    leader.driver.hold_proposals()
    leader.machine.waiting[0] = deque([72])
    leader.driver.wake()
    run_quiet(world)
    assert leader.machine.waiting[0] == deque([72])
    leader.driver.let_propose()
    run_quiet(world)
    assert any(b"[72]" in record for _, _, record in leader.machine.ran[0])


@pytest.mark.parametrize("seed", [3, 4])
def test_resigned_groups_get_another_leader(seed: int) -> None:
    """By an election: the node itself may win it, in a later term."""
    world, leader = led_world(seed)
    before = leader.driver.views()[CLUSTER_GROUP].term
    leader.driver.ask_groups(resign_groups)
    assert not any(view.leads for view in leader.driver.views().values())
    world.settle()
    assert node_leading(world, CLUSTER_GROUP).driver.views()[CLUSTER_GROUP].term > before
