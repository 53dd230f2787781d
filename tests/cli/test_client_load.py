"""Clients of the demo's cluster: they ask the next node under the same key, wait for their portion, and count what they see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.client_load import ClientLoad, ask, ask_many
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall
from cmdlog.client import Client
from tests.client.scripted import ScriptedServer, Step, http, problem
from tests.client.scripted_cluster import ScriptedCluster
from tests.waiting import wait_for


def calls(count: int, name: str = "key") -> list[DemoCall]:
    """A client's share."""
    return [DemoCall(f"{name}-{number}", "deposit_checking", {}) for number in range(count)]


@contextmanager
def load_of(cluster: ScriptedCluster, shares: list[list[DemoCall]], **given: Any) -> Iterator[ClientLoad]:
    """Clients at work; nodes 1 to 3 are those of the cluster. They end with it."""
    load = ClientLoad(shares, dict(enumerate(cluster.urls, start=1)), **given)
    load.start()
    try:
        yield load
    finally:
        load.stop()
        wait_for(lambda: not any(thread.is_alive() for thread in load._threads))


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Three nodes; the first one leads."""
    with ScriptedCluster() as made:
        yield made


def test_call_goes_to_the_next_node_under_its_key() -> None:
    """From one that hangs up after the request, by one that does not lead, to the one that does; and the client stays there."""
    share = calls(2)
    with ScriptedCluster([[Step("body read", "close")], [], []]) as cluster:
        cluster.lead(2)
        with load_of(cluster, [share]) as load:
            load.observe()
            load.allow(2)
            assert load.wait_answered(2, 30)
        sent = [[request.headers["idempotency-key"] for request in node.requests] for node in cluster.nodes]
    assert sent == [["key-0"], ["key-0"], ["key-0", "key-1"]]
    assert (load.service.answered, load.service.refused, load.service.unknown) == (2, 1, 1)
    assert load.answered_by == {3: 2}
    assert cluster.executed == ["key-0", "key-1"]


def test_clients_begin_at_different_nodes(cluster: ScriptedCluster) -> None:
    """The load goes to all of them, where followers take calls."""
    for node in cluster.nodes:
        node.forwards = True
    with load_of(cluster, [calls(1, f"client{number}") for number in range(6)]) as load:
        load.allow(6)
        assert load.wait_answered(6, 30)
    assert load.answered_by == {1: 2, 2: 2, 3: 2}


def test_no_more_calls_are_made_than_are_allowed(cluster: ScriptedCluster) -> None:
    """Clients wait for the next portion, however many there are."""
    with load_of(cluster, [calls(10, "one"), calls(10, "two")]) as load:
        load.allow(5)
        assert load.wait_answered(5, 30)
        assert not load.wait_answered(6, 0.02)
        assert len(cluster.executed) == 5
        load.allow(15)
        assert load.wait_answered(20, 30)


def test_gap_is_the_longest_time_without_an_answer(cluster: ScriptedCluster) -> None:
    """Counted from the moment that is observed; what was before it does not count."""
    moments = iter([3.0, 100.0, 100.5, 103.0, 104.0])
    with load_of(cluster, [calls(4)], clock=lambda: next(moments)) as load:
        load.allow(1)
        assert load.wait_answered(1, 30)
        load.observe()
        assert load.service.longest_gap_s == 0
        load.allow(3)
        assert load.wait_answered(4, 30)
        assert load.service.longest_gap_s == 2.5


def test_call_without_an_outcome_ends_the_wait() -> None:
    """The main thread gets the error of a client that gives up."""
    refusing = ScriptedCluster([[Step("body read", reply=problem(401, "unauthenticated"))], [], []])
    with refusing as cluster, load_of(cluster, [calls(1)]) as load:
        load.allow(1)
        with pytest.raises(CommandFailed, match="under key key-0 has no outcome: unauthenticated"):
            load.wait_answered(1, 30)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (http(200, {"txn_id": "1024", "partition": 0, "result": [7]}), ClientAnswer(1024, 0, "ok", [7])),
        (problem(422, "aborted", abort_code="poor", txn_id="9"), ClientAnswer(9, None, "aborted", "poor")),
        (problem(500, "procedure_failed", txn_id="9"), ClientAnswer(9, None, "failed", "")),
        (problem(409, "key_reused"), ClientAnswer(0, None, "key_reused", "")),
    ],
    ids=["result", "aborted", "failed", "key reused"],
)
def test_outcomes_are_those_that_the_proof_knows(reply: bytes, answer: ClientAnswer) -> None:
    """One that is none of the bank's has its code as kind: the proof refutes it."""
    with ScriptedServer([Step("body read", reply=reply)]) as server, Client(server.url) as client:
        assert ask(client, calls(1)[0]) == answer


def test_batch_survives_a_change_of_the_leader(cluster: ScriptedCluster) -> None:
    """Each call has one answer, in order, under its key."""
    cluster._lines[:] = ["", "lead 1", "unknown, executed", ""]
    share = calls(5)
    with Client(cluster.urls) as client:
        answers = list(ask_many(client, share))
    assert [answer.kind for answer in answers] == ["ok"] * 5
    assert sorted(cluster.executed) == sorted(call.key for call in share)
    assert [answer.value for answer in answers] == [cluster.executed.index(call.key) + 1 for call in share]
