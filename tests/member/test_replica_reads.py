"""Stale reads on a replica: what they wait for, what they say, and when they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cmdlog.member.replica_reads import CATCH_UP_TICKS, ReplicaProgress
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, CallRefused, NotLeading, NotReady
from cmdlog.node.queries.query import QueryResult, run_query
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.errors import WalError
from tests.member.asked_consensus import AskedConsensus, as_driver
from tests.member.members import Members, ask_retried, member_of, members, number_of, status_of
from tests.node.rig import Pending, partition, send
from tests.waiting import wait_for


class Progress:
    """A replica of two partitions, of which 10 and 20 entries are run."""

    def __init__(self) -> None:
        self.consensus, self.told = AskedConsensus(leads=False), list[bool]()
        self.run = {0: 10, 1: 20}
        self.progress = ReplicaProgress(*as_driver(self.consensus), lambda: self.run)

    def catch_up(self, *partitions: int) -> None:
        self.progress.catch_up(partitions, self.told.append)


@pytest.fixture
def replica() -> Progress:
    """Nobody waits."""
    return Progress()


def test_replica_that_is_level_waits_for_the_answers_alone(replica: Progress) -> None:
    """Of each partition's leader; that it has run as much already is known at once."""
    replica.catch_up(0, 1)
    replica.consensus.answer(10)
    assert replica.told == []
    replica.consensus.answer(20)
    assert replica.told == [True]


def test_replica_waits_until_it_has_run_what_was_committed(replica: Progress) -> None:
    """On every partition that was asked for; others do not matter, and the answer comes once."""
    replica.catch_up(0, 1)
    replica.consensus.answer(12)
    replica.consensus.answer(20)
    replica.progress.executed(1, 30)
    replica.progress.executed(0, 11)
    assert replica.told == []
    replica.progress.executed(0, 12)
    assert replica.told == [True]
    replica.progress.executed(0, 13)
    assert replica.told == [True]


@pytest.mark.parametrize("end", ["no leader", "late", "closed", "failed", "silent"])
def test_wait_of_a_replica_ends(replica: Progress, end: str) -> None:
    """Whatever is missing, the caller is answered, once."""
    if end == "failed":
        replica.consensus.failure = WalError("the disk is gone")
    replica.catch_up(0, 1)
    if end == "no leader":
        replica.consensus.answer(None)
    elif end == "closed":
        replica.progress.lose_all()
    elif end != "failed":
        if end == "late":
            replica.consensus.answer(99)
            replica.consensus.answer(20)
        replica.progress.tick(CATCH_UP_TICKS)
        assert replica.told == []
        replica.progress.tick(1)
    assert replica.told == [False]
    replica.progress.executed(0, 99)
    assert replica.told == [False]


# -- real nodes ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three nodes that run. A test leaves them so."""
    with pytest.MonkeyPatch.context() as patch, members(tmp_path_factory.mktemp("three"), patch, count=3) as made:
        made.join_all()
        yield made


def read(node: Node, name: str, /, *, txn: int | None = None, **params: Any) -> CallOutcome:
    """A stale read that went well."""
    pending, route = Pending(), node.routes[name]
    node.stale.call(route, route.procedure.bind(params), done=pending.done, txn=txn)
    reply = pending.wait()
    assert isinstance(reply, CallOutcome), reply
    assert reply.status == 0
    return reply


def written(cluster: Members, key: str, number: int, amount: int) -> CallOutcome:
    """A logged call at the leader."""
    ask_retried(cluster.leader, "bump", key=key, id=number, amount=amount)
    reply = send(cluster.leader(), "bump", key=key, id=number, amount=amount).wait()
    assert isinstance(reply, CallOutcome)
    return reply


def queried(node: Node, sql: str, *, txn: int | None = None) -> QueryResult:
    """A stale query of all partitions."""
    return node.stale.query(run_query, sql, (), None, txn=txn)


