"""What one Ready holds: its bounds, and what waits for the next."""

from __future__ import annotations

import pytest

from cmdlog.raft import Configuration, ProposalRefused, RaftSettings, Refusal, Role, RoleReason, SoftState
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.messages import Append, AppendReply, Heartbeat, TimeoutNow
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, column, lead, solo

A, B, C = NodeId(1), NodeId(2), NodeId(3)
SMALL = RaftSettings(ready_bytes_max=100)


def test_entries_to_write_are_bounded_in_bytes() -> None:
    """A burst is written in pieces, in order, each with at least one entry; a larger one goes alone."""
    member = solo(settings=SMALL)
    core = lead(member)
    core.propose([b"x" * 40] * 5 + [b"y" * 300])
    pieces = []
    while (ready := core.ready()) is not None:
        assert ready.entries is not None
        pieces.append([len(payload) for payload in ready.entries.payloads])
        member.writing.append(ready)
    assert pieces == [[40, 40], [40, 40], [40], [300]]
    member.sync()
    assert core.log.stable == core.log.last == member.disk.entries.last


def test_entries_without_bytes_are_bounded_in_number() -> None:
    """A million empty payloads are no small Ready."""
    core = lead(solo(settings=RaftSettings(ready_entries_max=10)))
    core.propose([b""] * 25)
    taken = [ready.entries for ready in iter(core.ready, None)]
    assert [len(entries) for entries in taken if entries is not None] == [10, 10, 5]


def test_entries_to_apply_are_bounded_in_bytes() -> None:
    """After a restart everything behind the manifest is handed out, in pieces that fit into memory."""
    cluster = Cluster(settings=SMALL)
    leader = cluster.elect(1)
    for number in range(9):
        leader.propose([b"%d" % number * 30])
    cluster.settle()
    cluster.restart(2)
    core = cluster.core(2)
    core.step(Heartbeat(A, B, core.term, leader.log.commit, 9))
    handed = [ready.committed for ready in iter(core.ready, None)]
    sizes = [sum(map(len, entries.payloads)) for entries in handed if entries is not None]
    assert sum(sizes) >= 8 * 30
    assert max(sizes) <= 100


def test_an_acknowledgement_waits_for_the_last_piece() -> None:
    """It speaks of entries that the first piece does not write."""
    member = solo(2, settings=SMALL, term=1)
    core = member.core
    core.step(Append(A, B, Term(1), Term(0), Index(0), column(1, 1, 1, payloads=[b"x" * 90, b"y" * 90])))
    first, second = core.ready(), core.ready()
    assert first is not None
    assert second is not None
    assert first.send_after_fsync == []
    assert second.send_after_fsync == [AppendReply(B, A, Term(1), Index(2))]


def test_the_commit_mark_on_disk_names_no_entry_that_is_not_written() -> None:
    """A crash after the first piece leaves a disk that a node can start from."""
    member = solo(2, settings=SMALL)
    core = member.core
    core.step(Append(A, B, Term(1), Term(0), Index(2), column(1, 1, 1, payloads=[b"x" * 90, b"y" * 90])))
    assert core.log.commit == 2
    ready = core.ready()
    assert ready is not None
    member.disk.write(ready)
    assert member.disk.hard_state.commit == 1
    assert solo(2, terms=[1], commit=member.disk.hard_state.commit).core.log.last == 1


def test_a_caller_without_room_still_gets_messages() -> None:
    """With no bytes left for entries, a leader's appends and heartbeats leave; the entries wait."""
    core = lead(solo())
    core.propose([b"x"])
    core.tick()
    ready = core.ready(0)
    assert ready is not None
    assert ready.entries is None
    assert {message.receiver for message in ready.send_now} == {B, C}
    later = core.ready()
    assert later is not None
    assert later.entries is not None


def test_a_ready_without_a_write_has_no_completion() -> None:
    """Else a caller that reports it at once would make the write under way durable."""
    core = lead(solo())
    core.propose([b"x"])
    writing = core.ready()
    core.tick()
    beating = core.ready()
    assert writing is not None
    assert beating is not None
    assert writing.completion is not None
    assert beating.completion is None
    core.advance(beating.completion)
    assert core.log.stable == core.log.last - 1
    core.advance(writing.completion)
    assert core.log.stable == core.log.last


# What a group is


