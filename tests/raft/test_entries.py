"""The log in memory: marks, truncation, and completions that prove no more than they may."""

from __future__ import annotations

import pytest

from cmdlog.raft import BadConfiguration, Completion, Configuration, SnapshotDescriptor
from cmdlog.raft.configuration import nodes
from cmdlog.raft.entries import EntryLog, decoded_configurations
from cmdlog.raft.messages import KIND_CONFIGURATION, Entries
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import column

WHOLE = {"entries_max": 99, "bytes_max": 999}


class Writer:
    """Takes writes from a log and completes them by number, as a ring of threads would."""

    def __init__(self, log: EntryLog) -> None:
        self.log, self.taken = log, 0

    def take(self) -> Completion:
        """Asks the log what to write; returns what will complete it."""
        self.log.take_unstable(**WHOLE)
        self.taken += 1
        return self.log.begin_write(self.taken, None, now=0)


def a_log(*terms: int, base: int = 0, base_term: int = 0) -> EntryLog:
    """A log of these terms behind a snapshot, nothing durable yet."""
    log = EntryLog(SnapshotDescriptor(Index(base), Term(base_term), Configuration(voters=nodes((1,)))))
    log.append(column(base + 1, *terms), [])
    return log


def test_term_at_knows_the_base_and_nothing_beside_the_log() -> None:
    """The snapshot's last entry has a term; what is before it or behind the end has none."""
    log = a_log(4, 5, base=7, base_term=3)
    assert [log.term_at(Index(index)) for index in (6, 7, 8, 9, 10)] == [None, 3, 4, 5, None]
    assert (log.last, log.last_term) == (9, 5)
    assert a_log(base=7, base_term=3).last_term == 3


@pytest.mark.parametrize(
    ("index", "term", "found"),
    [(9, 9, 6), (6, 2, 4), (4, 2, 4), (3, 2, 3), (6, 1, 2), (6, 0, 0), (0, 5, 0), (5, 3, 5)],
)
def test_agreeing_skips_whole_terms(index: int, term: int, found: int) -> None:
    """The highest index at most `index` with a term at most `term`; the base when there is none."""
    assert a_log(1, 1, 2, 2, 3, 5).agreeing(Index(index), Term(term)) == found


def test_a_repeated_append_cuts_nothing_off() -> None:
    """Entries that are all present change nothing, however old the message is (pitfall: truncate only on a real conflict)."""
    log = a_log(1, 1, 1)
    log.merge(column(1, 1, 1), [])
    assert log.terms == [1, 1, 1]


def test_a_conflict_replaces_the_end_and_an_overlap_adds_to_it() -> None:
    """Only from the first differing term on is the log replaced."""
    log = a_log(1, 1, 1, 1)
    log.merge(column(2, 1, 2, 2), [])
    assert (log.terms, log.last) == ([1, 1, 2, 2], 4)
    log.merge(column(4, 2, 2), [])
    assert log.payloads == [b"1@1", b"2@1", b"3@2", b"4@2", b"5@2"]


@pytest.mark.parametrize("first", [1, 3])
def test_columns_that_were_cut_off_are_never_given_again(first: int) -> None:
    """Write, send and apply share the columns that came last and those before them; a truncation takes both away."""
    log = a_log()
    log.merge(column(1, 1, 1))
    log.merge(column(3, 1, 1))
    log.merge(column(first, 2, 2, 2, 2, 2))
    assert log.slice(first, first + 1).terms == [2, 2]
    assert log.slice(3, 4).terms == [2, 2]


def test_columns_that_came_last_and_those_before_are_shared() -> None:
    """A follower writes the ones and applies the others without cutting them again; any other range is cut."""
    log = a_log()
    before, last = column(1, 1, 1), column(3, 1)
    log.merge(before)
    log.merge(last)
    assert log.slice(1, 2) is before
    assert log.slice(3, 3) is last
    assert log.slice(2, 3).payloads == [b"2@1", b"3@1"]


def test_the_term_of_the_end_follows_the_log() -> None:
    """Through appends, a truncation down to the base, and a compaction of everything."""
    log = a_log(base=2, base_term=1)
    log.append(column(3, 2, 3))
    assert (log.last, log.last_term) == (4, 3)
    log.append(column(5))
    assert (log.last, log.last_term) == (4, 3)
    log.compact(Index(4))
    assert (log.last, log.last_term, log.term_at(4)) == (4, 3, 3)
    other = a_log(4, base=2, base_term=1)
    other._truncate(Index(2))
    assert (other.last, other.last_term) == (2, 1)


def test_durable_is_what_completed_writes_prove() -> None:
    """Stable moves with the completion of a write, not with its beginning; a later completion covers earlier writes."""
    log = a_log(1, 1)
    writer = Writer(log)
    first = writer.take()
    log.append(column(3, 1), [])
    second = writer.take()
    assert (log.taken, log.stable) == (3, 0)
    log.complete(second)
    assert log.stable == 3
    assert log.complete(first) == []
    assert log.stable == 3


def test_completion_for_replaced_entries_does_not_make_the_new_ones_durable() -> None:
    """Append ABA: the write of entries that were cut off meanwhile says nothing about what stands in their place."""
    log = a_log(1, 1, 1)
    writer = Writer(log)
    old = writer.take()
    log.merge(column(2, 2, 2), [])
    log.complete(old)
    assert log.stable == 1
    log.complete(writer.take())
    assert log.stable == 3


