"""What is committed and waits: multi-partition calls until all partitions have them, batches until their code is known.

One rule: the entry of a multi-partition call is handed to a site only when every partition has it committed, and any entry only
when the version of the code that it names is known. The entries of a partition keep their order, so those after it wait with it.

A leader puts the call into all groups in one block, but each group commits by itself: a leader that loses one of them leaves the
call in the others. Each of its entries names all of them, so every node judges it alike (`cmdlog.wal.format.call_places`): once
some group holds a higher term where the call should be, it is void, and its entries are passed over like entries without calls.
The entry that begins a term is enough for that: when the terms of a leader are committed in all groups, nothing is undecided.

A SKIP skips a call that hangs. The leader states it in every group before any partition has run the call, and it names all
places. One that is committed in some group alone is in force on all; the next leader states it in the others before it runs
anything: a follower knows then all that its partition must skip from that partition's own entries.

The code is stated in the cluster group: a batch, or a SCHEMA entry with migrations, may be committed here before the version that
it names. A site that gets it without its code fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cmdlog.cluster.entry_records import place_of
from cmdlog.wal.format.batch import catalog_and_places, places_of
from cmdlog.wal.format.call_places import CallPlaces, CallVerdict, TermTable, judge_call
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, decode_record, peek_record
from cmdlog.wal.skips import VOID

_BATCH, _SKIP = int(RecordKind.BATCH), int(RecordKind.SKIP)

Released = list[tuple[int, list[tuple[int, bytes]]]]  # (partition, [(index, record)]), in order
LeftOut = list[tuple[int, int, int]]  # (partition, index, position) of calls that are not run, or VOID


class HalfSkip(NamedTuple):
    """A SKIP of a multi-partition call that some partitions do not hold yet."""

    everywhere: tuple[int, ...]  # index of the call in each partition
    missing: Sequence[int]  # partitions, ascending


class MultiCallGate:
    """Under the driver's lock."""

    def __init__(self, terms: Mapping[int, TermTable]) -> None:
        """`terms`: those of every partition, up to the entry that its state has reached."""
        self.terms = dict(terms)
        self._begun = {partition: table.last for partition, table in terms.items()}
        self._waiting: dict[int, deque[tuple[int, bytes, CallPlaces]]] = {}  # by partition; none of them is empty
        self._skipped: dict[tuple[int, ...], set[int]] = {}  # index of a call in each partition -> those whose SKIP was met

    def add(self, partition: int, entries: Iterable[tuple[int, bytes]]) -> tuple[Released, LeftOut]:
        """The partition's next committed entries (index, record). What may be run now, on any partition, and the calls that are
        not run, which a site must know first."""
        left_out: LeftOut = []
        table, queue = self.terms[partition], self._waiting.get(partition) or deque()
        for index, data in entries:
            (kind, _, term, _), places = place_of(data), CallPlaces()
            if index > table.last:  # what is committed does not change
                table.add(index, term)
            if kind == _SKIP:
                left_out += self._note_skip(partition, Skip.from_record(decode_record(data)))
            elif kind == _BATCH and catalog_and_places(data)[1]:
                places = places_of(peek_record(data))
            queue.append((index, data, places))
        if queue:
            self._waiting[partition] = queue
        return self._release(left_out), left_out

    def half_skips(self) -> list[HalfSkip]:
        """What the leader before has not finished."""
        return [
            HalfSkip(everywhere, [partition for partition in sorted(self.terms) if partition not in known])
            for everywhere, known in sorted(self._skipped.items())
        ]

    @property
    def waits(self) -> bool:
        """Whether anything committed may not be run yet."""
        return bool(self._waiting)

    def _note_skip(self, partition: int, skip: Skip) -> LeftOut:
        if not skip.everywhere:
            return [(partition, skip.batch, skip.position)]
        known = self._skipped.setdefault(skip.everywhere, set())
        known.add(partition)
        if len(known) == len(self.terms):
            del self._skipped[skip.everywhere]
        return [(each, index, skip.position) for each, index in enumerate(skip.everywhere)]

    def _release(self, left_out: LeftOut) -> Released:
        released: Released = []
        for partition in sorted(self._waiting):
            queue = self._waiting[partition]
            run = list[tuple[int, bytes]]()
            while queue:
                index, data, places = queue[0]
                held = not places or index <= self._begun[partition]  # by the state, which has passed it
                verdict = CallVerdict.IN if held else judge_call(places, self.terms)
                if verdict not in (CallVerdict.IN, CallVerdict.OUT):
                    break
                if verdict is CallVerdict.OUT:
                    left_out.append((partition, index, VOID))
                queue.popleft()
                run.append((index, data))
            if run:
                released.append((partition, run))
            if not queue:
                del self._waiting[partition]
        return released


class CodeGate:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._newest = 0  # version up to which all are known
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}  # by partition; none of them is empty

    def add(self, partition: int, entries: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """The partition's next entries (index, record); those of them whose code is known."""
        passed, waiting = list[tuple[int, bytes]](), self._waiting.get(partition) or deque()
        for entry in entries:
            if waiting or self._lacks(entry[1]):
                waiting.append(entry)
            else:
                passed.append(entry)
        if waiting:
            self._waiting[partition] = waiting
        return passed

    def learn(self, version: int) -> dict[int, list[tuple[int, bytes]]]:
        """One more version is known. What may be run now, by partition."""
        if version <= self._newest:
            return {}
        self._newest, released = version, dict[int, list[tuple[int, bytes]]]()
        for partition, waiting in list(self._waiting.items()):
            del self._waiting[partition]
            released[partition] = self.add(partition, waiting)
        return released

    @property
    def waits(self) -> bool:
        """Whether any entry waits for its code."""
        return bool(self._waiting)

    def _lacks(self, record: bytes) -> bool:
        kind = record[KIND_OFFSET]
        if kind == RecordKind.BATCH:
            return catalog_and_places(record)[0] > self._newest
        return kind == RecordKind.SCHEMA and int(peek_record(record).json().get("catalog", 0)) > self._newest
