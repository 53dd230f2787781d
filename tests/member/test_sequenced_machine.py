"""The machine of consensus between driver and sequencer: what is proposed, what is run, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from cmdlog.cluster.entry_records import EntryBlocks, place_of
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import CallOutcome, Reply, UnknownOutcome
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.raft import InvariantBroken
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import KIND_EMPTY, KIND_NORMAL, NO_TERM, Entries, Executed
from cmdlog.raft.ready import ReadResult
from cmdlog.wal.errors import WalError, Wedged
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.call_places import CallPlace, TermTable
from cmdlog.wal.format.record import RecordKind, decode_record, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, MULTI_PARTITION, Index, PartitionId, Term, make_txn_id
from cmdlog.wal.skips import VOID

TERM = 3
LEADER = NodeId(2)


class KnownPipelines:
    """Keeps what is committed to each partition."""

    def __init__(self) -> None:
        self.run: dict[int, list[int]] = {0: [], 1: []}  # partition -> indexes, in order
        self.blocks: list[int | None] = []
        self.places: Mapping[int, tuple[int, int]] = {}
        self.catalog = 0
        self.idle = True

    def commit(self, partition: int, entries: Iterable[tuple[int, bytes]], block_of: Callable[[int], int | None]) -> None:
        for index, record in entries:
            assert place_of(record)[1] == partition
            self.run[partition].append(index)
            self.blocks.append(block_of(index))

    def lead(self, places: Mapping[int, tuple[int, int]], *, catalog: int) -> None:
        self.places, self.catalog = places, catalog


class KnownSequencer:
    """Gives the records that a test laid out, and keeps what it is told."""

    def __init__(self) -> None:
        self.replicated = KnownPipelines()
        self.ready: list[bytes] = []
        self.rooms: list[int] = []
        self.told: list[tuple[str, Any]] = []

    @property
    def log_feed(self) -> KnownSequencer:
        return self

    admission = log_feed

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self.ready))

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        self.rooms.append(bytes_max)
        taken, self.ready = self.ready, []
        return taken

    def written(self, block: int) -> None:
        self.told.append(("written", block))

    def durable(self, block: int) -> None:
        self.told.append(("durable", block))

    def failed(self, error: WalError) -> None:
        self.told.append(("failed", error))


class Rig:
    """A machine over two partitions, and all that it says."""

    def __init__(self) -> None:
        self.sequencer, self.blocks = KnownSequencer(), EntryBlocks()
        self.marks = ExecutedMarks(range(2), diverged=lambda *_: None)
        self.said: list[tuple[str, Any]] = []
        self.machine = SequencedMachine(
            cast(Sequencer, self.sequencer), {0: TermTable(), 1: TermTable()}, self.blocks,
            marks=self.marks,
            leave_out=lambda partition, index, position: self.said.append(
                ("leave out", (partition, index, position, list(self.run[partition])))
            ),
            stated=self._state,
            asked=lambda request: self.said.append(("asked", request)),
            copy_offered=lambda group, descriptor: self.said.append(("copy", (group, descriptor.index))),
        )  # fmt: skip
        self.machine.learn_code(1)

    def _state(self, index: int, record: bytes) -> int:
        self.said.append(("stated", (index, RecordKind(record[4]))))
        return 1

    @property
    def run(self) -> dict[int, list[int]]:
        return self.sequencer.replicated.run

    def lead(self) -> None:
        self.marks.lead()
        self.machine.lead({CLUSTER_GROUP: (TERM, 7), 0: (TERM, 5), 1: (TERM, 6)}, catalog=4)

    def executed_by_leader(self, partition: int, index: int, commit: int) -> None:
        """What the leader says reaches this node."""
        message = Executed(
            LEADER, NodeId(1), NO_TERM, [PartitionId(partition)], [Term(TERM)], [Index(index)], [Index(commit)], [0]
        )
        self.machine.run_marked(self.marks.take_marks(message, {partition: (TERM, LEADER)}))


@pytest.fixture
def rig() -> Rig:
    """A node that follows."""
    return Rig()


def a_batch(
    partition: int, index: int, *, txn: int = 0, catalog: int = 1, everywhere: Sequence[int] = (), term: int = TERM
) -> bytes:
    """A logged call; with `txn` one on all partitions, whose indexes are `everywhere`."""
    txn = txn or make_txn_id(millis=index, counter=0, partition=partition)
    return encode_batch(
        partition=partition,
        term=term,
        index=index,
        catalog=catalog,
        txn_ids=range(txn, txn + 1024, 1024),
        procedures=[0],
        params=[b"[]"],
        places=[CallPlace(TERM, at) for at in everywhere],
    )


def a_skip(partition: int, index: int, batch: int) -> bytes:
    """The batch's call is not run."""
    return encode_json(
        RecordKind.SKIP, {"index": batch, "position": 0, "reason": ""}, partition=partition, term=TERM, index=index
    )


