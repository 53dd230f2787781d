# ruff: noqa: SLF001 - SQLAlchemy has no public way to copy a clause with other parts
"""Operands at the decimals that their operation needs: an expression times a power of ten, a value converted when it is bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter, ClauseElement, ColumnElement, Tuple

from procedures.numeric.numeric_types import PRECISION_MAX, ScaledNumeric, is_exact
from procedures.numeric.shapes import (
    NULL,
    REMEDY,
    UNTYPED,
    AnyShape,
    DecimalShape,
    NumericRefused,
    bounded_shape,
    holds_exact,
    holds_numbers,
    is_decimal,
    literal_type,
    shape_of,
    united_shape,
)

COMPARED: Final = (operators.eq, operators.ne, operators.lt, operators.le, operators.gt, operators.ge)

_COMPARED_ALSO: Final = (operators.is_distinct_from, operators.is_not_distinct_from, operators.is_, operators.is_not)

_LISTED: Final = (operators.between_op, operators.not_between_op, operators.in_op, operators.not_in_op)


class _Rescaled(ColumnElement[Any]):
    """An expression times a power of ten."""

    __visit_name__ = "rescaled"
    inherit_cache = False

    def __init__(self, element: Any, shape: DecimalShape, power: int) -> None:
        self.element = element
        self.shape = shape
        self.power = power
        self.type = ScaledNumeric(PRECISION_MAX, shape.scale)

    def self_group(self, against: Any = None) -> Any:
        return self

    @property
    def _from_objects(self) -> Any:
        return self.element._from_objects


def at_scale(element: Any, shape: AnyShape, scale: int) -> Any:
    """The expression with so many decimals, at least its own."""
    if isinstance(element, BindParameter):
        return _retyped(element, shape, scale)
    if element.__visit_name__ in ("grouping", "label") and isinstance(element.element, BindParameter):
        return _retyped(element.element, shape, scale)
    if not isinstance(shape, DecimalShape) or (shape.scale == scale and not shape.whole):
        return element
    power = scale - shape.scale
    if not power and element.__visit_name__ == "column":
        return element
    return _Rescaled(element, bounded_shape(scale, shape.digits + power), power)  # by 1: a sum of integers may be a float by now


def _retyped(bind: Any, shape: AnyShape, scale: int) -> Any:
    """The same bound value, converted to other decimals when it is bound."""
    type_: Any = bind.type
    if (isinstance(shape, DecimalShape) and shape.whole and not bind.required and type(bind.value) is int) or (
        is_exact(type_) and holds_numbers(bind) and (type_.scale is None or bind.expanding)
    ):
        type_ = literal_type(bind)
    precision = PRECISION_MAX
    if is_exact(type_) and type_.scale is not None:
        if type_.scale == scale and isinstance(type_, ScaledNumeric) and type_ is bind.type:
            return bind
        precision = min(PRECISION_MAX, type_.precision + max(0, scale - type_.scale))
    return with_type(bind, ScaledNumeric(precision, scale))


def with_type(bind: Any, type_: Any) -> Any:
    copied = bind._clone(maintain_key=True)
    copied.type = type_
    return copied


def list_is_decimal(right: Any) -> bool:
    inner = right.element if right.__visit_name__ == "grouping" else right
    return hasattr(inner, "clauses") and getattr(inner, "operator", None) not in (operators.add, operators.mul) and (
        inner.__visit_name__ in ("clauselist", "expression_clauselist") and holds_exact(inner.clauses)
    )  # fmt: skip


def exact_union(elements: Sequence[Any], what: str) -> DecimalShape:
    shapes = [shape_of(element) for element in elements]
    for element, shape in zip(elements, shapes, strict=True):
        _check_meets(element, shape, what)
    united = united_shape(shapes)
    if not isinstance(united, DecimalShape):
        raise NumericRefused(f"{what} have no common decimals; {REMEDY}")
    return united


def _check_meets(element: Any, shape: AnyShape, what: str) -> None:
    """Refuses what cannot be brought to the decimals of a number beside it."""
    if isinstance(shape, DecimalShape) or shape is NULL or (shape is UNTYPED and isinstance(element, BindParameter)):
        return
    if isinstance(element, BindParameter) and element.value is None and not element.required:
        return
    raise NumericRefused(f"{what}: {shape} cannot stand beside an exact number; {REMEDY}")


def brought_to(element: Any, shape: DecimalShape) -> Any:
    return at_scale(element, shape_of(element), shape.scale)


def compared_at_scale(binary: Any, operator: Any, left: AnyShape) -> Any:
    """A comparison with both sides at the same decimals."""
    if operator not in (*COMPARED, *_COMPARED_ALSO, *_LISTED):
        raise NumericRefused(f"the operator of <{binary}> is not defined for exact numbers; {REMEDY}")
    sides = [binary.left, *_listed(binary.right)] if operator in _LISTED else [binary.left, binary.right]
    shape = exact_union(sides, "a comparison")
    copied = binary._clone()
    copied.left = brought_to(binary.left, shape)
    copied.right = _list_at_scale(binary.right, shape) if operator in _LISTED else brought_to(binary.right, shape)
    return copied


def _listed(right: Any) -> list[Any]:
    inner = right.element if right.__visit_name__ == "grouping" else right
    return list(inner.clauses) if hasattr(inner, "clauses") and not hasattr(inner, "name") else [right]


def _list_at_scale(right: Any, shape: DecimalShape) -> Any:
    inner = right.element if right.__visit_name__ == "grouping" else right
    if hasattr(inner, "clauses") and not hasattr(inner, "name"):
        copied = inner._clone()
        copied.clauses = [brought_to(clause, shape) for clause in inner.clauses]
        if inner is right:
            return copied
        outer = right._clone()
        outer.element = copied
        return outer
    found = shape_of(right)
    if isinstance(right, BindParameter):
        return brought_to(right, shape)
    if not isinstance(found, DecimalShape) or found.scale != shape.scale:
        raise NumericRefused(f"IN compares {shape} with {found}; cast the column of the subquery")
    return right


def tuples_at_scale(binary: Any, operator: Any) -> Any:
    """(a, b) < (c, d), pair by pair."""
    right = binary.right
    if isinstance(right, BindParameter):
        copied = binary._clone()
        given: Any = right.type
        copied.right = with_type(right, types.TupleType(*_tuple_types(binary.left.clauses, given.types)))
        return copied
    if isinstance(right, Tuple) and len(right.clauses) == len(binary.left.clauses) and operator in COMPARED:
        copied, first, second = binary._clone(), binary.left._clone(), right._clone()
        pairs = [
            (a, b, exact_union([a, b], "a comparison")) if holds_exact([a, b]) else (a, b, None)
            for a, b in zip(binary.left.clauses, right.clauses, strict=True)
        ]
        first.clauses = [a if shape is None else brought_to(a, shape) for a, _, shape in pairs]
        second.clauses = [b if shape is None else brought_to(b, shape) for _, b, shape in pairs]
        copied.left, copied.right = first, second
        return copied
    raise NumericRefused(
        "tuples with exact numbers compare with tuples of the same length, or with a list of them; write AND and OR"
    )


def _tuple_types(elements: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Types of the values in a list of tuples: SQLAlchemy gives those of a literal list the type of the first tuple."""
    found = []
    for element, type_ in zip(elements, given, strict=True):
        shape = shape_of(element)
        if is_exact(type_) and not isinstance(shape, DecimalShape):
            raise NumericRefused(f"{shape} cannot be compared with exact numbers; {REMEDY}")
        exact = is_decimal(shape) or is_exact(type_)
        found.append(ScaledNumeric(PRECISION_MAX, shape.scale) if exact else type_)  # type: ignore[union-attr]
    return found


