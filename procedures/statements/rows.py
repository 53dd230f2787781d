"""What `tx.execute` returns: the rows of a query, or the count of a change.

Rows are read to the end at once, so a later statement cannot change an earlier result, and nothing stays open in SQLite.
They are read as SQLAlchemy's results are, with its exceptions; and they are lists, which SQLAlchemy's are not.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from sqlalchemy import exc
from sqlalchemy.schema import Column

_iterate = list.__iter__
_item = list.__getitem__


class NoResultFound(exc.NoResultFound, LookupError):
    """A row was required and there is none."""


class MultipleResultsFound(exc.MultipleResultsFound, LookupError):
    """One row was required and there are more."""


class BareRows(list[Any]):
    """What SQLite returned, as bare tuples; iteration gives named ones. Every statement has its own subclass."""

    __slots__ = ()
    row_type: ClassVar[Any]  # a namedtuple class; columns whose names are no identifiers are called _0, _1, …

    @property
    def rowcount(self) -> int:
        """How many rows came back."""
        return len(self)

    def __iter__(self) -> Iterator[Any]:
        return map(self.row_type._make, _iterate(self))

    def scalar(self) -> Any:
        """First column of the first row; None if there is none."""
        return _item(self, 0)[0] if self else None


class FormerRows(BareRows):
    """Rows as code from before exact decimals has them: plain tuples by index, plain lists of scalars, LookupError."""

    __slots__ = ()

    def scalars(self) -> list[Any]:
        """First column of every row."""
        return [row[0] for row in _iterate(self)]

    def all(self) -> list[Any]:
        """All rows."""
        return list(self)

    def first(self) -> Any:
        """The first row, or None."""
        return next(iter(self), None)

    def one(self) -> Any:
        """The only row.

        Raises:
            LookupError: there is none, or more than one.
        """
        if len(self) != 1:
            raise LookupError(f"expected exactly one row, the query returned {len(self)}")
        return self.first()

    def one_or_none(self) -> Any:
        """The only row, or None.

        Raises:
            LookupError: there is more than one.
        """
        return self.one() if self else None


class ResultList(list[Any]):
    """A list that is read like a result of SQLAlchemy: rows, their mappings, or single values.

    `fetchone` and `fetchmany` advance, and `fetchall` returns what they left; all else sees the whole list.
    """

    __slots__ = ("_fetched",)
    _fetched: int  # unset until the first fetch

    def all(self) -> list[Any]:
        """All of them."""
        return list(self)

    def first(self) -> Any:
        """The first one, or None."""
        return self[0] if len(self) else None

    def one(self) -> Any:
        """The only one.

        Raises:
            NoResultFound, MultipleResultsFound: of SQLAlchemy's classes of these names, and LookupErrors.
        """
        if len(self) == 1:
            return self[0]
        kind = MultipleResultsFound if len(self) else NoResultFound
        raise kind(f"expected exactly one row, the query returned {len(self)}")

    def one_or_none(self) -> Any:
        """The only one, or None. Raises: MultipleResultsFound."""
        return self.one() if len(self) else None

    def fetchone(self) -> Any:
        """The next one, or None."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next ones, at most `size`."""
        begin = getattr(self, "_fetched", 0)
        self._fetched = min(len(self), begin + size)
        return list(self[begin : self._fetched])

    def fetchall(self) -> list[Any]:
        """Those that were not fetched yet."""
        return self.fetchmany(len(self))

    def partitions(self, size: int) -> Iterator[list[Any]]:
        """Lists of `size`, the last one perhaps shorter."""
        return (list(self[begin : begin + size]) for begin in range(0, len(self), size))

    def unique(self, strategy: Callable[[Any], Any] | None = None) -> ResultList:
        """Without those that came before; `strategy` gives the value by which they are compared."""
        kept: dict[Any, Any] = {}
        for row in self:
            kept.setdefault(row if strategy is None else strategy(row), row)
        same = type(self)
        return same(kept.values())


class Scalars(ResultList):
    """One column of a result."""

    __slots__ = ()


