"""When leadership is offered: after what is under way, to a fitter node, and again after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.leader_fitness import FIT, LeaderFitness, Unfitness
from cmdlog.member.leading import leadership_transfer
from cmdlog.member.leading.leadership_transfer import DRAIN_TICKS, OFFER_TICKS, PATIENCE, PAUSE_TICKS, LeadershipTransfer
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness
from cmdlog.wal.ids import CLUSTER_GROUP

US, NEAR, FAR = NodeId(1), NodeId(2), NodeId(3)


class Driver:
    """Knows who leads, and writes down what is asked of its groups."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.holds_proposals = False
        self.woken = 0
        self.leader: NodeId | None = US
        self.able = [NEAR, FAR]
        self.offers: list[NodeId] = []
        self.resigned = 0
        self.patience: list[int] = []
        self.on_offer: Callable[[], None] = lambda: None
        self.core = SimpleNamespace(set_patience=self.patience.append, pace=SimpleNamespace(extra_ticks=0))

    def views(self) -> dict[int, Any]:
        return {CLUSTER_GROUP: SimpleNamespace(leader=self.leader, leads=self.leader == US)}

    def hold_proposals(self) -> None:
        self.holds_proposals = True

    def let_propose(self) -> None:
        self.holds_proposals = False
        self.woken += 1

    def ask_groups(self, request: Callable[[Any], Any]) -> Any:
        return request(SimpleNamespace(cores={0: self.core}, driver=self))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Node 1 leads; both others could."""
    made = Driver()

    def offer(_groups: Any, target: NodeId) -> None:
        made.offers.append(target)
        made.on_offer()

    def resign(_groups: Any) -> None:
        made.resigned += 1
        made.leader = None

    monkeypatch.setattr(leadership_transfer, "find_successors", lambda _groups: made.able)
    monkeypatch.setattr(leadership_transfer, "offer_groups", offer)
    monkeypatch.setattr(leadership_transfer, "resign_groups", resign)
    return made


class Rig:
    """A node with its fitness."""

    def __init__(self, driver: Driver) -> None:
        self.fitness, self.drained, self.sent = LeaderFitness(US), True, list[Any]()
        self.transfer = LeadershipTransfer(
            driver,  # type: ignore[arg-type]
            self.fitness, drained=lambda: self.drained, peers=lambda: [NEAR, FAR], send=self.sent.append,
        )  # fmt: skip

    def ticks(self, count: int = 1) -> None:
        for _ in range(count):
            self.transfer.note_tick()


@pytest.fixture
def rig(driver: Driver) -> Rig:
    """Node 1."""
    return Rig(driver)


def test_a_fit_leader_leads_on(rig: Rig, driver: Driver) -> None:
    """Nothing is offered, nothing is held, nothing is said."""
    rig.ticks(50)
    assert (driver.offers, driver.holds_proposals, rig.sent) == ([], False, [])


def test_an_unfit_follower_offers_nothing_and_waits_longer(rig: Rig, driver: Driver) -> None:
    """It leaves campaigns to others, until it is fit again."""
    driver.leader = FAR
    rig.transfer.set_reasons(Unfitness.STUCK)
    rig.ticks(50)
    assert (driver.offers, driver.patience) == ([], [PATIENCE + 1])
    assert rig.sent
    rig.transfer.set_reasons(FIT)
    assert driver.patience == [PATIENCE + 1, 1]  # a partition's group


def test_what_is_under_way_ends_before_leadership_is_offered(rig: Rig, driver: Driver) -> None:
    """New proposals are held meanwhile."""
    rig.drained = False
    rig.transfer.set_reasons(Unfitness.LOG_FULL)
    rig.ticks(DRAIN_TICKS)
    assert (driver.offers, driver.holds_proposals) == ([], True)
    rig.drained = True
    rig.ticks()
    assert (driver.offers, rig.transfer.target) == ([NEAR], NEAR)
    rig.ticks(3)
    assert driver.offers == [NEAR]


@pytest.mark.parametrize("reasons", [Unfitness.STUCK, Unfitness.DIVERGED, Unfitness.DIVERGED | Unfitness.STOPPING])
def test_what_cannot_or_must_not_be_answered_is_not_waited_for(rig: Rig, driver: Driver, reasons: Unfitness) -> None:
    """A site that stands still answers nothing, and what a diverged one answers is wrong."""
    rig.drained = False
    rig.transfer.set_reasons(reasons)
    rig.ticks()
    assert driver.offers == [NEAR]


def test_a_drain_has_an_end(rig: Rig, driver: Driver) -> None:
    """Calls that are not committed by then get `outcome_unknown`."""
    rig.drained = False
    rig.transfer.set_reasons(Unfitness.STOPPING)
    rig.ticks(DRAIN_TICKS + 1)
    assert driver.offers == [NEAR]


def test_an_offer_that_is_not_taken_is_made_again_later(rig: Rig, driver: Driver) -> None:
    """Calls are taken in between."""
    rig.transfer.set_reasons(Unfitness.LOG_FULL)
    rig.ticks(OFFER_TICKS + 2)
    assert (driver.offers, driver.holds_proposals, driver.woken) == ([NEAR], False, 1)
    rig.ticks(PAUSE_TICKS - 1)
    assert driver.offers == [NEAR]
    rig.ticks(1)
    assert driver.offers == [NEAR, NEAR]


def test_an_offer_ends_when_leadership_does(rig: Rig, driver: Driver) -> None:
    """Whatever this node proposes when it leads once more is not held."""
    rig.transfer.set_reasons(Unfitness.LOG_FULL)
    rig.ticks()
    driver.leader = NEAR
    rig.transfer.end_offer()
    assert (driver.holds_proposals, rig.transfer.target) == (False, None)
    driver.leader = US
    rig.ticks()
    assert driver.offers == [NEAR, NEAR]


def test_a_leader_that_becomes_fit_again_takes_proposals(rig: Rig, driver: Driver) -> None:
    """The reason ended before the offer was made."""
    rig.drained = False
    rig.transfer.set_reasons(Unfitness.LOG_FULL)
    rig.ticks()
    rig.transfer.set_reasons(FIT)
    rig.ticks()
    assert (driver.holds_proposals, driver.offers) == (False, [])


def test_leadership_goes_to_the_fitter_of_the_peers(rig: Rig, driver: Driver) -> None:
    """A peer that has said as much of itself gets nothing."""
    rig.fitness.take_fitness(Fitness(NEAR, US, NO_TERM, int(Unfitness.LOG_FULL)))
    rig.transfer.set_reasons(Unfitness.LOG_FULL)
    rig.ticks()
    assert driver.offers == [FAR]


@pytest.mark.parametrize(("reasons", "resigned"), [(Unfitness.DIVERGED, 1), (Unfitness.STUCK, 0), (Unfitness.LOG_FULL, 0)])
def test_without_a_fitter_node_only_a_diverged_one_resigns(rig: Rig, driver: Driver, reasons: Unfitness, resigned: int) -> None:
    """What cannot be served now may be served later; what is wrong must not be served."""
    driver.able = []
    rig.transfer.set_reasons(reasons)
    rig.ticks()
    assert (driver.resigned, driver.offers, driver.holds_proposals) == (resigned, [], False)


def test_a_stop_offers_leadership_and_waits_for_the_successor(rig: Rig, driver: Driver) -> None:
    """It returns when that one leads, in the thread that stops the node."""

    def give() -> None:
        driver.leader = NEAR

    driver.on_offer = give
    assert rig.transfer.hand_over(30.0)
    assert driver.offers == [NEAR]
    assert rig.fitness.own == Unfitness.STOPPING
    rig.transfer.set_reasons(FIT)
    assert rig.fitness.own == Unfitness.STOPPING, "it stays the last choice until it ends"


def test_a_stop_waits_while_the_successor_is_not_known(rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that steps down for a newer term knows no leader until that one speaks; clients must not be cut off then."""

    def give() -> None:
        known = iter([None] * 6)
        driver.able = []

        def views() -> dict[int, Any]:
            return {CLUSTER_GROUP: SimpleNamespace(leader=next(known, NEAR), leads=False)}

        monkeypatch.setattr(driver, "views", views)

    driver.on_offer = give
    assert rig.transfer.hand_over(30.0)


