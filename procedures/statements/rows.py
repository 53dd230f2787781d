"""What `tx.execute` returns for a query: its rows.

Rows are read to the end at once, so a later statement cannot change an earlier result, and nothing stays open in SQLite.
They are read as SQLAlchemy's results are, with its exceptions; and they are lists, which SQLAlchemy's are not.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, SupportsIndex, TypeAlias, TypeVar, TypeVarTuple, overload

from sqlalchemy import exc
from sqlalchemy.schema import Column

from procedures.statements.result_values import MaybeNone, NoCursor, ResultList, Scalars

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
AnyTypes = tuple[Any, ...]
_NO_KEY: Final = "a statement that returns rows has no inserted_primary_key or lastrowid; return the key's columns"
_iterate = list.__iter__
_item = list.__getitem__


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


class RowMapping(dict[str, Any]):
    """A row as a dict by the names of its columns; it can be asked for by column, too."""

    __slots__ = ("_places",)

    def __init__(self, names: tuple[str, ...], row: tuple[Any, ...], places: Mapping[Any, int]) -> None:
        super().__init__(zip(names, row, strict=True))
        self._places = row, places

    if TYPE_CHECKING:

        def __getitem__(self, column: Any) -> Any: ...

    def __missing__(self, column: Any) -> Any:
        row, places = self._places
        return row[place_of(column, tuple(self), places)]

    def __contains__(self, column: object) -> bool:
        return self.get(column, self) is not self

    def get(self, column: Any, default: Any = None) -> Any:
        """The value, or `default` where there is no such column."""
        try:
            return self[column]
        except LookupError:
            return default


def place_of(column: Any, names: tuple[str, ...], places: Mapping[Any, int]) -> int:
    """Place of a column of a result, given by number, by name, or as column of the statement. Raises: KeyError."""
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


class Mappings(ResultList[Any]):
    """The rows of a result as dicts."""

    __slots__ = ()


class Row(tuple[*Ts]):
    """One row: a named tuple, and what a row of SQLAlchemy has beside the names of its columns."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]]
    _places: ClassVar[Mapping[Any, int]]

    @property
    def _mapping(self) -> RowMapping:
        return RowMapping(self._names, self, self._places)

    def _tuple(self) -> Row[*Ts]:
        return self

    @property
    def _t(self) -> Row[*Ts]:
        return self

    if TYPE_CHECKING:  # a column may have any name, and goes before what a tuple has under it
        count: Any
        index: Any
        t: Any
        tuple: Any

        def __getattr__(self, name: str) -> Any: ...

    else:
        t, tuple = _t, _tuple


class Rows(BareRows, NoCursor, ResultList[Row[*Ts]]):
    """The rows of one query, as named tuples.

    They are made when they are asked for: `scalar` and `scalars` make no object per row.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]]
    places: ClassVar[Mapping[Any, int]]  # column of the statement -> which one it is

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Row[*Ts]]: ...
        @overload
        def scalar(self: Rows[T, *AnyTypes]) -> T | MaybeNone: ...
        @overload
        def scalar(self) -> Any: ...
        def scalar(self) -> Any: ...

        # Procedures return such lists as lists of tuples, and a type checker lets no list of rows pass for one.
        def all(self) -> list[Any]: ...
        def fetchmany(self, size: int = 1) -> list[Any]: ...
        def fetchall(self) -> list[Any]: ...
        def partitions(self, size: int) -> Iterator[list[Any]]: ...

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row[*Ts]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.row_type._make(row) for row in _item(self, index)]
        if isinstance(index, str):
            raise TypeError(f"rows are numbered: write .mappings(), or dict(rows.all()); not [{index!r}] or dict(rows)")
        return self.row_type._make(_item(self, index))

    def first(self) -> Row[*Ts] | MaybeNone:
        """The first row, or None."""
        return self.row_type._make(_item(self, 0)) if self else None

    def __reversed__(self) -> Iterator[Row[*Ts]]:
        return map(self.row_type._make, list.__reversed__(self))

    def pop(self, index: Any = -1) -> Any:
        """`list` has the same."""
        return self.row_type._make(list.pop(self, index))

    def copy(self) -> list[Any]:
        """`list` has the same."""
        return list(self)

    def keys(self) -> list[str]:
        """Names of the columns."""
        return list(self.names)

    @overload
    def scalars(self: Rows[T, *AnyTypes], index: Literal[0] = 0) -> Scalars[T]: ...
    @overload
    def scalars(self, index: Any = 0) -> Scalars[Any]: ...
    def scalars(self, index: Any = 0) -> Scalars[Any]:
        """One column of every row, the first unless `index` says another."""
        if index == 0:
            return Scalars([row[0] for row in _iterate(self)])
        place = place_of(index, self.names, self.places)
        return Scalars([row[place] for row in _iterate(self)])

    @overload
    def scalar_one(self: Rows[T, *AnyTypes]) -> T: ...
    @overload
    def scalar_one(self) -> Any: ...
    def scalar_one(self) -> Any:
        """The only value. Raises: NoResultFound, MultipleResultsFound."""
        return self.scalars().one()

    @overload
    def scalar_one_or_none(self: Rows[T, *AnyTypes]) -> T | MaybeNone: ...
    @overload
    def scalar_one_or_none(self) -> Any: ...
    def scalar_one_or_none(self) -> Any:
        """The only value, or None where there is no row. Raises: MultipleResultsFound."""
        return self.scalars().one_or_none()

    def mappings(self) -> Mappings:
        """Each row as a dict by the names of its columns."""
        names, places = self.names, self.places
        return Mappings([RowMapping(names, row, places) for row in _iterate(self)])

    def columns(self, *wanted: Any) -> AnyRows:
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
        """Raises: InvalidRequestError; an INSERT without RETURNING has it, see `Inserted`."""
        raise exc.InvalidRequestError(_NO_KEY)

    @property
    def inserted_primary_key_rows(self) -> list[Any]:
        """Raises: InvalidRequestError."""
        raise exc.InvalidRequestError(_NO_KEY)

    @property
    def lastrowid(self) -> int:
        """Raises: InvalidRequestError."""
        raise exc.InvalidRequestError(_NO_KEY)

    def tuples(self) -> Self:
        """The same: for type checkers of SQLAlchemy, whose rows are no tuples."""
        return self

    def close(self) -> None:
        """Nothing is open; for code that closes results."""


AnyRows: TypeAlias = Rows[*AnyTypes]


def rows_class(names: tuple[str, ...], places: Mapping[Any, int]) -> type[AnyRows]:
    """The rows of a statement with these columns; `places` finds them by the statement's own columns."""
    fields: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc] # the names are known at run time
    row_type = type("Row", (fields, Row), {"__slots__": (), "_names": names, "_places": places})
    return type("Rows", (Rows,), {"__slots__": (), "row_type": row_type, "names": names, "places": places})