class RowMapping(dict[str, Any]):
    """A row as a dict by the names of its columns; it can be asked for by column, too."""

    __slots__ = ("_places",)

    def __init__(self, names: tuple[str, ...], row: tuple[Any, ...], places: Mapping[Any, int]) -> None:
        super().__init__(zip(names, row, strict=True))
        self._places = row, places

    def __missing__(self, column: Any) -> Any:
        row, places = self._places
        return row[place_of(column, tuple(self), places)]


def place_of(column: Any, names: tuple[str, ...], places: Mapping[Any, int]) -> int:
    """Which column of a result is meant by its number, its name, or the column of the statement. Raises: KeyError."""
    if isinstance(column, int | str):
        return column if isinstance(column, int) else _place_of_name(column, names)
    element = column.__clause_element__() if hasattr(column, "__clause_element__") else column
    if element in places:
        return places[element]
    if isinstance(element, Column) or getattr(element, "name", None) is None:
        raise KeyError(f"{column} is no column of the result; it has {', '.join(names)}")
    return _place_of_name(element.name, names)


def _place_of_name(name: str, names: tuple[str, ...]) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise KeyError(name) from None


class Mappings(ResultList):
    """The rows of a result as dicts."""

    __slots__ = ()


class RowViews:
    """What a row has beside the fields of its named tuple."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]]
    _places: ClassVar[Mapping[Any, int]]

    @property
    def _mapping(self) -> RowMapping:
        return RowMapping(self._names, self, self._places)  # type: ignore[arg-type] # it is a tuple

    def _tuple(self) -> Any:
        return self

    tuple = _tuple

    @property
    def _t(self) -> Any:
        return self

    t = _t


class Rows(BareRows, ResultList):
    """The rows of one query, as named tuples.

    They are made when they are asked for: `scalar` and `scalars` make no object per row.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]]
    places: ClassVar[Mapping[Any, int]]  # column of the statement -> which one it is

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.row_type._make(row) for row in _item(self, index)]
        if isinstance(index, str):
            raise TypeError(f"rows are numbered: write .mappings(), or dict(rows.all()); not [{index!r}] or dict(rows)")
        return self.row_type._make(_item(self, index))

    def first(self) -> Any:
        """The first row, or None."""
        return self.row_type._make(_item(self, 0)) if self else None

    def __reversed__(self) -> Iterator[Any]:
        return map(self.row_type._make, list.__reversed__(self))

    def pop(self, index: Any = -1) -> Any:
        """As of a list."""
        return self.row_type._make(list.pop(self, index))

    def copy(self) -> list[Any]:
        """As of a list."""
        return list(self)

    def keys(self) -> list[str]:
        """Names of the columns."""
        return list(self.names)

    def scalars(self, index: Any = 0) -> Scalars:
        """One column of every row, the first unless `index` says another."""
        if index == 0:
            return Scalars([row[0] for row in _iterate(self)])
        place = place_of(index, self.names, self.places)
        return Scalars([row[place] for row in _iterate(self)])

    def scalar_one(self) -> Any:
        """The only value. Raises: NoResultFound, MultipleResultsFound."""
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        """The only value, or None where there is no row. Raises: MultipleResultsFound."""
        return self.one()[0] if len(self) else None

    def mappings(self) -> Mappings:
        """Each row as a dict by the names of its columns."""
        names, places = self.names, self.places
        return Mappings([RowMapping(names, row, places) for row in _iterate(self)])

    def columns(self, *wanted: Any) -> Rows:
        """Some of the columns, by number, name or column, in this order."""
        names, places = self.names, self.places
        chosen = [place_of(column, names, places) for column in wanted]
        rows = rows_class(tuple(names[place] for place in chosen), {})
        return rows(tuple(row[place] for place in chosen) for row in _iterate(self))

    @property
    def returns_rows(self) -> bool:
        return True

    @property
    def inserted_primary_key(self) -> Any:
        """Of an INSERT without RETURNING: see `Inserted`."""
        raise exc.InvalidRequestError("a statement that returns rows has no inserted_primary_key; return the key's columns")

    def close(self) -> None:
        """Nothing is open; for code that closes results."""


