"""Rounds that reads share: which reads one answers, and how each read ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cmdlog.member.read_rounds import ROUND_TICKS, ReadRounds
from cmdlog.node.outcome import Overloaded
from tests.member.asked_consensus import NEVER, AskedConsensus, as_driver
from tests.waiting import PATIENCE_S

Told = list[tuple[str, bool]]


class Rig:
    """Rounds of one group, and what its reads are told."""

    def __init__(self, *, at_once: int | None = NEVER) -> None:
        self.consensus = AskedConsensus(at_once=at_once)
        self.rounds = ReadRounds(*as_driver(self.consensus), reads_max=3)
        self.told: Told = []

    def add(self, *names: str) -> None:
        for name in names:
            self.rounds.add(partial(self._note, name))

    def _note(self, name: str, leads: bool) -> None:
        self.told.append((name, leads))

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
    assert rig.told == [("a", True)]
    assert rig.consensus.questions == 2
    rig.add("d")
    rig.answer(6)
    assert rig.told[1:] == [("b", True), ("c", True)]
    rig.answer(7)
    assert rig.told[3:] == [("d", True)]
    assert rig.consensus.questions == rig.rounds.begun == 3


def test_round_is_asked_for_after_its_last_read_has_come(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that comes while the question waits for the driver is not in it."""
    asking, came = threading.Event(), threading.Event()
    ask = rig.consensus.ask

    def slow_ask(group: int, request: Callable[[Any], Any]) -> None:
        asking.set()
        assert came.wait(PATIENCE_S)
        ask(group, request)

    monkeypatch.setattr(rig.consensus, "ask", slow_ask)
    first = threading.Thread(target=rig.add, args=("a",))
    first.start()
    assert asking.wait(PATIENCE_S)
    rig.add("b")
    came.set()
    first.join()
    rig.answer(5)
    assert rig.told == [("a", True)]


def test_round_that_is_answered_at_once_begins_no_round_within() -> None:
    """A cluster of one node: each read has an answer when `add` returns."""
    rig = Rig(at_once=4)
    rig.add("a", "b")
    assert rig.told == [("a", True), ("b", True)]


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
    assert rig.told == [("a", False)]
    rig.answer(6)
    assert rig.told[1:] == [("b", True)]


def test_majority_that_is_away_holds_no_read_for_ever(rig: Rig) -> None:
    """A round that is too old is refused, and a late answer is nobody's; what came since gets a round."""
    rig.add("a")
    rig.rounds.tick(ROUND_TICKS)
    rig.add("b")
    assert rig.told == []
    late = dict(rig.consensus.waiting)
    rig.rounds.tick(1)
    assert rig.told == [("a", False)]
    assert rig.consensus.questions == 2
    for done in late.values():
        done(9)
    assert rig.told == [("a", False)]
    rig.answer(6)
    assert rig.told[1:] == [("b", True)]


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
    assert rig.told == [("a", False), ("b", False)]
    rig.answer(5)
    assert len(rig.told) == 2
