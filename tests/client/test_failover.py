"""Both clients over several nodes: whatever fails, a call is executed once, and the next node is asked under the same key."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trustme

from cmdlog.client import RetryPolicy
from cmdlog.errors import OutcomeUnknown, Unreachable
from tests.client.drives import Drive
from tests.client.scripted import ScriptedServer, Step, problem
from tests.client.scripted_cluster import ScriptedCluster, refused

CALM = RetryPolicy(attempt_s=20, failover_s=20, backoff_first_s=0.001, backoff_max_s=0.01)
"""For faults that show at once: a slow machine is no silent node."""
QUICK = replace(CALM, failover_s=0.05)
"""For nodes that hang."""


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


FAULTS: dict[str, Step] = {
    "hangs once it is connected": Step("accepted", "stall"),
    "hangs before it executes": Step("body read", "stall"),
    "hangs after it has executed": Step("executed", "stall", b""),
    "hangs in its answer": Step("executed", "stall", share=0.9),
    "dies before it executes": Step("body read", "reset", b""),
    "dies after it has executed": Step("executed", "reset", b""),
    "dies in its answer": Step("executed", "reset", share=0.5),
    "follows": Step("body read", "keep", refused()),
    "has no leader": Step("body read", "keep", problem(503, "no_quorum", "Retry-After: 1")),
    "leads no more": Step("executed", "keep", problem(504, "outcome_unknown")),
    "has led without an effect": Step("body read", "keep", problem(504, "outcome_unknown")),
    "is full of connections": Step(
        "body read", "close", problem(503, "too_many_connections", "Retry-After: 1", "Connection: close")
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_next_node_gets_the_call_at_once_under_its_key(drive: Drive, fault: str, pauses: list[float]) -> None:
    """A node that hangs, dies, follows, or has lost its lead: the next one is asked without a wait, the call has one effect."""
    with ScriptedCluster([[FAULTS[fault]] * 2, [], []]) as cluster:
        for node in cluster.nodes:
            node.forwards = True
        hangs = fault.startswith("hangs")
        assert drive.call(cluster.urls, retry=QUICK if hangs else CALM) == 1
        assert cluster.executed == ["k"]
        if not hangs:
            assert (cluster.requests()[1:], pauses) == ([1, 0], [])


def test_named_leader_is_asked_at_once_and_remembered(drive: Drive, pauses: list[float]) -> None:
    """A follower's `leader` is the next to be asked, before others of the list; later calls begin there."""
    with ScriptedCluster() as cluster:
        cluster.lead(2)
        assert drive.calls(cluster.urls, 3, retry=CALM) == [1, 2, 3]
        assert (cluster.requests(), pauses) == ([1, 0, 3], [])


def test_name_may_be_written_in_another_way(drive: Drive) -> None:
    """A slash at its end and capitals make no other address."""
    with ScriptedServer() as second:
        named = second.url.replace("http", "HTTP") + "/"
        with ScriptedServer([Step("body read", reply=refused(named))]) as first, nobody() as between:
            assert drive.call([first.url, between, second.url], retry=CALM) == 1


def test_leader_outside_the_list_gets_neither_call_nor_token(drive: Drive) -> None:
    """An answer names any address: it is never asked, and the next of the list is."""
    with ScriptedServer() as stranger, ScriptedServer() as second:
        with ScriptedServer([Step("body read", reply=refused(stranger.url))] * 2) as first:
            assert drive.call([first.url, second.url], retry=CALM, token="secret-of-16-chars") == 1
            assert second.requests[0].headers["authorization"] == "Bearer secret-of-16-chars"
            assert drive.call(first.url, retry=CALM, token="secret-of-16-chars") == 1, "of one address: it is asked again"
        assert stranger.connections == 0


def test_stale_name_is_not_followed_in_a_circle(drive: Drive, pauses: list[float]) -> None:
    """All followers still name a leader that is gone: each of them is asked once before the client waits."""
    with nobody() as gone, ScriptedServer() as last:
        stale = [Step("body read", reply=refused(gone))]
        with ScriptedServer(stale) as second, ScriptedServer(stale) as third:
            assert drive.call([gone, second.url, third.url, last.url], retry=CALM) == 1
            assert [len(server.requests) for server in (second, third, last)] == [1, 1, 1]
    assert pauses == []


