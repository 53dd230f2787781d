"""Rounds that reads share: which reads one answers, and how each read ends."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from cmdlog.node.member.read_rounds import ROUND_TICKS, ReadRounds, ask_as_leader
from cmdlog.node.outcome import Overloaded
from tests.node.asked_consensus import AskedConsensus, as_driver

Told = list[tuple[str, int | None]]


class Rig:
    """Rounds of one group, and what its reads are told."""

    def __init__(self, *, at_once: int | None = -1) -> None:
        self.consensus = AskedConsensus(at_once=at_once)
        self.rounds = ReadRounds(0, ask_as_leader, *as_driver(self.consensus), reads_max=3)
        self.told: Told = []

    def add(self, *names: str) -> None:
        for name in names:
            self.rounds.add(partial(self._note, name))

    def _note(self, name: str, index: int | None) -> None:
        self.told.append((name, index))

    def answer(self, index: int | None) -> None:
        """Consensus answers, and the driver's lock is free again."""
        self.consensus.answer(index)
        self.rounds.begin_waiting()


@pytest.fixture
def rig() -> Rig:
    """No round is under way."""
    return Rig()


def test_reads_that_come_during_a_round_share_the_next_one(rig: Rig) -> None:
    """None of them joins the round that began before it came; all of them cost one question."""
    rig.add("a", "b", "c")
    assert rig.consensus.questions == 1
    rig.answer(5)
    assert rig.told == [("a", 5)]
    assert rig.consensus.questions == 2
    rig.add("d")
    rig.answer(6)
    assert rig.told[1:] == [("b", 6), ("c", 6)]
    rig.answer(7)
    assert rig.told[3:] == [("d", 7)]
    assert rig.consensus.questions == 3


def test_round_is_asked_for_after_its_last_read_has_come(rig: Rig) -> None:
    """A read that comes while the question waits for the driver is not in it."""
    asking, came = threading.Event(), threading.Event()
    ask = rig.consensus.ask

    def slow_ask(group: int, request: object) -> None:
        asking.set()
        assert came.wait(30)
        ask(group, request)  # type: ignore[arg-type]

    rig.consensus.ask = slow_ask  # type: ignore[method-assign]
    first = threading.Thread(target=rig.add, args=("a",))
    first.start()
    assert asking.wait(30)
    rig.add("b")
    came.set()
    first.join()
    rig.answer(5)
    assert rig.told == [("a", 5)]


def test_round_that_is_answered_at_once_begins_no_round_within(rig: Rig) -> None:
    """A cluster of one node: each read has an answer when `add` returns."""
    rig = Rig(at_once=4)
    rig.add("a", "b")
    assert rig.told == [("a", 4), ("b", 4)]


def test_driver_that_answers_is_not_asked_from_there(rig: Rig) -> None:
    """It is in the middle of a round of consensus: the next question waits until it is done with that."""
    rig.add("a", "b")
    rig.consensus.answer(5)
    assert rig.consensus.questions == 1
    rig.rounds.tick(1)
    assert rig.consensus.questions == 2


def test_leader_that_is_gone_refuses_the_round_alone(rig: Rig) -> None:
    """What waits is asked anew: another answer is possible by then."""
    rig.add("a", "b")
    rig.answer(None)
    assert rig.told == [("a", None)]
    rig.answer(6)
    assert rig.told[1:] == [("b", 6)]


def test_majority_that_is_away_holds_no_read_for_ever(rig: Rig) -> None:
    """A round that is too old is refused, and a late answer is nobody's; what came since gets a round."""
    rig.add("a")
    rig.rounds.tick(ROUND_TICKS)
    rig.add("b")
    assert rig.told == []
    late = dict(rig.consensus.waiting)
    rig.rounds.tick(1)
    assert rig.told == [("a", None)]
    assert rig.consensus.questions == 2
    for done in late.values():
        done(9)
    assert rig.told == [("a", None)]
    rig.answer(6)
    assert rig.told[1:] == [("b", 6)]


def test_reads_that_wait_are_bounded(rig: Rig) -> None:
    """Beyond it a read is refused; those before it are not touched."""
    rig.add("a", "b", "c", "d")
    with pytest.raises(Overloaded):
        rig.add("e")
    rig.answer(5)
    rig.answer(6)
    assert [name for name, _ in rig.told] == ["a", "b", "c", "d"]


def test_end_of_the_node_answers_every_read_once(rig: Rig) -> None:
    """The round under way and what waits; its answer, if it still comes, is nobody's."""
    rig.add("a", "b")
    rig.rounds.lose_all()
    assert rig.told == [("a", None), ("b", None)]
    rig.answer(5)
    assert len(rig.told) == 2
