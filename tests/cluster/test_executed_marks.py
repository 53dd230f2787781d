"""Executed marks: what a follower may run, whose word counts, and digests that differ."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from cmdlog.cluster.executed_marks import DISPUTES_MAX, KEPT_MAX, REPEAT_TICKS, ROWS_MAX, ExecutedMarks, Row, differ, digest_of
from cmdlog.raft import RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Executed
from cmdlog.raft.wire.layout import NO_GROUP
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId

LEADER, OTHER, US = NodeId(1), NodeId(2), NodeId(3)
OURS, THEIRS, THIRD = (digest_of(1, results) for results in (b"ours", b"theirs", b"third"))
LEADERS = {0: (7, LEADER), 1: (7, LEADER)}  # of both partitions, in term 7


class Follower:
    """Marks of two partitions, and the divergences that they reported."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, int]] = []
        self.marks = ExecutedMarks(range(2), diverged=lambda *batch: self.reported.append(batch))

    def add(self, *indexes: int, known: int, partition: int = 0) -> list[int]:
        """These entries are committed; the indexes that may be run."""
        return [index for index, _ in self.marks.add(partition, entries(indexes), known)]

    def release(self, partition: int = 0) -> list[int]:
        return [index for index, _ in self.marks.release(partition)]

    def take(self, *rows: Row, sender: NodeId = LEADER) -> list[int]:
        return self.marks.take_marks(message(rows, sender), LEADERS)

    def execute(self, index: int, digest: int, *, partition: int = 0) -> None:
        self.marks.executed(partition, term=7, index=index, commit=index, digest=digest)


def entries(indexes: Iterable[int]) -> list[tuple[int, bytes]]:
    """Entries with these indexes."""
    return [(index, b"%d" % index) for index in indexes]


def message(rows: Iterable[Row], sender: NodeId = LEADER) -> Executed:
    """What the sender says with these rows."""
    return Executed(sender, US, NO_TERM, *map(list, zip(*rows, strict=True)))


def row(index: int, *, commit: int | None = None, digest: int = 0, term: int = 7, partition: int = 0) -> Row:
    """The leader has executed the entry."""
    return partition, term, index, index if commit is None else commit, digest


# -- what may be run ---------------------------------------------------------------------------------------------------


def test_a_follower_runs_up_to_the_mark_and_no_further() -> None:
    """Committed entries wait for the leader's mark; those after it stay, in order."""
    follower = Follower()
    assert follower.add(1, 2, 3, known=3) == []
    assert follower.take(row(2)) == [0]
    assert follower.release() == [1, 2]
    assert follower.release() == []
    assert follower.marks.waits
    assert follower.take(row(3)) == [0]
    assert follower.release() == [3]
    assert not follower.marks.waits


def test_a_mark_before_its_entries_releases_them_when_they_come() -> None:
    """Rows and entries travel apart: the later of the two releases, and an entry after the mark waits all the same."""
    follower = Follower()
    follower.take(row(2))
    assert follower.add(1, known=1) == []
    assert follower.add(2, 3, known=3) == [1, 2]
    assert follower.release() == []


def test_a_mark_waits_for_the_commit_that_the_leader_knew() -> None:
    """A skip among the entries up to that commit is known before the batch is run."""
    follower = Follower()
    follower.add(1, 2, known=2)
    follower.take(row(2, commit=4))
    assert follower.release() == []
    assert follower.add(3, known=3) == []
    assert follower.add(4, known=4) == [1, 2]
    assert follower.marks.waits


def test_a_usable_mark_releases_while_a_later_one_waits() -> None:
    """Of two marks, the one whose commit is known counts."""
    follower = Follower()
    follower.add(1, 2, 3, known=3)
    follower.take(row(1), row(2, commit=9))
    assert follower.release() == [1]
    assert follower.add(known=9) == [2]


def test_what_is_known_never_shrinks() -> None:
    """Entries that are added without news of the commit keep what was known."""
    follower = Follower()
    follower.add(known=5)
    follower.take(row(1, commit=5))
    assert follower.add(1, known=0) == [1]


def test_a_mark_of_one_partition_releases_nothing_of_another() -> None:
    """Each partition has its own marks, and only those with news are named."""
    follower = Follower()
    follower.add(1, known=1, partition=0)
    follower.add(1, known=1, partition=1)
    assert follower.take(row(1, partition=1)) == [1]
    assert follower.release(0) == []
    assert follower.release(1) == [1]


def test_a_repeated_or_late_row_is_no_news() -> None:
    """The newest row is sent again and again; rows may also arrive in another order."""
    follower = Follower()
    follower.add(1, 2, 3, known=3)
    assert follower.take(row(2)) == [0]
    assert follower.take(row(2)) == []
    assert follower.release() == [1, 2]
    assert follower.take(row(1), row(2)) == []
    assert follower.release() == []


