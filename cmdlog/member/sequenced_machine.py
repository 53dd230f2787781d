"""The sequencer and its sites as the machine of consensus: `cmdlog.cluster.replication.Machine`.

One rule: everything is called under the driver's lock, which is taken before the sequencer's; nothing here waits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cmdlog.cluster.entry_gate import CodeGate, HalfSkip, MultiCallGate
from cmdlog.cluster.entry_records import EntryBlocks, records_of
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.member.entry_reader import EntryRequest
from cmdlog.node.outcome import CallOutcome, Done, UnknownOutcome
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.raft.messages import Entries, SnapshotDescriptor
from cmdlog.raft.ready import EntriesWanted, ReadResult
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.call_places import TermTable
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP

Statement = tuple[RecordKind, Mapping[str, Any], Done]  # an entry of the cluster group that somebody waits for


class SequencedMachine:
    """See the module."""

    def __init__(
        self, sequencer: Sequencer, terms: Mapping[int, TermTable], entry_blocks: EntryBlocks, *,
        marks: ExecutedMarks, leave_out: Callable[[int, int, int], None], stated: Callable[[int, bytes], int],
        asked: Callable[[EntryRequest], None], copy_offered: Callable[[int, SnapshotDescriptor], None],
    ) -> None:  # fmt: skip
        """`terms`: of every partition, up to the entry that its state has reached. `leave_out` tells a site of a call that is not
        run: partition, index, position or VOID. `stated` gets the committed entries of the cluster group (index, record), and
        gives the newest version of the code that the sites have then."""
        self._sequencer, self._entry_blocks, self._leave_out, self._stated = sequencer, entry_blocks, leave_out, stated
        self._asked, self._copy_offered = asked, copy_offered
        self._gate, self._marks, self._code = MultiCallGate(terms), marks, CodeGate()
        self.partitions = sorted(terms)
        self._statements: deque[Statement] = deque()
        self._place: tuple[int, int] | None = None  # term and next index of the cluster group, while this node leads
        self._proposed: dict[int, Done] = {}  # index in the cluster group -> who waits for it
        self._unwritten: deque[bool] = deque()  # per `take_records`: whether the sequencer took part
        self._undurable: deque[bool] = deque()
        self._reads: dict[int, Callable[[int | None], None]] = {}  # context -> who waits for the answer of consensus
        self._contexts = itertools.count(1)

    # -- cmdlog.cluster.replication.Machine ----------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._sequencer.admission.pending_bytes + 1024 * len(self._statements)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        records: list[bytes] = []
        while self._statements and self._place is not None:
            kind, value, done = self._statements.popleft()
            term, index = self._place
            records.append(encode_json(kind, value, partition=CLUSTER_GROUP, term=term, index=index))
            self._proposed[index] = done
            self._place = term, index + 1
        room = bytes_max - sum(map(len, records)) - RECORD_ALIGN * len(records)
        taken = self._sequencer.log_feed.take_records(room)
        if records or taken:
            self._unwritten.append(bool(taken))
            self._undurable.append(bool(taken))
        return [*records, *taken]

    def written(self, block: int) -> None:
        if self._unwritten.popleft():
            self._sequencer.log_feed.written(block)

    def durable(self, block: int) -> None:
        if self._undurable.popleft():
            self._sequencer.log_feed.durable(block)

    def committed(self, group: int, entries: Entries) -> None:
        placed = list(enumerate(records_of(group, entries), entries.first))
        if group == CLUSTER_GROUP:
            for index, record in placed:
                self.learn_code(self._stated(index, record))
                if (done := self._proposed.pop(index, None)) is not None:
                    done(CallOutcome(0, 0, b""))
            return
        released, left_out = self._gate.add(group, placed)
        for partition, index, position in left_out:
            self._leave_out(partition, index, position)
        known = entries.first + len(entries.terms) - 1
        for partition, run in {group: (), **dict(released)}.items():
            self._run(partition, self._marks.add(partition, run, known if partition == group else 0))

    def learn_code(self, version: int) -> None:
        """The log names this version of the code, and the sites have it: its batches and migrations may be run."""
        for partition, waited in self._code.learn(version).items():
            if waited:
                self._commit(partition, waited)

    def run_committed(self) -> None:
        """This node leads, and knows everything that may not be run: nothing waits for another one's marks."""
        self._marks.lead()
        self.run_marked(self.partitions)

    def run_marked(self, partitions: Iterable[int]) -> None:
        """More of these partitions may be run than before."""
        for partition in partitions:
            self._run(partition, self._marks.release(partition))

    def _run(self, partition: int, entries: Sequence[tuple[int, bytes]]) -> None:
        if entries and (entries := self._code.add(partition, entries)):
            self._commit(partition, entries)

    def _commit(self, partition: int, entries: Sequence[tuple[int, bytes]]) -> None:
        self._sequencer.replicated.commit(partition, entries, partial(self._entry_blocks.block_of, partition))

    def read(self, group: int, result: ReadResult) -> None:
        if (done := self._reads.pop(result.context, None)) is not None:
            done(result.index)

    def fetch(self, group: int, wanted: EntriesWanted, terms: Sequence[int], block: int | None) -> None:
        self._asked(EntryRequest(group, wanted, terms, block))

    def copy_offered(self, group: int, descriptor: SnapshotDescriptor) -> None:
        self._copy_offered(group, descriptor)

    def failed(self, error: BaseException) -> None:
        self._sequencer.failed(error if isinstance(error, WalError) else WalError(str(error)))

    # -- the node, under the driver's lock ---------------------------------------------------------------------------------

    def lead(self, places: Mapping[int, tuple[int, int]], *, catalog: int) -> None:
        """This node proposes from now on: (term, next index) by group."""
        self._place = places[CLUSTER_GROUP]
        of_partitions = {group: place for group, place in places.items() if group != CLUSTER_GROUP}
        self._sequencer.replicated.lead(of_partitions, catalog=catalog)

    def skip_places(self, ends: Mapping[int, int]) -> None:
        if self._place is None:
            return
        if CLUSTER_GROUP in ends:
            self._place = self._place[0], ends[CLUSTER_GROUP]
        self._sequencer.replicated.skip_places({group: index for group, index in ends.items() if group != CLUSTER_GROUP})

    def follow(self) -> list[Done]:
        """It proposes no more; who waits for statements of the cluster group."""
        self._place = None
        waiting = [*self._proposed.values(), *(done for _, _, done in self._statements)]
        self._proposed.clear()
        self._statements.clear()
        return waiting

    def state(self, kind: RecordKind, value: Mapping[str, Any], done: Done) -> None:
        """Places an entry of the cluster group; `done` is called when it is committed, or with an unknown outcome."""
        if self._place is None:
            done(UnknownOutcome("this node does not lead"))
        else:
            self._statements.append((kind, value, done))

    def await_read(self, done: Callable[[int | None], None]) -> int:
        """The context of a read whose answer goes to `done`: up to which index its group was committed when it was asked; None:
        the leader of then is gone."""
        context = next(self._contexts)
        self._reads[context] = done
        return context

    def forget_read(self, context: int) -> None:
        """Consensus did not take it, or nobody waits for it any more."""
        self._reads.pop(context, None)

    def half_skips(self) -> list[HalfSkip]:
        """Skips of multi-partition calls that some partitions lack."""
        return self._gate.half_skips()

    @property
    def terms(self) -> Mapping[int, TermTable]:
        """Of every partition's committed entries."""
        return self._gate.terms

    @property
    def all_run(self) -> bool:
        """Everything that is committed is run."""
        return self._sequencer.replicated.idle and not (self._gate.waits or self._marks.waits or self._code.waits)
