"""The driver's duties to consensus, with scripted rounds: what is written, in which order, and when what rests on it leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from cmdlog.cluster.entry_records import EntryBlocks
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.replicated_machine import GroupRequest
from cmdlog.cluster.replication import Replication
from cmdlog.raft import Completion, HardState, Ready
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, Entries, HeartbeatBundle
from cmdlog.raft.multi_raft import Parcel, RaftGroups, Round
from cmdlog.wal.errors import Wedged
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import Index, PartitionId, Term
from tests.cluster.entrykit import batch, batches

BLOCK_BYTES = 1 << 20


class ScriptedGroups:
    """Consensus as a list of rounds; it notes what it is told."""

    def __init__(self) -> None:
        self.node, self.cores, self.failed = NodeId(1), dict[int, Any](), dict[int, Any]()
        self.rounds: deque[Round] = deque()
        self.told: list[Any] = []

    def collect(self) -> Round | None:
        return self.rounds.popleft() if self.rounds else None

    touched = frozenset[int]()

    def take_touched(self) -> set[int]:
        return set()

    def durable(self, number: int) -> list[Parcel]:
        self.told.append(("durable", number))
        return [Parcel(NodeId(2))]

    def tick(self) -> None:
        self.told.append("tick")

    def step(self, group: int, message: object) -> None:
        self.told.append(("step", group))

    def take_heartbeats(self, bundle: object) -> None:
        self.told.append("heartbeats")


class SilentMachine:
    """Proposes nothing; also the watcher."""

    pending_bytes = 0

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.ran: list[tuple[int, int]] = []  # group, last index

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        return []

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def committed(self, group: int, entries: Entries) -> None:
        self.ran.append((group, entries.last))

    def changed(self, views: object) -> list[GroupRequest]:
        return []

    def ticked(self, views: object) -> list[GroupRequest]:
        return []

    def roles_changed(self, roles: object) -> None: ...
    def take_fitness(self, message: object) -> None: ...


class Rig:
    """A driver between scripted rounds and a log that a test plays."""

    def __init__(self) -> None:
        self.groups, self.machine = ScriptedGroups(), SilentMachine()
        self.sent: list[Parcel] = []
        self.blocks = 0
        self.driver = Replication(
            cast(RaftGroups, self.groups), cast(Any, self.machine), send=self.sent.extend, kick=lambda: None,
            marks=ExecutedMarks(range(2), diverged=lambda *_: None), states=GroupStates(), entry_blocks=EntryBlocks(),
        )  # fmt: skip
        self.driver.watch(self.machine)

    def begin(self, *rounds: Round) -> None:
        """Consensus wants this."""
        self.groups.rounds += rounds
        self.driver.tick()
        self.groups.told.remove("tick")

    def take(self, bytes_max: int = BLOCK_BYTES) -> list[tuple[RecordKind, int]]:
        """The log takes a block: kind and index of its records."""
        return [(record.kind, record.index) for record in map(decode_record, self.driver.take_records(bytes_max))]

    def write(self) -> None:
        self.blocks += 1
        self.driver.written(self.blocks)


@pytest.fixture
def rig() -> Rig:
    """A driver that has nothing to do."""
    return Rig()


def a_round(number: int, *, entries: Entries | None = None, vote: tuple[int, int] | None = None, group: int = 0) -> Round:
    """One group's wishes; `vote` is a term and for whom."""
    hard = None if vote is None else HardState(Term(vote[0]), NodeId(vote[1]), Index(0))
    written = Completion(number, Index(0), Term(0)) if hard or entries else None
    ready = Ready(hard, entries, [], [], None, [], None, written)
    return Round(number, [(PartitionId(group), cast(Any, None), ready)], 0, [])


def test_what_rests_on_a_round_leaves_when_it_is_durable(rig: Rig) -> None:
    """Not when the log takes it, and not when it is in the page cache."""
    rig.begin(a_round(1, entries=batches(1, 1)))
    assert rig.take() == [(RecordKind.BATCH, 1)]
    rig.write()
    assert (rig.groups.told, rig.sent) == ([], [])
    rig.driver.durable(1)
    assert rig.groups.told == [("durable", 1)]
    assert len(rig.sent) == 1


def test_round_larger_than_a_block_is_durable_with_its_last_one(rig: Rig) -> None:
    """A prefix of it is acknowledged to nobody."""
    rig.begin(a_round(1, entries=batches(1, 1, 1, 1)))
    room = len(batch(1)) + RECORD_ALIGN
    for number in range(1, 4):
        assert rig.groups.told == []
        assert rig.take(room) == [(RecordKind.BATCH, number)]
        rig.write()
        rig.driver.durable(number)
    assert rig.groups.told == [("durable", 1)]


