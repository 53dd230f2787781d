"""Which rows changed since a cut: the keys, per table, that a delta snapshot has to hold.

One rule: too many keys do no harm, one too few does. So keys are noted of everything that SQLite told, also of what a failed
statement or a rolled-back call took back, and when anything happens that is not told (other tables, too many keys) all is
forgotten: then there is no delta, but a whole image.

A *cut* is the position of a snapshot. Keys are gathered from cut to cut, so that what changed since a cut is the union of all
intervals behind it. An interval is a list of parts of bounded size: closing, joining and dropping intervals moves references, and
parts are freed one per batch. Nothing here takes time in proportion to the rows of the state, and only `note` is on the path of a
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .state import Position

CHANGED_KEYS_MAX: Final = 1 << 20  # of a partition: about 100 MB with keys of one integer; a key in two parts counts twice
PART_KEYS: Final = 1 << 14  # a set of that size grows, and is freed, within 1 ms

Part = dict[str, set[Any]]  # table -> keys: a value, or a tuple of a composite key's
Rows = Mapping[Any, tuple[Any, ...] | None]  # key -> the row before the batch, None = there was none
Watch = Callable[[str, Rows], None]


@dataclass(slots=True)
class _Interval:
    begin: Position
    parts: list[Part] = field(default_factory=list)


def count_keys(parts: Iterable[Part]) -> int:
    """One that is in several parts counts in each."""
    return sum(len(keys) for part in parts for keys in part.values())


class Changes:
    """Changed keys of one partition. Owned by the site's thread.

    Attributes:
        watch: told of each batch, right behind it, which rows it touched and how they were before; None = nobody listens.
        schemas: how often the tables themselves have changed.
    """

    __slots__ = ("_intervals", "_keys", "_keys_max", "_part", "_part_keys", "_waste", "schemas", "watch")

    def __init__(self, keys_max: int = CHANGED_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys = 0  # of all parts but the last
        self._intervals: list[_Interval] = []  # ascending, without gaps; none: nothing is gathered
        self._part: Part = {}  # the last of the last interval
        self._part_keys = 0
        self._waste: list[Part] = []
        self.watch: Watch | None = None
        self.schemas = 0

    @property
    def gathering(self) -> bool:
        return bool(self._intervals)

    @property
    def keys(self) -> int:
        """Keys that are held; one in several parts counts in each."""
        return self._keys + self._part_keys

    def note(self, table: str, rows: Rows) -> None:
        """A batch touched these rows of the table and is committed."""
        if self._waste:
            self._waste.pop()
        if self._intervals:
            keys = self._part.get(table)
            if keys is None:
                keys = self._part[table] = set()
            before = len(keys)
            keys.update(rows)
            self._part_keys += len(keys) - before
            if self._part_keys >= PART_KEYS:
                self._next_part()
        if self.watch is not None:
            self.watch(table, rows)

    def cut(self, position: Position, *, keep: Collection[int]) -> None:
        """A new interval begins here. Of the earlier cuts those at the indexes in `keep` can still be asked for."""
        if self._intervals:
            self._keys += self._part_keys
        kept: list[_Interval] = []
        for interval in self._intervals:
            if interval.begin.index in keep and interval.begin.index < position.index:
                kept.append(interval)
            elif kept:
                kept[-1].parts += interval.parts
            else:
                self._drop(interval.parts)
        kept.append(_Interval(position))
        self._intervals = kept
        self._begin_part()

    def since(self, cut: Position) -> list[Part] | None:
        """The keys that may have changed since the cut; None when that is not known. Not to be changed by the caller."""
        for at, interval in enumerate(self._intervals):
            if interval.begin == cut:
                return [part for later in self._intervals[at:] for part in later.parts]
        return None

    def forget(self) -> None:
        """Changes are not known any more; gathering begins again with the next cut."""
        for interval in self._intervals:
            self._drop(interval.parts)
        self._intervals = []
        self._part, self._keys, self._part_keys = {}, 0, 0

    def schema_changed(self) -> None:
        """Rows may look different from now on."""
        self.schemas += 1
        self.forget()

    def _next_part(self) -> None:
        self._keys += self._part_keys
        if self._keys >= self._keys_max:
            self.forget()
        else:
            self._begin_part()

    def _begin_part(self) -> None:
        self._part, self._part_keys = {}, 0
        self._intervals[-1].parts.append(self._part)

    def _drop(self, parts: list[Part]) -> None:
        self._keys -= count_keys(parts)
        self._waste += parts