def assigned(value: Any, column: Any) -> Any:
    """A value as a column stores it.

    Raises: NumericRefused when it has more decimals than the column, or is no exact number.
    """
    if not isinstance(value, ClauseElement):
        return value  # bound by SQLAlchemy, as the type of the column says
    shape = shape_of(value)
    wanted = column.type
    where = f"column {column.name}"
    if isinstance(wanted, ScaledNumeric):
        _check_meets(value, shape, where)
        if isinstance(value, BindParameter):
            return with_type(value, wanted)
        if isinstance(shape, DecimalShape) and shape.scale > wanted.scale:
            raise NumericRefused(
                f"{where} is {wanted}, its new value has {shape.scale} decimals; say how it is rounded: "
                f"func.round(x, {wanted.scale})"
            )
        return at_scale(value, shape, wanted.scale)
    if is_decimal(shape) and not (isinstance(wanted, types.Integer) and isinstance(shape, DecimalShape) and shape.scale == 0):
        raise NumericRefused(
            f"{where} is {wanted!r}, its new value {shape}; declare it Numeric(p, s), or cast the value to Integer"
        )
    return value


Assign = Callable[[Any, Any], Any]  # key of a column, value -> the value to be written


def assigning_statement(stmt: Any, assign: Assign) -> Any:
    """An INSERT or UPDATE with other values."""

    def of_row(values: Any) -> Any:
        return {key: assign(key, value) for key, value in values.items()}

    copied: Any = stmt._clone()
    if copied._values:
        copied._values = of_row(copied._values)
    if getattr(copied, "_ordered_values", None):
        copied._ordered_values = [(key, assign(key, value)) for key, value in copied._ordered_values]
    if copied._multi_values:
        columns = stmt.table.c
        copied._multi_values = tuple(
            [of_row(row if isinstance(row, dict) else dict(zip(columns, row, strict=False))) for row in rows]
            for rows in copied._multi_values
        )
    return copied


def filled_columns(stmt: Any) -> Iterator[tuple[Any, Any]]:
    """INSERT … FROM SELECT: each column, and what each query fills it with."""
    names = stmt._select_names or [column.key for column in stmt.table.columns]
    for query in () if stmt.select is None else queries_of(stmt.select):
        for name, source in zip(names, query.selected_columns, strict=False):
            yield stmt.table.c[getattr(name, "key", name)], source


def queries_of(query: Any) -> list[Any]:
    """The single queries of a union, an intersection or a difference."""
    inner = query.element if query.__visit_name__ == "select_statement_grouping" else query
    parts = getattr(inner, "selects", None)
    return [inner] if parts is None else [single for part in parts for single in queries_of(part)]


def check_filled(column: Any, source: Any) -> None:
    """Refuses a column of a query that has other decimals than the one that it fills."""
    shape = shape_of(source)
    exact = isinstance(column.type, ScaledNumeric)
    same = isinstance(shape, DecimalShape) and not shape.whole and shape.scale == getattr(column.type, "scale", None)
    fits = shape is NULL or same if exact else not is_decimal(shape)
    if not fits:
        raise NumericRefused(
            f"column {column.name} is {column.type!r}, the query gives {shape}; cast it: cast(x, {column.type!r})"
        )
