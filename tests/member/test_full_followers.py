"""Real nodes of which no majority takes entries: logged calls are answered in time, others refused, and all commit once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from cmdlog.member.leading import commit_checks
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NoLeader, NoMajority, UnknownOutcome
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.idempotency.session_calls import sent_name
from tests.member.members import Members, ask_retried, leads, member_of, members, number_of
from tests.node.rig import ask, counters, send
from tests.procedures.sites import uuid7
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes; callers of what is not committed wait for half a second."""
    monkeypatch.setattr(commit_checks, "GIVE_UP_S", 0.5)
    with members(tmp_path, monkeypatch, count=3) as made:
        made.join_all()
        yield made


@contextlib.contextmanager
def full(nodes: Sequence[Node]) -> Iterator[None]:
    """Their logs take nothing more, as on a full volume."""
    with pytest.MonkeyPatch.context() as patched:
        for node in nodes:
            reserve = member_of(node).events._reserve
            patched.setattr(reserve, "_wal", SimpleNamespace(room_bytes=0))
            patched.setattr(member_of(node).leading.checks, "_is_full", lambda: True)
        yield


def wait_for_refusal(node: Node, *texts: str) -> None:
    """Waits until a call is refused as `no_quorum`, with all these words."""

    def refused() -> str:
        try:
            reply = send(node, "bump", id=3, amount=1).wait()
        except NoLeader as refusal:
            return str(refusal)
        return str(reply) if isinstance(reply, NoLeader) else ""

    wait_for(lambda: (said := refused()) and all(text in said for text in texts))


def test_both_followers_are_full(three: Members) -> None:
    """Logged calls are `outcome_unknown`, others refused with the nodes' names, reads go on; with room all is done once."""
    leader, followers = three.leader(), three.followers()
    numbered = sent_name(key_fingerprint("", uuid7(round(1000 * time.time()))), 1, 0)
    assert ask_retried(lambda: leader, "bump", key="before", id=1, amount=1) == 1
    with full(followers):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(member_of(leader).leading.commits, "check_commits", lambda: None)  # before all of them are logged
            logged = [
                send(leader, "bump", key="k", id=1, amount=10),
                send(leader, "bump", key=numbered, id=2, amount=100),
                send(leader, "set_rate", key="r", name="x", value=7),
            ]
            wait_for(lambda: sum(leader.sequencer.site_feed.waiting().values()) == 4)  # one of them on both partitions
        waiting = send(leader, "look_everywhere", name="x")
        assert [type(call.wait()) for call in logged] == [UnknownOutcome] * 3
        assert isinstance(waiting.wait(), NoMajority)
        assert leads(leader)
        assert not leader.ready
        readiness = leader.overview.cluster.readiness()  # type: ignore[union-attr]
        assert (readiness.serves, "no room" in readiness.why) == (False, True)
        for node in (leader, followers[0]):
            names = " and ".join(f"node {number}" for number in sorted(map(number_of, followers)))
            wait_for_refusal(node, f"no room in the log or on the volume of {names}:")
        assert isinstance(send(leader, "look_everywhere", name="x").wait(), NoMajority)
        assert ask(leader, "peek", id=1) == 1
        assert counters(leader) == {1: 1}
    wait_for(lambda: leader.ready, why=three.told)
    assert ask_retried(lambda: leader, "bump", key="k", id=1, amount=10) == 11
    again = send(leader, "bump", key=numbered, id=2, amount=100)
    assert again.value() == 100
    assert ask_retried(lambda: leader, "set_rate", key="r", name="x", value=7) == [0, 0]
    assert counters(leader) == {1: 11, 2: 100}
    assert ask(leader, "bump", id=3, amount=1) == 1
    assert all(len(call.replies) == 1 for call in logged)


def test_one_follower_is_full_and_the_other_is_gone(three: Members) -> None:
    """The leader hears a majority, which cannot commit; the refusal says why of each."""
    leader, (one, other) = three.leader(), three.followers()
    three.close(number_of(other))
    with full([one]):
        logged = send(leader, "bump", key="k", id=1, amount=10)
        assert isinstance(logged.wait(), UnknownOutcome)
        wait_for_refusal(leader, f"no answer from node {number_of(other)}:", f"volume of node {number_of(one)}:")
    assert ask_retried(three.leader, "bump", key="k", id=1, amount=10) == 10


def test_followers_that_are_gone_leave_no_call_waiting(three: Members) -> None:
    """The leader hears no majority and leads no more: logged calls are `outcome_unknown`, others are refused."""
    leader, followers = three.leader(), three.followers()
    for node in followers:
        three.close(number_of(node))
    logged = send(leader, "bump", key="k", id=1, amount=10)
    three.wait_hurried(lambda: logged.replies)
    assert isinstance(logged.wait(), UnknownOutcome)
    wait_for_refusal(leader, "no leader")
    three.join(number_of(followers[0]))
    assert ask_retried(three.leader, "bump", key="k", id=1, amount=10) == 10
    assert isinstance(send(three.leader(), "bump", id=3, amount=1).wait(), CallOutcome)