def rows_class(names: tuple[str, ...], places: Mapping[Any, int]) -> type[Rows]:
    """The rows of a statement with these columns; `places` finds them by the statement's own columns."""
    fields: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc] # the names are known at run time
    row_type = type("Row", (fields, RowViews), {"__slots__": (), "_names": names, "_places": places})
    return type("Rows", (Rows,), {"__slots__": (), "row_type": row_type, "names": names, "places": places})


def former_rows_class(names: tuple[str, ...]) -> type[FormerRows]:
    """The same for code from before exact decimals."""
    row_type = namedtuple("Row", names, rename=True)  # type: ignore[misc] # the names are known at run time
    return type("Rows", (FormerRows,), {"__slots__": (), "row_type": row_type})


class NoRows:
    """The result of a change that returns no rows."""

    __slots__ = ()

    @property
    def returns_rows(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open; for code that closes results."""

    def _refuse_rows(self, *_: object) -> NoReturn:
        raise LookupError("this statement returns no rows; use .rowcount, or add RETURNING to it")

    scalar = scalars = first = one = one_or_none = all = __iter__ = __getitem__ = _refuse_rows
    scalar_one = scalar_one_or_none = mappings = keys = columns = _refuse_rows
    fetchone = fetchmany = fetchall = partitions = unique = _refuse_rows


class Written(NoRows):
    """The count of a change."""

    __slots__ = ("rowcount",)

    def __init__(self, rowcount: int) -> None:
        self.rowcount = rowcount

    @property
    def inserted_primary_key(self) -> Any:
        """Of an INSERT of one row: see `Inserted`."""
        raise exc.InvalidRequestError("only an INSERT of one row, executed once, has an inserted_primary_key")


class Inserted(NoRows, tuple[Any, ...]):
    """The result of an INSERT of one row: count, parameters, number from SQLite; each statement has its own subclass.

    The key is found when it is asked for, since most callers know it. A tuple, because nothing else is made as quickly.
    """

    __slots__ = ()
    key_type: ClassVar[Any]  # a namedtuple class, by the names of the key's columns
    key_values: ClassVar[tuple[tuple[str | None, Any], ...]]  # keyword that gives the value, and the value without it
    numbered: ClassVar[int]  # which of them is a number that SQLite may have given; -1: none

    @property
    def rowcount(self) -> int:
        """How many rows were inserted."""
        return int(tuple.__getitem__(self, 0))

    @property
    def inserted_primary_key(self) -> Any:
        """The key of the row that was added, as a named tuple."""
        _, params, rowid = tuple.__iter__(self)
        values = [params.get(name, value) if name else value for name, value in self.key_values]
        if self.numbered >= 0 and values[self.numbered] is None:
            values[self.numbered] = rowid
        return self.key_type._make(values)

    def with_number(self, number: int) -> Inserted:
        """The same, of a row that SQLite has numbered."""
        rows, params, _ = tuple.__iter__(self)
        return type(self)((rows, params, number))


def inserted_class(names: tuple[str, ...], key_values: tuple[tuple[str | None, Any], ...], numbered: int) -> type[Inserted]:
    """The results of an INSERT into a table with this key."""
    key_type = namedtuple("Key", names, rename=True)  # type: ignore[misc] # the names are known at run time
    space = {"__slots__": (), "key_type": key_type, "key_values": key_values, "numbered": numbered}
    return type("Inserted", (Inserted,), space)


Result = Rows | Written | Inserted


def joined_results(results: Sequence[Result]) -> Result:
    """Of the executions of one statement: all rows, or the sum of the counts."""
    first = next(iter(results), None)
    if isinstance(first, list):
        rows = type(first)()
        for result in results:
            list.extend(rows, _iterate(result))  # type: ignore[arg-type] # of the same statement
        return rows
    return Written(sum(result.rowcount for result in results))


# Shared: a change of few rows, the common case, makes no object.
SHARED = 64
WRITTEN = tuple(Written(count) for count in range(SHARED))
