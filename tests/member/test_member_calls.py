"""Calls at any node of a cluster: forwarded to the node that leads, with the answers that it would give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.forwarding.call_link import CallLink
from cmdlog.node.clock import ClockAhead
from cmdlog.node.forwarding.forwarded_calls import TxnAhead
from cmdlog.node.node import Node
from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    Durability,
    NoLeader,
    NotLeading,
    NotReady,
    Reply,
    UnknownOutcome,
)
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.slot_map import make_routes
from cmdlog.raft import RaftSettings
from cmdlog.wal.ids import MILLIS_SHIFT
from procedures.idempotency.known_outcome import Status, key_fingerprint
from tests.member.members import Members, ask_retried, member_of, members, number_of, status_of
from tests.node.apps.faulty import db
from tests.node.rig import Pending, ask, send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three nodes that run; the first one leads, however slow the machine is. A test leaves them so."""
    with pytest.MonkeyPatch.context() as patch, members(tmp_path_factory.mktemp("three"), patch, count=3) as made:
        for node in made.cluster.nodes:
            made.join(node, raft=RaftSettings(election_ticks=200 if node == 1 else 100_000))
        assert number_of(made.leader()) == 1
        yield made


def follower(cluster: Members) -> Node:
    """One that knows who leads."""
    leader = cluster.leader()
    node = cluster.followers()[0]
    wait_for(lambda: (where := member_of(node).calls.elsewhere()) is not None and where.node == number_of(leader))
    return node


def link_to(leader: Node, node: Node) -> CallLink[Any]:
    """The one by which a node sends calls."""
    link = member_of(node).calls._channel._targets[number_of(leader)].link
    assert link is not None
    return link


def placed(node: Node, name: str, /, *, key: str = "", txn: int | None = None, **params: Any) -> Reply:
    """The reply to one call, a raised refusal too."""
    route, pending = node.routes[name], Pending()
    fingerprint = key_fingerprint("", key) if key else b""
    try:
        node.call(route, route.procedure.bind(params), key=fingerprint, done=pending.done, txn=txn)
    except CallRefused as refusal:
        return refusal
    return pending.wait()


def many(node: Node, *named: tuple[str, dict[str, Any]], durability: Durability | None = None) -> list[Any]:
    """The results of calls that are placed together."""
    pendings = [Pending() for _ in named]
    routes = [node.routes[name] for name, _ in named]
    calls = [
        (route, route.procedure.bind(params), b"", pending.done, durability)
        for route, (_, params), pending in zip(routes, named, pendings, strict=True)
    ]
    partitions = node.call_many(calls)
    for route, partition, (_, params) in zip(routes, partitions, named, strict=True):
        bound = route.procedure.bind(params)
        assert partition == (None if route.everywhere else node.slots.partition_of(route.procedure, bound))
    return [pending.value() for pending in pendings]


def test_follower_answers_calls_reads_and_calls_on_all(three: Members) -> None:
    """As the leader does."""
    ask_retried(three.leader, "bump", key="warm", id=1, amount=1)
    node = follower(three)
    assert ask(node, "bump", key="a", id=1, amount=2) == 3
    assert ask(node, "bump", key="a", id=1, amount=2) == 3, "a repeated key gets the first answer"
    assert ask(three.leader(), "bump", key="a", id=1, amount=2) == 3, "wherever it is repeated"
    assert ask(node, "peek", id=1) == 3
    assert ask(node, "set_rate", name="forwarded", value=3) == [0, 0]
    assert ask(three.leader(), "set_rate", name="forwarded", value=4) == [3, 3]
    status = status_of(node)["forwarding"]
    assert status["sent"] >= 4
    assert status["waiting"] == 0
    assert status_of(three.leader())["forwarding"]["taken"] >= 4


def test_calls_that_come_together_are_placed_together(three: Members) -> None:
    """Writes, reads and calls on all, in their order, at a follower and at the leader alike."""
    for node, number in ((follower(three), 300), (three.leader(), 400)):
        results = many(
            node, ("bump", {"id": number, "amount": 1}), ("bump", {"id": number, "amount": 2}),
            ("set_rate", {"name": f"many{number}", "value": 1}), ("bump", {"id": number + 1, "amount": 7}),
        )  # fmt: skip
        assert results == [1, 3, [0, 0], 7]
        assert many(node, ("peek", {"id": number}), ("peek", {"id": number + 1})) == [3, 7]
        mixed = many(node, ("bump", {"id": number, "amount": 1}), ("peek", {"id": number + 1}), ("peek", {"id": 9999}))
        assert mixed[:2] == [4, 7]


