"""Why nodes should not lead: who is told, how long it counts, and whom leadership goes to."""

from __future__ import annotations

import pytest

from cmdlog.cluster.leader_fitness import FIT, FORGET_TICKS, REPEAT_TICKS, LeaderFitness, Unfitness
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness

US, NEAR, FAR = NodeId(1), NodeId(2), NodeId(3)
PEERS = [NEAR, FAR]


@pytest.fixture
def fitness() -> LeaderFitness:
    """What node 1 knows."""
    return LeaderFitness(US)


def say(fitness: LeaderFitness, sender: NodeId, reasons: int) -> None:
    """A peer says why it should not lead."""
    fitness.take_fitness(Fitness(sender, US, NO_TERM, reasons))


def sent(fitness: LeaderFitness, ticks: int = 1) -> list[tuple[int, int]]:
    """(receiver, reasons) of these ticks."""
    parcels = [parcel for _ in range(ticks) for parcel in fitness.due_parcels(PEERS)]
    messages = [message for parcel in parcels for _, message in parcel.messages]
    return [(message.receiver, message.reasons) for message in messages if isinstance(message, Fitness)]


def test_reasons_are_said_at_once_again_and_when_they_end(fitness: LeaderFitness) -> None:
    """A fit node says nothing; the end of reasons is said once, and forgotten by itself where that is lost."""
    assert sent(fitness, 20) == []
    assert fitness.set_own(Unfitness.STUCK)
    assert not fitness.set_own(Unfitness.STUCK)
    assert sent(fitness) == [(NEAR, 2), (FAR, 2)]
    assert len(sent(fitness, 2 * REPEAT_TICKS)) == 4
    fitness.set_own(FIT)
    assert sent(fitness, 20) == [(NEAR, 0), (FAR, 0)]


def test_what_a_peer_said_is_forgotten(fitness: LeaderFitness) -> None:
    """It repeats what still holds."""
    say(fitness, NEAR, 4)
    sent(fitness, FORGET_TICKS - 1)
    assert fitness.of_peer(NEAR) == Unfitness.DIVERGED
    sent(fitness)
    assert fitness.of_peer(NEAR) == FIT


def test_what_a_peer_said_in_an_earlier_life_counts_no_more(fitness: LeaderFitness) -> None:
    """It stopped, and has started again: leadership may go to it at once. What holds here is said again, for it to know."""
    say(fitness, NEAR, 8)
    say(fitness, FAR, 8)
    fitness.meet_peer(NEAR)
    assert fitness.of_peer(NEAR) == FIT
    assert fitness.of_peer(FAR) == Unfitness.STOPPING
    assert sent(fitness, REPEAT_TICKS) == []
    fitness.set_own(Unfitness.STOPPING)
    sent(fitness)
    assert sent(fitness) == []
    assert fitness.find_successor([FAR, NEAR]) == NEAR
    fitness.meet_peer(FAR)
    assert sent(fitness) == [(NEAR, 8), (FAR, 8)]


@pytest.mark.parametrize(
    ("own", "near", "far", "successor"),
    [
        (Unfitness.LOG_FULL, 0, 0, NEAR),
        (Unfitness.LOG_FULL, 1, 0, FAR),
        (Unfitness.LOG_FULL, 1, 1, None),
        (Unfitness.STUCK, 2, 1, FAR),
        (Unfitness.STUCK, 3, 2, None),
        (Unfitness.DIVERGED, 3, 2, FAR),
        (Unfitness.DIVERGED, 4, 12, None),
        (Unfitness.STOPPING, 4, 8, NEAR),
        (Unfitness.LOG_FULL, 64, 1, None),
        (FIT, 0, 0, None),
    ],
)
def test_leadership_goes_to_a_fitter_node(
    fitness: LeaderFitness, own: Unfitness, near: int, far: int, successor: NodeId | None
) -> None:
    """The first of the fittest; never to one with the same reasons or worse, from where it would come back."""
    fitness.set_own(own)
    say(fitness, NEAR, near)
    say(fitness, FAR, far)
    assert fitness.find_successor(PEERS) == successor


def test_only_able_nodes_are_asked(fitness: LeaderFitness) -> None:
    """A peer that is not heard from may be as fit as it likes."""
    fitness.set_own(Unfitness.STOPPING)
    say(fitness, FAR, 2)
    assert fitness.find_successor([FAR]) == FAR
    assert fitness.find_successor([]) is None


def test_reasons_have_names(fitness: LeaderFitness) -> None:
    """For the log; those of a newer version have none."""
    assert (Unfitness.STUCK | Unfitness.STOPPING).names == ["stuck", "stopping"]
    assert Unfitness(64).names == []
