"""How many decimals an expression has, from its parts alone."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Integer, Numeric, case, cast, func, literal, null, select, union_all

from procedures.numeric.shapes import (
    NULL,
    DecimalShape,
    NumericRefused,
    check_arguments,
    decimals_of,
    shape_of,
    united_shape,
)
from tests.procedures.numeric.expressions import t

a, b, c, d, n = t.c.a, t.c.b, t.c.c, t.c.d, t.c.n


@pytest.mark.parametrize(("expression", "decimals", "digits"), [
    (a, 2, 5), (a + b, 4, 13), (a - 1, 2, 7), (a * b, 6, 17), (a / b, 6, 19), (b % a, 4, 19), (n / n, 4, 19), (-a, 2, 5),
    (func.sum(a), 2, 19), (func.avg(a), 6, 19), (func.round(b, 2), 2, 11), (func.round(a, 3), 2, 6), (func.floor(b), 0, 9),
    (func.coalesce(a, b), 4, 12), (func.max(a), 2, 5), (func.nullif(a, 0), 2, 6), (case((a > 0, a), else_=b), 4, 12),
    (cast(n, Numeric(7, 3)), 3, 7), (literal(Decimal("1.239")), 3, 7), (func.lag(a, 1, b).over(order_by=n), 4, 12),
    (func.sum(a).filter(a > 0), 2, 19), (a.label("x"), 2, 5), (select(a + b).scalar_subquery(), 4, 13), (a.distinct(), 2, 5),
])  # fmt: skip
def test_shapes_by_example(expression: Any, decimals: int, digits: int) -> None:
    """The table of the module, in rows."""
    shape = shape_of(expression)
    assert isinstance(shape, DecimalShape)
    assert (shape.scale, shape.digits, shape.whole) == (decimals, digits, False)


def test_a_union_has_room_for_every_query() -> None:
    """SQLAlchemy gives its columns the type of the first."""
    both = union_all(select(cast(a, Numeric(3, 2)).label("x")), select(cast(d, Numeric(18, 2)))).subquery()
    assert shape_of(both.c.x) == DecimalShape(2, 18)
    late = union_all(select(null().label("x")), select(n)).subquery()
    assert shape_of(late.c.x) == DecimalShape(0, 19, whole=True)


def test_more_than_18_decimals_are_refused() -> None:
    """With what to write instead."""
    with pytest.raises(NumericRefused, match="round a part of it first"):
        shape_of(d * d * d * d)


@pytest.mark.parametrize("function", [func.trunc(b, 1), func.floor(b, 1), func.ceil(b, 2), func.round(b, 1, 2)])
def test_an_argument_that_would_be_ignored_is_refused(function: Any) -> None:
    """PostgreSQL has trunc(x, n); here it left no decimals, whatever n was."""
    with pytest.raises(NumericRefused, match=r"only round\(x, n\) has a second one"):
        check_arguments(function)


def test_rounding_takes_a_constant() -> None:
    """The decimals of the result have to be known when the statement is compiled."""
    assert decimals_of(func.round(a, 1)) == 1
    assert decimals_of(func.floor(a)) == 0
    for places in (-1, 19, literal(2) + 0, 1.5, True):
        with pytest.raises(NumericRefused, match="constant n"):
            decimals_of(func.round(a, places))


def test_what_is_no_number_has_no_decimals() -> None:
    """NULL goes with everything; other shapes say what they are."""
    assert shape_of(null()) is NULL
    assert united_shape([NULL, NULL]) is NULL
    assert united_shape([NULL, DecimalShape(2, 5)]) == DecimalShape(2, 5)
    assert str(shape_of(t.c.n + 1)) == "an integer"
    assert str(shape_of(literal(1.5))) == "a float"
    assert shape_of(cast(n, Integer)) == shape_of(n)