def test_leader_promises_durability_to_calls_that_come_together(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """`durability=async` would answer a call that no majority has: a member knows no such promise."""
    leader = three.leader()
    lax: list[bool] = []
    add = leader.sequencer.intake.add_many

    def watched(calls: Any, **options: Any) -> None:
        lax.extend(call[5] for call in calls)
        add(calls, **options)

    monkeypatch.setattr(leader.sequencer.intake, "add_many", watched)
    for node in (leader, follower(three)):
        many(node, ("bump", {"id": 500, "amount": 1}), ("bump", {"id": 500, "amount": 1}), durability="async")
    assert lax == [False] * 4


def test_every_outcome_comes_through(three: Members) -> None:
    """Aborted, failed with its place, a reused key, a call that is too large, a transaction of the future."""
    node, leader = follower(three), three.leader()
    aborted = placed(node, "abort_after_write", id=10, amount=1)
    assert isinstance(aborted, CallOutcome)
    assert (aborted.status, b"no_luck" in aborted.body) == (Status.ABORTED, True)
    failed = placed(node, "raise_after_write", id=10, amount=1)
    assert isinstance(failed, CallOutcome)
    assert failed.status == Status.FAILED
    ours, theirs = node.trace_of(failed), leader.trace_of(failed._replace(trace=None))
    assert ours == theirs
    assert ours is not None
    assert ours.line > 0
    elsewhere = next(number for number in range(11, 99) if partition_of(node, number) != partition_of(node, 10))
    assert ask(node, "bump", key="once", id=10, amount=1) == 1
    reused = placed(node, "bump", key="once", id=elsewhere, amount=1)
    assert isinstance(reused, CallOutcome)
    assert reused.status == Status.KEY_REUSED
    assert isinstance(placed(node, "set_rate", name="x" * 200_000, value=1), CallTooLarge)
    assert isinstance(placed(node, "bump", id=10, amount=1, txn=2**62), TxnAhead)


def partition_of(node: Node, number: int) -> int:
    """Where a counter lives."""
    return node.slots.partition_of(node.routes["bump"].procedure, [number, 0])


def test_transaction_seen_orders_the_next_call(three: Members) -> None:
    """Of another node and partition: what is called with it gets a later one."""
    node, other = follower(three), three.leader()
    first = placed(other, "bump", id=20, amount=1)
    assert isinstance(first, CallOutcome)
    later = placed(node, "bump", id=21, amount=1, txn=first.txn_id)
    assert isinstance(later, CallOutcome)
    assert later.txn_id > first.txn_id


def test_transaction_that_was_never_given_moves_no_clock(three: Members) -> None:
    """Reads and writes that claim one are refused, at the leader and at a follower, and other calls keep their time."""
    node, leader = follower(three), three.leader()
    first = placed(leader, "bump", id=22, amount=1)
    assert isinstance(first, CallOutcome)
    ahead = first.txn_id + (58_000 << MILLIS_SHIFT)
    for procedure, more in (("peek", {}), ("bump", {"amount": 1})):
        params: dict[str, Any] = {"id": 22, **more}
        assert isinstance(placed(node, procedure, txn=ahead, **params), TxnAhead)
        with pytest.raises(ClockAhead):
            placed(leader, procedure, txn=ahead, **params)
    after = placed(leader, "bump", id=22, amount=1)
    assert isinstance(after, CallOutcome)
    assert first.txn_id < after.txn_id < ahead


def test_link_that_is_cut_leaves_outcomes_unknown_and_keys_find_out(three: Members, tmp_path: Path) -> None:
    """The call runs on the leader meanwhile; a read is safe to repeat instead."""
    node, leader = follower(three), three.leader()
    ask(node, "bump", id=30, amount=1)
    file = tmp_path / "it stays while this is there"
    file.touch()
    staying = send(node, "stay", key="stay", id=30, path=str(file))
    wait_for(file.read_bytes, why="a read that comes before the call runs would not wait for it")
    reading = send(node, "peek", id=30)
    link = link_to(leader, node)
    connection = link._connection
    assert connection is not None
    wait_for(lambda: link.under_way == 2)
    loop = member_of(node).calls._channel._loop
    assert loop is not None
    loop.call_soon_threadsafe(connection.end)
    assert type(staying.wait()) is UnknownOutcome
    assert type(reading.wait()) is NoLeader
    file.unlink()
    assert ask_retried(lambda: follower(three), "stay", key="stay", id=30, path=str(file)) == 2
    assert ask(three.leader(), "peek", id=30) == 2, "it was run once"


def test_call_is_never_sent_on(three: Members) -> None:
    """Two followers that take each other for the leader: a call is refused after one step."""
    follower(three)
    one, two = three.followers()
    wait_for(member_of(two).calls.elsewhere)
    before = {node: where for node in (one, two) if (where := member_of(node).calls.elsewhere()) is not None}
    try:
        one.sequencer.intake.refuse(Closed.LEADER, NotLeading("two leads", "http://two", number_of(two)))
        two.sequencer.intake.refuse(Closed.LEADER, NotLeading("one leads", "http://one", number_of(one)))
        told = placed(one, "bump", id=40, amount=1)
        assert isinstance(told, NotLeading)
        assert told.more() == {"leader": "http://one"}
        assert isinstance(placed(one, "peek", id=40), NoLeader | NotLeading)
    finally:
        for node, refusal in before.items():
            node.sequencer.intake.refuse(Closed.LEADER, refusal)
    assert ask(one, "bump", id=40, amount=1) == 1


def test_call_that_is_bound_to_other_code_is_refused(three: Members) -> None:
    """The code changed between binding and placing: the number of its procedure would be another one's. At every node."""
    three.leader()
    for node in three.nodes.values():
        other = make_routes(db)["bump"]
        params = other.procedure.bind({"id": 1, "amount": 1})
        with pytest.raises(NotReady, match="safe to repeat"):
            node.call(other, params, done=print)
        with pytest.raises(NotReady, match="safe to repeat"):
            node.call_many([(other, params, b"", print, None)])