@pytest.mark.slow
def test_every_replica_answers_and_says_as_of_what(three: Members) -> None:
    """A call on one partition, one on all, a query: each with the transaction up to which the partition's state holds all."""
    at = {}
    for number in range(20, 24):
        reply = written(three, f"w{number}", number, number)
        at[partition(three.leader(), number)] = reply.txn_id
    assert set(at) == {0, 1}
    for node in three.nodes.values():
        for number in range(20, 24):
            reply = read(node, "peek", id=number, txn=max(at.values()))
            assert orjson.loads(reply.body) == number
            where = partition(node, number)
            assert reply.as_of == {where: reply.txn_id}
            assert reply.txn_id >= at[where]
        rows = queried(node, "SELECT id, n FROM counters WHERE id BETWEEN 20 AND 23", txn=max(at.values()))
        assert sorted(map(tuple, rows.rows)) == [(number, number) for number in range(20, 24)]
        assert all(rows.as_of[where] >= txn_id for where, txn_id in at.items())


@pytest.mark.slow
def test_replica_without_a_majority_answers_its_own_state_alone(three: Members) -> None:
    """Cut off, it reads what it has run; of a caller who has seen more it refuses the read by name, within a bound."""
    before = written(three, "cut1", 7, 1)
    follower = three.followers()[0]
    read(follower, "peek", id=7, txn=before.txn_id)
    number = number_of(follower)
    peers = {NodeId(m.node): m.peer for m in three.cluster.members if m.node != number}
    member_of(follower).consensus.network.set_peers({})
    try:
        three.wait_hurried(lambda: status_of(follower)["leader"] is None)
        meanwhile = written(three, "cut2", 7, 1)
        where = partition(follower, 7)
        reply = read(follower, "peek", id=7, txn=before.txn_id)
        assert orjson.loads(reply.body) == 1
        assert reply.as_of is not None
        assert before.txn_id <= reply.as_of[where] < meanwhile.txn_id
        assert (7, 1) in queried(follower, "SELECT id, n FROM counters").rows
        pending, route = Pending(), follower.routes["peek"]
        follower.stale.call(route, route.procedure.bind({"id": 7}), done=pending.done, txn=meanwhile.txn_id)
        assert isinstance(refusal := pending.wait(), NotLeading)
        assert str(meanwhile.txn_id) in str(refusal)
        with pytest.raises(NotLeading):
            queried(follower, "SELECT id, n FROM counters", txn=meanwhile.txn_id)
    finally:
        member_of(follower).consensus.network.set_peers(peers)
    wait_for(lambda: status_of(follower)["leader"] == number_of(three.leader()), why=three.told)

    def caught_up() -> bool:
        try:
            return orjson.loads(read(follower, "peek", id=7, txn=meanwhile.txn_id).body) == 2
        except (CallRefused, AssertionError):
            return False

    wait_for(caught_up, why=three.told)


@pytest.mark.slow
def test_replica_that_diverged_answers_no_stale_read(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of that partition; its state is wrong, not only old."""
    follower = three.followers()[0]
    written(three, "div", 20, 0)
    where = partition(follower, 20)
    other = next(number for number in range(20, 40) if partition(follower, number) != where)
    monkeypatch.setattr(follower.stale, "_diverged", lambda: {where: 5})
    with pytest.raises(NotReady, match="batch 5"):
        read(follower, "peek", id=20)
    with pytest.raises(NotReady, match="batch 5"):
        queried(follower, "SELECT 1")
    read(follower, "peek", id=other)


@pytest.mark.slow
def test_replica_whose_code_changes_answers_no_stale_read(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites know procedures by number: that of another version may be another procedure."""
    follower = three.followers()[0]
    written(three, "code", 20, 0)
    read(follower, "peek", id=20)
    with monkeypatch.context() as patch:
        patch.setattr(member_of(follower).code, "_bound_version", 0)
        with pytest.raises(NotReady, match="code"):
            read(follower, "peek", id=20)
    other = replace(follower.routes["peek"], number=0)  # of the code before
    with pytest.raises(NotReady, match="code"):
        follower.stale.call(other, [20], done=lambda _reply: None)
    read(follower, "peek", id=20)
