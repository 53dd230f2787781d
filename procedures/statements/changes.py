"""What `tx.execute` returns for a change: how many rows, and the key of one that was inserted."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from sqlalchemy import exc

from procedures.statements.result_values import NoCursor
from procedures.statements.rows import AnyRows


class NoRows(NoCursor):
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
    fetchone = fetchmany = fetchall = partitions = unique = tuples = _refuse_rows


class Written(NoRows):
    """The count of a change."""

    __slots__ = ("rowcount",)

    def __init__(self, rowcount: int) -> None:
        self.rowcount = rowcount

    @property
    def inserted_primary_key(self) -> Any:
        """Raises: InvalidRequestError; an INSERT of one row has it, see `Inserted`."""
        raise exc.InvalidRequestError("only an INSERT of one row, executed once, has an inserted_primary_key")

    @property
    def inserted_primary_key_rows(self) -> list[Any]:
        """Raises: InvalidRequestError; INSERTs of one row each have it, see `InsertedEach`."""
        raise exc.InvalidRequestError("only an INSERT of one row has inserted_primary_key_rows, one for each execution")

    @property
    def lastrowid(self) -> int:
        """Raises: InvalidRequestError; an INSERT of one row has it, see `Inserted`."""
        raise exc.InvalidRequestError("only an INSERT of one row, executed once, has a lastrowid")


class InsertedEach(Written):
    """The counts of one INSERT of one row, executed for each of several sets of parameters."""

    __slots__ = ("_each",)

    def __init__(self, each: Sequence[Inserted]) -> None:
        super().__init__(sum(one.rowcount for one in each))
        self._each = each

    @property
    def inserted_primary_key_rows(self) -> list[Any]:
        """The keys of the rows, in the order of the parameters."""
        return [one.inserted_primary_key for one in self._each]


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
        """The key of the row that was added, as a named tuple; of Nones where a conflict let none be added.

        Raises: InvalidRequestError where SQLite alone knows it.
        """
        rowcount, params, rowid = tuple.__iter__(self)
        if not rowcount:
            return self.key_type._make([None] * len(self.key_values))
        values = [params.get(name, value) if name else value for name, value in self.key_values]
        if self.numbered >= 0 and values[self.numbered] is None:
            values[self.numbered] = rowid
        if None in values:
            names = ", ".join(self.key_type._fields)
            raise exc.InvalidRequestError(
                f"SQL computed the key of this row, or it may be of a row that was there; add returning({names})"
            )
        return self.key_type._make(values)

    @property
    def inserted_primary_key_rows(self) -> list[Any]:
        """The same, in a list."""
        return [self.inserted_primary_key]

    @property
    def lastrowid(self) -> int:
        """The key of the row that was added, where that is one number.

        Raises: InvalidRequestError
        """
        key = self.inserted_primary_key
        if len(key) != 1 or type(key[0]) is not int:
            raise exc.InvalidRequestError(
                "lastrowid is the key of one added row, where that is one number; see inserted_primary_key"
            )
        return key[0]

    def with_number(self, number: int) -> Inserted:
        """The same, of a row that SQLite has numbered."""
        rows, params, _ = tuple.__iter__(self)
        return type(self)((rows, params, number))


def inserted_class(names: tuple[str, ...], key_values: tuple[tuple[str | None, Any], ...], numbered: int) -> type[Inserted]:
    """The results of an INSERT into a table with this key."""
    key_type = namedtuple("Key", names, rename=True)  # type: ignore[misc] # the names are known at run time
    space = {"__slots__": (), "key_type": key_type, "key_values": key_values, "numbered": numbered}
    return type("Inserted", (Inserted,), space)


Result = AnyRows | Written | Inserted


def joined_results(results: Sequence[Result]) -> Result:
    """The results of one statement's executions as one: all rows, or the sum of the counts."""
    first = next(iter(results), None)
    if isinstance(first, list):
        rows = type(first)()
        for result in results:
            list.extend(rows, list.__iter__(result))  # type: ignore[arg-type] # of the same statement
        return rows
    if isinstance(first, Inserted):
        return InsertedEach(results)  # type: ignore[arg-type] # of the same statement
    return Written(sum(result.rowcount for result in results))


# Shared: a change of few rows, the common case, makes no object.
SHARED = 64
WRITTEN = tuple(Written(count) for count in range(SHARED))