def test_completion_does_not_count_for_entries_that_went_and_came_back() -> None:
    """Append A-B-A: the same (index, term) is being written again, and until that is done the disk may have the other entries."""
    log = a_log(1)
    writer = Writer(log)
    log.append(column(2, 1, 1), [])
    first = writer.take()
    log.merge(column(2, 2), [])
    second = writer.take()
    log.merge(column(2, 3), [])
    log.merge(column(2, 1, 1), [])
    third = writer.take()
    log.complete(first)
    assert log.stable == 1
    log.complete(second)
    assert log.stable == 1
    log.complete(third)
    assert log.stable == 3


def test_completion_of_another_life_is_ignored() -> None:
    """A number, index or term that no write under way has proves nothing."""
    log = a_log(1, 1)
    completion = Writer(log).take()
    for other in (Completion(99, Index(2), Term(1)), Completion(1, Index(1), Term(1)), Completion(1, Index(2), Term(2))):
        assert log.complete(other) == []
    assert log.stable == 0
    assert log.complete(Completion(1, Index(2), Term(1))) == [completion]


def test_committed_entries_are_handed_out_once_and_only_when_durable_here() -> None:
    """A state machine is never ahead of its own log."""
    log = a_log(1, 1, 1)
    completion = Writer(log).take()
    log.commit_to(Index(2))
    assert log.take_committed(**WHOLE) is None
    log.complete(completion)
    handed = log.take_committed(**WHOLE)
    assert handed is not None
    assert (handed.first, handed.last) == (1, 2)
    assert log.take_committed(**WHOLE) is None


def test_commit_never_goes_back() -> None:
    """A late message has an old commit index."""
    log = a_log(1, 1)
    log.commit_to(Index(2))
    log.commit_to(Index(1))
    assert log.commit == 2


def test_a_batch_fits_entries_and_bytes_but_has_one_entry_at_least() -> None:
    """Messages are bounded, and one entry larger than the bound still gets through."""
    log = a_log()
    log.append(Entries(Index(1), [Term(1)] * 4, bytes(4), [b"x" * 10, b"x" * 50, b"x" * 10, b"x" * 10]), [])
    sizes = []
    for first, entries_max, bytes_max in ((1, 9, 99), (1, 2, 99), (1, 9, 61), (2, 9, 20), (3, 9, 10)):
        entries, size = log.batch(Index(first), log.last, entries_max=entries_max, bytes_max=bytes_max)
        sizes.append((entries.first, len(entries), size))
    assert sizes == [(1, 4, 80), (1, 2, 60), (1, 2, 60), (2, 1, 50), (3, 1, 10)]


def test_equal_batches_are_one_object_until_the_log_is_cut() -> None:
    """Followers share what is sent, so that it is encoded once; a cut ends the sharing."""
    log = a_log(1, 1)
    first, _ = log.batch(Index(1), log.last, entries_max=9, bytes_max=99)
    again, _ = log.batch(Index(1), log.last, entries_max=9, bytes_max=99)
    assert first is again
    log.merge(column(2, 2), [])
    assert log.batch(Index(1), log.last, entries_max=9, bytes_max=99)[0].terms == [1, 2]


def test_compaction_keeps_the_term_and_configuration_at_its_end() -> None:
    """What follows can still be matched, and the configuration in force is known, when everything before is gone."""
    log = a_log(1)
    second = Configuration(voters=nodes((1, 2)))
    third = Configuration(voters=nodes((1, 2, 3)))
    log.append(column(2, 1, 1, 2), [(Index(2), second), (Index(4), third)])
    log.complete(Writer(log).take())
    log.commit_to(Index(3))
    log.take_committed(**WHOLE)
    log.compact(Index(3))
    assert (log.base, log.base_term, log.terms, log.last) == (3, 1, [2], 4)
    assert (log.configuration_at(Index(3)), log.configuration_at(Index(4))) == (second, third)


def test_a_cut_takes_uncommitted_configurations_with_it() -> None:
    """The configuration in force is a function of the log: what was cut has never been."""
    log = a_log(1)
    first, second = log.configurations[0][1], Configuration(voters=nodes((1, 2)))
    log.append(column(2, 1), [(Index(2), second)])
    assert log.configurations[-1][1] == second
    log.merge(column(2, 2), [])
    assert log.configurations == [(0, first)]


def test_configurations_of_an_overlap_are_not_counted_twice() -> None:
    """A message that repeats a configuration entry adds only those that are new."""
    second, third = Configuration(voters=nodes((1, 2))), Configuration(voters=nodes((1, 2, 3)))
    log = a_log(1)
    log.append(column(2, 1), [(Index(2), second)])
    log.merge(column(2, 1, 1), [(Index(2), second), (Index(3), third)])
    assert [index for index, _ in log.configurations] == [0, 2, 3]


def test_configurations_are_decoded_with_their_index() -> None:
    """Only configuration entries are looked at; one that is none is the peer's fault."""
    configuration = Configuration(voters=nodes((1, 2)))
    mixed = column(5, 1, 1, kinds=bytes([0, KIND_CONFIGURATION]), payloads=[b"{}", configuration.to_bytes()])
    assert decoded_configurations(mixed) == [(6, configuration)]
    with pytest.raises(BadConfiguration):
        decoded_configurations(column(5, 1, kinds=bytes([KIND_CONFIGURATION])))
