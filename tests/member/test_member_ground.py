"""What a node that is one of several refuses with: codes, and who takes the calls instead."""

from __future__ import annotations

from cmdlog.api.gate.problem import CODES, of_refused
from cmdlog.member.member_ground import MEMBER_RAFT, TICK_S
from cmdlog.node.outcome import NoLeader, NotLeading


def test_a_refusal_names_who_leads() -> None:
    """The problem has the leader's URL, and the same refusal for another caller has it, too."""
    refusal = NotLeading("node 2 leads", "http://127.0.0.1:8642")
    for each in (refusal, refusal.again()):
        problem = of_refused(each)
        assert (problem.code, problem.status, problem.more) == ("not_ready", 503, {"leader": "http://127.0.0.1:8642"})
        assert problem.retry_after_s is not None


def test_a_leader_that_takes_over_is_not_named() -> None:
    """Nobody is sent to a node that refuses, too."""
    assert of_refused(NotLeading("stopping")).more == {}


def test_without_a_leader_it_is_no_quorum() -> None:
    """The stable code, which retries are safe for."""
    problem = of_refused(NoLeader("the cluster has no leader").again())
    assert (problem.code, problem.status) == ("no_quorum", 503)
    assert "no_quorum" in CODES


def test_four_heartbeats_may_be_late_before_a_follower_campaigns() -> None:
    """The shortest wait of a follower has room for five; and its time-out is the default of one second."""
    assert MEMBER_RAFT.election_ticks // MEMBER_RAFT.heartbeat_ticks == 5
    assert MEMBER_RAFT.election_ticks * TICK_S == 1.0
