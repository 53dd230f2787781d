"""The reading side of a merge: cursors over logs, and the lanes (one per partition) that they fill.

One rule: a lane's entries come in once each, in index order, void ones never; what is held is counted to the byte. Whose turn it
is to read, and what may be released, is decided in `replay.history.merge`.

A log has one cursor that serves all of its lanes. A lane that lags may leave it for a cursor of its own, which reads ahead for
that lane alone. The first one passes over what was taken, and has the lane back when it reaches the position of the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, dropwhile
from typing import Final, Protocol

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.format.batch import CALLS_MAX, batch_span, decode_batch
from cmdlog.wal.format.control_record import schema_txn
from cmdlog.wal.format.record import BadRecord, Record, RecordKind, decode_commit_mark
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.reader import Recycled
from replay.errors import LogMovedOn, StreamDamaged
from replay.history.chunks import TICK, Gathered, column_of
from replay.log.log_fold import Place
from replay.log.split_calls import PartitionSpan

_BATCH: Final = RecordKind.BATCH
OPEN_END: Final = (1 << 63) - 1  # above every TxnId
HELD_OVERHEAD_BYTES: Final = 400  # of a held record, beside its bytes: the objects around them


class Readable(Protocol):
    """A log that can be read from a block on, as often as needed: `replay.log.source.LogSource` is one."""

    def read(self, *, from_block: int, upto_block: int | None = None) -> Iterator[tuple[Lsn, Record]]: ...


@dataclass(frozen=True, slots=True)
class ChosenLog:
    """One node's log. Reading begins at `from_block`, the first block of a segment before all that is wanted."""

    name: str  # the directory, for messages
    source: Readable
    from_block: int


@dataclass(frozen=True, slots=True)
class MergeStream:
    """A partition's entries in (after, upto] of the log with that number; the rest comes from a first pass over it."""

    partition: int
    log: int
    after: int
    upto: int
    skips: Mapping[int, Collection[int]] = field(default_factory=dict)  # index -> positions that are not run
    voids: Sequence[Place] = ()  # ascending: entries from the index on that come before the place are void
    untrue: Sequence[Place] = ()  # ascending: what marks before the place say is closed, is so up to the TxnId at most
    upto_calls: int = -1  # of the last entry's calls that count, -1 = all
    line: PartitionSpan = field(default_factory=PartitionSpan, compare=False)  # multi-partition calls in it


Held = tuple[Record, int, int, int, int]  # a batch that waits: its first and last TxnId, calls that count, bytes


