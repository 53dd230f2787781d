"""How many decimals an expression has: a `DecimalShape`, derived from its parts alone.

SQLAlchemy's own types are no help here: it gives a sum of two Numerics the type of the left one, and an average none.

| expression | decimals | digits |
|---|---|---|
| a + b, a - b, CASE, coalesce | the larger | one more than the larger |
| a * b | of both together | of both together |
| a / b | those of a, and four more | half away from zero |
| sum | of its argument | 64 bits; SQLite raises an error beyond |
| avg | of its argument, and four more | half away from zero |
| round(a, n), floor, ceil, trunc | n, or none | |
| -a, abs, min, max, lag, … | as they are | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from sqlalchemy import Table, types
from sqlalchemy.exc import CompileError
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter
from sqlalchemy.sql.selectable import CTE, Values

from procedures.numeric.numeric_types import (
    DIVISION_DIGITS,
    INTEGER_DIGITS,
    PRECISION_MAX,
    ScaledNumeric,
    is_exact,
    numeric_of_literal,
)

REMEDY: Final = "compute it in Python, or cast it: cast(x, Numeric(12, 2))"

TYPE_ONLY: Final = frozenset(
    ("sum", "min", "max", "abs", "lag", "lead", "first_value", "last_value", "nth_value", "likely", "unlikely")
)

ROUNDING: Final = {"round": "half", "trunc": "trunc", "floor": "floor", "ceil": "ceil", "ceiling": "ceil"}

RAW_ARGUMENTS: Final = frozenset(("count", "sign"))  # whose result does not depend on the decimals

ADDED: Final = (operators.add, operators.sub)

QUOTIENTS: Final = (operators.truediv, operators.mod)


class NumericRefused(CompileError):
    """A statement that could not be exact; the text says why and what to write."""


@dataclass(frozen=True, slots=True)
class DecimalShape:
    """Decimals of an exact expression, and how many digits it has at most. `whole`: a plain integer column or value."""

    scale: int
    digits: int
    whole: bool = False

    def __str__(self) -> str:
        return "an integer" if self.whole else f"a number with {self.scale} decimals"


class Other:
    """Shapes of what is no exact number."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


NULL: Final = Other("NULL")

UNTYPED: Final = Other("a value without a type")

AnyShape = DecimalShape | Other

WHOLE: Final = DecimalShape(0, INTEGER_DIGITS, whole=True)


def shape_of(element: Any) -> AnyShape:
    """What is known about an expression, from its parts.

    Raises: NumericRefused for one whose parts cannot be exact together.
    """
    reader = _SHAPES.get(element.__visit_name__)
    return reader(element) if reader is not None else _shape_of_type(element)


def _shape_of_type(element: Any) -> AnyShape:
    type_ = getattr(element, "type", None)
    if isinstance(type_, types.Integer):
        return WHOLE
    if type_ is None or type_._isnull:  # noqa: SLF001 - SQLAlchemy's own question for it
        return UNTYPED
    if isinstance(type_, types.Float):
        return Other("a float")
    return Other("an expression whose decimals are not known" if is_exact(type_) else f"an expression of type {type_!r}")


def _shape_of_column(column: Any) -> AnyShape:
    origins = getattr(column, "_proxies", ())
    if origins:  # of a subquery, whose type SQLAlchemy guessed
        shape = shape_of_rows([shape_of(origin) for origin in origins])
        grows = isinstance(column.table, CTE) and column.table.recursive and isinstance(shape, DecimalShape)
        return DecimalShape(shape.scale, INTEGER_DIGITS, shape.whole) if grows else shape  # type: ignore[union-attr]
    if is_exact(column.type):
        if column.is_literal:
            raise NumericRefused(
                f"literal_column({column.name!r}) is text, which SQLite reads as a float; write literal(Decimal(…))"
            )
        if not isinstance(column.table, Values) and not (
            isinstance(column.type, ScaledNumeric) and isinstance(column.table, Table)
        ):
            raise NumericRefused(f"{column} is no column of a declared table, so how its number is stored is not known; {REMEDY}")
        return shape_of_numeric(column.type)
    return _shape_of_type(column)


def shape_of_rows(shapes: Sequence[AnyShape]) -> AnyShape:
    """The shape of one column whose rows come from several queries, all of the same decimals (`visit_compound_select`)."""
    known = [shape for shape in shapes if isinstance(shape, DecimalShape)]
    if len(known) < sum(shape is not NULL for shape in shapes) or not known:
        return next((shape for shape in shapes if shape is not NULL and not isinstance(shape, DecimalShape)), NULL)
    return max(known, key=lambda shape: (shape.scale, shape.digits))