# -- whose word counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "sender"),
    [(row(1, term=6), LEADER), (row(1, term=8), LEADER), (row(1), OTHER), (row(1, partition=9), LEADER)],
    ids=["old-term", "unknown-term", "not-the-leader", "unknown-partition"],
)
def test_only_the_leader_of_the_term_counts(said: Row, sender: NodeId) -> None:
    """Rows of another term or node release nothing, and their digests are compared with nothing."""
    follower = Follower()
    follower.add(1, known=1)
    follower.execute(1, digest_of(1, b"ours"))
    with_digest = (*said[:4], digest_of(1, b"theirs"))
    assert follower.take(with_digest, sender=sender) == []
    assert follower.release() == []
    assert not follower.reported


def test_a_leader_waits_for_nobody_until_it_follows_again() -> None:
    """While it leads everything committed is released; afterwards another node's marks count again."""
    follower = Follower()
    follower.add(1, 2, known=2)
    follower.marks.lead()
    assert follower.release() == [1, 2]
    assert follower.add(3, known=3) == [3]
    follower.marks.follow()
    assert follower.add(4, known=4) == []
    follower.take(row(4))
    assert follower.release() == [4]


# -- digests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "theirs-first"])
def test_a_digest_that_differs_stops_its_partition(ours_first: bool) -> None:
    """Whichever digest comes first: the batch is reported once, and nothing more of the partition is released."""
    follower = Follower()
    ours, theirs = digest_of(5, b"one"), digest_of(5, b"two")
    follower.add(1, known=1)
    if ours_first:
        follower.execute(1, ours)
    follower.take(row(1, digest=theirs))
    if not ours_first:
        follower.execute(1, ours)
    assert follower.reported == [(0, 1)]
    assert follower.marks.divergences() == {0: 1}
    assert follower.add(2, known=2) == []
    follower.take(row(2))
    assert follower.release() == []
    follower.add(1, known=1, partition=1)
    follower.take(row(1, partition=1))
    assert follower.release(1) == [1]


def test_the_first_batch_that_differs_is_the_one_that_is_named() -> None:
    """What follows a divergence differs, too, and is not reported again."""
    follower = Follower()
    for index in (3, 4):
        follower.execute(index, digest_of(5, b"ours%d" % index))
        follower.take(row(index, digest=digest_of(5, b"theirs%d" % index)))
    assert follower.reported == [(0, 3)]
    assert follower.marks.divergences() == {0: 3}


def test_equal_digests_are_silent_and_forgotten() -> None:
    """The usual case: nothing is reported, and the partition runs on."""
    follower = Follower()
    same = digest_of(5, b"one")
    follower.execute(1, same)
    follower.take(row(1, digest=same))
    follower.execute(1, digest_of(5, b"nobody compares this"))
    assert not follower.reported
    assert follower.marks.divergences() == {}


def test_digests_are_compared_batch_by_batch() -> None:
    """Another batch's digest, or another partition's, says nothing."""
    follower = Follower()
    follower.execute(1, digest_of(5, b"one"))
    follower.take(row(2, digest=digest_of(5, b"two")), row(1, partition=1, digest=digest_of(5, b"three")))
    assert not follower.reported


def test_an_entry_without_a_digest_is_not_compared() -> None:
    """Control entries have none, on either node."""
    follower = Follower()
    follower.execute(1, digest_of(5, b"one"))
    follower.take(row(1, digest=0))
    follower.execute(2, 0)
    follower.take(row(2, digest=digest_of(5, b"two")))
    assert not follower.reported


def test_digests_that_wait_for_the_other_node_are_bounded() -> None:
    """A leader that sends none leaves at most `KEPT_MAX`, and the newest can still be compared."""
    follower = Follower()
    for index in range(1, KEPT_MAX + 2):
        follower.execute(index, digest_of(5, b"ours"))
    follower.take(row(1, digest=digest_of(5, b"theirs")))
    assert not follower.reported
    follower.take(row(2, digest=digest_of(5, b"theirs")))
    assert follower.reported == [(0, 2)]


@pytest.mark.parametrize(
    ("one", "other", "different"),
    [
        ((1 << 40, b"r"), (1 << 40, b"r"), False),
        ((1 << 40, b"r"), (1 << 40, b"s"), True),
        ((1 << 40, b"r"), (1 << 41, b"r"), True),
        ((7, b"r"), (8, b"r"), True),
        ((0, b"r"), (8, b"r"), False),
        ((8, b"r"), (0, b"r"), False),
        ((0, b"r"), (0, b"s"), True),
        ((0, b"r"), (5 << 32 | 5, b"r"), False),
        ((5 << 32 | 5, b"r"), (8, b"r"), True),
    ],
)
def test_digests_differ_by_results_and_by_rows(one: tuple[int, bytes], other: tuple[int, bytes], different: bool) -> None:
    """Results always count; rows where both nodes took a digest of them, also if it folds to zero."""
    assert differ(digest_of(*one), digest_of(*other)) is different


