"""Which columns of a state hold exact decimals: the schema says so by the names of their CHECK constraints.

A Numeric(12, 2) is an INTEGER of units of 0.01 with `CONSTRAINT "numeric(12,2) balance" CHECK (…)`. So who reads a state without
the application's code (differences, reports, exports) still knows what its numbers are.
"""

from __future__ import annotations

import re
from typing import Any, Final

import apsw

# A Numeric has 18 digits at most. A foreign state that claims a billion would cost its reader a gigabyte of zeros for each value.
_MARK: Final = re.compile(r'CONSTRAINT "numeric\(([0-9]{1,2}),([0-9]{1,2})\) ((?:[^"]|"")+)" CHECK')


def marked_numerics(connection: apsw.Connection, table: str) -> dict[str, tuple[int, int]]:
    """Column -> its digits, and how many of them are decimals."""
    found = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).get
    marks = _MARK.findall(str(found)) if found else []
    return {name.replace('""', '"'): (int(precision), int(scale)) for precision, scale, name in marks}


def numeric_digits(stored: Any, scale: int) -> Any:
    """The digits of a stored integer, as 10.00; anything else as it is."""
    if type(stored) is not int:
        return stored
    digits = f"{abs(stored):0{scale + 1}d}"
    sign = "-" if stored < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def stored_integer(digits: str) -> int:
    """The inverse of `numeric_digits`."""
    return int(digits.replace(".", ""))
