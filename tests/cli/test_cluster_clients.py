"""Clients of the demo's cluster: they go on to the next node under the same key, and count what they have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo import cluster_clients
from cmdlog.cli.demo.clients import Http, Unanswered, send, send_batch
from cmdlog.cli.demo.cluster_clients import ClusterLoad
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall
from tests.client.scripted import ScriptedServer, Step, http
from tests.waiting import wait_for

URLS = {1: "http://one", 2: "http://two", 3: "http://three"}
Answering = Callable[[str, DemoCall], ClientAnswer]
Serve = Callable[..., AbstractContextManager[ClusterLoad]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts clients whose requests are answered by a function; they end with the test."""
    monkeypatch.setattr(cluster_clients, "RETRY_PAUSE_S", 0.001)

    @contextmanager
    def serve(answering: Answering, shares: list[list[DemoCall]], **given: Any) -> Iterator[ClusterLoad]:
        def send(_connection: Http, url: str, call: DemoCall) -> ClientAnswer:
            return answering(url, call)

        monkeypatch.setattr(cluster_clients, "send", send)
        load = ClusterLoad(shares, URLS, **given)
        load.start()
        try:
            yield load
        finally:
            load.stop()
            wait_for(lambda: not any(thread.is_alive() for thread in load._threads))

    return serve


def calls(count: int) -> list[DemoCall]:
    """A client's share."""
    return [DemoCall(f"key-{number}", "deposit_checking", {}) for number in range(count)]


def answer() -> ClientAnswer:
    """A result."""
    return ClientAnswer(1024, 0, "ok", None)


def test_call_that_is_not_answered_goes_to_the_next_node_under_its_key(served: Serve) -> None:
    """A node that refuses, one that hangs up, one that answers; and the client stays with that one."""
    seen: list[tuple[str, str]] = []

    def answering(url: str, call: DemoCall) -> ClientAnswer:
        seen.append((url, call.key))
        if url != URLS[3]:
            raise Unanswered("", maybe_executed=url == URLS[2])
        return answer()

    share = calls(2)
    with served(answering, [share]) as load:
        load.observe()
        load.allow(2)
        assert load.wait_answered(2, 30)
    assert seen == [(URLS[1], "key-0"), (URLS[2], "key-0"), (URLS[3], "key-0"), (URLS[3], "key-1")]
    assert [call.attempts for call in share] == [3, 1]
    assert (load.service.answered, load.service.retried, load.service.unknown) == (2, 2, 1)
    assert load.answered_by == {3: 2}


def test_clients_begin_at_different_nodes(served: Serve) -> None:
    """The load goes to all of them."""
    with served(lambda *_: answer(), [calls(1) for _ in range(6)]) as load:
        load.allow(6)
        assert load.wait_answered(6, 30)
    assert load.answered_by == {1: 2, 2: 2, 3: 2}


def test_no_more_calls_are_made_than_are_allowed(served: Serve) -> None:
    """Clients wait for the next portion, however many there are."""
    sent: list[str] = []

    def answering(_url: str, call: DemoCall) -> ClientAnswer:
        sent.append(call.key)
        return answer()

    with served(answering, [calls(10), calls(10)]) as load:
        load.allow(5)
        assert load.wait_answered(5, 30)
        assert not load.wait_answered(6, 0.02)
        assert len(sent) == 5
        load.allow(15)
        assert load.wait_answered(20, 30)


def test_gap_is_the_longest_time_without_an_answer(served: Serve) -> None:
    """Counted from the moment that is observed, and over all clients."""
    now = [100.0]

    def answering(_url: str, call: DemoCall) -> ClientAnswer:
        now[0] += {"key-0": 50.0, "key-1": 0.5, "key-2": 2.5, "key-3": 1.0}[call.key]
        return answer()

    with served(answering, [calls(4)], clock=lambda: now[0]) as load:
        load.allow(1)
        assert load.wait_answered(1, 30)
        load.observe()
        assert load.service.longest_gap_s == 0
        load.allow(3)
        assert load.wait_answered(4, 30)
    assert load.service.longest_gap_s == 2.5


def test_client_gives_up_after_many_attempts(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread gets the error, and waits no longer."""
    monkeypatch.setattr(cluster_clients, "ATTEMPTS_MAX", 3)

    def answering(_url: str, _call: DemoCall) -> ClientAnswer:
        raise Unanswered("")

    with served(answering, [calls(1)]) as load:
        load.allow(1)
        with pytest.raises(CommandFailed, match="key-0 was not answered in 3 attempts"):
            load.wait_answered(1, 30)


@pytest.mark.parametrize(
    ("status", "maybe_executed"), [(503, False), (504, True), (500, True)], ids=["refused", "unknown", "server's fault"]
)
def test_refused_attempt_is_none_of_unknown_outcome(status: int, maybe_executed: bool) -> None:
    """By the status; and a connection that nothing accepts has carried nothing."""
    with ScriptedServer([Step("body read", reply=http(status, b"{}"))]) as server, Http() as connection:
        with pytest.raises(Unanswered) as failed:
            send(connection, server.url, calls(1)[0])
        assert failed.value.maybe_executed is maybe_executed
    with pytest.raises(Unanswered) as failed, Http() as connection:
        send(connection, server.url, calls(1)[0])
    assert failed.value.maybe_executed is False


@pytest.mark.parametrize("code", ["not_ready", "no_quorum", "outcome_unknown"])
def test_batch_with_an_undecided_call_is_not_answered(code: str) -> None:
    """It is to be sent again as a whole, under the same keys."""
    decided = orjson.dumps({"txn_id": "1024", "partition": 0, "result": None})
    undecided = orjson.dumps({"error": {"code": code, "status": 503}})
    steps = [Step("body read", reply=http(200, line)) for line in (decided, undecided)]
    with ScriptedServer(steps) as server, Http() as connection:
        assert send_batch(connection, server.url, calls(1)) == [answer()]
        with pytest.raises(Unanswered, match=f"/v1/batch answered {code} to 1 of 1 calls"):
            send_batch(connection, server.url, calls(1))
