"""What `tx.execute` returns: the rows of a query, or the count of a change.

Rows are read to the end at once, so a later statement cannot change an earlier result, and nothing stays open in SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn


class Rows(list[Any]):
    """The rows of one query, as tuples; `one`, `first`, `all` and iteration give named tuples.

    Every statement has its own subclass, which carries the row type: `scalar` then costs no object at all.
    """

    __slots__ = ()
    row_type: ClassVar[Any]  # a namedtuple class; columns whose names are no identifiers are called _0, _1, …

    @property
    def rowcount(self) -> int:
        """How many rows came back."""
        return len(self)

    def scalar(self) -> Any:
        """First column of the first row; None if there is none."""
        return self[0][0] if self else None

    def scalars(self) -> list[Any]:
        """First column of every row."""
        return [row[0] for row in list.__iter__(self)]

    def first(self) -> Any:
        """The first row, or None."""
        return self.row_type._make(self[0]) if self else None

    def one(self) -> Any:
        """The only row.

        Raises:
            LookupError: there is none, or more than one.
        """
        if len(self) != 1:
            raise LookupError(f"expected exactly one row, the query returned {len(self)}")
        return self.row_type._make(self[0])

    def one_or_none(self) -> Any:
        """The only row, or None.

        Raises:
            LookupError: there is more than one.
        """
        return self.one() if self else None

    def all(self) -> list[Any]:
        """All rows."""
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        return map(self.row_type._make, list.__iter__(self))


class Written:
    """The result of a change that returns no rows."""

    __slots__ = ("rowcount",)

    def __init__(self, rowcount: int) -> None:
        self.rowcount = rowcount

    def _no_rows(self, *_: object) -> NoReturn:
        raise LookupError("this statement returns no rows; use .rowcount, or add RETURNING to it")

    scalar = scalars = first = one = one_or_none = all = __iter__ = _no_rows


Result = Rows | Written

# Shared: a change of few rows, the common case, makes no object.
SHARED = 64
WRITTEN = tuple(Written(count) for count in range(SHARED))
