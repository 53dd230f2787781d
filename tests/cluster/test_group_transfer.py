"""Leadership of all groups goes to one node, without a tick; what comes meanwhile waits, and is proposed when that fails."""

from __future__ import annotations

from functools import partial

import pytest

from cmdlog.cluster.entry_records import EntryBlocks
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.group_transfer import find_successors, offer_groups, resign_groups, under_offer
from cmdlog.cluster.replication import Replication
from cmdlog.raft.multi_raft import GroupId, RaftGroups
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import Index
from tests.cluster.test_replication import SilentMachine
from tests.raft.test_multi_raft import A, B, C, Network

GROUPS = 3


@pytest.fixture
def network() -> Network:
    """Three nodes, of which A leads every group."""
    made = Network(GROUPS)
    made.elect(GROUPS)
    return made


def led(groups: RaftGroups) -> dict[int, int]:
    """The groups that a node leads, in which it has handed out an entry of its own term -> the term."""
    cores = groups.cores.items()
    return {
        group: core.term for group, core in cores if core.leader == core.id and core.log.term_at(core.log.handed) == core.term
    }


def test_offered_groups_are_led_by_the_target_without_a_tick(network: Network) -> None:
    """All of them, each in its next term: no election time-out, no second campaign."""
    own = network.nodes[A]
    terms = led(own)
    assert len(terms) == GROUPS
    assert find_successors(own) == [B, C]
    offer_groups(own, B)
    assert under_offer(own)
    network.settle()
    assert led(network.nodes[B]) == {group: term + 1 for group, term in terms.items()}
    assert not under_offer(own)


def test_the_successor_that_lacks_least_comes_first(network: Network) -> None:
    """A node that is behind in one group comes after one that is not; one that is not heard from is none."""
    own = network.nodes[A]
    progress = own.cores[GroupId(0)].progress
    progress[B].match = Index(progress[B].match - 1)
    assert find_successors(own) == [C, B]
    progress[C].heard = -1000
    assert find_successors(own) == [B]


def test_entries_wait_while_a_group_is_under_offer(network: Network) -> None:
    """Consensus takes none then; the target does not answer, so the offer ends, and they are proposed."""
    own, machine, kicks = network.nodes[A], SilentMachine(), list[None]()
    driver = Replication(
        own, machine, send=lambda _: None, kick=lambda: kicks.append(None),  # type: ignore[arg-type]  # as far as it is used
        marks=ExecutedMarks(range(GROUPS), diverged=lambda *_: None), states=GroupStates(), entry_blocks=EntryBlocks(),
    )  # fmt: skip
    machine.pending_bytes = 100
    driver.ask_groups(partial(offer_groups, target=B))
    assert driver.pending_bytes == 0, "the log would move to another segment for what it does not get"
    assert driver.take_records(1 << 20) == []
    kicks.clear()
    for _ in range(own.cores[GroupId(0)].settings.transfer_ticks):
        assert not kicks
        driver.tick()
    assert kicks, "the log is told, once leadership stays here"
    assert driver.pending_bytes == 100


def test_resigned_groups_get_another_leader(network: Network) -> None:
    """By an election: the node itself may win it, in a later term."""
    before = led(network.nodes[A])[0]
    resign_groups(network.nodes[A])
    network.settle()
    assert not any(map(led, network.nodes.values()))
    for _ in range(100):
        for own in network.nodes.values():
            own.tick()
        network.settle()
    assert [term > before for own in network.nodes.values() for term in led(own).values()] == [True] * GROUPS
