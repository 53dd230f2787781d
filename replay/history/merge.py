"""Several logs into one order: the invocations of many partitions by TxnId, each once, in bounded memory.

One rule: nothing is released before every open stream has closed the TxnIds up to it, and then it waits for nothing else.

A log interleaves the streams of several partitions, and is not sorted. Within a stream TxnIds ascend, so a stream has closed
what its own last entry, a commit mark or a checkpoint states; the lowest of these over all open streams is the *bound*. The
stream at the bound is the one that is read next, from whichever log serves it, and what is met on the way is held. Once
everything up to the bound is out, that stream holds nothing: so it may always take one more entry, and the merge can always
advance.

The window is shared out: half of it to the cursors of the logs, half to streams that lag. Where a log's cursor has its share
full and still has not met the lagging stream (a follower that caught up late wrote 100 MB of one partition before the next)
that stream gets a cursor of its own. So the held bytes never exceed the window, as long as no entry is larger than its stream's
part of the second half; a larger one is held anyway, at most one of each stream.

Superseded entries and skipped calls are known before the pass: from the plan of a recovery, or from a first look
(`streams_of`). `replay.log.scan` explains why that also decides what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Final

from cmdlog.wal.format.record import BadRecord, Record
from replay.errors import StreamDamaged
from replay.history.cursors import ChosenLog, LogCursor
from replay.history.merge_stream import Invocation, MergeLane, MergeStream
from replay.log.log_fold import OPEN_END
from replay.log.scan import scan

MERGE_WINDOW_BYTES_MAX: Final = 64 << 20  # default: what a node closes late by some seconds fits, at 20 MB/s of log
GULP_BYTES_MAX: Final = 2 << 20  # read between two looks at the bound: some hundred batches share the cost of a sort
PIECE_BYTES_MAX: Final = 4 << 20  # of batches that are decoded and sorted together


class Merge:
    """One pass. `held_bytes_max` and `cursors_opened` report afterwards what it took."""

    def __init__(
        self,
        logs: Sequence[ChosenLog],
        streams: Sequence[MergeStream],
        *,
        window_bytes_max: int = MERGE_WINDOW_BYTES_MAX,
    ) -> None:
        """A partition is served by one log. Raises: ValueError when two streams name the same."""
        self._lanes = [MergeLane(stream) for stream in sorted(streams, key=lambda stream: stream.partition)]
        if len({stream.partition for stream in streams}) != len(streams):
            raise ValueError("a partition is merged from one log at a time")
        self._cursors: list[LogCursor] = []
        for number, log in enumerate(logs):
            mine = {lane.stream.partition: lane for lane in self._lanes if lane.stream.log == number}
            self._cursors.append(LogCursor(log, mine, None))
        self._log_share = window_bytes_max // 2 // max(1, len(logs))
        self._lane_share = window_bytes_max // 2 // max(1, len(streams))
        self._bound = 0  # everything up to here has been given out
        self.held_bytes_max = 0
        self.cursors_opened = len(self._cursors)

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
            for cursor in self._cursors:
                cursor.close()

    def _advance(self, lane: MergeLane) -> StreamDamaged | None:
        """Reads for the lane that holds up the others; the damage, if that is what was met."""
        main = self._cursors[lane.stream.log]
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
        return StreamDamaged(self._cursors[stream.log].log.name, place, what, held_bytes=held_bytes)


def streams_of(logs: Sequence[ChosenLog], wanted: Mapping[int, tuple[int, int, int]]) -> list[MergeStream]:
    """Streams with what a first look over the logs finds: partition -> (number of the log, after, upto).

    Raises: Corrupt, Recycled, BadRecord.
    """
    streams: list[MergeStream] = []
    for number, log in enumerate(logs):
        mine = {partition: at for partition, at in wanted.items() if at[0] == number}
        indexes = {partition: after for partition, (_, after, _) in mine.items()}
        found = scan(log.source, indexes, {}, from_block=log.from_block).streams if mine else {}
        streams += [MergeStream.of(found[p], p, upto, log=number) for p, (_, _, upto) in mine.items()]
    return streams


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
