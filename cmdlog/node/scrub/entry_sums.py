"""Sums of the log's entries: one number per group and range of indexes, equal on every disk that holds the same entries.

One rule: a range has a sum when all of its entries were read, in order, as they are in force. An entry is in the sum by index,
term and the checksum of its record, which a follower keeps as the leader made it; blocks and offsets differ from node to node and
do not count. A log also holds entries that a later leader replaced: what is read again replaces what was read before.

Ranges are aligned, so that two nodes whose logs begin elsewhere have the same ones. The last two of each group are kept entry by
entry, because entries are replaced only near the end of a log; what reaches further back takes the sums of those ranges away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import google_crc32c

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.block import aligned
from cmdlog.wal.format.record import RECORD, RecordKind
from cmdlog.wal.reader import ReadBlock

RANGE_ENTRIES: Final = 1024  # a sum is 4 bytes: 1 M entries have 1,000 of them
ENTRIES_BELOW: Final = 16  # kinds of records: those from there on are notes of one node
_TRUNCATION: Final = int(RecordKind.TRUNCATION)
_ENTRY: Final = Struct("<QQI")  # index, term, checksum of the record

RangeSums = Mapping[int, int]  # number of the range -> its sum


def range_end(number: int) -> int:
    """The last index of the range; its first one is `number * RANGE_ENTRIES`, and 1 of the range 0."""
    return (number + 1) * RANGE_ENTRIES - 1


@dataclass(slots=True)
class _Run:
    """Consecutive entries of a group, the newest that were read."""

    first: int  # index of entries[0]
    entries: list[bytes] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.first + len(self.entries)

    def add_entry(self, index: int, entry: bytes) -> None:
        """After a gap the run begins with it."""
        if index != self.next:
            self.first, self.entries = index, []
        self.entries.append(entry)

    def cut_from(self, index: int) -> None:
        """The entries from `index` on are not in force."""
        self.first = min(self.first, index)
        del self.entries[max(0, index - self.first) :]

    def forget_before(self, index: int) -> None:
        """Entries before that index are needed no more."""
        if self.first < index:
            del self.entries[: index - self.first]
            self.first = index


class EntrySums:
    """The sums of one reading of the log, from its begin to its end."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}  # by group
        self._sums: dict[int, dict[int, int]] = {}
        self._changed: dict[tuple[int, int], int | None] = {}

    def observe_block(self, block: ReadBlock) -> None:
        """The next block of the log, whose checksum was compared. Raises: Corrupt, of a block that no log has written."""
        body, at = block.body, 0
        while at < len(body):
            fields = RECORD.unpack_from(body, at) if at + RECORD.bytes <= len(body) else (0,) * 8
            length, kind, _, group, term, index, crc, _ = fields
            if length < RECORD.bytes:
                what = f"block with good checksums but a bad record at offset {at} of its body"
                raise Corrupt(what, path=block.path, offset=block.offset, block=block.header.number)
            if kind < ENTRIES_BELOW:
                self._add(group, index, _ENTRY.pack(index, term, crc))
            elif kind == _TRUNCATION:
                self._cut(group, index)
            at += aligned(length)

    def take_changes(self) -> list[tuple[int, int, int | None]]:
        """What came and went since the last call: group, range, its sum; None: it has none any more."""
        changed, self._changed = self._changed, {}
        return [(group, number, found) for (group, number), found in sorted(changed.items())]

    def _add(self, group: int, index: int, entry: bytes) -> None:
        run = self._runs.get(group)
        if run is None:
            run = self._runs[group] = _Run(index)
        if index < run.next:
            self._cut(group, index)
        run.add_entry(index, entry)
        if index == range_end(index // RANGE_ENTRIES):
            self._close(group, index // RANGE_ENTRIES, run)

    def _cut(self, group: int, index: int) -> None:
        """The entries from `index` on are not in force."""
        if (run := self._runs.get(group)) is not None:
            run.cut_from(index)
        sums = self._sums.get(group, {})
        for number in [number for number in sums if number >= index // RANGE_ENTRIES]:
            del sums[number]
            self._changed[group, number] = None

    def _close(self, group: int, number: int, run: _Run) -> None:
        begin, kept = max(1, number * RANGE_ENTRIES), max(1, (number - 1) * RANGE_ENTRIES)
        if run.first > begin:
            return
        found = int(google_crc32c.value(b"".join(run.entries[begin - run.first :])))
        self._sums.setdefault(group, {})[number] = self._changed[group, number] = found
        run.forget_before(kept)
