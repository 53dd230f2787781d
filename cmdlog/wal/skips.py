"""The calls that are not run with their batches because SKIPs in the log name them.

One rule: a skip is in force as long as its own entry is. It may lie anywhere after the batch that it concerns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from cmdlog.wal.format.control_record import Skip

VOID: Final = -1
"""In the place of a position: a change of leader took the batch out, a call on all partitions that some of them lack. It is
passed over as an entry without calls: a call that is skipped has an outcome, and one that is void has none."""

Skips = dict[int, tuple[int, ...]]
"""Index of a batch -> positions in it that are not run, ascending; (VOID,) of a batch that is passed over."""


def skip_call(skips: Skips, index: int, position: int) -> None:
    """One call more that is not run."""
    skips[index] = tuple(sorted({*skips.get(index, ()), position}))


def skips_by_partition(calls: Iterable[tuple[int, int, int]]) -> dict[int, Skips]:
    """Of calls as (partition, index, position)."""
    found: dict[int, Skips] = {}
    for partition, index, position in calls:
        skip_call(found.setdefault(partition, {}), index, position)
    return found


def united_skips(one: Mapping[int, Collection[int]], other: Mapping[int, Collection[int]]) -> Skips:
    """The calls that either skips."""
    return {index: tuple(sorted({*one.get(index, ()), *other.get(index, ())})) for index in sorted({*one, *other})}


class SkipSet:
    """The skips of one partition's stream, in the order of its log."""

    __slots__ = ("_skips",)

    def __init__(self, skips: Iterable[Skip] = ()) -> None:
        self._skips = list(skips)

    def __iter__(self) -> Iterator[Skip]:
        return iter(self._skips)

    def add(self, *skips: Skip) -> None:
        """Those that the log states next."""
        self._skips += skips

    def cut(self, index: int) -> None:
        """The entries from `index` on are void, and the skips among them."""
        if self._skips:
            self._skips = [skip for skip in self._skips if skip.at < index]

    def drop_batches(self, upto: int) -> None:
        """Batches up to that index are no longer at hand."""
        self._skips = [skip for skip in self._skips if skip.batch > upto]

    def by_batch(self, *, upto: int | None = None) -> Skips:
        """What is skipped, by batch. Only skips whose own entries are up to `upto` count."""
        found: dict[int, set[int]] = {}
        for skip in self._skips:
            if upto is None or skip.at <= upto:
                found.setdefault(skip.batch, set()).add(skip.position)
        return {index: tuple(sorted(positions)) for index, positions in sorted(found.items())}
