"""Keys that a statement pins, judged where it runs: one that lives on another partition is refused, since it would find nothing.

A statement whose WHERE says `key = :x` sees the rows of this partition alone. With a key of another one it changes no row, counts
none, finds none, and says nothing. So each pinned value (`key_pins`) is judged before the statement runs: a constant when it is
prepared, a parameter at each execution. Values that belong here are remembered, so that costs one look into a set.

One rule: a call that met such a key fails, whether or not it catches that, as with a row that it writes where it does not belong.

Calls that run on all partitions are not judged: there each row is seen where it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import Integer

from procedures.declaration.row_placement import owner_reader
from procedures.errors import RowRefused
from procedures.statements.key_pins import KeyedTable, KeyPin, find_key_pins

if TYPE_CHECKING:
    from procedures.declaration.database import Database, TableInfo

KNOWN_MAX: Final = 1 << 16  # keys of a table that need not be hashed again
REMEMBERED: Final = (int, str, bytes)  # classes of keys; the `==` of others may be code of their own


def keyed_tables(tables: Mapping[str, TableInfo]) -> list[KeyedTable]:
    """What `find_key_pins` has to know of declared tables."""
    return [_keyed(info) for info in tables.values()]


def _keyed(info: TableInfo) -> KeyedTable:
    key, primary = info.partition_by, list(info.table.primary_key.columns)
    numbered = [column.name for column in primary] == [key] and isinstance(primary[0].type, Integer)
    return KeyedTable(info.table.name, tuple(info.table.columns.keys()), key, numbered)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedKeys:
    """The partition column of one table, on one partition."""

    judge: Callable[[Any], bool]  # a value as it is bound -> whether it may be looked for here
    refuse: Callable[[Any], NoReturn]  # raises RowRefused
    here: set[Any] = field(default_factory=set)  # values that were found to belong here

    def has(self, value: Any) -> bool:
        """Whether it may be looked for here."""
        if type(value) not in REMEMBERED:
            return self.judge(value)
        if value not in self.here:
            if not self.judge(value):
                return False
            if len(self.here) >= KNOWN_MAX:
                self.here.clear()
            self.here.add(value)
        return True


@dataclass(frozen=True, slots=True)
class PlacedPin:
    """A pin whose values come at each execution: of one claim all must be here."""

    keys: JudgedKeys
    claims: tuple[tuple[int, ...], ...]  # places among the bound values

    def check(self, values: Sequence[Any]) -> None:
        """Raises: RowRefused."""
        for claim in self.claims:
            if all(self.keys.has(values[place]) for place in claim):
                return
        self.keys.refuse(next(values[place] for place in self.claims[0] if not self.keys.has(values[place])))


class KeyJudge:
    """Judges the statements of calls that run on one of several partitions."""

    def __init__(self, database: Database, refused: list[RowRefused], *, partition: int, partitions: int) -> None:
        """`refused`: gets what is raised."""
        self._tables = keyed_tables(database.tables)
        self._keys = {
            info.table.name: _judged(info, refused, partition, partitions)
            for info in database.tables.values()
            if info.partition_by is not None
        }

    def placed_pins(self, sql: str, names: Sequence[str]) -> tuple[PlacedPin, ...]:
        """What to judge at each execution of a text, whose parameters are bound in this order.

        Raises: RowRefused for a constant that lives elsewhere.
        """
        places = {name: place for place, name in enumerate(names)}
        pins = [self._placed(pin, places) for pin in find_key_pins(sql, self._tables)]
        return tuple(dict.fromkeys(pin for pin in pins if pin is not None))

    def _placed(self, pin: KeyPin, places: Mapping[str, int]) -> PlacedPin | None:
        keys = self._keys[pin.table]
        claims = []
        misplaced = None
        for claim in pin.claims:
            constants = [value.constant for value in claim if value.name is None]
            elsewhere = [constant for constant in constants if not keys.has(constant)]
            if elsewhere:
                misplaced = elsewhere[0]
                continue
            named = [value.name for value in claim if value.name is not None]
            placed = tuple(places[name] for name in named if name in places)
            if not placed or len(placed) < len(named):
                return None  # all of them are constants that live here; or it is not known what is bound
            claims.append(placed)
        if not claims:
            keys.refuse(misplaced)
        return PlacedPin(keys, tuple(claims))


def _judged(info: TableInfo, refused: list[RowRefused], partition: int, partitions: int) -> JudgedKeys:
    table, column, owner_of = info.table.name, info.partition_by, owner_reader(info, partitions)

    def judge(value: Any) -> bool:
        return owner_of(value) in (None, partition)

    def refuse(value: Any) -> NoReturn:
        refused.append(
            RowRefused(
                f"table {table}: a statement looks for a {column} that belongs to partition "
                f"{owner_of(value)}, and this call runs on partition {partition}, where it would find nothing; route the "
                "procedure by that value, or look for it in a call of its own, or in one with partition_by=EACH",
                {str(column): value},
            )
        )
        raise refused[0]

    return JudgedKeys(judge, refuse)
