"""Lists that are read as results of SQLAlchemy are: single values, and what rows and their mappings are built on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, TypeVar

from sqlalchemy import exc

T = TypeVar("T")
# Of "this, or None where there is none": a type checker lets it pass without a look for None, and still knows what this is.
MaybeNone: TypeAlias = Any  # as typeshed has it


class NoResultFound(exc.NoResultFound, LookupError):
    """A row was required and there is none."""


class MultipleResultsFound(exc.MultipleResultsFound, LookupError):
    """One row was required and there are more."""


_RETURNING = "add returning(…)"
_PARAMETERS = "the caller gave the parameters"
_READ = "all rows are read at once: the result is a list"
_CONNECTION = "no connection of SQLAlchemy runs statements"
# What a result of SQLAlchemy has of its cursor -> what to do here.
_OF_CURSORS: Final = {
    "returned_defaults": _RETURNING, "returned_defaults_rows": _RETURNING, "postfetch_cols": _RETURNING,
    "prefetch_cols": _PARAMETERS, "last_inserted_params": _PARAMETERS, "last_updated_params": _PARAMETERS,
    "yield_per": _READ, "freeze": _READ, "merge": _READ, "closed": _READ,
    "splice_vertically": _READ, "splice_horizontally": _READ,
    "context": _CONNECTION, "cursor": _CONNECTION, "connection": _CONNECTION, "is_insert": "rowcount says what happened",
}  # fmt: skip


class NoCursor:
    """Says what to use where a result has not what one of SQLAlchemy has."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker shall see which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; {_OF_CURSORS[name]}" if name in _OF_CURSORS else ""
            raise AttributeError(f"a result of tx.execute has no attribute {name!r}{hint}")


class ResultList(list[T]):
    """A list that is read like a result of SQLAlchemy: rows, their mappings, or single values.

    `fetchone` and `fetchmany` advance, and `fetchall` returns what they left; all else sees the whole list.
    """

    __slots__ = ("_fetched",)
    _fetched: int  # unset until the first fetch

    def all(self) -> list[T]:
        """All of them."""
        return list(self)

    def first(self) -> T | MaybeNone:
        """The first one, or None."""
        return self[0] if len(self) else None

    def one(self) -> T:
        """The only one.

        Raises:
            NoResultFound, MultipleResultsFound: of SQLAlchemy's classes of these names, and LookupErrors.
        """
        if len(self) == 1:
            return self[0]
        kind = MultipleResultsFound if len(self) else NoResultFound
        raise kind(f"expected exactly one row, the query returned {len(self)}")

    def one_or_none(self) -> T | MaybeNone:
        """The only one, or None. Raises: MultipleResultsFound."""
        return self.one() if len(self) else None

    def fetchone(self) -> T | MaybeNone:
        """The next one, or None."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int = 1) -> list[T]:
        """The next ones, at most `size`."""
        begin = getattr(self, "_fetched", 0)
        self._fetched = min(len(self), begin + size)
        return list(self[begin : self._fetched])

    def fetchall(self) -> list[T]:
        """The rest: what was not fetched yet."""
        return self.fetchmany(len(self))

    def partitions(self, size: int) -> Iterator[list[T]]:
        """Lists of `size`, the last one perhaps shorter."""
        return (list(self[begin : begin + size]) for begin in range(0, len(self), size))

    def unique(self, strategy: Callable[[T], Any] | None = None) -> Self:
        """Without those that came before; `strategy` gives the value by which they are compared."""
        kept: dict[Any, T] = {}
        for row in self:
            kept.setdefault(row if strategy is None else strategy(row), row)
        same = type(self)
        return same(kept.values())


class Scalars(ResultList[T]):
    """One column of a result."""

    __slots__ = ()
