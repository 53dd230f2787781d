"""What SQLite refuses while a statement runs, as SQLAlchemy's exceptions; they are APSW's, too.

`sqlalchemy.exc.IntegrityError` and `apsw.ConstraintError` (`procedures.IntegrityError`) both catch a constraint that fails. Texts
are parts of outcomes, which replays compare. They name constraint, table and columns; the values are in `params`
(`shown_values`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import apsw
from sqlalchemy import exc

from procedures.raised_errors import is_raised

_COLUMNS: Final = re.compile(r"(?:UNIQUE|NOT NULL) constraint failed: (.+)|cannot store .* in \w+ column (.+)", re.DOTALL)
_CHECK: Final = re.compile(r"CHECK constraint failed: (.+)", re.DOTALL)
_QUOTED: Final = re.compile(r"(?<=^bad JSON path): .*", re.DOTALL)  # the only value that SQLite's texts hold at run time
ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_RANGE: Final = re.compile(r"numeric\(([0-9]+),([0-9]+)\) (.+)", re.DOTALL)


class FromSqlite:
    """Text and parts of an exception that SQLite caused."""

    def __init__(self, error: apsw.Error, statement: Any, values: Mapping[str, Any]) -> None:
        """
        Args:
            values: those of the statement, by name.
        """
        table = getattr(getattr(statement, "table", None), "name", None)
        said = sqlite_text(error)
        self.constraint, self.table, self.columns = _failed_constraint(said, table)
        text = _describe_failure(said, self.constraint, self.table)
        exc.StatementError.__init__(self, text, None, dict(values), error)  # type: ignore[arg-type] # of a subclass
        self.connection_invalidated = False

    def __str__(self) -> str:
        return str(self.args[0])  # type: ignore[attr-defined] # of an exception


class IntegrityError(FromSqlite, exc.IntegrityError, apsw.ConstraintError):
    """The rows refuse a change.

    Attributes:
        constraint: its name, or SQLite's word for it: UNIQUE, NOT NULL, CHECK, FOREIGN KEY, or a type.
        table: whose constraint it is; None where SQLite does not say.
        columns: of the table, as far as SQLite names them.
        params: the values of the statement, by name.
    """


class DataError(FromSqlite, exc.DataError, apsw.TooBigError):
    """A value is larger than SQLite stores."""


class OperationalError(FromSqlite, exc.OperationalError, apsw.SQLError):
    """The statement fails on these rows: a sum that overflows, JSON that is none."""


_KINDS: Final = ((apsw.ConstraintError, IntegrityError), (apsw.TooBigError, DataError), (apsw.SQLError, OperationalError))


def error_for_sqlalchemy(error: BaseException, statement: Any, values: Mapping[str, Any]) -> BaseException:
    """The exception that a procedure gets for what APSW raised; the same one if SQLAlchemy has none for it."""
    for kind, ours in _KINDS:
        if is_raised(error, kind):
            return ours(cast("apsw.Error", error), statement, values)
    return error


def sqlite_text(error: BaseException) -> str:
    """What SQLite said, without the value that it may have quoted."""
    return _QUOTED.sub("", str(error))


def _failed_constraint(text: str, table: str | None) -> tuple[str, str | None, tuple[str, ...]]:
    if found := _COLUMNS.fullmatch(text):
        named = [name.rpartition(".") for name in (found[1] or found[2]).split(", ")]
        kind = text.partition(" constraint failed")[0] if found[1] else "type"
        return kind, named[0][0] or table, tuple(column for _, _, column in named)
    if found := _CHECK.fullmatch(text):
        ranged = _RANGE.fullmatch(found[1])
        return found[1], table, (ranged[3],) if ranged else ()
    return text.partition(" constraint failed")[0], table, ()


def _describe_failure(text: str, constraint: str, table: str | None) -> str:
    if ranged := _RANGE.fullmatch(constraint):
        where = f"{table}.{ranged[3]}" if table else ranged[3]
        text = f"{where}: the new value is out of range of Numeric({ranged[1]}, {ranged[2]})"
    elif table is not None and f"{table}." not in text:
        text = f"{text} (table {table})"
    return text
