"""Which rows changed since a cut: the keys, per table, that a delta snapshot has to hold.

One rule: too many keys do no harm, one too few does. So keys are noted of everything that SQLite reported, also of what a failed
statement or a rolled-back call took back, and when anything happens that is not reported (other tables, too many keys) all is
forgotten: then there is no delta, but a whole image.

A *cut* is the position of a snapshot. Keys are gathered from cut to cut, one set per table, so that what changed since a cut is
the union of the intervals after it. On the path of a batch are one `set.update` per table, which takes the hashes that the row
digest has computed, and the freeing of a few keys that are no longer needed. A set that grows large is followed by another one:
measured, the step from 157,000 keys on takes 10 ms, the next one 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from procedures.storage.state import Position

CHANGED_KEYS_MAX: Final = 1 << 20  # of a partition: about 70 MB with keys of one integer
SET_KEYS_MAX: Final = 150_000  # of one set: it grows in steps of 5 ms at most
FREED_PER_BATCH: Final = 64  # keys; a busy site's batch touches about twice as many
SAMPLE_KEYS: Final = 512

Part = dict[str, set[Any]]  # table -> keys: a value, or a tuple of a composite key's
Rows = Mapping[Any, tuple[Any, ...] | None]  # key -> the row before the batch, None = there was none
Watch = Callable[[str, Rows], None]


@dataclass(slots=True)
class _Interval:
    begin: Position
    parts: list[Part] = field(default_factory=list)  # several after intervals were joined


def estimate_keys(parts: Iterable[Part]) -> int:
    """About how many different keys there are: the overlap of intervals is estimated from a sample."""
    counted: dict[str, list[set[Any]]] = {}
    total = 0.0
    for part in parts:
        for table, keys in part.items():
            earlier = counted.setdefault(table, [])
            sample = list(islice(keys, SAMPLE_KEYS))
            fresh = sum(not any(key in before for before in earlier) for key in sample)
            total += len(keys) * fresh / len(sample) if sample else 0
            earlier.append(keys)
    return round(total)


class Changes:
    """Changed keys of one partition. Owned by the site's thread.

    Attributes:
        watch: called right after each batch with the rows it touched and how they were before; None: no listener.
        schemas: how often the tables themselves have changed.
    """

    __slots__ = ("_full", "_intervals", "_keys", "_keys_max", "_part", "_waste", "schemas", "watch")

    def __init__(self, keys_max: int = CHANGED_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys = 0  # of all intervals
        self._intervals: list[_Interval] = []  # ascending, without gaps; none: nothing is gathered
        self._part: Part = {}  # the first of the last interval, which grows
        self._full: dict[str, list[set[Any]]] = {}  # the others of the last interval, by table: these do not
        self._waste: list[set[Any]] = []
        self.watch: Watch | None = None
        self.schemas = 0

    @property
    def gathering(self) -> bool:
        return bool(self._intervals)

    @property
    def keys(self) -> int:
        """Keys that are held; one in several intervals counts in each."""
        return self._keys

    def add_rows(self, table: str, rows: Rows) -> None:
        """A batch touched these rows of the table and is committed."""
        if self._waste:
            self._free_some()
        if self._intervals:
            keys = self._part.get(table)
            if keys is None:
                keys = self._part[table] = set()
            before = len(keys)
            keys.update(self._fresh(table, rows) if self._full else rows)
            self._keys += len(keys) - before
            if len(keys) >= SET_KEYS_MAX:
                self._follow(table, keys)
            if self._keys > self._keys_max:
                self.forget()
        if self.watch is not None:
            self.watch(table, rows)

    def cut(self, position: Position, *, keep: Collection[int]) -> None:
        """A new interval begins here. Of the earlier cuts those at the indexes in `keep` can still be asked for."""
        kept: list[_Interval] = []
        for interval in self._intervals:
            if interval.begin.index in keep and interval.begin.index < position.index:
                kept.append(interval)
            elif kept:
                kept[-1].parts += interval.parts
            else:
                self._drop(interval)
        self._part, self._full = {}, {}
        kept.append(_Interval(position, [self._part]))
        self._intervals = kept

    def since(self, cut: Position) -> list[Part] | None:
        """The keys that may have changed since the cut; None when that is not known. They are final after the next `cut`."""
        for at, interval in enumerate(self._intervals):
            if interval.begin == cut:
                return [part for later in self._intervals[at:] for part in later.parts]
        return None

    def forget(self) -> None:
        """Changes are not known any more; gathering begins again with the next cut."""
        for interval in self._intervals:
            self._drop(interval)
        self._intervals, self._part, self._full = [], {}, {}

    def schema_changed(self) -> None:
        """Rows may look different from now on."""
        self.schemas += 1
        self.forget()

    def _fresh(self, table: str, rows: Rows) -> Iterable[Any]:
        fresh = set(rows)  # sets remember the hashes: a step of Python per key and set took a twentieth of the site's time
        for keys in self._full.get(table, ()):
            fresh = fresh.difference(keys)
        return fresh

    def _follow(self, table: str, keys: set[Any]) -> None:
        self._full.setdefault(table, []).append(keys)
        self._intervals[-1].parts.append({table: keys})
        del self._part[table]

    def _drop(self, interval: _Interval) -> None:
        """Its keys are freed by and by. Not those that a delta under way still reads: it holds on to them as long."""
        for part in interval.parts:
            for keys in part.values():
                self._keys -= len(keys)
                if self.watch is None:
                    self._waste.append(keys)

    def _free_some(self) -> None:
        keys = self._waste[-1]
        for _ in range(min(FREED_PER_BATCH, len(keys))):
            keys.pop()
        if not keys:
            self._waste.pop()