def shape_of_numeric(type_: Any) -> DecimalShape:
    if type_.precision is None or type_.scale is None:
        raise NumericRefused("a Numeric without digits and decimals cannot be exact; write Numeric(12, 2)")
    if not 0 <= type_.scale <= type_.precision <= PRECISION_MAX or not type_.precision:
        raise NumericRefused(
            f"Numeric({type_.precision}, {type_.scale}): an exact number has up to {PRECISION_MAX} digits, and as many decimals"
        )
    return DecimalShape(type_.scale, type_.precision)


def shape_of_bind(bind: Any) -> AnyShape:
    type_ = bind.type
    if isinstance(type_, types.Integer) and type(bind.value) is int and not bind.required:
        digits = len(str(abs(bind.value)))
        return DecimalShape(0, -(-digits // 4) * 4, whole=True) if digits <= PRECISION_MAX - 2 else WHOLE
    if not is_exact(type_):
        return _shape_of_type(bind)
    if holds_numbers(bind) and (type_.scale is None or bind.expanding):
        return shape_of_numeric(literal_type(bind))
    return shape_of_numeric(type_)


def holds_numbers(bind: Any) -> bool:
    """Whether the statement itself states the values."""
    return not bind.required and bind.value is not None and (not bind.expanding or any(v is not None for v in bind.value))


def literal_type(bind: Any) -> ScaledNumeric:
    """The type that holds the value of a bind, or each of its list."""
    try:
        if not bind.expanding:
            return numeric_of_literal(bind.value)
        return ScaledNumeric(PRECISION_MAX, max(numeric_of_literal(value).scale for value in bind.value if value is not None))
    except (TypeError, ValueError) as error:
        raise NumericRefused(str(error)) from None


def _shape_of_binary(binary: Any) -> AnyShape:
    if binary.operator in (*ADDED, operators.mul, *QUOTIENTS):
        return shape_of_step(binary.operator, shape_of(binary.left), shape_of(binary.right), binary)
    return _shape_of_type(binary)


def _shape_of_list(clauses: Any) -> AnyShape:
    if getattr(clauses, "operator", None) in (operators.add, operators.mul):
        return shape_of(fold_steps(clauses))
    return _shape_of_type(clauses)


def fold_steps(clauses: Any) -> Any:
    """a + b + c, which SQLAlchemy keeps as a list, as steps."""
    operator = clauses.operator
    return reduce(lambda left, right: BinaryExpression(left, right, operator, type_=clauses.type), clauses.clauses)


def shape_of_step(operator: Any, left: AnyShape, right: AnyShape, element: Any) -> AnyShape:
    """The shape of one arithmetic step."""
    known = [shape for shape in (left, right) if isinstance(shape, DecimalShape)]
    exact = any(not shape.whole for shape in known) or (operator is operators.truediv and len(known) > 1)
    if not exact:
        return (
            _shape_of_type(element)
            if not is_exact(getattr(element, "type", None))
            else Other("an expression without exact decimals")
        )
    first = left if isinstance(left, DecimalShape) else known[0]
    second = right if isinstance(right, DecimalShape) else known[0]
    if operator in ADDED:
        scale = max(first.scale, second.scale)
        return bounded_shape(scale, max(first.digits - first.scale, second.digits - second.scale) + scale + 1)
    if operator is operators.mul:
        return bounded_shape(first.scale + second.scale, first.digits + second.digits)
    if operator is operators.truediv:
        return bounded_shape(first.scale + DIVISION_DIGITS, INTEGER_DIGITS)
    return bounded_shape(max(first.scale, second.scale), INTEGER_DIGITS)


def bounded_shape(scale: int, digits: int) -> DecimalShape:
    if scale > PRECISION_MAX:
        raise NumericRefused(
            f"the result has {scale} decimals, more than {PRECISION_MAX}; round a part of it first: func.round(x, 2)"
        )
    return DecimalShape(scale, min(digits, INTEGER_DIGITS))


def united_shape(shapes: Iterable[AnyShape]) -> AnyShape:
    """The shape to which several results are brought."""
    found = list(shapes)
    known = [shape for shape in found if isinstance(shape, DecimalShape)]
    if not any(not shape.whole for shape in known):
        return next((shape for shape in found if shape is not NULL), NULL)
    scale = max(shape.scale for shape in known)
    return bounded_shape(scale, max(shape.digits - shape.scale for shape in known) + scale)


def _shape_of_function(function: Any) -> AnyShape:
    name = function.name.lower()
    arguments = list(function.clauses)
    if name in RAW_ARGUMENTS:
        return WHOLE
    if name in RESULT_ARGUMENTS and arguments:
        return united_shape(shape_of(argument) for argument in RESULT_ARGUMENTS[name](arguments))
    shape = shape_of(arguments[0]) if arguments else UNTYPED
    if not isinstance(shape, DecimalShape) or shape.whole:
        return _shape_of_type(function) if not is_exact(function.type) else Other(f"the result of {name}()")
    scale, digits = shape.scale, shape.digits
    if name == "sum":
        return DecimalShape(scale, INTEGER_DIGITS)
    if name == "avg":
        return bounded_shape(scale + DIVISION_DIGITS, INTEGER_DIGITS)
    if name in ROUNDING:
        decimals = min(scale, decimals_of(function))
        return bounded_shape(decimals, digits - scale + decimals + 1)
    return shape if name in TYPE_ONLY else Other(f"the result of {name}()")


RESULT_ARGUMENTS: Final[dict[str, Callable[[list[Any]], list[Any]]]] = {
    "coalesce": lambda arguments: arguments,
    "ifnull": lambda arguments: arguments,
    "nullif": lambda arguments: arguments,
    "iif": lambda arguments: arguments[1:],
    "if": lambda arguments: arguments[1:],
    "min": lambda arguments: arguments,
    "max": lambda arguments: arguments,
    "lag": lambda arguments: arguments[:1] + arguments[2:],
    "lead": lambda arguments: arguments[:1] + arguments[2:],
}
"""Functions whose result is one of these arguments."""


def check_arguments(function: Any) -> None:
    """Raises: NumericRefused for more arguments than a function of `ROUNDING`, or avg, has: SQLite would never see them."""
    count, name = len(list(function.clauses)), function.name.lower()
    if count > (2 if name == "round" else 1):
        raise NumericRefused(f"{name}() of an exact number takes no {count} values; only round(x, n) has a second one")


def decimals_of(function: Any) -> int:
    """The constant n of round(x, n)."""
    arguments = list(function.clauses)
    if len(arguments) < 2 or function.name.lower() != "round":
        return 0
    bind = arguments[1]
    value = bind.value if isinstance(bind, BindParameter) and not bind.required else None
    if type(value) is not int or not 0 <= value <= PRECISION_MAX:
        raise NumericRefused(f"round(x, n) of an exact number takes a constant n from 0 to {PRECISION_MAX}")
    return value


def is_decimal(shape: AnyShape) -> bool:
    return isinstance(shape, DecimalShape) and not shape.whole


def shape_of_cast(cast: Any) -> AnyShape:
    return shape_of_numeric(cast.type) if is_exact(cast.type) else _shape_of_type(cast)


def _shape_of_unary(unary: Any) -> AnyShape:
    if unary.operator is operators.neg or unary.modifier is not None or unary.operator is operators.distinct_op:
        return shape_of(unary.element)
    return _shape_of_type(unary)


def _shape_of_grouping(grouping: Any) -> AnyShape:
    element = grouping.element
    columns = getattr(element, "selected_columns", None)
    return shape_of(element) if columns is None else shape_of(next(iter(columns)))


def _shape_of_case(case: Any) -> AnyShape:
    return united_shape(shape_of(result) for result in results_of(case))


def results_of(case: Any) -> list[Any]:
    return [result for _, result in case.whens] + ([case.else_] if case.else_ is not None else [])


_SHAPES: Final[dict[str, Callable[[Any], AnyShape]]] = {
    "column": _shape_of_column,
    "bindparam": shape_of_bind,
    "binary": _shape_of_binary,
    "expression_clauselist": _shape_of_list,
    "unary": _shape_of_unary,
    "grouping": _shape_of_grouping,
    "select_statement_grouping": _shape_of_grouping,
    "label": lambda label: shape_of(label.element),
    "null": lambda _: NULL,
    "case": _shape_of_case,
    "cast": shape_of_cast,
    "type_coerce": shape_of_cast,
    "function": _shape_of_function,
    "over": lambda over: shape_of(over.element),
    "funcfilter": lambda filtered: shape_of(filtered.func),
    "rescaled": lambda rescaled: rescaled.shape,
}


def holds_exact(elements: Iterable[Any]) -> bool:
    return any(map(is_decimal, map(shape_of, elements)))
