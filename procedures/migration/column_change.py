"""What a column becomes by `op.alter_column`: its text, and how the values that rows hold are written in the new form.

One rule: a value is converted where that has one meaning, exactly. Everything else is a data migration: a new column, filled by
`tx`, in place of the old one.

    Numeric(10, 2) -> Numeric(12, 4)     the stored integers times 100
    Numeric(12, 4) -> Numeric(10, 2)     divided, where no digit is lost; else refused
    Integer <-> Numeric(p, s)            as with zero decimals
    INTEGER -> REAL                      where a float holds it
    INTEGER, REAL, TEXT among others     as STRICT tables take them: '12' becomes 12, 'abc' is refused

What a type wants beside that (an Enum's members, a length, a day that exists) is asked of the rows that the change leaves:
`row_fitness`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Numeric

from procedures.declaration.create_text import ColumnText, column_parts, quoted
from procedures.errors import DefinitionError

_MARK: Final = re.compile(r'CONSTRAINT "numeric\(([0-9]+),([0-9]+)\) ')
_WHOLE: Final = re.compile(r"-?[0-9]+")
_SPEAKING: Final = ("CHECK", "CONSTRAINT", "GENERATED")


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column in its new form."""

    column: ColumnText
    value: str = ""  # SQL of its value, from the old one; "" = as it is
    unfit: str = ""  # SQL condition of rows whose value has no exact new form; "" = there are none


def scale_of(column: ColumnText) -> int | None:
    """Decimals of a Numeric column; None for another one."""
    found = numeric_of(column)
    return None if found is None else found.scale


def numeric_of(column: ColumnText) -> Numeric[Any] | None:
    """The Numeric by which it is stored; None for another column."""
    found = _MARK.search(column.text)
    return Numeric(int(found[1]), int(found[2])) if found else None


def renamed_column(column: ColumnText) -> ColumnText:
    """The column after RENAME COLUMN, which leaves the old name in the mark of a Numeric."""
    if scale_of(column) is None:
        return column
    name = column.name.replace('"', '""')
    return ColumnText(column.name, re.sub(r'(CONSTRAINT "numeric\([0-9]+,[0-9]+\) )(?:[^"]|"")+"', rf'\g<1>{name}"', column.text))


def with_rules(column: ColumnText, *, nullable: bool | None, default: str | None) -> ColumnText:
    """The column with other rules. `nullable` None, `default` None: as before; `default` "": none."""
    default = column.default if default is None else default
    not_null = column.not_null if nullable is None else not nullable
    return _compose(column, column_parts(column.text)[0], default, not_null=not_null, mark=_mark(column))


def expressions_of(column: ColumnText) -> list[str]:
    """The clauses of its text that speak of values: CHECK and GENERATED, without the mark of a Numeric."""
    return [part for part in column_parts(column.text)[1:] if part.upper().startswith(_SPEAKING) and not _MARK.match(part)]


def with_expressions(column: ColumnText, expressions: Sequence[str]) -> ColumnText:
    """The column with these clauses in place of its own, in their order."""
    own, given = expressions_of(column), iter(expressions)
    parts = [next(given) if part in own else part for part in column_parts(column.text)]
    return ColumnText(column.name, " ".join(parts))


def with_type(column: ColumnText, typed: ColumnText) -> ColumnChange:
    """The column with the type of another one, and its values in that type. Raises: DefinitionError."""
    old, new = scale_of(column), scale_of(typed)
    name = quoted(column.name)
    head = column_parts(typed.text)[0]
    default, value, unfit = column.default, "", ""
    # Exact numbers, whose stored integers change with the scale; then what SQLite converts, where digits may be lost.
    if old is not None or new is not None:
        _check_numbers(column, typed)
        if typed.type == "REAL":
            factor = 10 ** (old or 0)
            value, default = f"CAST({name} AS REAL) / {factor}.0", _unscaled(default, old or 0)
            unfit = f"CAST(round({value} * {factor}.0) AS INTEGER) <> {name}"
        else:
            places = (new or 0) - (old or 0)
            factor = 10 ** abs(places)
            if places > 0:
                limit = (2**63 - 1) // factor
                value, unfit = f"{name} * {factor}", f"{name} NOT BETWEEN -{limit} AND {limit}"
            elif places < 0:
                value, unfit = f"{name} / {factor}", f"{name} % {factor} <> 0"
            default = _rescaled(column, default, places)
    elif typed.type == "REAL":
        unfit = f"CAST({name} AS NUMERIC) <> CAST({name} AS REAL)"
    elif (column.type, typed.type) == ("REAL", "TEXT"):
        unfit = f"CAST(CAST({name} AS TEXT) AS REAL) <> {name}"
    mark = _mark(typed)
    return ColumnChange(_compose(column, head, default, not_null=column.not_null, mark=mark), value, unfit)


def _check_numbers(column: ColumnText, typed: ColumnText) -> None:
    if column.type != "INTEGER" or typed.type not in ("INTEGER", "REAL"):
        raise DefinitionError(
            f"column {column.name!r}: <{column.text}> cannot become <{typed.text}> by itself; add a second column, fill it with "
            "tx.execute(update(…)), drop the first one and rename the second"
        )


def _rescaled(column: ColumnText, default: str, places: int) -> str:
    bare = default.strip("'")
    if not _WHOLE.fullmatch(bare):
        return default
    number = int(bare)
    if places < 0 and number % 10**-places:
        raise DefinitionError(f"column {column.name!r}: its default {default} loses digits; alter the server_default, too")
    return str(number * 10**places if places >= 0 else number // 10**-places)


def _unscaled(default: str, scale: int) -> str:
    bare = default.strip("'")
    return repr(int(bare) / 10**scale) if _WHOLE.fullmatch(bare) else default


def _mark(column: ColumnText) -> str:
    return next((part for part in column_parts(column.text) if _MARK.match(part)), "")


def _compose(column: ColumnText, head: str, default: str, *, not_null: bool, mark: str) -> ColumnText:
    """In the order in which a declaration is compiled."""
    others = [
        part
        for part in column_parts(column.text)[1:]
        if not part.upper().startswith(("DEFAULT", "NOT NULL")) and not _MARK.match(part)
    ]
    parts = [head, f"DEFAULT {default}" if default else "", "NOT NULL" if not_null else "", *others, mark]
    return ColumnText(column.name, " ".join(part for part in parts if part))
