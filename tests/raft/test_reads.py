"""Reads without an entry: rounds, followers, and what is lost with a leader."""

from __future__ import annotations

import pytest

from cmdlog.raft import (
    Drop,
    Message,
    ProposalRefused,
    RaftCore,
    RaftSettings,
    ReadResult,
    Refusal,
)
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Heartbeat, HeartbeatReply, ReadReply, ReadRequest
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Member, lead, solo

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def a_leader(settings: RaftSettings | None = None) -> Member:
    """A alone as leader, with the empty entry of its term committed."""
    member = solo(settings=settings)
    core = lead(member)
    core.step(AppendReply(B, A, core.term, Index(1)))
    member.take()
    return member


def confirm(core: RaftCore, sender: NodeId, round_: int | None = None) -> None:
    """A follower's answer to the latest round, or to another."""
    core.step(HeartbeatReply(sender, A, core.term, core.reads.round if round_ is None else round_))


def test_a_read_waits_for_a_majority_to_confirm_a_round_begun_after_it() -> None:
    """An answer to an earlier round does not say that this leader still led when the read came."""
    member = a_leader()
    core = member.core
    core.tick()
    member.take()
    before = core.reads.round
    core.read_index(7)
    sent = [message for message in member.take() if isinstance(message, Heartbeat)]
    assert [message.round for message in sent] == [before + 1] * 2
    confirm(core, B, before)
    member.take()
    assert member.reads == []
    confirm(core, B)
    member.take()
    assert member.reads == [ReadResult(7, Index(1))]


def test_reads_that_come_together_share_a_round() -> None:
    """One exchange answers them all, in order."""
    member = a_leader()
    for context in (3, 1, 2):
        member.core.read_index(context)
    assert len([message for message in member.take() if isinstance(message, Heartbeat)]) == 2
    confirm(member.core, C)
    member.take()
    assert [read.context for read in member.reads] == [3, 1, 2]


def test_a_read_that_comes_while_a_round_is_under_way_waits_for_the_next() -> None:
    """Rounds answer only what came before them."""
    member = a_leader()
    core = member.core
    core.read_index(1)
    member.take()
    core.read_index(2)
    member.take()
    first = core.reads.round
    confirm(core, B, first)
    member.take()
    assert [read.context for read in member.reads] == [1]
    confirm(core, C, first)
    member.take()
    assert [read.context for read in member.reads] == [1]
    confirm(core, B)
    member.take()
    assert [read.context for read in member.reads] == [1, 2]


def test_a_read_before_the_leaders_own_commit_is_parked() -> None:
    """A new leader may not know yet what its predecessor committed."""
    member = solo(terms=[1, 1])
    core = lead(member)
    core.read_index(7)
    core.step(ReadRequest(C, A, core.term, (8, 9)))
    member.take()
    confirm(core, B)
    assert core.reads.count == 3
    core.step(AppendReply(B, A, core.term, Index(3)))
    member.take()
    assert member.reads == []
    confirm(core, B)
    (reply,) = [message for message in member.take() if isinstance(message, ReadReply)]
    assert member.reads == [ReadResult(7, Index(3))]
    assert (reply.receiver, reply.index, reply.contexts) == (C, 3, (8, 9))
    assert core.reads.count == 0


def test_a_leader_that_is_a_majority_answers_at_once() -> None:
    """Nobody else could lead."""
    member = solo(voters=(1,))
    for _ in range(member.core.timeout):
        member.core.tick()
    member.take()
    member.core.read_index(7)
    member.take()
    assert member.reads == [ReadResult(7, Index(1))]


@pytest.mark.parametrize("parked", [True, False])
def test_reads_are_lost_with_the_leader(*, parked: bool) -> None:
    """A read is tied to its leader's term: it is told as lost, never answered later."""
    member = solo()
    core = lead(member)
    if not parked:
        core.step(AppendReply(B, A, core.term, Index(1)))
    core.read_index(7)
    core.step(ReadRequest(C, A, core.term, (8,)))
    member.take()
    core.step(Heartbeat(B, A, Term(core.term + 1), Index(0), 0))
    member.take()
    assert member.reads == [ReadResult(7, None)]


def test_a_follower_reads_through_its_leader() -> None:
    """The answer covers what was acknowledged before the read; the follower has then only to apply so far."""
    cluster = Cluster()
    cluster.elect(1).propose([b"x"])
    cluster.settle()
    cluster.core(2).read_index(5)
    cluster.core(2).read_index(6)
    cluster.settle()
    assert cluster.members[B].reads == [ReadResult(5, Index(2)), ReadResult(6, Index(2))]
    assert cluster.applied(2) == [b"x"]  # the round carried the commit mark