def entries(first: int, *records: bytes) -> Entries:
    """What consensus hands out."""
    return Entries(Index(first), [Term(TERM)] * len(records), bytes([KIND_NORMAL] * len(records)), list(records))


def multi(millis: int) -> int:
    """TxnId of a call on all partitions."""
    return make_txn_id(millis=millis, counter=0, partition=MULTI_PARTITION)


# -- what is proposed ----------------------------------------------------------------------------------------------------------


def test_statements_get_the_next_places_of_the_cluster_group_before_the_calls(rig: Rig) -> None:
    """Term and index go on from where the leader begins; the sequencer gets the room that they leave."""
    rig.lead()
    assert rig.sequencer.replicated.places == {0: (TERM, 5), 1: (TERM, 6)}, "the cluster group is no pipeline"
    assert rig.sequencer.replicated.catalog == 4
    for number in range(2):
        rig.machine.state(RecordKind.ENVIRONMENT, {"number": number}, lambda _: None)
    rig.sequencer.ready = [a_batch(0, 5)]
    assert rig.machine.pending_bytes > rig.sequencer.log_feed.pending_bytes
    first, second, call = rig.machine.take_records(10_000)
    assert [place_of(record)[1:] for record in (first, second, call)] == [
        (CLUSTER_GROUP, TERM, 7),
        (CLUSTER_GROUP, TERM, 8),
        (0, TERM, 5),
    ]
    assert [decode_record(record).json()["number"] for record in (first, second)] == [0, 1]
    assert rig.sequencer.rooms == [10_000 - len(first) - len(second) - 2 * RECORD_ALIGN]
    assert rig.machine.pending_bytes == 0
    rig.machine.state(RecordKind.ENVIRONMENT, {"number": 2}, lambda _: None)
    assert [place_of(record)[1:] for record in rig.machine.take_records(10_000)] == [(CLUSTER_GROUP, TERM, 9)]


def test_statement_of_a_node_that_does_not_lead_is_answered_at_once(rig: Rig) -> None:
    """Nothing of it is proposed, then or when the node leads."""
    replies: list[Reply] = []
    rig.machine.state(RecordKind.ENVIRONMENT, {}, replies.append)
    assert [type(reply) for reply in replies] == [UnknownOutcome]
    rig.lead()
    assert rig.machine.take_records(10_000) == []


def test_statement_is_answered_once_it_is_committed(rig: Rig) -> None:
    """Not when it is proposed, and once; an entry that somebody else proposed has nobody waiting."""
    replies: list[Reply] = []
    rig.lead()
    rig.machine.state(RecordKind.ENVIRONMENT, {}, replies.append)
    (record,) = rig.machine.take_records(10_000)
    rig.machine.written(1)
    rig.machine.durable(1)
    other = encode_json(RecordKind.ENVIRONMENT, {}, partition=CLUSTER_GROUP, term=TERM, index=6)
    rig.machine.committed(CLUSTER_GROUP, entries(6, other))
    assert replies == []
    rig.machine.committed(CLUSTER_GROUP, entries(7, record))
    assert [type(reply) for reply in replies] == [CallOutcome]
    assert rig.said == [("stated", (6, RecordKind.ENVIRONMENT)), ("stated", (7, RecordKind.ENVIRONMENT))]
    assert rig.machine.follow() == []