def test_election_is_waited_for_in_rounds(drive: Drive, pauses: list[float]) -> None:
    """Without a leader every node is asked once between two waits, which are as long as the nodes say, to the fraction."""
    silent = Step("body read", reply=problem(503, "no_quorum", "Retry-After: 1", retry_after_s=0.5))
    with ScriptedCluster([[silent] * 2] * 3) as cluster:
        for node in cluster.nodes:
            node.forwards = True
        assert drive.call(cluster.urls, retry=CALM) == 1
        assert sorted(cluster.requests()) == [2, 2, 3]
    assert len(pauses) == 2
    assert all(0.5 <= wait < 0.6 for wait in pauses)


@pytest.mark.parametrize("fault", FAULTS)
def test_call_without_a_key_is_never_repeated_in_doubt(drive: Drive, fault: str) -> None:
    """Only a promise that nothing was logged lets a call without a key go to another node."""
    promise = fault in ("follows", "has no leader", "is full of connections")
    with ScriptedCluster([[FAULTS[fault]] * 2, [], []]) as cluster:
        for node in cluster.nodes:
            node.forwards = True
        if promise:
            assert drive.call(cluster.urls, key=None, retry=CALM) == 1
            return
        hangs = fault.startswith("hangs")  # a slow machine may need all the time for the connection
        with pytest.raises((OutcomeUnknown, Unreachable) if hangs else OutcomeUnknown):
            drive.call(cluster.urls, key=None, retry=CALM, timeout_s=0.2 if hangs else 60)
        assert (len(cluster.executed) <= 1, cluster.requests()[1:]) == (True, [0, 0])


@pytest.mark.slow
def test_all_hang_is_told_in_time_as_doubt(drive: Drive) -> None:
    """Nodes that accept and never answer: the call ends in its time, and says that each hung."""
    with ScriptedCluster([[Step("body read", "stall")] * 20] * 3) as cluster:
        with pytest.raises(OutcomeUnknown) as told:
            drive.call(cluster.urls, retry=QUICK, timeout_s=3)
        assert all(f"{url}: " in str(told.value) for url in cluster.urls)
        with pytest.raises(Unreachable):
            drive.read(cluster.urls, retry=QUICK, timeout_s=0.01)


# -- batches -------------------------------------------------------------------------------------------------------------

CHANGES = {
    "before the first line": ["lead 1"],
    "between two lines": [*[""] * 20, "lead 2"],
    "under lines that were executed": [*[""] * 20, *["unknown, executed"] * 10, "lead 1"],
    "under lines that were not": [*[""] * 20, *["unknown"] * 10, "lead 1"],
    "under both": [*[""] * 20, *["unknown, executed"] * 5, *["unknown"] * 5, "lead 1"],
    "twice": [*[""] * 10, "unknown", "lead 1", *[""] * 60, "unknown", "lead 2"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_batch_survives_a_change_of_leader(drive: Drive, change: str) -> None:
    """Every line is answered once, in order, by its result; executed once and in the order of the lines."""
    with ScriptedCluster(lines=CHANGES[change]) as cluster:
        keys = [f"k{number:03}" for number in range(100)]
        answers = drive.batch(cluster.urls, [("bump", {"id": 1}, key) for key in keys], retry=CALM)
        assert [answer.value for answer in answers] == list(range(1, 101))
        assert cluster.executed == keys


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("end", ["reset", "stall"])
def test_batch_survives_the_death_of_its_leader(drive: Drive, share: float, end: Any) -> None:
    """The stream breaks or hangs in the middle of its answers: what is open goes to the next node."""
    with ScriptedCluster([[Step("executed", end, share=share)], [], []]) as cluster:
        for node in cluster.nodes:
            node.forwards = True
        keys = [f"k{number:03}" for number in range(100)]
        answers = drive.batch(cluster.urls, [("bump", {"id": 1}, key) for key in keys], retry=QUICK)
        assert [answer.value for answer in answers] == list(range(1, 101))
        assert cluster.executed == keys


@pytest.mark.parametrize("change", CHANGES)
def test_calls_that_share_requests_survive_a_change_of_leader(drive: Drive, change: str) -> None:
    """Each caller gets its own result, once."""
    with ScriptedCluster(lines=CHANGES[change]) as cluster:
        answers = drive.together(cluster.urls, 40, retry=CALM, auto_batch=True)
        assert sorted(answers) == list(range(1, 41))
        assert sorted(cluster.executed) == sorted(f"k{number}" for number in range(40))


@pytest.mark.slow
def test_node_with_a_bad_certificate_is_passed_over(drive: Drive) -> None:
    """Nothing was said to it; a list of such nodes alone is told at once."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    with ScriptedServer(tls=tls) as bad, ScriptedServer(tls=tls) as worse, ScriptedServer() as good:
        assert drive.call([bad.url, worse.url, good.url], key=None) == 1
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            drive.call([bad.url, worse.url], timeout_s=1000)
