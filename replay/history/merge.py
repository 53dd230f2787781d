"""One log in order: the invocations of its partitions by TxnId, each once, in bounded memory. A heap joins several logs.

One rule: nothing is released before every open stream has closed the TxnIds up to it, and then it waits for nothing else.

A log interleaves the streams of several partitions, and is not sorted. Within a stream TxnIds ascend, so a stream has closed
what its own last entry, a commit mark or a checkpoint states; the lowest of these over all open streams is the *bound*. The
stream at the bound is the one that is read next, and what is met on the way is held. Once
everything up to the bound is out, that stream holds nothing: so it may always take one more entry, and the merge can always
advance.

The window is shared out: half of it to the cursor of the log, half to streams that lag. Where the log's cursor has its share
full and still has not met the lagging stream (a follower that caught up late wrote 100 MB of one partition before the next)
that stream gets a cursor of its own. So the held bytes never exceed the window, as long as no entry is larger than its stream's
part of the second half; a larger one is held anyway, at most one of each stream.

A log has one cursor that serves all of its lanes. A lane that lags may leave it for a cursor of its own, which reads ahead for
that lane alone. The first one passes over what was taken, and has the lane back when it reaches the position of the other.

Superseded entries and skipped calls are known before the pass: from the plan of a recovery, or from a first look
(`streams_of`). `replay.log.scan` explains why that also decides what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from operator import attrgetter, itemgetter
from typing import Final

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.format.record import BadRecord, Record
from cmdlog.wal.ids import Lsn
from cmdlog.wal.reader import Recycled
from replay.errors import LogMovedOn, StreamDamaged
from replay.history.merge_stream import HELD_OVERHEAD_BYTES, Invocation, MergeLane, MergeStream
from replay.log.log_fold import OPEN_END
from replay.log.scan import scan
from replay.log.source import LogSource

MERGE_WINDOW_BYTES_MAX: Final = 64 << 20  # default: what a node closes late by some seconds fits, at 20 MB/s of log
GULP_BYTES_MAX: Final = 2 << 20  # read between two looks at the bound: some hundred batches share the cost of a sort
PIECE_BYTES_MAX: Final = 4 << 20  # of batches that are decoded and sorted together


class Merge:
    """One pass. `held_bytes_max` and `cursors_opened` report afterwards what it took."""

    def __init__(
        self,
        source: LogSource,
        streams: Sequence[MergeStream],
        *,
        from_block: int,
        window_bytes_max: int = MERGE_WINDOW_BYTES_MAX,
    ) -> None:
        """`from_block`: the first one of a segment before all that is wanted."""
        self._lanes = [MergeLane(stream) for stream in sorted(streams, key=attrgetter("partition"))]
        self._cursor = LogCursor(source, from_block, {lane.stream.partition: lane for lane in self._lanes})
        self._log_share = window_bytes_max // 2
        self._lane_share = window_bytes_max // 2 // max(1, len(streams))
        self._bound = 0  # everything up to here has been given out
        self.held_bytes_max = 0
        self.cursors_opened = 1

    def invocations(self) -> Iterator[Invocation]:
        """The merged calls, parsed. Everything complete before a damaged place comes out before the error.

        Raises: StreamDamaged.
        """
        try:
            while waiting := [lane for lane in self._lanes if not lane.ended]:
                damage = self._advance(min(waiting, key=attrgetter("closed_txn")))
                yield from self._give_out()
                if damage is not None:
                    raise damage
            yield from self._give_out()
        finally:
            self._cursor.close()

    def _advance(self, lane: MergeLane) -> StreamDamaged | None:
        """Reads for the lane that holds up the others; the damage, if that is what was met."""
        main = self._cursor
        partition = lane.stream.partition
        cursor = main if partition in main.lanes else main.guests[partition]
        try:
            if cursor is main and len(main.open_lanes) > 1:
                room = min(GULP_BYTES_MAX, self._log_share - main.held_bytes)
                if not main.read(bytes_max=room, at_least_one=False):
                    cursor = main.split(lane)
                    self.cursors_opened += 1
                    self._read_alone(cursor)
            else:
                self._read_alone(cursor)
        except StreamDamaged as damage:
            return damage
        finally:
            self.held_bytes_max = max(self.held_bytes_max, sum(of.held_bytes for of in self._lanes))
        return None

    def _read_alone(self, cursor: LogCursor) -> None:
        cursor.read(bytes_max=min(GULP_BYTES_MAX, self._lane_share), at_least_one=True)

    def _give_out(self) -> Iterator[Invocation]:
        bound = min((lane.closed_txn for lane in self._lanes if not lane.ended), default=OPEN_END)
        self._check(bound)
        while any(lane.first_txn <= bound for lane in self._lanes):
            upto, calls = _bound_of_piece(self._lanes, bound), list[Invocation]()
            for lane in self._lanes:
                try:
                    calls += lane.give_out(upto)
                except BadRecord as bad:
                    record = lane.held[0][0]
                    raise self._damage(record, f"entry {record.index}: {bad}") from bad
            calls.sort(key=itemgetter(0))  # stable: the parts of one call that enters several partitions share its TxnId
            yield from calls
        self._bound = bound

    def _check(self, bound: int) -> None:
        """A stream that continues at or below what it had closed and what was released no longer fits into any order."""
        for lane in self._lanes:
            if lane.held and lane.first_txn <= self._bound:
                record, first, *_ = lane.held[0]
                what = f"entry {record.index} begins at transaction {first}, but those up to {self._bound} were closed"
                raise self._damage(record, what)

    def _damage(self, record: Record, what: str) -> StreamDamaged:
        """What is wrong with an entry that was read."""
        stream = next(lane.stream for lane in self._lanes if lane.stream.partition == record.partition)
        place = {stream.partition: (int(record.index), stream.upto)}
        held_bytes = sum(lane.held_bytes for lane in self._lanes)
        return StreamDamaged(self._cursor.source.directory, place, what, held_bytes=held_bytes)


def streams_of(source: LogSource, from_block: int, wanted: Mapping[int, tuple[int, int]]) -> list[MergeStream]:
    """Streams with what a first look over the log finds: partition -> (after, upto).

    Raises: Corrupt, Recycled, BadRecord.
    """
    found = scan(source, {partition: after for partition, (after, _) in wanted.items()}, {}, from_block=from_block).streams
    return [MergeStream.of(found[partition], partition, upto) for partition, (_, upto) in wanted.items()]


def _bound_of_piece(lanes: Sequence[MergeLane], bound: int) -> int:
    """The highest TxnId up to which what is decoded together stays within its size, at least one batch of some lane."""
    share = PIECE_BYTES_MAX // max(1, sum(lane.first_txn <= bound for lane in lanes))
    for lane in lanes:
        size = 0
        for _, first, last, held_bytes in lane.held:
            if first > bound:
                break
            size += held_bytes
            if size >= share:
                bound = min(bound, last)
                break
    return bound


class LogCursor:
    """Reads one log for some lanes. Invariant: it is never before a lane's own last record."""

    def __init__(self, source: LogSource, from_block: int, lanes: Mapping[int, MergeLane], after: Lsn | None = None) -> None:
        self.source, self.lanes, self._from_block = source, dict(lanes), from_block
        self.position = Lsn(after.block, after.offset) if after else None  # of the last record that was taken
        self.guests: dict[int, LogCursor] = {}  # partition -> the cursor that reads ahead for it
        self._read_from = source.read(from_block=from_block if after is None else int(after.block))
        self._records = self._read_from if after is None else dropwhile(lambda found: found[0] <= after, self._read_from)
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
        lanes, guests, records = self.lanes, self.guests, self._records
        found, taken, open_count, lsn, returned = self._next, 0, len(open_lanes), self.position, False
        try:
            # A record is of a lane that is read here, of one that reads ahead for itself, or of none.
            while open_count and (taken < bytes_max or (at_least_one and not taken)):
                if found is None:
                    found = next(records, None)
                    if found is None:
                        raise BadRecord("the log ends")
                if guests and self._take_back(found[0]):
                    returned = True  # what was read is not of the lane that was asked for: whose turn it is has changed
                    break
                record = found[1]
                lane = lanes.get(record.partition)
                if lane is not None and not lane.ended:
                    size = len(record.raw) + HELD_OVERHEAD_BYTES
                    if taken + size > bytes_max and (taken or not at_least_one):
                        break
                    lane.add_record(found[0], record)
                    taken += size
                    if lane.ended:
                        open_count -= 1
                lsn, found = found[0], None
        finally:
            moved, self._next, self.position = lsn != self.position, found, lsn
        return moved or returned

    def split(self, lane: MergeLane) -> LogCursor:
        """A cursor of its own for that lane, from here on."""
        partition = lane.stream.partition
        del self.lanes[partition]
        cursor = self.guests[partition] = LogCursor(self.source, self._from_block, {partition: lane}, self.position)
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
        close = getattr(self._read_from, "close", None)
        if close is not None:
            close()
        for guest in self.guests.values():
            guest.close()

    def _damage(self, cause: BadRecord | WalError) -> StreamDamaged:
        where = f" after block {self.position.block}, offset {self.position.offset}" if self.position else ""
        what = (str(cause) if isinstance(cause, Recycled) else full_text(cause)) + ("" if isinstance(cause, Corrupt) else where)
        waiting = {lane.stream.partition: (lane.next_index, lane.stream.upto) for lane in self.open_lanes}
        kind = LogMovedOn if isinstance(cause, Recycled) else StreamDamaged
        return kind(self.source.directory, waiting, what, held_bytes=self.held_bytes)
