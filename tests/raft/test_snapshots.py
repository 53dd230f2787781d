"""Compaction and copies: the log is never gone before a snapshot stands for it, and a copy always ends."""

from __future__ import annotations

import random

import pytest

from cmdlog.raft import (
    Configuration,
    Drop,
    HardState,
    Message,
    RaftCore,
    RaftSettings,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.messages import Append, AppendReply, Heartbeat, HeartbeatReply, InstallSnapshot
from cmdlog.raft.progress import Sending
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Member, column, lead, solo
from tests.raft.invariants import check_invariants

A, B, C = NodeId(1), NodeId(2), NodeId(3)
TRIO = Configuration(voters=nodes((1, 2, 3)))


def compact(core: RaftCore, index: int, *, upto: int | None = None) -> SnapshotDescriptor:
    """Takes a snapshot at `index` and forgets the log up to there."""
    manifest = core.manifest_at(Index(index))
    core.compact(manifest, Index(index if upto is None else upto))
    return manifest


def behind(settings: RaftSettings | None = None) -> Cluster:
    """A leads and has compacted to 6; C has only the first entry and is asked to copy."""
    cluster = Cluster(settings=settings)
    leader = cluster.elect(1)
    cluster.cut(3)
    leader.propose([b"%d" % number for number in range(5)])
    cluster.settle()
    compact(leader, 6)
    leader.propose([b"5"])
    cluster.heal()
    cluster.tick(2)
    return cluster


def test_a_follower_behind_the_log_copies_the_snapshot_and_gets_the_rest() -> None:
    """The manifest alone is in the protocol; the log goes on behind it, configuration included."""
    cluster = behind()
    follower = cluster.members[C]
    (manifest,) = follower.copies
    assert manifest == SnapshotDescriptor(Index(6), cluster.core(1).term, TRIO)
    assert cluster.core(1).progress[C].sending is Sending.SNAPSHOT
    follower = cluster.install(3)
    cluster.tick(12)
    assert (follower.disk.manifest, follower.disk.entries.first) == (manifest, 7)
    assert cluster.applied(3)[-1:] == [b"5"]
    assert cluster.core(1).progress[C].sending is Sending.REPLICATE
    assert follower.core.manifest == manifest


def test_the_log_behind_a_copy_is_kept_until_it_ends() -> None:
    """Else the follower would need another copy as soon as it has this one."""
    cluster = behind()
    leader = cluster.core(1)
    leader.propose([b"6", b"7"])
    cluster.settle()
    newer = leader.manifest_at(Index(9))
    assert leader.compact(newer, Index(9)) == 6
    cluster.install(3)
    cluster.tick(12)
    assert cluster.applied(3) == [b"5", b"6", b"7"]
    assert leader.compact(newer, Index(9)) == 9


def test_a_lost_manifest_is_sent_again_and_a_copy_without_end_given_up() -> None:
    """Nobody keeps a log for ever; the follower that copies the same already goes on undisturbed."""
    settings = RaftSettings(copy_ticks_max=25)
    cluster = behind(settings)
    cluster.members[C].copies.clear()
    sent: list[Message] = []

    def count(message: Message) -> bool:
        sent.extend([message] if isinstance(message, InstallSnapshot) else [])
        return True

    cluster.passes = count
    cluster.tick(22)
    assert len(sent) == 2
    cluster.tick(8)
    assert len(sent) == 3  # given up, probed, and offered anew
    assert cluster.members[C].copies == []  # it copies it already


def test_nobody_keeps_a_log_for_a_node_that_does_not_answer() -> None:
    """A dead follower gets its manifest again when it is back."""
    cluster = behind(RaftSettings(copy_ticks_max=25))
    leader = cluster.core(1)
    assert leader.progress[C].sending is Sending.SNAPSHOT
    cluster.cut(3)
    cluster.tick(30)
    assert leader.progress[C].sending is Sending.PROBE
    cluster.heal()
    cluster.tick(3)
    assert [each.sending for each in leader.progress.values()] == [Sending.REPLICATE, Sending.SNAPSHOT]


def test_a_window_left_behind_by_compaction_is_found_out() -> None:
    """A replicating follower that answers again, but whose next entry is gone, is given a copy."""
    member = solo()
    core = lead(member)
    for sender in (B, C):
        core.step(AppendReply(sender, A, core.term, Index(1)))
    core.propose([b"x", b"y"])
    member.take()
    core.step(AppendReply(B, A, core.term, Index(3)))
    member.take()
    core.propose([b"z"])
    core.progress[C].next = Index(2)  # as after a window full of messages that were lost
    core.progress[C].messages_max = 0
    compact(core, 3)
    core.step(HeartbeatReply(C, A, core.term, 0))
    assert any(isinstance(message, InstallSnapshot) for message in member.take())


def test_what_the_snapshot_has_already_is_not_copied() -> None:
    """Older than the commit mark: acknowledged as it is. Matching log: fast-forward, nothing is lost."""
    member = solo(terms=[1, 1, 1], commit=1)
    for index, commit in ((1, 1), (2, 2)):
        member.core.step(InstallSnapshot(B, A, Term(1), SnapshotDescriptor(Index(index), Term(1), TRIO)))
        (reply,) = member.take()
        assert isinstance(reply, AppendReply)
        assert (reply.index, member.core.log.commit, member.core.log.last) == (commit, commit, 3)
    assert member.copies == []


def test_a_conflicting_log_stays_until_the_node_is_made_again() -> None:
    """Until then it is what this node has."""
    member = solo(terms=[1, 1, 1])
    manifest = SnapshotDescriptor(Index(2), Term(2), TRIO)
    member.core.step(InstallSnapshot(B, A, Term(2), manifest))
    member.take()
    assert (member.copies, member.core.log.last) == ([manifest], 3)


def test_a_copy_that_the_log_has_overtaken_is_acknowledged() -> None:
    """Its entries came meanwhile: nothing is copied any more."""
    member = solo(terms=[1])
    manifest = SnapshotDescriptor(Index(2), Term(1), TRIO)
    member.core.step(InstallSnapshot(B, A, Term(1), manifest))
    member.core.step(Append(B, A, Term(1), Term(1), Index(3), column(2, 1, 1)))
    member.take()
    member.core.step(InstallSnapshot(B, A, Term(1), manifest))
    (reply,) = member.take()
    assert isinstance(reply, AppendReply)
    assert (reply.index, member.core.log.last, member.core.status().copy, len(member.copies)) == (3, 3, None, 1)


def test_a_second_snapshot_takes_the_place_of_the_first() -> None:
    """Each is offered once."""
    member = solo()
    first, second = (SnapshotDescriptor(Index(index), Term(1), TRIO) for index in (5, 9))
    for manifest in (first, first, second):
        member.core.step(InstallSnapshot(B, A, Term(1), manifest))
        member.take()
    assert member.copies == [first, second]


def test_a_manifest_newer_than_its_message_is_impossible() -> None:
    """Counted, not believed."""
    member = solo()
    member.core.step(InstallSnapshot(B, A, Term(1), SnapshotDescriptor(Index(5), Term(2), TRIO)))
    assert (member.copies, member.core.drops[Drop.BAD_ENTRIES]) == ([], 1)


@pytest.mark.parametrize("index", [0, 5])
def test_only_what_was_handed_out_makes_a_snapshot(index: int) -> None:
    """Nobody has applied anything else."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"x", b"y"])
    cluster.settle()
    compact(leader, 2)
    with pytest.raises(ValueError, match="no snapshot at"):
        leader.manifest_at(Index(index))


def test_compaction_goes_no_further_than_its_snapshot_and_never_back() -> None:
    """The log keeps what no snapshot stands for; a tail below the snapshot may be kept for slow followers."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"x", b"y", b"z"])
    cluster.settle()
    manifest = leader.manifest_at(Index(3))
    with pytest.raises(ValueError, match="cannot compact"):
        leader.compact(manifest, Index(4))
    older = leader.manifest_at(Index(2))
    assert leader.compact(manifest, Index(1)) == 1
    assert leader.compact(manifest, Index(0)) == 1
    with pytest.raises(ValueError, match="cannot compact"):
        leader.compact(older, Index(2))


def test_a_restart_goes_on_behind_the_manifest() -> None:
    """Entries that the snapshot stands for are not taken again."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"x", b"y", b"z"])
    cluster.settle()
    cluster.members[A].disk.manifest = compact(leader, 3)
    cluster.restart(1)
    core = cluster.core(1)
    assert (core.log.base, core.log.handed, core.log.last, core.log.payloads[3:]) == (0, 3, 4, [b"z"])
    assert core.configuration == TRIO


def test_a_member_that_is_heard_from_by_heartbeats_only_is_behind() -> None:
    """A heartbeat that speaks of entries which the log has not is impossible: this disk lost some, or the leader is mistaken."""
    member = solo(terms=[1])
    member.core.step(Heartbeat(B, A, Term(1), Index(2), 0))
    assert (member.core.log.commit, member.core.drops[Drop.BEYOND_LOG]) == (0, 1)


def test_a_follower_answers_for_what_is_committed() -> None:
    """An append from before the commit mark tells the leader how far it may go on at once."""
    member: Member = solo(terms=[1, 1, 1], commit=2)
    member.core.step(Append(B, A, Term(1), Term(1), Index(2), column(2, 1)))
    (reply,) = member.take()
    assert isinstance(reply, AppendReply)
    assert (reply.index, reply.rejected) == (2, False)


def test_the_log_is_not_kept_for_a_receiver_that_is_silent() -> None:
    """It may be gone for good: after an election time-out its copy is given up, and the log may be cut."""
    cluster = behind()
    leader = cluster.core(1)
    assert leader.progress[C].sending is Sending.SNAPSHOT
    cluster.cut(3)
    cluster.tick(10)
    assert leader.progress[C].sending is Sending.PROBE
    assert compact(leader, leader.log.handed).index == leader.log.base
    cluster.heal()
    cluster.tick(3)
    assert leader.progress[C].sending is Sending.SNAPSHOT


def test_the_log_kept_for_a_copy_is_bounded_in_bytes() -> None:
    """Where entries are large, time alone would fill a ring of log files."""
    cluster = behind(RaftSettings(copy_bytes_max=1_000))
    leader = cluster.core(1)
    pin = leader.progress[C].manifest
    assert pin is not None
    for rounds in range(4):
        leader.propose([b"x" * 300])
        cluster.tick()
        compact(leader, leader.log.handed)
        assert (leader.log.base == pin.index) == (rounds < 3)
    assert leader.progress[C].sending is Sending.PROBE


def test_entries_kept_behind_a_snapshot_survive_a_restart() -> None:
    """A follower that is one entry behind a restarted leader gets that entry, not a copy of everything."""
    cluster = Cluster()
    leader = cluster.elect(1)
    for number in range(20):
        leader.propose([b"%d" % number])
        cluster.tick()
    cluster.cut(3)
    leader.propose([b"one more"])
    cluster.tick()
    disk = cluster.members[A].disk
    disk.manifest = compact(leader, leader.log.handed, upto=leader.log.handed - 15)
    kept = leader.log.base
    disk.cut(kept + 1)
    cluster.heal()
    cluster.cut(2)
    cluster.restart(1)
    again = cluster.core(1)
    assert (again.log.base, again.log.handed) == (kept + 1, disk.manifest.index)
    assert again.ready() is None
    while again.role is not Role.LEADER:
        cluster.tick()
    cluster.tick(3)
    assert cluster.core(3).log.last == again.log.last
    assert cluster.members[C].copies == []


@pytest.mark.parametrize("first", [1, 2, 4, 5])
def test_a_log_that_begins_before_its_manifest(first: int) -> None:
    """Marks are the manifest's; the configuration in force stands where its entry does."""
    pair = Configuration(voters=nodes((1, 2)))
    payloads = [b"", pair.to_bytes(), b"c", b"d", b"e", b"f"]
    entries = column(first, *([1] * (7 - first)), kinds=bytes([0, 2, 0, 0, 0, 0])[first - 1 :], payloads=payloads[first - 1 :])
    restored = Restored(HardState(Term(1), None, Index(5)), SnapshotDescriptor(Index(4), Term(1), pair), entries)
    core = RaftCore(A, rng=random.Random(1), restored=restored)
    log = core.log
    assert (log.base, log.base_term) == ({1: 0, 2: 2, 4: 4, 5: 4}[first], 0 if first == 1 else 1)
    assert (log.handed, log.commit, log.stable, log.taken, log.last) == (4, 5, 6, 6, 6)
    assert core.configuration == pair
    assert core.configuration_index == {1: 2, 2: 2, 4: 4, 5: 4}[first]
    check_invariants(core)
    ready = core.ready()
    assert ready is not None
    assert ready.entries is None
    assert ready.committed is not None
    assert (ready.committed.first, ready.committed.payloads) == (5, [b"e"])


def test_a_log_that_conflicts_with_its_manifest_keeps_nothing_before_it() -> None:
    """Its entries before the manifest's end are not those that the snapshot stands for."""
    restored = Restored(HardState(Term(3)), SnapshotDescriptor(Index(2), Term(2), TRIO), column(1, 1, 1, 3))
    core = RaftCore(A, rng=random.Random(1), restored=restored)
    assert (core.log.base, core.log.base_term, core.log.terms) == (2, 2, [3])
