"""In which block of this node's log each entry of a group lies, as far as anybody may ask: what holds the log's oldest segment.

One rule: an entry that was replaced lies where its replacement does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from cmdlog.cluster.entry_records import is_entry, place_of


class EntryBlocks:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}  # group -> lowest index in each of `_blocks`, ascending
        self._blocks: dict[int, list[int]] = {}
        self._last: dict[int, int] = {}  # group -> its last entry

    def add_block(self, block: int, records: Iterable[bytes]) -> None:
        """A block with these records has its number."""
        for record in records:
            if is_entry(record):
                _, group, _, index = place_of(record)
                self.add(block, group, index)

    def add(self, block: int, group: int, index: int) -> None:
        """The group's entry lies there."""
        firsts, blocks = self._firsts.setdefault(group, []), self._blocks.setdefault(group, [])
        self._last[group] = index
        while firsts and firsts[-1] >= index:
            firsts.pop()
            blocks.pop()
        if not blocks or blocks[-1] != block:
            firsts.append(index)
            blocks.append(block)

    def block_of(self, group: int, index: int) -> int | None:
        """A block such that the entry, and all after it, lie there or later; None: it is not written yet."""
        firsts = self._firsts.get(group)
        if not firsts or index > self._last[group]:
            return None
        return self._blocks[group][max(0, bisect_right(firsts, index) - 1)]

    def forget(self, group: int, upto: int) -> None:
        """Nobody asks for entries up to that index any more."""
        firsts = self._firsts.get(group, [])
        if (at := bisect_right(firsts, upto) - 1) > 0:
            del firsts[:at], self._blocks[group][:at]