def test_round_without_records_waits_for_those_before_it(rig: Rig) -> None:
    """Its messages rest on them, on disk or on their way there."""
    rig.begin(a_round(1, entries=batches(1, 1)))
    rig.begin(a_round(2))
    assert rig.groups.told == []
    rig.take()
    rig.begin(a_round(3))
    rig.write()
    assert rig.groups.told == []
    rig.driver.durable(1)
    assert rig.groups.told == [("durable", 3)]
    rig.begin(a_round(4))
    assert rig.groups.told[-1] == ("durable", 4)


def test_vote_is_written_whenever_it_changes(rig: Rig) -> None:
    """Also within a term; the same one is written once."""
    rig.begin(a_round(1, vote=(5, 0)), a_round(2, vote=(5, 2)), a_round(3, vote=(5, 2)))
    votes = [decode_record(record).json()["vote"] for record in rig.driver.take_records(BLOCK_BYTES)]
    assert votes == [0, 2]


def test_block_has_terms_then_entries_then_marks(rig: Rig) -> None:
    """What is torn off at its end was not said by what is left: a mark follows what it calls committed."""
    first = a_round(1, entries=batches(1, 4), vote=(4, 1))
    done = a_round(2, entries=batches(2, 4))
    done.taken[0][2].committed = batches(1, 4)  # type: ignore[misc]
    later = a_round(3, entries=batches(3, 5), vote=(5, 2))
    rig.begin(first, done, later)
    assert rig.machine.ran == [(0, 1)]
    assert rig.take() == [
        (RecordKind.HARD_STATE, 0), (RecordKind.BATCH, 1), (RecordKind.BATCH, 2), (RecordKind.HARD_STATE, 0),
        (RecordKind.BATCH, 3), (RecordKind.COMMIT_MARK, 1),
    ]  # fmt: skip


def test_node_whose_log_has_failed_is_silent(rig: Rig) -> None:
    """No tick, no message and no durable block has an effect any more; the machine is told once."""
    rig.begin(a_round(1, entries=batches(1, 1)))
    rig.take()
    rig.driver.failed(Wedged("the disk is gone"))
    rig.groups.rounds.append(a_round(2))
    rig.driver.failed(Wedged("the disk is gone"))
    rig.driver.tick()
    rig.driver.receive([(0, an_append(batches(1, 1))), (0, HeartbeatBundle(NodeId(2), NodeId(1), [], [], [], []))])
    assert (rig.groups.told, rig.sent, len(rig.machine.failures)) == ([], [], 1)
    assert rig.take() == []


def an_append(entries: Entries) -> Append:
    """From node 2, in term 1."""
    return Append(NodeId(2), NodeId(1), Term(1), Term(1), Index(0), entries)


def wrong_term(entries: Entries) -> Entries:
    """The records say another term than the message."""
    return Entries(entries.first, [Term(7)] * len(entries.terms), entries.kinds, entries.payloads)


@pytest.mark.parametrize(
    "bend", [wrong_term, lambda entries: Entries(Index(entries.first + 1), entries.terms, entries.kinds, entries.payloads)]
)
def test_entries_that_are_not_what_they_say_reach_nobody(rig: Rig, bend: Callable[[Entries], Entries]) -> None:
    """Consensus would write them where a restart finds something else. They are counted, and the next ones are taken."""
    rig.driver.receive([(0, an_append(bend(batches(1, 1))))])
    assert (rig.groups.told, rig.driver.bad_entries) == ([], 1)
    rig.driver.receive([(0, an_append(batches(1, 1)))])
    assert rig.groups.told == [("step", 0)]


def test_the_log_keeps_what_is_committed_and_not_run(rig: Rig) -> None:
    """A durable commit mark does not let go of an entry that waits for the leader or for other partitions."""
    for index in range(1, 9):
        rig.driver.entry_blocks.add(10 + index, 0, index)
    rig.driver.marked[0] = 6
    assert rig.driver.first_needed_block({0: 4}) == 15
    assert rig.driver.first_needed_block({}) == 17


def test_held_proposals_wait(rig: Rig) -> None:
    """What the machine has stays there, until nothing holds it any more."""
    rig.machine.pending_bytes = 100
    rig.driver.hold_proposals()
    assert (rig.driver.pending_bytes, rig.take()) == (0, [])
    rig.driver.let_propose()
    assert rig.driver.pending_bytes == 100


def test_log_that_is_closed_is_not_woken() -> None:
    """A message that comes while the node stops fails nothing."""
    rig = Rig()

    def closed() -> None:
        raise Wedged("the log is not started, or closed")

    driver = Replication(
        cast(RaftGroups, rig.groups), cast(Any, rig.machine), send=rig.sent.extend, kick=closed,
        marks=ExecutedMarks(range(2), diverged=lambda *_: None), states=GroupStates(), entry_blocks=EntryBlocks(),
    )  # fmt: skip
    driver.wake()
    driver.let_propose()
    assert rig.machine.failures == []