class Lowest:
    """The lowest of the numbers at later places of a log."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = [Lsn(BlockNumber(block), offset) for block, offset, _ in places]
        self._lowest = list(accumulate((number for _, _, number in reversed(places)), min))[::-1]

    def next_after(self, lsn: Lsn) -> int:
        """OPEN_END when there is none."""
        at = bisect_right(self._places, lsn)
        return self._lowest[at] if at < len(self._lowest) else OPEN_END


class MergeLane:
    """One partition's stream while it is merged. Invariant: `held` and `controls` ascend, and hold nothing that was released."""

    __slots__ = (
        "_after", "_head_first", "_last_txn", "_low", "_untrue", "_upto", "_voids",
        "closed_txn", "controls", "ended", "held", "held_bytes", "next_index", "stream",
    )  # fmt: skip

    def __init__(self, stream: MergeStream) -> None:
        self.stream = stream
        self.held: deque[Held] = deque()
        self.controls: deque[tuple[int, Record, int]] = deque()  # (TxnId that it comes after, record, bytes)
        self._low = self._head_first = 0  # of the first held batch, calls that have been given out, and TxnId of the next one
        self.held_bytes = 0
        self._after, self._upto = stream.after, stream.upto
        self.next_index = stream.after + 1
        self.closed_txn = 0  # no later entry has a TxnId up to here
        self._last_txn = 0  # of the entries so far
        self.ended = stream.upto <= stream.after
        self._voids = Lowest(stream.voids) if stream.voids else None
        self._untrue = Lowest(stream.untrue) if stream.untrue else None

    @property
    def first_call_txn(self) -> int:
        """First TxnId of what is held; above every TxnId when nothing is."""
        if not self.held:
            return OPEN_END + 1
        return self._head_first if self._low else self.held[0][1]

    @property
    def first_txn(self) -> int:
        """The same, entries without calls included."""
        return min(self.first_call_txn, self.controls[0][0]) if self.controls else self.first_call_txn

    def add_record(self, lsn: Lsn, record: Record, *, with_controls: bool) -> None:
        """Takes the next record of the partition.

        Raises: BadRecord when it is not the entry that must come next, or not what its kind says.
        """
        kind, index = record.kind, record.index
        if kind >= 16:
            self._note_control(lsn, record)
            return
        if index > self._upto or (self._voids is not None and index >= self._voids.next_after(lsn)):
            return
        wanted = index > self._after
        if wanted and index != self.next_index:
            raise BadRecord(f"entry {index} where {self.next_index} is expected")
        if kind is _BATCH:
            first, last, count = batch_span(record)
            if not self._last_txn < first <= last <= OPEN_END:
                raise BadRecord(f"entry {index} has transactions {first} to {last}, which are not after {self._last_txn}")
            self._last_txn = last
            self.closed_txn = max(self.closed_txn, last)
            if wanted:
                if index == self._upto and self.stream.upto_calls >= 0:
                    count = min(count, self.stream.upto_calls)
                    last = decode_batch(record).txn_ids[count - 1]
                if count:
                    size = len(record.raw) + HELD_OVERHEAD_BYTES
                    self.held.append((record, first, last, count, size))
                    self.held_bytes += size
        else:
            self._control(record, hold=wanted and with_controls)
        if wanted:
            self.next_index = index + 1
            self.ended = index == self._upto

    def _note_control(self, lsn: Lsn, record: Record) -> None:
        if record.kind is RecordKind.COMMIT_MARK:
            closed = decode_commit_mark(record)
        elif record.kind is RecordKind.CHECKPOINT:
            closed = GroupState.from_checkpoint(record).closed_txn
        else:
            return
        if self._untrue is not None:
            closed = min(closed, self._untrue.next_after(lsn))
        self.closed_txn = max(self.closed_txn, closed)

    def _control(self, record: Record, *, hold: bool) -> None:
        if record.kind is RecordKind.SCHEMA:
            self._last_txn = max(self._last_txn, schema_txn(record))
            self.closed_txn = max(self.closed_txn, self._last_txn)
        if hold:
            size = len(record.raw) + HELD_OVERHEAD_BYTES
            self.controls.append((self._last_txn, record, size))
            self.held_bytes += size

    def release(self, bound: int, into: Gathered) -> None:
        """Releases what has a TxnId up to `bound`. Raises: BadBatch."""
        held, number = self.held, len(into.records)
        while held and held[0][2] <= bound:
            record, _, _, count, size = held.popleft()
            self.held_bytes -= size
            into.records.append(record)
            if self._low or record.index == self.stream.upto:
                into.parts.append((len(into.records) - 1, self._low, count))
                self._low = 0
        if held and self.first_call_txn <= bound:
            low, high = self._cut(held[0], bound)
            into.records.append(held[0][0])
            into.parts.append((len(into.records) - 1, low, high))
        if self.stream.skips:
            self._leave_out(number, into)
        while self.controls and self.controls[0][0] <= bound:
            behind, record, size = self.controls.popleft()
            into.controls.append((behind, record))
            self.held_bytes -= size

    def _cut(self, head: Held, bound: int) -> tuple[int, int]:
        """The calls of the first held batch that have a TxnId up to `bound`; the rest stays held."""
        record, first, _, _, _ = head
        low, column = self._low, column_of(record)
        self._low = (bound - first) // TICK + 1 if column is None else int(column.searchsorted(bound, side="right"))
        self._head_first = first + self._low * TICK if column is None else int(column[self._low])
        return low, self._low

    def _leave_out(self, number: int, into: Gathered) -> None:
        """Notes the calls that are not run, of the batches from that number on."""
        parts = {at: (low, high) for at, low, high in into.parts}
        for at in range(number, len(into.records)):
            low, high = parts.get(at, (0, CALLS_MAX))
            into.gone += [(at, position) for position in self.skipped(into.records[at].index) if low <= position < high]

    def skipped(self, index: int) -> Collection[int]:
        return self.stream.skips.get(index, ())