def test_a_stop_that_nobody_can_take_over_does_not_wait(rig: Rig, driver: Driver) -> None:
    """A node alone, the last one, a node that follows, one whose log has failed, one that never spoke with anybody."""
    driver.able = []
    assert not rig.transfer.hand_over(1000.0)
    driver.leader = FAR
    assert rig.transfer.hand_over(1000.0)
    driver.failure = OSError()
    assert not rig.transfer.hand_over(1000.0)
    driver.failure, driver.views = None, dict  # type: ignore[method-assign]
    assert not rig.transfer.hand_over(1000.0)


def test_a_stop_gives_up(rig: Rig, driver: Driver) -> None:
    """The successor does not answer."""
    assert not rig.transfer.hand_over(0.0)
    assert driver.offers == [NEAR]


def test_leadership_that_is_asked_for_goes_to_that_node(rig: Rig, driver: Driver) -> None:
    """After what is under way, though this node is fit, and another one would be nearer."""
    rig.drained = False
    rig.transfer.give_leadership(FAR)
    assert (driver.offers, driver.holds_proposals) == ([], True)
    rig.drained = True
    rig.ticks()
    assert driver.offers == [FAR]
    driver.leader = FAR
    rig.transfer.end_offer()
    driver.leader = US
    rig.ticks(50)
    assert (driver.offers, driver.holds_proposals) == ([FAR], False)


def test_leadership_that_is_asked_for_and_not_taken_stays(rig: Rig, driver: Driver) -> None:
    """It is offered once; a second request offers it again."""
    rig.transfer.give_leadership(FAR)
    rig.transfer.give_leadership(NEAR)  # one at a time
    rig.ticks(OFFER_TICKS + PAUSE_TICKS + 5)
    assert (driver.offers, driver.holds_proposals) == ([FAR], False)
    rig.transfer.give_leadership(NEAR)
    assert driver.offers == [FAR, NEAR]
