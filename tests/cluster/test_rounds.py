"""What the driver keeps of a round until it is durable."""

from __future__ import annotations

from collections import deque

from cmdlog.cluster.rounds import IDLE_TICKS, MARK_TICKS, BlockOfRounds, CommitMarks, WaitingRound, size_on_disk
from cmdlog.raft import Configuration
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY, KIND_NORMAL
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import RecordKind, decode_commit_mark, decode_record, encode_json
from cmdlog.wal.ids import make_txn_id
from tests.cluster.entrykit import batch, batches, column


def test_records_fit_where_their_sizes_fit() -> None:
    """The sizes are no less than what the records take in a block."""
    records = [bytes(length) for length in (24, 25, 31, 32, 33, 1000)]
    header = block_bytes([])
    for record in records:
        assert block_bytes([record]) - header <= size_on_disk(record) + 512  # a block ends with its sector
    assert all(size_on_disk(record) > len(record) for record in records)


def test_block_ends_rounds_of_its_own() -> None:
    """Two blocks share nothing."""
    one, other = BlockOfRounds(), BlockOfRounds()
    one.rounds.append(WaitingRound(1, deque([b"record"])))
    one.records.append(b"record")
    assert (other.rounds, other.records) == ([], [])
    assert not one.rounds[0].from_machine


EMPTY = (KIND_EMPTY, b"")


def txn_of(index: int, *, group: int = 0) -> int:
    """The transaction id that `entrykit.batch` gives the batch there."""
    return make_txn_id(millis=1000 + index, counter=0, partition=group)


def stated(records: list[bytes]) -> list[tuple[int, int, int, int]]:
    """Group, term, index and closed transaction id of each mark."""
    marks = [decode_record(record) for record in records]
    assert all(mark.kind is RecordKind.COMMIT_MARK for mark in marks)
    return [(mark.partition, mark.term, mark.index, decode_commit_mark(mark)) for mark in marks]


def idle(marks: CommitMarks, ticks: int) -> list[list[bytes]]:
    """What each of so many idle ticks writes."""
    return [marks.pass_tick(idle=True) for _ in range(ticks)]


def pass_time(marks: CommitMarks) -> None:
    """A mark may follow the last one."""
    for _ in range(MARK_TICKS):
        assert marks.pass_tick(idle=False) == []


def test_a_mark_states_what_was_handed_out() -> None:
    """Index and term of the last entry, the last transaction id in there: not the one after it."""
    marks = CommitMarks()
    marks.committed(3, batches(5, 1, 1, 2, group=3))
    assert stated(marks.due(3)) == [(3, 2, 7, txn_of(7, group=3))]


def test_a_group_without_commits_has_no_mark() -> None:
    """Nothing was handed out, so there is nothing to state."""
    marks = CommitMarks()
    marks.committed(3, batches(5, 1, group=3))
    assert marks.due(2) == []
    assert marks.new == {}
    assert CommitMarks().last_txn == 0


def test_a_mark_is_written_once() -> None:
    """The next one comes with the next commit."""
    marks = CommitMarks()
    marks.committed(0, batches(1, 1, 1))
    assert stated(marks.due(0)) == [(0, 1, 2, txn_of(2))]
    pass_time(marks)
    assert marks.due(0) == []
    marks.committed(0, batches(3, 1))
    assert stated(marks.due(0)) == [(0, 1, 3, txn_of(3))]


def test_a_busy_group_gets_a_mark_now_and_then() -> None:
    """Each block could state what the one before it has committed; a restart hears it from the leader."""
    marks, made = CommitMarks(), list[tuple[int, int, int, int]]()
    for index in range(1, 8 * MARK_TICKS):
        marks.committed(0, batches(2 * index, 1, 1))
        made += stated([*marks.due(0), *marks.due(0)])
        assert marks.pass_tick(idle=False) == []
    assert made == [(0, 1, at, txn_of(at)) for at in range(3, 16 * MARK_TICKS, 2 * MARK_TICKS)]


def test_entries_that_are_no_batches_close_nothing_more() -> None:
    """A leader does not know what the clock of another one has promised: index and term move, the transaction id stays."""
    marks = CommitMarks()
    members = Configuration(voters=nodes((1, 2, 3))).to_bytes()
    schema = encode_json(RecordKind.SCHEMA, {"statements": [], "txn_id": txn_of(99)}, partition=0, term=2, index=5)
    marks.committed(0, column(1, (1, *EMPTY)))
    assert stated(marks.due(0)) == [(0, 1, 1, 0)]
    pass_time(marks)
    marks.committed(
        0, column(2, (1, KIND_NORMAL, batch(2)), (2, *EMPTY), (2, KIND_CONFIGURATION, members), (2, KIND_NORMAL, schema))
    )
    assert stated(marks.due(0)) == [(0, 2, 5, txn_of(2))]
    pass_time(marks)
    marks.committed(0, column(6, (3, *EMPTY)))
    assert stated(marks.due(0)) == [(0, 3, 6, txn_of(2))]


def test_the_closed_transaction_id_never_goes_back() -> None:
    """Entries are handed out again after a restart."""
    marks = CommitMarks()
    marks.committed(0, batches(1, 1, 1, 1))
    marks.committed(0, batches(1, 1))
    assert marks.last_txn == txn_of(3)
    marks.committed(0, batches(4, 1))
    assert stated(marks.due(0)) == [(0, 1, 4, txn_of(4))]


def test_the_last_transaction_id_is_that_of_any_group() -> None:
    """The clock of a new leader goes on from there, on every partition."""
    marks = CommitMarks()
    marks.committed(0, batches(1, 1, 1, 1))
    marks.committed(1, batches(1, 1, group=1))
    assert marks.last_txn == txn_of(3)


def test_new_marks_are_known_until_a_round_takes_them() -> None:
    """Only marks that were made: those are durable with the round that takes them."""
    marks = CommitMarks()
    marks.committed(0, batches(1, 1, 1))
    marks.committed(1, batches(1, 1, group=1))
    assert marks.new == {}
    marks.due(0)
    assert marks.new == {0: 2}
    marks.due(0)
    marks.due(1)
    assert marks.new == {0: 2, 1: 1}


def test_an_idle_node_writes_the_missing_marks_after_a_while() -> None:
    """A reader of its directory alone sees how far it is committed; ascending by group, and only once."""
    marks = CommitMarks()
    for group in (1022, 4, 2):
        marks.committed(group, batches(1, 1, group=group))
    marks.due(4)
    *before, last = idle(marks, IDLE_TICKS)
    assert before == [[]] * (IDLE_TICKS - 1)
    assert [group for group, _, _, _ in stated(last)] == [2, 1022]
    assert marks.new == {4: 1, 2: 1, 1022: 1}
    assert idle(marks, 3 * IDLE_TICKS) == [[]] * (3 * IDLE_TICKS)


def test_blocks_postpone_the_marks_of_an_idle_node() -> None:
    """While entries bring blocks, marks cost none of their own."""
    marks = CommitMarks()
    for index in range(1, 10):
        assert idle(marks, IDLE_TICKS - 1) == [[]] * (IDLE_TICKS - 1)
        pass_time(marks)
        marks.committed(0, batches(index, 1))
        assert len(marks.due(0)) == 1
        marks.committed(1, batches(index, 1, group=1))
    assert [bool(records) for records in idle(marks, IDLE_TICKS)] == [False] * (IDLE_TICKS - 1) + [True]