def test_a_followers_read_without_answer_is_given_up() -> None:
    """Request or answer may be lost; a late answer is no answer any more."""
    member = solo(settings=RaftSettings(read_ticks=4, election_ticks=50))
    core = member.core
    core.step(Heartbeat(B, A, Term(1), Index(0), 0))
    core.read_index(5)
    core.tick()
    core.read_index(6)
    sent = [message for message in member.take() if isinstance(message, ReadRequest)]
    ((first, second),) = (message.contexts for message in sent)
    assert second == first + 1
    for _ in range(3):
        core.tick()
    member.take()
    assert member.reads == [ReadResult(5, None)]
    core.tick()
    core.step(ReadReply(B, A, Term(1), Index(0), (first, second)))
    member.take()
    assert member.reads == [ReadResult(5, None), ReadResult(6, None)]
    assert core.drops[Drop.STALE_REPLY] == 2


def test_a_followers_reads_are_lost_with_its_leader() -> None:
    """The next leader knows nothing of them."""
    member = solo()
    member.core.step(Heartbeat(B, A, Term(1), Index(0), 0))
    member.core.read_index(5)
    member.core.step(Heartbeat(C, A, Term(2), Index(0), 0))
    member.take()
    assert member.reads == [ReadResult(5, None)]


def test_reads_are_refused_without_a_leader_and_beyond_their_limit() -> None:
    """Nothing grows without bound while a majority is away."""
    member = solo(settings=RaftSettings(reads_max=1))
    with pytest.raises(ProposalRefused) as refused:
        member.core.read_index(1)
    assert refused.value.reason is Refusal.NOT_LEADER
    core = lead(member)
    core.read_index(1)
    with pytest.raises(ProposalRefused) as refused:
        core.read_index(2)
    assert refused.value.reason is Refusal.READS_PENDING
    core.step(ReadRequest(C, A, core.term, (8,)))
    assert core.drops[Drop.READS_PENDING] == 1


@pytest.mark.parametrize(
    "wrong",
    [{"heartbeat_ticks": 10}, {"heartbeat_ticks": 0}],
)
def test_settings_that_cannot_be_safe_are_refused(wrong: dict[str, int]) -> None:
    """Heartbeats must come within an election time-out."""
    with pytest.raises(ValueError, match="must be below"):
        RaftSettings(**wrong)  # type: ignore[arg-type]


def test_appends_do_not_confirm_rounds() -> None:
    """Only an answer with the round's number does."""
    member = a_leader()
    core = member.core
    core.read_index(1)
    core.propose([b"x"])
    assert any(isinstance(message, Append) for message in member.take())
    core.step(AppendReply(B, A, core.term, Index(2)))
    member.take()
    assert member.reads == []


def test_an_answer_from_before_a_restart_answers_no_later_read() -> None:
    """Its index may be below what was acknowledged before the later read began, and the caller's contexts may begin again."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.tick(2)
    late: list[Message] = []

    def passes(message: Message) -> bool:
        late.extend([message] if isinstance(message, ReadReply) else [])
        return not isinstance(message, ReadReply)

    cluster.passes = passes
    cluster.core(2).read_index(1)
    cluster.settle()
    cluster.tick()
    cluster.restart(2)
    cluster.tick(2)
    cluster.core(1).propose([b"acknowledged"])
    cluster.settle()
    follower = cluster.core(2)
    follower.read_index(1)
    follower.step(late[0])
    cluster.settle()
    assert cluster.members[B].reads == []
    assert follower.drops[Drop.STALE_REPLY] == 1
    cluster.heal()
    cluster.core(2).read_index(2)
    cluster.settle()
    assert [(read.context, read.index) for read in cluster.members[B].reads] == [(2, cluster.core(1).log.commit)]


def test_reads_that_come_one_by_one_share_rounds() -> None:
    """One round is under way and one waits: a thousand reads, each in a Ready of its own, cost two rounds and not a thousand."""
    member = a_leader()
    core = member.core
    before = core.reads.round
    for context in range(1000):
        core.read_index(context)
        member.take()
    assert core.reads.round == before + 1
    confirm(core, B)
    member.take()
    assert core.reads.round == before + 2
    confirm(core, B)
    member.take()
    assert [read.context for read in member.reads] == list(range(1000))


def test_reads_whose_round_was_lost_are_answered_after_the_next_heartbeat() -> None:
    """No round waits for ever behind one whose messages are gone."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.tick()
    cluster.passes = lambda message: not isinstance(message, Heartbeat)
    leader.read_index(1)
    cluster.settle()
    leader.read_index(2)
    cluster.settle()
    cluster.heal()
    cluster.tick()
    assert [read.context for read in cluster.members[A].reads] == [1, 2]


def test_followers_learn_the_last_commit_with_the_next_tick() -> None:
    """However rare heartbeats are: an idle group does not leave its replicas behind. Nothing more is sent then."""
    cluster = Cluster(settings=RaftSettings(heartbeat_ticks=6))
    leader = cluster.elect(1)
    cluster.tick(12)
    leader.propose([b"x"])
    cluster.settle()
    cluster.tick()
    assert cluster.core(2).log.commit == cluster.core(3).log.commit == leader.log.commit
    began = leader.reads.round
    cluster.tick(3)
    assert leader.reads.round == began
