"""The reading side of a merge: cursors over logs, which fill the lanes of their partitions (`replay.history.merge_stream`).

One rule: whose turn it is to read, and what may be given out, is decided in `replay.history.merge`.

A log has one cursor that serves all of its lanes. A lane that lags may leave it for a cursor of its own, which reads ahead for
that lane alone. The first one passes over what was taken, and has the lane back when it reaches the position of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.format.record import BadRecord, Record
from cmdlog.wal.ids import Lsn
from cmdlog.wal.reader import Recycled
from replay.errors import LogMovedOn, StreamDamaged
from replay.history.merge_stream import HELD_OVERHEAD_BYTES, MergeLane
from replay.log.source import LogSource


@dataclass(frozen=True, slots=True)
class ChosenLog:
    """One node's log. Reading begins at `from_block`, the first block of a segment before all that is wanted."""

    name: str  # the directory, for messages
    source: LogSource
    from_block: int


class LogCursor:
    """Reads one log for some lanes. Invariant: it is never before a lane's own last record."""

    def __init__(self, log: ChosenLog, lanes: Mapping[int, MergeLane], after: Lsn | None) -> None:
        self.log, self.lanes = log, dict(lanes)
        self.position = Lsn(after.block, after.offset) if after else None  # of the last record that was taken
        self.guests: dict[int, LogCursor] = {}  # partition -> the cursor that reads ahead for it
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
        lanes, guests, records = self.lanes, self.guests, self._records
        found, taken, open_count, lsn = self._next, 0, len(open_lanes), self.position
        try:
            # A record is of a lane that is read here, of one that reads ahead for itself, or of none.
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
                    lane.add_record(found[0], record)
                    taken += size
                    if lane.ended:
                        open_count -= 1
                lsn, found = found[0], None
        finally:
            moved, self._next, self.position = lsn != self.position, found, lsn
        return moved

    def split(self, lane: MergeLane) -> LogCursor:
        """A cursor of its own for that lane, from here on."""
        partition = lane.stream.partition
        del self.lanes[partition]
        cursor = self.guests[partition] = LogCursor(self.log, {partition: lane}, self.position)
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