# -- what a leader sends -----------------------------------------------------------------------------------------------


def rows_sent(marks: ExecutedMarks, peers: list[NodeId]) -> dict[NodeId, list[Row]]:
    """By peer, what one tick sends."""
    sent: dict[NodeId, list[Row]] = {}
    for parcel in marks.due(LEADER, lambda: peers):
        for group, said in parcel.messages:
            assert isinstance(said, Executed)
            assert (group, said.sender, said.receiver) == (NO_GROUP, LEADER, parcel.receiver)
            assert len(said.groups) <= ROWS_MAX
            columns = zip(said.groups, said.terms, said.indexes, said.commits, said.digests, strict=True)
            sent.setdefault(parcel.receiver, []).extend(columns)
    return sent


def test_a_leader_sends_every_row_once_and_the_newest_again() -> None:
    """To every peer; after `REPEAT_TICKS` the newest of each partition once more, in case it was lost."""
    marks = Follower().marks
    marks.lead()
    for partition, index in ((0, 1), (0, 2), (1, 4)):
        marks.executed(partition, term=7, index=index, commit=9, digest=index)
    newest = [row(2, commit=9, digest=2), row(4, commit=9, digest=4, partition=1)]
    rows = [row(1, commit=9, digest=1), *newest]
    assert rows_sent(marks, [OTHER, US]) == {OTHER: rows, US: rows}
    for _ in range(REPEAT_TICKS - 2):
        assert rows_sent(marks, [OTHER]) == {}
    assert rows_sent(marks, [OTHER]) == {OTHER: newest}


def test_many_rows_go_in_several_messages() -> None:
    """No message is larger than a receiver accepts, and none of the rows is lost."""
    marks = Follower().marks
    marks.lead()
    for index in range(1, ROWS_MAX + 3):
        marks.executed(0, term=7, index=index, commit=index, digest=0)
    assert [said[2] for said in rows_sent(marks, [OTHER])[OTHER]] == list(range(1, ROWS_MAX + 3))


def test_a_follower_sends_nothing_of_what_it_executes() -> None:
    """Only a leader's word counts; what one had not sent when it lost the lead is dropped, and not repeated later."""
    follower = Follower()
    follower.execute(1, 5)
    assert rows_sent(follower.marks, [OTHER]) == {}
    follower.marks.lead()
    follower.execute(2, 5)
    follower.marks.follow()
    for _ in range(REPEAT_TICKS):
        assert rows_sent(follower.marks, [OTHER]) == {}


# -- who was right -------------------------------------------------------------------------------------------------------

FOURTH, FIFTH = NodeId(4), NodeId(5)


class Voter(Follower):
    """Marks of one of several voters, which also say when a majority agrees."""

    def __init__(self, voters: int = 3) -> None:
        super().__init__()
        self.agreed: list[tuple[int, int]] = []
        self.marks = ExecutedMarks(
            range(2),
            diverged=lambda *batch: self.reported.append(batch),
            agreed=lambda *batch: self.agreed.append(batch),
            voters=voters,
        )


def test_a_follower_that_diverged_tells_its_peers() -> None:
    """Its own row of the batch, at once, and again as long as that is so; also when it leads."""
    voter = Voter()
    voter.execute(4, OURS)
    voter.take(row(4, digest=THEIRS))
    told = (0, 7, 4, 4, OURS)
    assert rows_sent(voter.marks, [LEADER, OTHER]) == {LEADER: [told], OTHER: [told]}
    again = [rows_sent(voter.marks, [LEADER]) for _ in range(2 * REPEAT_TICKS)]
    assert [rows for rows in again if rows] == [{LEADER: [told]}] * 2


def test_a_follower_with_a_majority_goes_on() -> None:
    """The other follower has the same digest, so the leader was wrong; its later digests mean nothing, its marks do."""
    voter = Voter()
    voter.execute(4, OURS)
    voter.take(row(4, digest=THEIRS))
    voter.add(5, known=5)
    assert voter.take(row(4, digest=OURS), sender=OTHER) == [0]
    assert voter.agreed == [(0, 4)]
    assert voter.marks.divergences() == {}
    voter.take(row(5, digest=THEIRS))
    assert voter.release() == [5]
    voter.execute(5, OURS)
    assert voter.marks.divergences() == {}
    told = [rows_sent(voter.marks, [LEADER]) for _ in range(REPEAT_TICKS)]
    assert told[0] == told[-1] == {LEADER: [(0, 7, 4, 4, OURS)]}, "the leader has to learn of it"
    voter.marks.take_marks(message([row(6, digest=THEIRS, term=8)], OTHER), {0: (8, OTHER)})
    assert [rows_sent(voter.marks, [LEADER]) for _ in range(REPEAT_TICKS)] == [{}] * REPEAT_TICKS


