"""Groups as a copy begins with them: committed entries alone, from wherever in the log they can be folded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.copying.copied_groups import (
    GroupNotCopied,
    GroupReach,
    cluster_state,
    fold_upto,
    partition_state,
)
from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.entries import EntryLog
from cmdlog.raft.messages import SnapshotDescriptor
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_commit_mark, encode_json
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Index, Lsn, Term
from snapshot.manifest import Manifest
from tests.cluster.copying.copykit import make_snapshot, reach

MEMBERS = {"voters": [1], "learners": []}


def entry(kind: RecordKind, value: Any, *, index: int, term: int = 1, group: int = CLUSTER_GROUP) -> Record:
    """Of the log."""
    return decode_record(encode_json(kind, value, partition=group, term=term, index=index))


def member(node: int, index: int, term: int = 1, stage: MemberStage = MemberStage.ADMITTED) -> Record:
    """What the cluster says of a node."""
    return entry(RecordKind.MEMBER, ClusterMember(node, b"life of%d" % node, "h:1", "", stage).to_json(), index=index, term=term)


BEGINNING = [
    entry(RecordKind.CONFIGURATION, MEMBERS, index=1),
    entry(RecordKind.SHAPE, {"partitions": 1}, index=2),
    entry(RecordKind.CATALOG, {"version": 1}, index=3),
    entry(RecordKind.ENVIRONMENT, {"python": "3.11"}, index=4),
]


@dataclass
class FakeLog:
    """Segments of blocks of records, as a running node's log has them."""

    segments: Sequence[Sequence[Sequence[Record]]]

    def _blocks(self) -> Iterator[tuple[int, Sequence[Record]]]:
        yield from enumerate((block for segment in self.segments for block in segment), 1)

    def first_blocks(self) -> list[int]:
        firsts, at = [], 1
        for segment in self.segments:
            firsts.append(at)
            at += len(segment)
        return firsts

    def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]:
        for number, block in self._blocks():
            for offset, record in enumerate(block):
                lsn = Lsn(BlockNumber(number), offset)
                if (after is None or lsn > after) and (upto is None or lsn <= upto):
                    yield lsn, record


def head(*before: Record) -> Record:
    """What the head of a segment says after these records."""
    states = GroupStates.fold((Lsn(BlockNumber(1), at), record) for at, record in enumerate(before))
    (found,) = states.checkpoints(oldest_block=0)
    return decode_record(found)


def reached(handed: int, term: int = 1) -> GroupReach:
    """Consensus has handed out so much of the cluster group."""
    return GroupReach(5, 1, handed, term, (Stated(1, 1, MEMBERS),))


def test_group_is_folded_up_to_what_is_committed() -> None:
    """Entries after that are of nobody's business, wherever they lie."""
    log = FakeLog([[BEGINNING, [member(2, 5)], [member(3, 6), member(4, 7)]]])
    state = cluster_state(log, reached(6), last_txn=99)
    assert sorted(state.members) == [2, 3]
    assert (state.last_index, state.commit, state.commit_term, state.term, state.vote) == (6, 6, 1, 5, None)
    assert state.last_txn == 99
    assert state.shape is not None
    assert state.configuration == {**MEMBERS, "partitions": 1}


def test_void_entries_leave_nothing() -> None:
    """A suffix of an earlier term was replaced; what it said of a member holds no more."""
    log = FakeLog([[BEGINNING, [member(2, 5), member(3, 6), member(4, 7)], [member(5, 6, term=2)]]])
    state = cluster_state(log, reached(6, term=2), last_txn=0)
    assert sorted(state.members) == [2, 5]
    assert (state.last_index, state.last_term) == (6, 2)


def test_head_that_states_uncommitted_entries_is_not_used() -> None:
    """The segment before it is: its head states only what is committed."""
    first, second = [*BEGINNING, member(2, 5)], [member(3, 6), member(4, 7)]
    log = FakeLog([[BEGINNING, [member(2, 5)]], [[head(*first)], second], [[head(*first, *second)], [member(5, 8)]]])
    assert sorted(cluster_state(log, reached(6), last_txn=0).members) == [2, 3]
    assert sorted(cluster_state(log, reached(8), last_txn=0).members) == [2, 3, 4, 5]
    assert sorted(cluster_state(log, reached(5), last_txn=0).members) == [2]


