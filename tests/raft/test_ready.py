"""What one Ready holds: its bounds, and what waits for the next."""

from __future__ import annotations

from cmdlog.raft import RaftSettings
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Heartbeat
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
    assert (writing.writes, beating.writes) == (True, False)
    assert beating.completion is None
    core.advance(beating.completion)
    assert core.log.stable == core.log.last - 1
    core.advance(writing.completion)
    assert core.log.stable == core.log.last