class Cursor:
    """Reads one log for some lanes. Invariant: it is never before a lane's own last record."""

    def __init__(self, log: ChosenLog, lanes: Mapping[int, MergeLane], after: Lsn | None, *, with_controls: bool) -> None:
        self.log, self.lanes = log, dict(lanes)
        self.position = Lsn(after.block, after.offset) if after else None  # of the last record that was taken
        self.guests: dict[int, Cursor] = {}  # partition -> the cursor that reads ahead for it
        self._with_controls = with_controls
        self._source = log.source.read(from_block=log.from_block if after is None else int(after.block))
        self._records = self._source if after is None else dropwhile(lambda found: found[0] <= after, self._source)
        self._next: tuple[Lsn, Record] | None = None

    @property
    def open_lanes(self) -> list[MergeLane]:
        return [lane for lane in self.lanes.values() if not lane.ended]

    @property
    def held_bytes(self) -> int:
        return sum(lane.held_bytes for lane in self.lanes.values())

    def read(self, *, bytes_max: int, at_least_one: bool) -> bool:
        """Takes records until its lanes have ended or got that many bytes; whether it could take any.

        `at_least_one`: the first entry is taken whatever its size. Raises: StreamDamaged.
        """
        try:
            return self._read(bytes_max, self.open_lanes, at_least_one=at_least_one)
        except (BadRecord, WalError) as cause:
            raise self._damage(cause) from cause

    def _read(self, bytes_max: int, open_lanes: list[MergeLane], *, at_least_one: bool) -> bool:
        """As `read`. Once per record: names are local for that."""
        lanes, guests, records, with_controls = self.lanes, self.guests, self._records, self._with_controls
        found, taken, open_count, lsn = self._next, 0, len(open_lanes), self.position
        try:
            while open_count and (taken < bytes_max or (at_least_one and not taken)):
                if found is None:
                    found = next(records, None)
                    if found is None:
                        raise BadRecord("the log ends")
                if guests:
                    open_count += self._take_back(found[0])
                record = found[1]
                lane = lanes.get(record.partition)
                if lane is not None and not lane.ended:
                    size = len(record.raw) + HELD_OVERHEAD_BYTES
                    if taken + size > bytes_max and (taken or not at_least_one):
                        break
                    lane.add_record(found[0], record, with_controls=with_controls)
                    taken += size
                    if lane.ended:
                        open_count -= 1
                lsn, found = found[0], None
        finally:
            moved, self._next, self.position = lsn != self.position, found, lsn
        return moved

    def split(self, lane: MergeLane) -> Cursor:
        """A cursor of its own for that lane, from here on."""
        partition = lane.stream.partition
        del self.lanes[partition]
        cursor = self.guests[partition] = Cursor(self.log, {partition: lane}, self.position, with_controls=self._with_controls)
        return cursor

    def _take_back(self, lsn: Lsn) -> int:
        """Lanes whose own cursor is before `lsn` are served here again; how many of them are open."""
        back = [p for p, guest in self.guests.items() if guest.position is None or guest.position < lsn]
        count = 0
        for partition in back:
            guest = self.guests.pop(partition)
            guest.close()
            self.lanes[partition] = guest.lanes[partition]
            count += not self.lanes[partition].ended
        return count

    def close(self) -> None:
        """Closes the files."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        for guest in self.guests.values():
            guest.close()

    def _damage(self, cause: BadRecord | WalError) -> StreamDamaged:
        where = f" after block {self.position.block}, offset {self.position.offset}" if self.position else ""
        what = (str(cause) if isinstance(cause, Recycled) else full_text(cause)) + ("" if isinstance(cause, Corrupt) else where)
        waiting = {lane.stream.partition: (lane.next_index, lane.stream.upto) for lane in self.open_lanes}
        kind = LogMovedOn if isinstance(cause, Recycled) else StreamDamaged
        return kind(self.log.name, waiting, what, held_bytes=self.held_bytes)