def test_a_digest_that_a_peer_told_first_counts() -> None:
    """Rows of two nodes come in any order."""
    voter = Voter()
    voter.take(row(4, digest=OURS), sender=OTHER)
    voter.take(row(4, digest=THEIRS))
    voter.execute(4, OURS)
    assert (voter.reported, voter.agreed) == ([(0, 4)], [(0, 4)])


def test_a_follower_alone_with_its_digest_stays_where_it_is() -> None:
    """The other one that differs from the leader does so in another way."""
    voter = Voter()
    voter.execute(4, OURS)
    voter.take(row(4, digest=THEIRS))
    voter.take(row(4, digest=THIRD), sender=OTHER)
    assert voter.agreed == []
    assert voter.marks.divergences() == {0: 4}


def test_a_later_leader_of_another_term_is_compared() -> None:
    """Distrust is of a leadership, not of a node for ever."""
    voter = Voter()
    voter.execute(4, OURS)
    voter.take(row(4, digest=THEIRS))
    voter.take(row(4, digest=OURS), sender=OTHER)
    voter.execute(6, OURS)
    voter.marks.take_marks(message([row(6, digest=THEIRS, term=8)]), {0: (8, LEADER)})
    assert voter.reported == [(0, 4), (0, 6)]


@pytest.mark.parametrize(
    ("voters", "told", "diverged"),
    [
        (3, {OTHER: "ours", US: "ours"}, {}),
        (3, {OTHER: "theirs"}, {}),
        (3, {OTHER: "theirs", US: "theirs"}, {0: 4}),
        (3, {OTHER: "theirs", US: "third"}, {}),
        (5, {OTHER: "theirs", US: "theirs"}, {}),
        (5, {OTHER: "theirs", US: "theirs", FOURTH: "third"}, {}),
        (5, {OTHER: "theirs", US: "theirs", FOURTH: "third", FIFTH: "theirs"}, {0: 4}),
    ],
)
def test_a_leader_diverged_when_a_majority_has_one_other_digest(
    voters: int, told: dict[NodeId, str], diverged: dict[int, int]
) -> None:
    """Then it applies nothing more of that partition; digests that differ from each other prove nothing."""
    digests = {"ours": OURS, "theirs": THEIRS, "third": THIRD}
    leader = Voter(voters)
    leader.marks.lead()
    leader.execute(4, OURS)
    for sender, which in told.items():
        leader.marks.take_marks(message([row(4, digest=digests[which])], sender), {0: (7, LEADER)})
    assert leader.marks.divergences() == diverged
    assert leader.add(5, known=5) == ([] if diverged else [5])


def test_digests_of_batches_that_nobody_disputes_are_forgotten() -> None:
    """Rows of leaders that are gone come late; there are only so many kept."""
    leader = Voter()
    leader.marks.lead()
    for index in range(3 * DISPUTES_MAX):
        leader.take(row(index, digest=THEIRS), sender=OTHER)
    leader.execute(1, OURS)
    leader.take(row(1, digest=THEIRS), sender=US)
    assert leader.marks.divergences() == {}
    assert len(leader.marks._partitions[0].others) == DISPUTES_MAX


def test_a_majority_is_counted_among_those_who_vote_now() -> None:
    """Members come and go; two of three are one, two of five are none."""
    voter = Voter(5)
    voter.execute(4, OURS)
    voter.take(row(4, digest=THEIRS))
    voter.take(row(4, digest=OURS), sender=OTHER)
    assert voter.agreed == []
    voter.marks.set_voters(3)
    voter.take(row(4, digest=OURS), sender=OTHER)
    assert voter.agreed == [(0, 4)]


@pytest.mark.parametrize(("group", "partitions"), [(1, [1]), (CLUSTER_GROUP, [0, 1])])
def test_a_committed_entry_that_the_leader_has_not_stops_its_partition(group: int, partitions: list[int]) -> None:
    """Once; and every partition, where it is an entry of the cluster's own group."""
    found: list[tuple[int, int]] = []
    marks = ExecutedMarks(range(2), diverged=print, contradicted=lambda *place: found.append(place))
    cores = {
        PartitionId(each): cast(RaftCore, SimpleNamespace(contradicted=9 * (each == group))) for each in (0, 1, CLUSTER_GROUP)
    }
    for _ in range(2):
        marks.find_contradictions(cores)
    assert found == [(partition, 9) for partition in partitions]
    assert marks.divergences() == dict.fromkeys(partitions, 9)
