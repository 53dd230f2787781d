"""A read waits for a majority; what consensus does not take is no answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import pytest

from cmdlog.member.member_calls import place_apart
from cmdlog.node.outcome import Done, NoLeader, NotReady, Overloaded, Reply
from cmdlog.node.placing.router import Placed
from cmdlog.node.sequencing.intake import Closed
from cmdlog.wal.errors import WalError
from tests.member.asked_consensus import AskedConsensus, leader_reads
from tests.member.members import Members, member_of, members
from tests.node.rig import counters


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three nodes that run."""
    with pytest.MonkeyPatch.context() as patch, members(tmp_path_factory.mktemp("three"), patch, count=3) as made:
        made.join_all()
        yield made


def nothing(_reply: Reply) -> None:
    """Of callers whose answer does not matter."""


@pytest.mark.parametrize("index", [7, None])
def test_read_is_placed_when_this_node_is_known_to_lead(index: int | None) -> None:
    """Not before; else its caller is refused, once."""
    consensus, placed, told = AskedConsensus(), list[str](), list[Reply]()
    leader_reads(consensus).place_confirmed(lambda: placed.append("read"), told.append)
    assert (placed, told) == ([], [])
    consensus.answer(index)
    assert placed == (["read"] if index is not None else [])
    assert [reply.code for reply in told if isinstance(reply, NoLeader)] == ([] if index is not None else ["no_quorum"])


def test_refusal_after_the_confirmation_is_given_to_the_caller() -> None:
    """Whatever refuses the placing: who confirms is the network's thread, which nothing must end."""
    consensus, told = AskedConsensus(), list[Reply]()

    def place() -> None:
        raise Overloaded("reads are in flight")

    leader_reads(consensus).place_confirmed(place, told.append)
    consensus.answer(7)
    assert [type(reply) for reply in told] == [Overloaded]


@pytest.mark.parametrize("leads", [True, False])
def test_query_waits_for_the_confirmation(*, leads: bool) -> None:
    """A query that is not confirmed is refused by name."""
    consensus = AskedConsensus(at_once=7 if leads else None)
    if leads:
        leader_reads(consensus).wait_until_confirmed()
    else:
        with pytest.raises(NoLeader, match="safe to repeat"):
            leader_reads(consensus).wait_until_confirmed()


@pytest.mark.parametrize("why", ["follows", "failed"])
def test_read_of_a_node_that_cannot_lead_is_refused_at_once(why: str) -> None:
    """A follower would ask its leader, and learn nothing of its own state; a driver that failed answers nobody."""
    consensus, told = AskedConsensus(leads=why != "follows"), list[Reply]()
    if why == "failed":
        consensus.failure = WalError("the disk is gone")
    leader_reads(consensus).place_confirmed(lambda: None, told.append)
    assert [type(reply) for reply in told] == [NoLeader]
    assert consensus.questions == 0


class SomeRoute(NamedTuple):
    """What tells reads from other calls."""

    name: str
    read_only: bool


def a_call(name: str, done: Done = nothing, *, read_only: bool = False, durability: str | None = None) -> Placed:
    """As a batch gives it to the node."""
    return cast(Placed, (SomeRoute(name, read_only), [], b"", done, durability))


def test_reads_among_calls_are_placed_apart() -> None:
    """After the logged calls, which promise to be durable; partitions come back in the order of the calls."""
    seen: list[tuple[str, list[Any]]] = []
    told: list[Reply] = []

    def place_logged(calls: Sequence[Placed]) -> list[int | None]:
        seen.append(("logged", [(call[0].name, call[4]) for call in calls]))
        return list(range(len(calls)))

    def place_read(route: Any, _params: Any, *, key: bytes, done: Done) -> int | None:
        seen.append(("read", [route.name]))
        if route.name == "s":
            raise Overloaded("reads are in flight")
        return 9

    place = partial(place_apart, place_read=place_read, place_logged=place_logged)
    calls = [a_call("a", durability="async"), a_call("r", read_only=True), a_call("b"), a_call("s", told.append, read_only=True)]
    assert place(calls) == [0, 9, 1, None]
    assert [type(reply) for reply in told] == [Overloaded]
    assert seen == [("logged", [("a", "sync"), ("b", "sync")]), ("read", ["r"]), ("read", ["s"])]
    seen.clear()
    assert place(calls[1:2]) == [9]
    assert seen == [("read", ["r"])]


# -- real nodes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_query_of_a_node_that_led_again_meanwhile_is_refused(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have led, followed and begun to lead again while it waited: its state need not hold what came in between."""
    leader = three.leader()

    def lead_again() -> None:
        leader.sequencer.intake.refuse(Closed.LEADER, NotReady("it takes over"))

    monkeypatch.setattr(member_of(leader).reads, "wait_until_confirmed", lead_again)
    try:
        with pytest.raises(NotReady, match="takes over"):
            counters(leader)
    finally:
        leader.sequencer.replicated.accept_calls()


@pytest.mark.slow
def test_reads_in_a_batch_are_confirmed(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """As reads one by one are."""
    leader, confirmed = three.leader(), list[Done]()
    monkeypatch.setattr(member_of(leader).reads, "place_confirmed", lambda _place, done: confirmed.append(done))
    leader.call_many([(leader.routes["peek"], [9], b"", nothing, None)])
    assert confirmed == [nothing]
