"""Exact decimals in SQLite: `Numeric(p, s)` is stored as an INTEGER that counts units of 10^-s.

So it compares, sorts, groups, indexes and sums exactly, as whole numbers do. `numeric_compiler` keeps the scales of a statement
apart; this module holds the types and the conversion of single values.
SQLite's integers have 64 bits, so p is at most 18.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final

from sqlalchemy import types

from procedures.errors import DefinitionError

PRECISION_MAX: Final = 18  # digits of which every number fits 64 bits
INTEGER_DIGITS: Final = 19  # of any 64-bit integer
DIVISION_DIGITS: Final = 4  # that a quotient has more than its dividend, as MySQL has it
_DIGITS: Final = 80  # of a value that is looked at; far more than any column holds
_EXACT: Final = Context(prec=_DIGITS, Emax=999_999, Emin=-999_999, traps=[Inexact, InvalidOperation, Overflow])


def unscale_integer(stored: int, scale: int) -> Decimal:
    """The number that a stored integer stands for, with all its decimals: (1000, 2) → Decimal("10.00")."""
    return Decimal(stored).scaleb(-scale, _EXACT)


def scale_number(value: Any, scale: int, limit: int, kind: str) -> int:
    """The integer that stands for a number.

    Args:
        value: Decimal, int, or its digits as text.
        limit: largest absolute result.
        kind: of the column, for messages.

    Raises:
        TypeError: it is no exact number.
        ValueError: it is not finite, has more decimals than the column, or is out of its range.
    """
    if type(value) is int:
        scaled = value * int(10**scale)
    else:
        # Exactly or not at all: the context traps a digit that would be lost.
        number = _to_decimal(value, kind)
        if number.adjusted() >= INTEGER_DIGITS and number:
            raise ValueError(f"the value is out of range of {kind}")
        try:
            shifted = number.scaleb(scale, _EXACT)
            scaled = int(shifted)
        except (Inexact, InvalidOperation, Overflow):
            raise ValueError(f"the value has more digits than {kind} holds; round it first") from None
        if scaled != shifted:
            raise ValueError(f"the value has more than the {scale} decimals of {kind}; round it first")
    if not -limit <= scaled <= limit:
        raise ValueError(f"the value is out of range of {kind}")
    return scaled


def _to_decimal(value: Any, kind: str) -> Decimal:
    if isinstance(value, bool | float) or not isinstance(value, Decimal | int | str):
        why = "; a float has lost its decimals already" if isinstance(value, float) else ""
        raise TypeError(f"{kind} takes Decimal or int, not {type(value).__name__}{why}")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(f"the value is not a number; {kind} takes Decimal or int") from None
    if not number.is_finite():
        raise ValueError(f"{kind} takes finite numbers")
    return number


class ScaledNumeric(types.Numeric[Decimal]):
    """Numeric(p, s) as an INTEGER of p digits; what `Database.table` makes of a declared Numeric."""

    cache_ok = True
    precision: int
    scale: int

    def __init__(self, precision: int | None = None, scale: int | None = None, **_: Any) -> None:
        super().__init__(precision=precision, scale=scale)

    class Comparator(types.Numeric.Comparator[Decimal]):
        """Results keep this type, so that a literal beside them has its own digits, too; the compiler finds their scale."""

        def _adapt_expression(self, op: Any, other_comparator: Any) -> Any:
            return op, self.type

    comparator_factory = Comparator

    def __str__(self) -> str:
        return f"Numeric({self.precision}, {self.scale})"

    __repr__ = __str__

    @property
    def limit(self) -> int:
        """The largest stored integer."""
        return int(10**self.precision - 1)

    def coerce_compared_value(self, op: Any, value: Any) -> types.TypeEngine[Any]:
        """A literal has its own digits, so that nothing is rounded to those of the column beside it."""
        if isinstance(value, Decimal | int) and not isinstance(value, bool):
            return numeric_of_literal(value)
        if isinstance(value, float):
            raise TypeError("the value is a float, which has lost its decimals already; write a Decimal of its digits as a text")
        return super().coerce_compared_value(op, value) if value is not None else self

    def bind_processor(self, dialect: Any) -> Callable[[Any], Any]:
        scale, limit, kind, factor = self.scale, self.limit, str(self), int(10**self.scale)

        def to_stored(value: Any) -> int | None:
            if type(value) is Decimal and value.adjusted() < INTEGER_DIGITS:  # else int() of it may take for ever
                try:
                    shifted = value.scaleb(scale, _EXACT)
                    scaled = int(shifted)
                except (ArithmeticError, ValueError):  # `scale_number` says which
                    return scale_number(value, scale, limit, kind)
                if scaled == shifted and -limit <= scaled <= limit:
                    return scaled
            elif type(value) is int and -limit <= value * factor <= limit:
                return value * factor
            return None if value is None else scale_number(value, scale, limit, kind)

        return to_stored

    def literal_processor(self, dialect: Any) -> Callable[[Any], str]:
        to_stored = self.bind_processor(dialect)
        return lambda value: str(to_stored(value))

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        places, kind = Decimal(-self.scale), str(self)

        def to_python(stored: Any) -> Decimal | None:
            if type(stored) is int:
                return Decimal(stored).scaleb(places, _EXACT)  # as `unscale_integer`, without its frame
            if stored is None:
                return None
            raise TypeError(f"a value of type {type(stored).__name__} where {kind} was expected")

        return to_python


def numeric_of_literal(value: Decimal | int) -> ScaledNumeric:
    """The type of a literal: its own decimals, and digits in steps of four, so that like statements are one.

    Raises: ValueError when it is not finite or has more than 18 digits.
    """
    number = _to_decimal(value, "a literal")
    _, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    whole = max(0, len(digits) + int(exponent)) if number else 0
    if whole + scale > PRECISION_MAX:
        raise ValueError(f"the value has more than {PRECISION_MAX} digits, which is what an exact number holds")
    return ScaledNumeric(min(PRECISION_MAX, -(-whole // 4) * 4 + scale) or 1, scale)


def declared_numeric(declared: types.Numeric[Any]) -> ScaledNumeric:
    """The stored type of a declared Numeric.

    Raises: DefinitionError, saying what to declare instead.
    """
    precision, scale = declared.precision, declared.scale
    if precision is None or scale is None:
        raise DefinitionError("a Numeric states its digits and decimals: Numeric(12, 2); without them no sum is exact")
    if not 0 < precision <= PRECISION_MAX or not 0 <= scale <= precision:
        raise DefinitionError(
            f"Numeric({precision}, {scale}): an exact number has at most {PRECISION_MAX} digits, and 0 to as many decimals; "
            "store a longer one as String and compute in Python"
        )
    if not declared.asdecimal:
        raise DefinitionError(
            "Numeric(asdecimal=False) would return floats; use Numeric(p, s), or Float where rounding is wanted"
        )
    if declared.decimal_return_scale is not None:
        raise DefinitionError("decimal_return_scale: a value comes back with all its decimals; leave it out")
    return ScaledNumeric(precision, scale)


def is_exact(type_: Any) -> bool:
    """Whether SQLAlchemy calls the type Numeric, and not Float."""
    return isinstance(type_, types.Numeric) and not isinstance(type_, types.Float)


def hides_numeric(type_: Any) -> bool:
    """Whether it becomes a Numeric only for SQLite, or stops being one: TypeDecorator and with_variant."""
    if isinstance(type_, types.TypeDecorator):
        return is_exact(type_.impl_instance) or hides_numeric(type_.impl_instance)
    variant = getattr(type_, "_variant_mapping", {}).get("sqlite")
    return variant is not None and (is_exact(type_) or is_exact(variant) or hides_numeric(variant))