def test_only_the_newest_fitting_segment_is_read() -> None:
    """A log has many: what lies before its head is in the head."""
    first = [*BEGINNING, member(2, 5)]

    read_blocks: set[int] = set()

    class Counted(FakeLog):
        def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]:
            for lsn, record in super().read(after, upto):
                read_blocks.add(int(lsn.block))
                yield lsn, record

    log = Counted([[BEGINNING, [member(2, 5)]], [[head(*first)], [member(3, 6)]]])
    cluster_state(log, reached(6), last_txn=0)
    assert read_blocks == {3, 4}


def test_log_that_lacks_what_consensus_has_is_refused() -> None:
    """Another end, or another term at it."""
    log = FakeLog([[BEGINNING, [member(2, 5)]]])
    for wanted in (reached(6), reached(5, term=2)):
        with pytest.raises(GroupNotCopied, match="consensus has handed out"):
            cluster_state(log, wanted, last_txn=0)


def test_other_groups_and_later_checkpoints_do_not_matter() -> None:
    """A checkpoint in the middle repeats what was folded already."""
    records = [
        *BEGINNING,
        entry(RecordKind.SCHEMA, {"statements": []}, index=50, group=0),
        member(2, 5),
        head(*BEGINNING, member(9, 5)),
    ]
    state = fold_upto(((Lsn(BlockNumber(1), at), record) for at, record in enumerate(records)), 5)
    assert sorted(state.members) == [2]


def test_marks_of_commits_count_for_nothing() -> None:
    """How far the copy goes says consensus; a mark in the log may be older."""
    mark = decode_record(encode_commit_mark(partition=CLUSTER_GROUP, term=1, commit=4, closed_txn=0))
    state = cluster_state(FakeLog([[BEGINNING, [mark], [member(2, 5)]]]), reached(5), last_txn=0)
    assert state.commit == 5


def test_copied_state_states_its_code_anew() -> None:
    """Blocks of this log mean nothing in the copy's."""
    state = cluster_state(FakeLog([[[], [], BEGINNING]]), reached(4), last_txn=0)
    assert [(catalog.stated_block, catalog.used_block) for catalog in state.catalogs.values()] == [(1, 0)]
    assert GroupState.from_json(state.to_json()) == state


def test_partition_begins_at_its_snapshot(tmp_path: Any) -> None:
    """With the configuration that was in force there, and no transaction id after it."""
    about = make_snapshot(tmp_path, 0, 40, os.urandom(8)).manifest
    assert isinstance(about, Manifest)
    stated = Stated(10, 0, {"voters": [1]}), Stated(30, 2, {"voters": [1, 2]}), Stated(60, 7, {"voters": [3]})
    of = GroupReach(9, 10, 70, 8, stated)
    state = partition_state(of, about)
    assert (state.term, state.vote, state.commit, state.commit_term) == (9, None, 40, 3)
    assert (state.last_index, state.last_term, state.last_checksum) == (40, 3, 47)
    assert (state.last_txn, state.closed_txn) == (about.txn_id, about.txn_id)
    assert state.configurations == [Stated(30, 2, {"voters": [1, 2]})], "with the term of its entry, not the snapshot's"
    early = partition_state(GroupReach(9, 45, 70, 8, (Stated(45, 6, {"voters": [1]}),)), about)
    assert early.configurations == [Stated(40, 0, {"voters": [1]})]


def test_reach_states_the_term_of_a_configuration_as_far_as_consensus_holds_its_entry() -> None:
    """Its term is not that of the end: who compares logs would see terms that fall. 0 stands for one that is not known."""
    of = Configuration((NodeId(1),))
    log = EntryLog(SnapshotDescriptor(Index(10), Term(2), of))
    log.configurations = [(Index(4), of), (Index(10), of)]
    core: Any = SimpleNamespace(term=9, log=log)
    assert [(stated.index, stated.term) for stated in GroupReach.of(core).configurations] == [(4, 0), (10, 2)]


def test_reach_knows_the_configuration_of_every_index() -> None:
    """The newest at or before it; before all of them, the first one that is known."""
    of = reach()
    assert of.configuration_at(90) == of.configuration_at(1) == of.configurations[0]
    assert of.configuration_at(0).index == 0
