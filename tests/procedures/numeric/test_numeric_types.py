"""Single values: what a column stores for a number, what it gives back, and what it refuses."""

from __future__ import annotations

from decimal import Decimal, localcontext
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Float, Integer, Numeric, String, types

from procedures.declaration.dialect import DIALECT
from procedures.errors import DefinitionError
from procedures.numeric.numeric_types import (
    ScaledNumeric,
    declared_numeric,
    hides_numeric,
    numeric_of_literal,
    scale_number,
    unscale_integer,
)


def stored(value: Any, precision: int = 12, scale: int = 2) -> int:
    """What a column stores for a value."""
    return scale_number(value, scale, 10**precision - 1, f"Numeric({precision}, {scale})")


@given(st.integers(-(10**18) + 1, 10**18 - 1), st.integers(0, 18))
def test_a_number_comes_back_with_its_decimals(units: int, scale: int) -> None:
    """Stored and read again, under any decimal context."""
    with localcontext() as context:
        context.prec = 2
        number = unscale_integer(units, scale)
        assert stored(number, 18, scale) == units
    assert -int(number.as_tuple().exponent) == scale
    assert Fraction(number) == Fraction(units, 10**scale)


@pytest.mark.parametrize(("value", "units"), [
    (0, 0), (5, 500), ("5", 500), (Decimal("1.5"), 150), (Decimal("1.500000"), 150), (Decimal("-0"), 0), (Decimal("1E+2"), 10000),
    (Decimal("0E+999999"), 0), (Decimal("0E-999999"), 0), (Decimal("9999999999.99"), 999999999999),
])  # fmt: skip
def test_equal_numbers_are_stored_alike(value: Any, units: int) -> None:
    """However they are written."""
    assert stored(value) == units


def test_a_number_of_an_enum_is_its_number() -> None:
    """An IntEnum is an int."""

    class Coin(IntEnum):
        FIVE = 5

    assert stored(Coin.FIVE) == 500


@pytest.mark.parametrize("value", [
    "1.239", "0.001", "1e400", "1E-999999", "-1E-999999999", "10000000000", "NaN", "sNaN", "-Infinity", "", "abc", "0x10", 10**30,
    -(10**30), 10**10,
])  # fmt: skip
def test_excess_digits_are_an_error(value: Any) -> None:
    """Never rounded, never cut."""
    for given_ in (
        value,
        Decimal(value) if isinstance(value, str) and value[:1] not in ("", "a") and "x" not in value else value,
    ):
        with pytest.raises(ValueError, match=r"Numeric\(12, 2\)"):
            stored(given_)


@pytest.mark.parametrize("value", [1.5, float("nan"), True, Fraction(1, 2), b"1", [1], 1j])
def test_what_is_no_exact_number_is_an_error(value: Any) -> None:
    """A float least of all."""
    with pytest.raises(TypeError, match="takes Decimal or int"):
        stored(value)


def test_a_literal_has_its_own_decimals() -> None:
    """And at most 18 digits."""
    assert str(numeric_of_literal(Decimal("1.239"))) == "Numeric(7, 3)"
    assert str(numeric_of_literal(Decimal("1E+3"))) == "Numeric(4, 0)"
    assert numeric_of_literal(0).limit >= 0
    for value in (Decimal(10) ** 18, Decimal("1e-19"), Decimal("NaN"), Decimal("1e400")):
        with pytest.raises(ValueError, match=r"digits|finite"):
            numeric_of_literal(value)


@pytest.mark.parametrize("declared", [
    Numeric(), Numeric(12), Numeric(19, 2), Numeric(5, 6), Numeric(5, -1), Numeric(0, 0), Numeric(5, 2, asdecimal=False),
])  # fmt: skip
def test_a_numeric_without_an_exact_form_is_refused(declared: Any) -> None:
    """The message says what to declare."""
    with pytest.raises(DefinitionError, match=r"Numeric\(|digits"):
        declared_numeric(declared)


def test_a_type_that_hides_a_numeric_is_found() -> None:
    """TypeDecorator at any depth, and with_variant for SQLite."""

    class Money(types.TypeDecorator[Decimal]):
        impl = Numeric(12, 2)
        cache_ok = True

    class Wrapped(types.TypeDecorator[Decimal]):
        impl = Money
        cache_ok = True

    class Plain(types.TypeDecorator[str]):
        impl = String
        cache_ok = True

    hidden = (Money(), Wrapped(), Integer().with_variant(Numeric(1, 1), "sqlite"), Numeric(1, 1).with_variant(Float(), "sqlite"))
    assert all(map(hides_numeric, hidden))
    assert not any(map(hides_numeric, (Plain(), Numeric(1, 1), Float(), Numeric(1, 1).with_variant(Float(), "postgresql"))))


def test_only_an_integer_is_read_as_a_number() -> None:
    """A float that a state should not hold is named, not shown."""
    read = ScaledNumeric(12, 2).result_processor(DIALECT, None)
    assert str(read(-5)) == "-0.05"
    assert read(None) is None
    with pytest.raises(TypeError, match=r"^a value of type float where Numeric\(12, 2\) was expected"):
        read(1.5)


@given(
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.decimals(allow_nan=True, allow_infinity=True),
        st.builds(Decimal, st.sampled_from(["1e400", "-1E+999999", "1E-999999", "0E-30", "0E+50", "9999999999.99", "1.230"])),
        st.decimals(-(10**11), 10**11, places=3),
    )
)
def test_the_quick_conversions_are_the_careful_ones(value: Any) -> None:
    """What a column binds and returns is what `scale_number` and `unscale_integer` say, down to the message."""
    column = ScaledNumeric(12, 2)

    def outcome_of(convert: Any) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    quick = outcome_of(column.bind_processor(DIALECT))
    assert quick == (None if value is None else outcome_of(lambda each: scale_number(each, 2, column.limit, str(column))))
    if type(quick) is int:
        assert str(column.result_processor(DIALECT, None)(quick)) == str(unscale_integer(quick, 2))
