"""Exact decimals in ad-hoc SQL, which sees the integers that stand for them.

One rule: a query never shows or compares units as if they were the number. A plain result column is given as its digits (10.00).
Wherever else such a column is read, SQL would work with units of its last decimal; so the text says so: `units(balance) > 1000`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import apsw

from procedures.guard.authorizer import Authorizer
from procedures.numeric.functions import UNITS
from procedures.numeric.marks import marked_numerics
from procedures.storage.state import rows_of

_COMPOUND: Final = re.compile(r"\b(?:UNION|INTERSECT|EXCEPT)\b", re.IGNORECASE)


class ExactColumns:
    """Beside the authorizer of one connection: how often a statement reads each exact column, while it is prepared."""

    def __init__(self, connection: apsw.Connection, guard: Authorizer) -> None:
        self._guard = guard
        self._kinds = {
            (str(table), column): kind
            for (table,) in rows_of(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")
            for column, kind in marked_numerics(connection, str(table)).items()
        }
        self._reads: Counter[tuple[str, str]] = Counter()
        self._asked = False  # units() was named last, so the column that is read next is its argument
        if self._kinds:
            connection.authorizer = self._count

    def _count(self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        if action == apsw.SQLITE_READ and (first, second) in self._kinds and not self._asked:
            self._reads[first or "", second or ""] += 1
        self._asked = action == apsw.SQLITE_FUNCTION and second == UNITS
        return self._guard(action, first, second, database, trigger)

    def scales(self, cursor: apsw.Cursor, sql: str) -> dict[int, int]:
        """Position of each result column that is a plain exact column -> its decimals.

        Raises: ValueError when the statement reads such a column elsewhere without saying that units are meant.
        """
        if not self._reads:
            return {}
        found = {}
        plain: Counter[tuple[str, str]] = Counter()
        for position, (_, _, _, table, column) in enumerate(cursor.description_full):
            origin = (table or "", column or "")
            if origin in self._kinds:
                found[position] = self._kinds[origin][1]
                plain[origin] += 1
        if plain and _COMPOUND.search(sql):  # SQLite names the origin of the first query's columns alone
            raise ValueError(
                f"a compound SELECT may not read {'.'.join(next(iter(plain)))}, an exact number; run its queries one by one"
            )
        if self._reads - plain:
            (table, column), _ = (self._reads - plain).most_common(1)[0]
            precision, scale = self._kinds[table, column]
            raise ValueError(
                f"{table}.{column} is a Numeric({precision}, {scale}), of which SQL sees units of 10^-{scale}: select it as a "
                f"plain column, or write {UNITS}({column}) where its units are meant, as in WHERE {UNITS}({column}) > {10**scale}"
            )
        return found