def test_status_tells_role_lag_and_silence() -> None:
    """A leader knows how far each peer is, and since when it is silent; a follower knows its leader."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.tick(2)
    cluster.cut(3)
    leader.propose([b"x"])
    cluster.tick(4)
    status = leader.status()
    assert (status.role, status.term, status.leader, status.last, status.commit) == (Role.LEADER, 1, A, 2, 2)
    assert [(peer.node, peer.match, peer.silent_ticks) for peer in status.peers] == [(B, 2, 0), (C, 1, 4)]
    other = cluster.core(2).status()
    assert (other.role, other.leader, other.peers) == (Role.FOLLOWER, A, ())


def test_a_new_leader_has_heard_from_nobody_yet() -> None:
    """Whoever has said nothing in this term is not shown as just heard."""
    core = lead(solo())
    assert [peer.silent_ticks for peer in core.status().peers] == [None, None]


def test_a_node_campaigns_when_it_is_asked_to() -> None:
    """Without waiting for its time-out; a leader leads on, and a learner is refused."""
    cluster = Cluster((1, 2, 3), others=(4,))
    cluster.core(2).campaign()
    cluster.settle()
    assert cluster.leaders() == [B]
    term = cluster.core(2).term
    cluster.core(2).campaign()
    cluster.core(3).campaign()  # its pre-vote fails: a leader is alive
    cluster.settle()
    assert (cluster.leaders(), cluster.core(2).term) == ([B], term)
    with pytest.raises(ProposalRefused) as refused:
        cluster.core(4).campaign()
    assert refused.value.reason is Refusal.NO_SUCH_VOTER


def test_a_change_of_role_or_leader_is_told_once() -> None:
    """A caller needs no comparison of its own; an unchanged state is not repeated."""
    member = solo(2)
    core = member.core
    assert core.ready() is None  # a node starts as a follower of nobody
    core.step(Heartbeat(A, B, Term(1), Index(0), 1))
    core.step(Heartbeat(A, B, Term(1), Index(0), 2))
    assert [ready.soft_state for ready in iter(core.ready, None)] == [SoftState(Role.FOLLOWER, A, False, RoleReason.HIGHER_TERM)]
    core.step(Heartbeat(A, B, Term(1), Index(0), 3))
    assert [ready.soft_state for ready in iter(core.ready, None)] == [None]


def test_a_committed_removal_is_told() -> None:
    """The node that is no member any more learns it from its own log, when that is committed."""
    member = solo(3, term=1)
    core = member.core
    left = Configuration(voters=nodes((1, 2)))
    core.step(Append(A, C, Term(1), Term(0), Index(0), column(1, 1, kinds=b"\2", payloads=[left.to_bytes()])))
    member.take()
    assert not core.status().removed
    core.step(Heartbeat(A, C, Term(1), Index(1), 1))
    (ready,) = iter(core.ready, None)
    assert ready.soft_state == SoftState(Role.FOLLOWER, A, True, RoleReason.LEADER_FOUND)
    assert core.status().removed


def test_every_role_says_why_it_is_held() -> None:
    """A leader keeps what began its campaign; one that leads no more says what ended it."""
    cluster = Cluster()

    def reasons() -> list[RoleReason]:
        return [cluster.core(member).reason for member in (1, 2, 3)]

    assert reasons() == [RoleReason.STARTED] * 3
    leader = cluster.elect(1)
    assert reasons() == [RoleReason.ELECTION_TIMEOUT, RoleReason.LEADER_FOUND, RoleReason.LEADER_FOUND]
    leader.transfer(C)
    cluster.settle()
    assert reasons() == [RoleReason.LEADER_FOUND, RoleReason.LEADER_FOUND, RoleReason.TRANSFER]
    cluster.cut(3)
    while cluster.core(3).role is Role.LEADER:
        cluster.tick_one(3)
    assert (cluster.core(3).role, cluster.core(3).reason) == (Role.FOLLOWER, RoleReason.QUORUM_LOST)
    cluster.core(1).become_follower(cluster.core(1).term, None)
    assert cluster.core(1).reason is RoleReason.STEPPED_DOWN
    cluster.core(1).campaign()
    assert cluster.core(1).reason is RoleReason.CAMPAIGN


def test_leader_says_whether_it_handed_over_or_was_overtaken() -> None:
    """Both end with a message of a higher term."""
    for hands_over, reason in ((True, RoleReason.TRANSFER), (False, RoleReason.HIGHER_TERM)):
        leader = Cluster().elect(1)
        if hands_over:
            leader.transfer(C)
        leader.step(Heartbeat(B, A, Term(9), Index(0), 1))
        assert leader.reason is reason


def test_leader_whose_disk_hangs_says_so() -> None:
    """It has given up what it cannot write."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.members[A].synced = False
    leader.propose([b"x"])
    cluster.passes = lambda message: not isinstance(message, TimeoutNow)
    cluster.settle()
    for _ in range(3 * cluster.settings.election_ticks):
        if leader.role is Role.LEADER:
            cluster.tick()
    assert (leader.role, leader.reason) == (Role.FOLLOWER, RoleReason.DISK_STALLED)