def test_leader_that_follows_gives_back_those_who_wait(rig: Rig) -> None:
    """Proposed or not: each once, and nothing of them is proposed or answered later."""
    replies: list[tuple[str, Reply]] = []
    rig.lead()
    rig.machine.state(RecordKind.ENVIRONMENT, {}, lambda reply: replies.append(("proposed", reply)))
    (record,) = rig.machine.take_records(10_000)
    rig.machine.state(RecordKind.ENVIRONMENT, {}, lambda reply: replies.append(("waiting", reply)))
    for done in rig.machine.follow():
        done(UnknownOutcome("gone"))
    assert [name for name, _ in replies] == ["proposed", "waiting"]
    late: list[Reply] = []
    rig.machine.state(RecordKind.ENVIRONMENT, {}, late.append)
    assert [type(reply) for reply in late] == [UnknownOutcome]
    rig.machine.committed(CLUSTER_GROUP, entries(7, record))
    rig.lead()
    assert rig.machine.take_records(10_000) == []
    assert len(replies) == 2


def test_sequencer_hears_of_its_own_blocks_alone(rig: Rig) -> None:
    """A round of statements is none of its own, whichever lies between; a round of nothing is no round."""
    rig.lead()
    for statement, call in ((True, False), (False, True), (False, False), (True, True), (True, False)):
        if statement:
            rig.machine.state(RecordKind.ENVIRONMENT, {}, lambda _: None)
        rig.sequencer.ready = [a_batch(0, 5)] if call else []
        rig.machine.take_records(10_000)
    for block in range(1, 5):
        rig.machine.written(block)
    for block in range(1, 5):
        rig.machine.durable(block)
    assert rig.sequencer.told == [("written", 2), ("written", 3), ("durable", 2), ("durable", 3)]


# -- what is run ---------------------------------------------------------------------------------------------------------------


def test_leader_runs_what_is_committed(rig: Rig) -> None:
    """At once, in order, with the block where it lies here."""
    rig.lead()
    rig.blocks.add(9, 0, 5)
    rig.machine.committed(0, entries(5, a_batch(0, 5), a_batch(0, 6)))
    assert rig.run == {0: [5, 6], 1: []}
    assert rig.sequencer.replicated.blocks == [9, None]
    assert rig.machine.all_run


def test_batch_waits_for_its_code(rig: Rig) -> None:
    """Its group may have it committed before the cluster group has the code; what is after it waits, too."""
    rig.lead()
    rig.machine.committed(0, entries(5, a_batch(0, 5), a_batch(0, 6, catalog=2), a_batch(0, 7)))
    assert rig.run == {0: [5], 1: []}
    assert not rig.machine.all_run
    rig.machine.learn_code(2)
    assert rig.run == {0: [5, 6, 7], 1: []}
    assert rig.machine.all_run


def test_follower_runs_what_its_leader_has_run(rig: Rig) -> None:
    """Not what is merely committed; and a mark is used once this node knows what the leader knew."""
    rig.machine.committed(0, entries(5, a_batch(0, 5), a_batch(0, 6), a_batch(0, 7)))
    assert rig.run[0] == []
    assert not rig.machine.all_run
    rig.executed_by_leader(0, 6, 7)
    assert rig.run[0] == [5, 6]
    rig.executed_by_leader(0, 7, 8)
    assert rig.run[0] == [5, 6], "the leader knew of entry 8, which may be a skip of 7"
    rig.machine.committed(0, entries(8, a_skip(0, 8, 7)))
    assert rig.run[0] == [5, 6, 7]
    assert rig.said == [("leave out", (0, 7, 0, [5, 6]))], "the site knows the skip before it gets the batch"


