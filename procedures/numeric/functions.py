"""SQL functions for exact decimals: those steps in which SQLite's 64-bit integers would not suffice or would round.

SQLite continues in floating point when an integer overflows, and divides integers without a remainder. These raise OverflowError
and ZeroDivisionError instead, and round half away from zero, as SQL's Numeric does. They depend on their arguments alone, so a
replay finds the same. NULL in, NULL out. `procedures/numeric/compiler.py` writes the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from procedures.numeric.numeric_types import DIVISION_DIGITS

INTEGER_MAX: Final = (1 << 63) - 1
_FLAGS: Final = apsw.SQLITE_INNOCUOUS


def _require_whole(value: Any) -> int:
    if type(value) is not int:
        found = type(value).__name__
        raise TypeError(
            f"an exact number was expected, not a value of type {found}: an expression beside it overflowed or is a float"
        )
    return value


def _bounded(value: int, limit: int = INTEGER_MAX) -> int:
    if not -limit <= value <= limit:
        raise OverflowError(f"a result of exact numbers is out of range: more than {len(str(limit))} digits")
    return value


def _power(exponent: int) -> int:
    return int(10**exponent)


def divide_rounding(numerator: int, denominator: int) -> int:
    """The quotient, half away from zero.

    Raises: ZeroDivisionError.
    """
    if not denominator:
        raise ZeroDivisionError("division of an exact number by zero")
    quotient, rest = divmod(abs(numerator), abs(denominator))
    rounded = quotient + (2 * rest >= abs(denominator))
    return rounded if (numerator < 0) == (denominator < 0) else -rounded


def _add(a: Any, b: Any) -> int | None:
    return None if a is None or b is None else _bounded(_require_whole(a) + _require_whole(b))


def _sub(a: Any, b: Any) -> int | None:
    return None if a is None or b is None else _bounded(_require_whole(a) - _require_whole(b))


def _mul(a: Any, b: Any) -> int | None:
    return None if a is None or b is None else _bounded(_require_whole(a) * _require_whole(b))


def _div(a: Any, b: Any, shift: int) -> int | None:
    return None if a is None or b is None else _bounded(divide_rounding(_require_whole(a) * _power(shift), _require_whole(b)))


def _mod(a: Any, b: Any) -> int | None:
    """The remainder with the sign of the dividend, as SQL has it."""
    if a is None or b is None:
        return None
    if not _require_whole(b):
        raise ZeroDivisionError("division of an exact number by zero")
    rest: int = abs(_require_whole(a)) % abs(_require_whole(b))
    return -rest if a < 0 else rest


def _compare(a: Any, scale_a: int, b: Any, scale_b: int) -> int | None:
    if a is None or b is None:
        return None
    scale = max(scale_a, scale_b)
    first, second = _require_whole(a) * _power(scale - scale_a), _require_whole(b) * _power(scale - scale_b)
    return (first > second) - (first < second)


def _round(a: Any, dropped: int, way: str) -> int | None:
    """Drops decimals: by half away from zero, towards zero, down or up."""
    if a is None:
        return None
    unit = _power(dropped)
    if way == "half":
        return divide_rounding(_require_whole(a), unit)
    if way == "floor":
        return _require_whole(a) // unit
    if way == "ceil":
        return -(-_require_whole(a) // unit)
    return abs(_require_whole(a)) // unit * (-1 if a < 0 else 1)


def _cast(a: Any, power: int, limit: int) -> int | None:
    """To other decimals, rounding half away from zero."""
    if a is None:
        return None
    return _bounded(
        _require_whole(a) * _power(power) if power >= 0 else divide_rounding(_require_whole(a), _power(-power)), limit
    )


def _units(stored: Any) -> Any:
    """What is stored of an exact column, in ad-hoc SQL."""
    return stored


class _Average:
    """State of one avg: also over a window that moves."""

    def __init__(self) -> None:
        self.sum = self.count = 0

    def step(self, value: Any) -> None:
        if value is not None:
            self.sum += _require_whole(value)
            self.count += 1

    def inverse(self, value: Any) -> None:
        if value is not None:
            self.sum -= _require_whole(value)
            self.count -= 1

    def value(self) -> int | None:
        return _bounded(divide_rounding(self.sum * _power(DIVISION_DIGITS), self.count)) if self.count else None

    final = value


_SCALARS: Final[dict[str, tuple[Callable[..., int | None], int]]] = {
    "numeric_add": (_add, 2),
    "numeric_sub": (_sub, 2),
    "numeric_mul": (_mul, 2),
    "numeric_div": (_div, 3),
    "numeric_mod": (_mod, 2),
    "numeric_compare": (_compare, 4),
    "numeric_round": (_round, 3),
    "numeric_cast": (_cast, 3),
}
UNITS: Final = "units"  # of an exact column in ad-hoc SQL: the stored integer itself
NAMES: Final = frozenset((*_SCALARS, "numeric_avg", UNITS))


def register_numeric_functions(connection: apsw.Connection) -> None:
    """Makes the functions known to one connection."""
    for name, (function, arguments) in _SCALARS.items():
        connection.create_scalar_function(name, function, arguments, deterministic=True, flags=_FLAGS)
    units: Any = _units
    connection.create_scalar_function(UNITS, units, 1, deterministic=True, flags=_FLAGS)
    factory: Any = _Average
    connection.create_window_function("numeric_avg", factory, 1, flags=_FLAGS)
