"""Operands that need brackets which SQLAlchemy leaves out, and conditions of which it does not know that they are true or false.

`a < not_(b)` would be `a < b = 0`, which SQLite reads as `(a < b) = 0`. SQLAlchemy puts brackets by its own table of precedence,
and that is wrong here for three kinds of operands:

- a column as a condition, which is written `b = 0` or `b = 1` for a database without a Boolean of its own;
- whatever is beside an operator that the application names, `op("&")`: of that, nothing is known;
- arithmetic beside `||`, which binds closer than `*` in SQLite, and looser than `+` for SQLAlchemy.

BETWEEN and NOT of several conditions have no type there; as a column of a result they are a bool like any other condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    AsBoolean,
    BinaryExpression,
    Case,
    ExpressionClauseList,
    Grouping,
    Label,
    TypeCoerce,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import ScalarSelect

_BETWEEN: Final = (operators.between_op, operators.not_between_op)
_AS_CONDITIONS: Final = (operators.is_true, operators.is_false)  # of a column, which SQLAlchemy writes as a comparison
_CHOOSING: Final = frozenset(("coalesce", "ifnull", "nullif", "min", "max", "iif"))
_COMPOUND: Final = (BinaryExpression, UnaryExpression, ExpressionClauseList)


def group_operands(expression: Any, operator: Any) -> Any:
    """The same expression of one or two operands, or list of them, with brackets around those that need them."""
    if isinstance(expression, ExpressionClauseList):
        grouped: dict[str, Any] = {"clauses": [_grouped(clause, operator) for clause in expression.clauses]}
        changed = any(new is not old for new, old in zip(grouped["clauses"], expression.clauses, strict=True))
    else:
        names = ("element",) if isinstance(expression, UnaryExpression) else ("left", "right")
        grouped = {name: _grouped(getattr(expression, name), operator) for name in names}
        if operator in _BETWEEN and isinstance(expression.right, ExpressionClauseList):  # its bounds, joined by AND
            grouped["right"] = group_operands(expression.right, operator)
        changed = any(operand is not getattr(expression, name) for name, operand in grouped.items())
    if not changed:
        return expression
    copied = expression._clone()  # noqa: SLF001 - with the same class, annotations and all
    for name, operand in grouped.items():
        setattr(copied, name, operand)
    return copied


def _grouped(operand: Any, operator: Any) -> Any:
    bare = operand
    while isinstance(bare, Label | TypeCoerce):
        bare = bare.element if isinstance(bare, Label) else bare.clause
    return Grouping(operand) if _needs_brackets(bare, operator) else operand


def _needs_brackets(operand: Any, operator: Any) -> bool:
    if isinstance(operand, AsBoolean):
        return True
    if operator in _AS_CONDITIONS:
        return isinstance(operand, _COMPOUND)
    if operator in _BETWEEN:
        return isinstance(operand, _COMPOUND) and is_condition(operand)
    if isinstance(operator, operators.custom_op) or operator is operators.concat_op:
        same = isinstance(operand, BinaryExpression | ExpressionClauseList) and operand.operator is operators.concat_op
        return isinstance(operand, _COMPOUND) and not (same and operator is operators.concat_op)
    return False


def is_condition(element: Any) -> bool:
    """Whether an expression without a type is true or false, or NULL."""
    if isinstance(getattr(element, "type", None), types.Boolean):
        return True
    match element:
        case Grouping() | Label():
            return is_condition(element.element)
        case BinaryExpression():
            return element.operator in _BETWEEN
        case UnaryExpression():
            return element.operator is operators.inv
        case ScalarSelect():
            return _all_conditions(element.element.selected_columns)
        case Case():
            return _all_conditions(
                [*(result for _, result in element.whens), *([] if element.else_ is None else [element.else_])]
            )
        case FunctionElement():
            return str(getattr(element, "name", "")).lower() in _CHOOSING and _all_conditions(element.clauses)
        case _:
            return _all_conditions(getattr(element, "_proxies", ()))


def _all_conditions(elements: Iterable[Any]) -> bool:
    several = list(elements)
    return bool(several) and all(map(is_condition, several))