def test_new_leader_runs_what_waited_for_the_one_before(rig: Rig) -> None:
    """`run_marked` after the change: nobody's marks are waited for any more."""
    rig.machine.committed(1, entries(5, a_batch(1, 5)))
    rig.lead()
    rig.machine.run_marked(range(2))
    assert rig.run == {0: [], 1: [5]}
    assert rig.machine.all_run


def test_call_on_all_partitions_waits_for_all(rig: Rig) -> None:
    """What follows it on a partition waits with it; then both partitions run on."""
    rig.lead()
    rig.machine.committed(0, entries(5, a_batch(0, 5), a_batch(0, 6, txn=multi(9), everywhere=(6, 3)), a_batch(0, 7)))
    assert rig.run == {0: [5], 1: []}
    assert not rig.machine.all_run
    rig.machine.committed(1, entries(3, a_batch(1, 3, txn=multi(9), everywhere=(6, 3))))
    assert rig.run == {0: [5, 6, 7], 1: [3]}
    assert rig.machine.all_run


def test_call_that_a_group_can_never_have_is_void_where_it_is(rig: Rig) -> None:
    """The site is told before it gets the batch, and what waited follows."""
    rig.lead()
    rig.machine.committed(0, entries(5, a_batch(0, 5, txn=multi(9), everywhere=(5, 3)), a_batch(0, 6)))
    assert rig.run == {0: [], 1: []}
    rig.machine.committed(1, replace(entries(3, a_batch(1, 3, term=TERM + 1)), terms=[Term(TERM + 1)]))
    assert rig.said == [("leave out", (0, 5, VOID, []))]
    assert rig.run == {0: [5, 6], 1: [3]}


def test_all_is_run_only_when_the_sites_are_idle(rig: Rig) -> None:
    """Handed to a site is not run by it."""
    rig.sequencer.replicated.idle = False
    assert not rig.machine.all_run
    rig.sequencer.replicated.idle = True
    assert rig.machine.all_run


def test_entries_of_consensus_itself_are_run_in_their_place(rig: Rig) -> None:
    """The empty entry of a term has no payload; its record follows from its place."""
    rig.lead()
    rig.machine.committed(1, Entries(Index(4), [Term(TERM)] * 2, bytes([KIND_EMPTY, KIND_NORMAL]), [b"", a_batch(1, 5)]))
    assert rig.run[1] == [4, 5]


# -- reads and failure ---------------------------------------------------------------------------------------------------------


def test_read_is_told_what_consensus_answers(rig: Rig) -> None:
    """Each once, by its own context; one that consensus did not take is told by nobody."""
    told: list[tuple[str, int | None]] = []
    contexts = [rig.machine.await_read(lambda index, name=name: told.append((name, index))) for name in "abc"]  # type: ignore[misc]
    assert len(set(contexts)) == 3
    rig.machine.forget_read(contexts[2])
    for context, index in ((contexts[1], None), (contexts[0], Index(4)), (contexts[0], Index(4)), (contexts[2], Index(4))):
        rig.machine.read(CLUSTER_GROUP, ReadResult(context, index))
    assert told == [("b", None), ("a", 4)]


@pytest.mark.parametrize("error", [Wedged("the disk is gone"), InvariantBroken("a promise", "broken")])
def test_failure_reaches_the_sequencer_as_one_of_the_log(rig: Rig, error: Exception) -> None:
    """Whatever ended the driver: callers are answered by what the sequencer knows."""
    rig.machine.failed(error)
    ((what, told),) = rig.sequencer.told
    assert what == "failed"
    assert isinstance(told, WalError)
    assert str(told) == str(error)
