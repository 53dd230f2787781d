"""Statements over exact decimals: every operand is brought to the decimals that its operation needs, or the statement is refused.

A Numeric(p, s) is stored as an integer (`numeric_types`), so the SQL text has to say by which power of ten two operands differ. The
compiler derives a `Shape` for every expression from its parts alone, never from what SQLAlchemy calls its type:

| expression | decimals | digits |
|---|---|---|
| a + b, a - b, CASE, coalesce | the larger | one more than the larger |
| a * b | of both together | of both together |
| a / b | those of a, and four more | half away from zero |
| sum | of its argument | 64 bits; SQLite raises an error beyond |
| avg | of its argument, and four more | half away from zero |
| round(a, n), floor, ceil, trunc | n, or none | |
| -a, abs, min, max, lag, … | as they are | |

While a result has at most 18 digits, SQLite's own integer arithmetic is exact. Beyond, SQLite would go on in floating point
without a word; so such a step is a function of ours (`storage/numeric_functions.py`), which raises OverflowError.

Bound values take no part in the text: they are converted when they are bound, to the decimals of their place. What cannot be exact
(floats, text, functions that this module does not know, casts to either) is refused with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDDLCompiler
from sqlalchemy.exc import CompileError
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, ClauseElement, ColumnElement, Tuple
from sqlalchemy.sql.functions import Function

from procedures.declaration.numeric_types import (
    INTEGER_DIGITS,
    PRECISION_MAX,
    ScaledNumeric,
    TextNumeric,
    is_exact,
    numeric_of_literal,
)

DIVISION_DIGITS: Final = 4  # that a quotient has more than its dividend, as MySQL has it
_TYPE_ONLY: Final = frozenset(("sum", "min", "max", "abs", "lag", "lead", "first_value", "last_value", "nth_value", "likely", "unlikely"))
_ROUNDING: Final = {"round": "half", "trunc": "trunc", "floor": "floor", "ceil": "ceil", "ceiling": "ceil"}
_RAW_ARGUMENTS: Final = frozenset(("count", "sign"))  # whose result does not depend on the decimals
_COMPARED: Final = (operators.eq, operators.ne, operators.lt, operators.le, operators.gt, operators.ge)
_COMPARED_ALSO: Final = (operators.is_distinct_from, operators.is_not_distinct_from, operators.is_, operators.is_not)
_LISTED: Final = (operators.between_op, operators.not_between_op, operators.in_op, operators.not_in_op)
_ADDED: Final = (operators.add, operators.sub)
_QUOTIENTS: Final = (operators.truediv, operators.mod)
_NAMES: Final = {operators.add: "numeric_add", operators.sub: "numeric_sub", operators.mul: "numeric_mul"}
_KNOWN: Final = frozenset(
    """select compound_select column table alias subquery cte lateral join label grouping select_statement_grouping bindparam binary
    unary clauselist expression_clauselist order_by_list element_list case cast function over funcfilter null true false tuple insert
    update delete on_conflict_do_update on_conflict_do_nothing label_reference textual_label_reference values scalar_values
    type_coerce typeclause rescaled frame_clause dmltargetcopy
    """.split()
)
"""Elements of a statement under which an exact number may stand: those that pass it through, and those handled here."""
_CONSTANT: Final = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?|'(?:[^']|'')*'|NULL|TRUE|FALSE)\s*", re.ASCII | re.IGNORECASE)


class NumericRefused(CompileError):
    """A statement that could not be exact; the text says why and what to write."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of an exact expression: its decimals, and how many digits it has at most. `whole`: a plain integer column or value."""

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
DIGITS: Final = Other("a TextNumeric, which is text")
AnyShape = Shape | Other
_WHOLE: Final = Shape(0, INTEGER_DIGITS, whole=True)


def shape_of(element: Any) -> AnyShape:
    """What is known about an expression, from its parts.

    Raises: NumericRefused for one whose parts cannot be exact together.
    """
    reader = _SHAPES.get(element.__visit_name__)
    return reader(element) if reader is not None else _shape_of_type(element)


def _shape_of_type(element: Any) -> AnyShape:
    type_ = getattr(element, "type", None)
    if isinstance(type_, TextNumeric):
        return DIGITS
    if isinstance(type_, types.Integer):
        return _WHOLE
    if type_ is None or type_._isnull:  # noqa: SLF001 - SQLAlchemy's own question for it
        return UNTYPED
    if isinstance(type_, types.Float):
        return Other("a float")
    return Other("an expression whose decimals are not known" if is_exact(type_) else f"an expression of type {type_!r}")


def _shape_of_column(column: Any) -> AnyShape:
    origin = next(iter(getattr(column, "_proxies", ())), None)
    if origin is not None:  # of a subquery, whose type SQLAlchemy guessed
        return shape_of(origin)
    if is_exact(column.type) and not isinstance(column.type, TextNumeric):
        if column.is_literal:
            raise NumericRefused(f"literal_column({column.name!r}) is text, which SQLite reads as a float; write literal(Decimal(…))")
        return _shape_of_numeric(column.type)
    return _shape_of_type(column)


def _shape_of_numeric(type_: Any) -> Shape:
    if type_.precision is None or type_.scale is None:
        raise NumericRefused("a Numeric without digits and decimals cannot be exact; write Numeric(12, 2)")
    return Shape(type_.scale, type_.precision)


def _shape_of_bind(bind: Any) -> AnyShape:
    type_ = bind.type
    if isinstance(type_, TextNumeric) or not is_exact(type_):
        return _shape_of_type(bind)
    if type_.scale is None and not bind.required and bind.value is not None and not bind.expanding:
        return _shape_of_numeric(_literal_type(bind))
    return _shape_of_numeric(type_)


def _literal_type(bind: Any) -> ScaledNumeric:
    try:
        return numeric_of_literal(bind.value)
    except (TypeError, ValueError) as error:
        raise NumericRefused(str(error)) from None


def _shape_of_binary(binary: Any) -> AnyShape:
    if binary.operator in (*_ADDED, operators.mul, *_QUOTIENTS):
        return _shape_of_step(binary.operator, shape_of(binary.left), shape_of(binary.right), binary)
    return _shape_of_type(binary)


def _shape_of_list(clauses: Any) -> AnyShape:
    if getattr(clauses, "operator", None) in (operators.add, operators.mul):
        return shape_of(_folded(clauses))
    return _shape_of_type(clauses)


def _folded(clauses: Any) -> Any:
    """a + b + c, which SQLAlchemy keeps as a list, as steps."""
    operator = clauses.operator
    return reduce(lambda left, right: BinaryExpression(left, right, operator, type_=clauses.type), clauses.clauses)


def _shape_of_step(operator: Any, left: AnyShape, right: AnyShape, element: Any) -> AnyShape:
    """Of one arithmetic step."""
    known = [shape for shape in (left, right) if isinstance(shape, Shape)]
    exact = any(not shape.whole for shape in known) or (operator is operators.truediv and len(known) > 1)
    if not exact:
        return _shape_of_type(element) if not is_exact(getattr(element, "type", None)) else Other("an expression without exact decimals")
    first = left if isinstance(left, Shape) else known[0]
    second = right if isinstance(right, Shape) else known[0]
    if operator in _ADDED:
        scale = max(first.scale, second.scale)
        return _bounded(scale, max(first.digits - first.scale, second.digits - second.scale) + scale + 1)
    if operator is operators.mul:
        return _bounded(first.scale + second.scale, first.digits + second.digits)
    if operator is operators.truediv:
        return _bounded(first.scale + DIVISION_DIGITS, INTEGER_DIGITS)
    return _bounded(max(first.scale, second.scale), INTEGER_DIGITS)


def _bounded(scale: int, digits: int) -> Shape:
    if scale > PRECISION_MAX:
        raise NumericRefused(f"the result has {scale} decimals, more than {PRECISION_MAX}; round a part of it first: func.round(x, 2)")
    return Shape(scale, min(digits, INTEGER_DIGITS))


def _united(shapes: Iterable[AnyShape]) -> AnyShape:
    """The shape to which several results are brought."""
    found = list(shapes)
    known = [shape for shape in found if isinstance(shape, Shape)]
    if not any(not shape.whole for shape in known):
        return next((shape for shape in found if shape is not NULL), NULL)
    scale = max(shape.scale for shape in known)
    return _bounded(scale, max(shape.digits - shape.scale for shape in known) + scale)


def _shape_of_function(function: Any) -> AnyShape:
    name = function.name.lower()
    arguments = list(function.clauses)
    if name in _RAW_ARGUMENTS:
        return _WHOLE
    if name in _RESULT_ARGUMENTS and arguments:
        united = _united(shape_of(argument) for argument in _RESULT_ARGUMENTS[name](arguments))
        return united
    shape = shape_of(arguments[0]) if arguments else UNTYPED
    if not _is_decimal(shape):
        return _shape_of_type(function) if not is_exact(function.type) else Other(f"the result of {name}()")
    scale, digits = shape.scale, shape.digits
    if name == "sum":
        return Shape(scale, INTEGER_DIGITS)
    if name == "avg":
        return _bounded(scale + DIVISION_DIGITS, INTEGER_DIGITS)
    if name in _ROUNDING:
        decimals = min(scale, _decimals_of(function))
        return _bounded(decimals, digits - scale + decimals + 1)
    return shape if name in _TYPE_ONLY else Other(f"the result of {name}()")


_RESULT_ARGUMENTS: Final[dict[str, Callable[[list[Any]], list[Any]]]] = {
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


def _decimals_of(function: Any) -> int:
    """The constant n of round(x, n)."""
    arguments = list(function.clauses)
    if len(arguments) < 2 or function.name.lower() != "round":
        return 0
    bind = arguments[1]
    value = bind.value if isinstance(bind, BindParameter) and not bind.required else None
    if type(value) is not int or not 0 <= value <= PRECISION_MAX:
        raise NumericRefused(f"round(x, n) of an exact number takes a constant n from 0 to {PRECISION_MAX}")
    return value


def _is_decimal(shape: AnyShape) -> bool:
    return isinstance(shape, Shape) and not shape.whole


def _shape_of_cast(cast: Any) -> AnyShape:
    return _shape_of_numeric(cast.type) if is_exact(cast.type) and not isinstance(cast.type, TextNumeric) else _shape_of_type(cast)


def _shape_of_unary(unary: Any) -> AnyShape:
    if unary.operator is operators.neg or unary.modifier is not None or unary.operator is operators.distinct_op:
        return shape_of(unary.element)
    return _shape_of_type(unary)


def _shape_of_grouping(grouping: Any) -> AnyShape:
    element = grouping.element
    columns = getattr(element, "selected_columns", None)
    return shape_of(element) if columns is None else shape_of(next(iter(columns)))


def _shape_of_case(case: Any) -> AnyShape:
    return _united(shape_of(result) for result in _results_of(case))


def _results_of(case: Any) -> list[Any]:
    return [result for _, result in case.whens] + ([case.else_] if case.else_ is not None else [])


_SHAPES: Final[dict[str, Callable[[Any], AnyShape]]] = {
    "column": _shape_of_column,
    "bindparam": _shape_of_bind,
    "binary": _shape_of_binary,
    "expression_clauselist": _shape_of_list,
    "unary": _shape_of_unary,
    "grouping": _shape_of_grouping,
    "select_statement_grouping": _shape_of_grouping,
    "label": lambda label: shape_of(label.element),
    "null": lambda _: NULL,
    "case": _shape_of_case,
    "cast": _shape_of_cast,
    "type_coerce": _shape_of_cast,
    "function": _shape_of_function,
    "over": lambda over: shape_of(over.element),
    "funcfilter": lambda filtered: shape_of(filtered.func),
    "rescaled": lambda rescaled: rescaled.shape,
}


class _Rescaled(ColumnElement[Any]):
    """An expression times a power of ten."""

    __visit_name__ = "rescaled"
    inherit_cache = False

    def __init__(self, element: Any, shape: Shape, power: int) -> None:
        self.element = element
        self.shape = shape
        self.power = power
        self.type = ScaledNumeric(PRECISION_MAX, shape.scale)

    def self_group(self, against: Any = None) -> Any:
        return self

    @property
    def _from_objects(self) -> Any:
        return self.element._from_objects  # noqa: SLF001 - what a subclass overrides


def at_scale(element: Any, shape: AnyShape, scale: int) -> Any:
    """The expression with so many decimals, at least its own."""
    if isinstance(element, BindParameter):
        return _retyped(element, shape, scale)
    if element.__visit_name__ in ("grouping", "label") and isinstance(element.element, BindParameter):
        return _retyped(element.element, shape, scale)
    if not isinstance(shape, Shape) or shape.scale == scale and not shape.whole:
        return element
    power = scale - shape.scale
    return _Rescaled(element, _bounded(scale, shape.digits + power), power) if power else element


def _retyped(bind: Any, shape: AnyShape, scale: int) -> Any:
    """The same bound value, converted to other decimals when it is bound."""
    type_: Any = bind.type
    if isinstance(shape, Shape) and shape.whole and not bind.required and type(bind.value) is int:
        type_ = _literal_type(bind)
    elif is_exact(type_) and type_.scale is None and not bind.required and bind.value is not None and not bind.expanding:
        type_ = _literal_type(bind)
    precision = PRECISION_MAX
    if is_exact(type_) and type_.scale is not None:
        if type_.scale == scale and isinstance(type_, ScaledNumeric) and type_ is bind.type:
            return bind
        precision = min(PRECISION_MAX, type_.precision + max(0, scale - type_.scale))
    return _with_type(bind, ScaledNumeric(precision, scale))


def _with_type(bind: Any, type_: Any) -> Any:
    copied = bind._clone(maintain_key=True)  # noqa: SLF001 - the way SQLAlchemy itself gives a bound value another type
    copied.type = type_
    return copied


class ExactCompiler(SQLiteCompiler):
    """SQLite's compiler, with exact decimals."""

    def process(self, obj: Any, **kwargs: Any) -> Any:
        return obj._compiler_dispatch(self, **kwargs)  # noqa: SLF001 - as in SQLAlchemy

    # -- steps and comparisons

    def visit_binary(self, binary: Any, override_operator: Any = None, **kw: Any) -> Any:
        operator = override_operator or binary.operator
        left, right = shape_of(binary.left), shape_of(binary.right)
        if operator in (operators.is_, operators.is_not) and right is NULL:
            return super().visit_binary(binary, override_operator=override_operator, **kw)
        if isinstance(binary.left, Tuple) and _holds_exact(binary.left.clauses):
            binary = _tuples_at_scale(binary, operator)
        elif operator is operators.truediv and isinstance(left, Shape) and isinstance(right, Shape):
            return self._step(binary, operator, left, right, **kw)
        elif _is_decimal(left) or _is_decimal(right) or DIGITS in (left, right) or _list_is_decimal(binary.right):
            if operator in (*_ADDED, operators.mul, *_QUOTIENTS):
                return self._step(binary, operator, left, right, **kw)
            if operator in _COMPARED and self._is_wide(binary, left, right):
                return self._compare(binary, operator, left, right, **kw)
            binary = _compared(binary, operator, left)
        return super().visit_binary(binary, override_operator=override_operator, **kw)

    def visit_expression_clauselist(self, clauselist: Any, **kw: Any) -> Any:
        if clauselist.operator in (operators.add, operators.mul) and _holds_exact(clauselist.clauses):
            return self.process(_folded(clauselist), **kw)
        return super().visit_expression_clauselist(clauselist, **kw)

    def _step(self, binary: Any, operator: Any, left: AnyShape, right: AnyShape, **kw: Any) -> str:
        """One arithmetic step, in SQLite's integers where they suffice."""
        kw.pop("add_to_result_map", None)
        for shape, other in ((left, right), (right, left)):
            if not isinstance(shape, Shape) and shape is not NULL and shape is not UNTYPED:
                raise NumericRefused(f"{other} and {shape} have no exact {_verb(operator)}; {_REMEDY}")
        result = _shape_of_step(operator, left, right, binary)
        if not isinstance(result, Shape):
            raise NumericRefused(f"{binary} has no exact decimals; {_REMEDY}")
        first, second = binary.left, binary.right
        first_shape, second_shape = self._known(first, left, right), self._known(second, right, left)
        if operator is operators.mul:
            return self._integers(operator, first, first_shape, first_shape.scale, second, second_shape, second_shape.scale, result, **kw)
        if operator in _ADDED:
            scale = result.scale
            return self._integers(operator, first, first_shape, scale, second, second_shape, scale, result, **kw)
        _forbid_functions(kw)
        if operator is operators.truediv:
            a = self.process(at_scale(first, first_shape, first_shape.scale), **kw)
            b = self.process(at_scale(second, second_shape, second_shape.scale), **kw)
            return f"numeric_div({a}, {b}, {second_shape.scale + DIVISION_DIGITS})"
        a = self.process(at_scale(first, first_shape, result.scale), **kw)
        b = self.process(at_scale(second, second_shape, result.scale), **kw)
        return f"numeric_mod({a}, {b})"

    def _known(self, element: Any, shape: AnyShape, beside: AnyShape) -> Shape:
        """The shape of an operand; that of the other for NULL and for a value without a type."""
        if isinstance(shape, Shape):
            return shape
        if shape is UNTYPED and not isinstance(element, BindParameter):
            raise NumericRefused(f"{element} has no known type, so it cannot be exact beside {beside}; {_REMEDY}")
        if not isinstance(beside, Shape):
            raise NumericRefused(f"{element} has no known decimals; {_REMEDY}")
        return beside

    def _integers(
        self, operator: Any, first: Any, first_shape: Shape, first_scale: int, second: Any, second_shape: Shape, second_scale: int,
        result: Shape, **kw: Any,
    ) -> str:  # fmt: skip
        a = self.process(at_scale(first, first_shape, first_scale), **kw)
        b = self.process(at_scale(second, second_shape, second_scale), **kw)
        if result.digits <= PRECISION_MAX:
            return f"({a} {_SIGNS[operator]} {b})"
        _forbid_functions(kw)
        return f"{_NAMES[operator]}({a}, {b})"

    def _is_wide(self, binary: Any, left: AnyShape, right: AnyShape) -> bool:
        """Whether a side would have more digits than an integer, once both have the same decimals."""
        if not isinstance(left, Shape) or not isinstance(right, Shape):
            return False
        scale = max(left.scale, right.scale)
        return any(
            not isinstance(element, BindParameter) and shape.scale < scale and shape.digits + scale - shape.scale > PRECISION_MAX
            for element, shape in ((binary.left, left), (binary.right, right))
        )

    def _compare(self, binary: Any, operator: Any, left: AnyShape, right: AnyShape, **kw: Any) -> str:
        if not isinstance(left, Shape) or not isinstance(right, Shape):
            raise AssertionError("only called for two shapes")
        _forbid_functions(kw)
        a = self.process(at_scale(binary.left, left, left.scale), **kw)
        b = self.process(at_scale(binary.right, right, right.scale), **kw)
        return f"numeric_compare({a}, {left.scale}, {b}, {right.scale}) {_SIGNS[operator]} 0"

    def visit_rescaled(self, rescaled: Any, **kw: Any) -> str:
        kw.pop("add_to_result_map", None)
        text = self.process(rescaled.element, **kw)
        if rescaled.shape.digits <= PRECISION_MAX:
            return f"({text} * {10**rescaled.power})"
        _forbid_functions(kw)
        return f"numeric_mul({text}, {10**rescaled.power})"

    # -- other expressions

    def visit_unary(self, unary: Any, add_to_result_map: Any = None, **kw: Any) -> Any:
        passes = unary.operator in (operators.neg, operators.distinct_op, operators.exists) or unary.modifier is not None
        if not passes and _holds_exact([unary.element]):
            raise NumericRefused(f"{unary} is not defined for exact numbers")
        if (unary.operator is operators.neg or unary.modifier is not None) and shape_of(unary.element) is DIGITS:
            raise NumericRefused(_TEXT_NUMERIC)
        return super().visit_unary(unary, add_to_result_map=add_to_result_map, **kw)

    def visit_case(self, clause: Any, **kw: Any) -> Any:
        results = _results_of(clause)
        whens, else_, value = clause.whens, clause.else_, clause.value
        if _holds_exact(results):
            shape = _exact_union(results, "the results of CASE")
            whens = [(condition, _brought(result, shape)) for condition, result in whens]
            else_ = None if else_ is None else _brought(else_, shape)
        if value is not None and _holds_exact([value, *(condition for condition, _ in whens)]):
            shape = _exact_union([value, *(condition for condition, _ in whens)], "the values of CASE")
            value = _brought(value, shape)
            whens = [(_brought(condition, shape), result) for condition, result in whens]
        copied = clause._clone()  # noqa: SLF001 - with the same class, annotations and all
        copied.whens, copied.else_, copied.value = whens, else_, value
        return super().visit_case(copied, **kw)

    def visit_function(self, func: Any, add_to_result_map: Any = None, **kwargs: Any) -> Any:
        arguments = list(func.clauses)
        if not _holds_exact(arguments):
            return super().visit_function(func, add_to_result_map=add_to_result_map, **kwargs)
        name = func.name.lower()
        if add_to_result_map is not None:
            add_to_result_map(func.name, func.name, (func,), func.type)
        if name in _RAW_ARGUMENTS:
            return super().visit_function(func, **kwargs)
        if any(shape_of(argument) is DIGITS for argument in arguments):
            raise NumericRefused(_TEXT_NUMERIC)
        if name in _RESULT_ARGUMENTS:
            chosen = _RESULT_ARGUMENTS[name](arguments)
            shape = _exact_union(chosen, f"the arguments of {name}()")
            by_id = {id(argument): _brought(argument, shape) for argument in chosen}
            return super().visit_function(
                Function(func.name, *(by_id.get(id(argument), argument) for argument in arguments), type_=func.type), **kwargs
            )
        if name in _ROUNDING or name == "avg":
            return self._by_function(func, name, arguments, **kwargs)
        if name in _TYPE_ONLY and _holds_exact(arguments[:1]) and not _holds_exact(arguments[1:]):
            return super().visit_function(func, **kwargs)
        raise NumericRefused(f"{name}() is not defined for exact numbers; {_REMEDY}")

    def _by_function(self, func: Any, name: str, arguments: list[Any], **kwargs: Any) -> str:
        _forbid_functions(kwargs)
        shape = shape_of(arguments[0])
        if not isinstance(shape, Shape):
            raise NumericRefused(f"{name}() needs an exact number, not {shape}")
        text = self.process(at_scale(arguments[0], shape, shape.scale), **kwargs)
        if name == "avg":
            return f"numeric_avg({text}, {DIVISION_DIGITS})"
        dropped = shape.scale - min(shape.scale, _decimals_of(func))
        return f"numeric_round({text}, {dropped}, '{_ROUNDING[name]}')"

    def visit_over(self, over: Any, **kwargs: Any) -> Any:
        if over.range_ is not None and over.order_by is not None and _holds_exact(over.order_by):
            raise NumericRefused("a RANGE frame over an exact number is not defined; use ROWS")
        return super().visit_over(over, **kwargs)

    def visit_cast(self, cast: Any, **kwargs: Any) -> Any:
        source = shape_of(cast.clause)
        to_exact = is_exact(cast.type) and not isinstance(cast.type, TextNumeric)
        if not _is_decimal(source) and not to_exact:
            if source is DIGITS:
                raise NumericRefused(_TEXT_NUMERIC)
            return super().visit_cast(cast, **kwargs)
        whole = isinstance(cast.type, types.Integer)
        if not to_exact and not whole or not isinstance(source, Shape) and not isinstance(cast.clause, BindParameter) and source is not NULL:
            raise NumericRefused(f"{source} cannot be cast to {cast.type!r} exactly; convert it in Python")
        wanted = _WHOLE if whole else _shape_of_numeric(cast.type)
        if not isinstance(source, Shape):
            return self.process(_with_type(cast.clause, ScaledNumeric(wanted.digits, wanted.scale)) if source is not NULL else cast.clause)
        _forbid_functions(kwargs)
        text = self.process(at_scale(cast.clause, source, source.scale), **kwargs)
        limit = 10**PRECISION_MAX - 1 if whole else 10**wanted.digits - 1
        return f"numeric_cast({text}, {wanted.scale - source.scale}, {limit})"

    def visit_type_coerce(self, type_coerce: Any, **kw: Any) -> Any:
        source = shape_of(type_coerce.clause)
        wanted = _shape_of_cast(type_coerce)
        if (_is_decimal(source) or _is_decimal(wanted)) and not isinstance(type_coerce.clause, BindParameter) and (
            not isinstance(source, Shape) or not isinstance(wanted, Shape) or source.scale != wanted.scale
        ):  # fmt: skip
            raise NumericRefused("type_coerce would read the stored integer as something else; use cast")
        return super().visit_type_coerce(type_coerce, **kw)

    def visit_bindparam(self, bindparam: Any, **kwargs: Any) -> Any:
        type_ = bindparam.type
        if is_exact(type_) and not isinstance(type_, TextNumeric | ScaledNumeric):
            shape = _shape_of_bind(bindparam)
            if isinstance(shape, Shape):
                bindparam = _with_type(bindparam, ScaledNumeric(shape.digits, shape.scale))
        stored = bindparam.type.scale if isinstance(bindparam.type, ScaledNumeric) else None
        known = self.__dict__.setdefault("_stored_as", {})
        if known.setdefault(bindparam.key, stored) != stored:
            raise NumericRefused(
                f"the value {bindparam.key!r} is used in places of different decimals; give it two names, one for each place"
            )
        return super().visit_bindparam(bindparam, **kwargs)

    # -- whole statements

    def visit_compound_select(self, cs: Any, **kwargs: Any) -> Any:
        columns = [list(select.selected_columns) for select in cs.selects]
        for row in zip(*columns, strict=False):
            shapes = [shape_of(column) for column in row]
            if any(map(_is_decimal, shapes)) and len({shape.scale if _is_decimal(shape) else shape for shape in shapes if shape is not NULL}) > 1:  # type: ignore[union-attr]
                raise NumericRefused(f"a {cs.keyword.name.lower()} of {' and '.join(map(str, shapes))}; cast them to one Numeric(p, s)")
        return super().visit_compound_select(cs, **kwargs)

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> Any:
        stmt = _assigning(insert_stmt)
        _check_selected(stmt)
        return super().visit_insert(stmt, *args, **kw)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> Any:
        return super().visit_update(_assigning(update_stmt), *args, **kw)

    def visit_on_conflict_do_update(self, on_conflict: Any, **kw: Any) -> Any:
        columns = self.stack[-1]["selectable"].table.c
        copied = on_conflict._clone()  # noqa: SLF001 - a statement is left as it is
        copied.update_values_to_set = {
            key: assigned(value, columns[getattr(key, "key", key)]) for key, value in dict(on_conflict.update_values_to_set).items()
        }
        return super().visit_on_conflict_do_update(copied, **kw)

    def _add_to_result_map(self, keyname: str, name: str, objects: Any, type_: Any) -> None:
        element = objects[0]
        if isinstance(element, ClauseElement) or hasattr(element, "element"):
            shape = shape_of(element)
            if _is_decimal(shape):
                type_ = ScaledNumeric(PRECISION_MAX, shape.scale)  # type: ignore[union-attr]
            elif is_exact(type_) and not isinstance(type_, TextNumeric):
                raise NumericRefused(f"{shape} cannot be read as an exact number; {_REMEDY}")
        super()._add_to_result_map(keyname, name, objects, type_)


class ExactDDLCompiler(SQLiteDDLCompiler):
    """Columns of exact decimals, with the range of their digits as a constraint: it also marks them in the schema."""

    def get_column_specification(self, column: Any, **kwargs: Any) -> str:
        text: str = super().get_column_specification(column, **kwargs)
        if not isinstance(column.type, ScaledNumeric):
            return text
        name = self.preparer.quote_identifier(f"numeric({column.type.precision},{column.type.scale}) {column.name}")
        quoted, limit = self.preparer.quote(column.name), column.type.limit
        return f"{text} CONSTRAINT {name} CHECK ({quoted} BETWEEN -{limit} AND {limit})"

    def visit_computed_column(self, generated: Any, **kw: Any) -> str:
        column = generated.column
        if isinstance(column.type, ScaledNumeric) or _holds_exact([generated.sqltext]):
            copied = generated._copy()
            copied.sqltext = assigned(generated.sqltext, column)
            generated = copied
        return str(super().visit_computed_column(generated, **kw))


_SIGNS: Final = {
    operators.add: "+", operators.sub: "-", operators.mul: "*", operators.eq: "=", operators.ne: "!=", operators.lt: "<",
    operators.le: "<=", operators.gt: ">", operators.ge: ">=",
}  # fmt: skip
_REMEDY: Final = "compute it in Python, or cast it: cast(x, Numeric(12, 2))"
_TEXT_NUMERIC: Final = (
    "a TextNumeric is text to SQLite: it can be stored, read and counted, but not compared, sorted or computed with; do that in Python, "
    "or copy the rows into a table with Numeric(p, s)"
)


def _verb(operator: Any) -> str:
    return {operators.add: "sum", operators.sub: "difference", operators.mul: "product"}.get(operator, "quotient")


def _forbid_functions(kw: dict[str, Any]) -> None:
    """In a CHECK, a generated column or an index, functions of ours are not there when another program opens the state."""
    if kw.get("literal_binds"):
        raise NumericRefused(
            f"a CHECK, a generated column or an index may add, subtract, multiply and compare exact numbers up to {PRECISION_MAX} digits; "
            "this one would need more, or a division or rounding; declare fewer digits, or compute it in the procedure"
        )


def _holds_exact(elements: Iterable[Any]) -> bool:
    return any(_is_decimal(shape) or shape is DIGITS for shape in map(shape_of, elements))


def _list_is_decimal(right: Any) -> bool:
    inner = right.element if right.__visit_name__ == "grouping" else right
    return hasattr(inner, "clauses") and getattr(inner, "operator", None) not in (operators.add, operators.mul) and (
        inner.__visit_name__ in ("clauselist", "expression_clauselist") and _holds_exact(inner.clauses)
    )  # fmt: skip


def _exact_union(elements: Sequence[Any], what: str) -> Shape:
    shapes = [shape_of(element) for element in elements]
    for element, shape in zip(elements, shapes, strict=True):
        _check_meets(element, shape, what)
    united = _united(shapes)
    if not isinstance(united, Shape):
        raise NumericRefused(f"{what} have no common decimals; {_REMEDY}")
    return united


def _check_meets(element: Any, shape: AnyShape, what: str) -> None:
    """Refuses what cannot be brought to the decimals of a number beside it."""
    if isinstance(shape, Shape) or shape is NULL or (shape is UNTYPED and isinstance(element, BindParameter)):
        return
    if isinstance(element, BindParameter) and element.value is None and not element.required:
        return
    if shape is DIGITS:
        raise NumericRefused(_TEXT_NUMERIC)
    raise NumericRefused(f"{what}: {shape} cannot stand beside an exact number; {_REMEDY}")


def _brought(element: Any, shape: Shape) -> Any:
    return at_scale(element, shape_of(element), shape.scale)


def _compared(binary: Any, operator: Any, left: AnyShape) -> Any:
    """A comparison with both sides at the same decimals."""
    if operator not in (*_COMPARED, *_COMPARED_ALSO, *_LISTED):
        raise NumericRefused(f"the operator of <{binary}> is not defined for exact numbers; {_REMEDY}")
    sides = [binary.left, *_listed(binary.right)] if operator in _LISTED else [binary.left, binary.right]
    shape = _exact_union(sides, "a comparison")
    copied = binary._clone()  # noqa: SLF001 - with the same class, annotations and all
    copied.left = _brought(binary.left, shape)
    copied.right = _list_at_scale(binary.right, shape) if operator in _LISTED else _brought(binary.right, shape)
    return copied


def _listed(right: Any) -> list[Any]:
    inner = right.element if right.__visit_name__ == "grouping" else right
    return list(inner.clauses) if hasattr(inner, "clauses") and not hasattr(inner, "name") else [right]


def _list_at_scale(right: Any, shape: Shape) -> Any:
    inner = right.element if right.__visit_name__ == "grouping" else right
    if hasattr(inner, "clauses") and not hasattr(inner, "name"):
        copied = inner._clone()
        copied.clauses = [_brought(clause, shape) for clause in inner.clauses]
        if inner is right:
            return copied
        outer = right._clone()
        outer.element = copied
        return outer
    found = shape_of(right)
    if isinstance(right, BindParameter):
        return _brought(right, shape)
    if not isinstance(found, Shape) or found.scale != shape.scale:
        raise NumericRefused(f"IN compares {shape} with {found}; cast the column of the subquery")
    return right


def _tuples_at_scale(binary: Any, operator: Any) -> Any:
    """(a, b) < (c, d), pair by pair."""
    right = binary.right
    if isinstance(right, BindParameter):
        if all(element.__visit_name__ == "column" and not getattr(element, "_proxies", ()) for element in binary.left.clauses):
            return binary  # a list of tuples: each value is bound as the type of its column says
    elif isinstance(right, Tuple) and len(right.clauses) == len(binary.left.clauses) and operator in _COMPARED:
        copied, first, second = binary._clone(), binary.left._clone(), right._clone()  # noqa: SLF001 - as above
        pairs = [
            (a, b, _exact_union([a, b], "a comparison")) if _holds_exact([a, b]) else (a, b, None)
            for a, b in zip(binary.left.clauses, right.clauses, strict=True)
        ]
        first.clauses = [a if shape is None else _brought(a, shape) for a, _, shape in pairs]
        second.clauses = [b if shape is None else _brought(b, shape) for _, b, shape in pairs]
        copied.left, copied.right = first, second
        return copied
    raise NumericRefused("tuples with exact numbers compare with tuples of the same length, or with a list of them; write AND and OR")


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
            return _with_type(value, wanted)
        if isinstance(shape, Shape) and shape.scale > wanted.scale:
            raise NumericRefused(
                f"{where} is {wanted}, its new value has {shape.scale} decimals; say how it is rounded: func.round(x, {wanted.scale})"
            )
        return at_scale(value, shape, wanted.scale)
    if _is_decimal(shape) and not (isinstance(wanted, types.Integer) and isinstance(shape, Shape) and shape.scale == 0):
        raise NumericRefused(f"{where} is {wanted!r}, its new value {shape}; declare it Numeric(p, s), or cast the value to Integer")
    if shape is DIGITS and not isinstance(wanted, TextNumeric):
        raise NumericRefused(_TEXT_NUMERIC)
    if isinstance(wanted, TextNumeric) and shape is not DIGITS and shape is not NULL and not isinstance(value, BindParameter):
        raise NumericRefused(_TEXT_NUMERIC)
    return value


def _assigning(stmt: Any) -> Any:
    """An INSERT or UPDATE whose expressions have the decimals of their columns."""
    columns = stmt.table.c

    def with_scales(values: Any) -> Any:
        return {key: assigned(value, columns[getattr(key, "key", key)]) for key, value in values.items()}

    copied = stmt._clone()  # noqa: SLF001 - a statement is left as it is
    if copied._values:
        copied._values = with_scales(copied._values)
    if getattr(copied, "_ordered_values", None):
        copied._ordered_values = [(key, assigned(value, columns[getattr(key, "key", key)])) for key, value in copied._ordered_values]
    if copied._multi_values:
        copied._multi_values = tuple(
            [with_scales(row) if isinstance(row, dict) else row for row in rows] for rows in copied._multi_values
        )
    return copied


def _check_selected(stmt: Any) -> None:
    """INSERT … FROM SELECT: the columns of the query have the decimals of those they fill."""
    if stmt.select is None:
        return
    names = stmt._select_names or [column.key for column in stmt.table.columns]  # noqa: SLF001 - where SQLAlchemy keeps them
    for name, source in zip(names, stmt.select.selected_columns, strict=False):
        column = stmt.table.c[name]
        shape = shape_of(source)
        exact = isinstance(column.type, ScaledNumeric)
        if (exact and shape is not NULL and not (_is_decimal(shape) and shape.scale == column.type.scale)) or (  # type: ignore[union-attr]
            _is_decimal(shape) and not exact
        ):
            raise NumericRefused(f"column {column.name} is {column.type!r}, the query gives {shape}; cast it: cast(x, {column.type!r})")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look over a whole statement finds."""

    raw_text: bool  # parts of it are SQL text, of which no shape is known


def survey(statement: Any) -> Survey:
    """Looks over a whole statement.

    Raises: NumericRefused for a construct in which this module does not know what an exact number becomes.
    """
    raw_text = False
    for element in visitors.iterate(statement):
        name = element.__visit_name__
        if name in ("textclause", "textual_select", "tstring"):
            raw_text = raw_text or not _CONSTANT.fullmatch(getattr(element, "text", "?"))
        elif name == "column" and getattr(element, "is_literal", False):
            raw_text = raw_text or not (_CONSTANT.fullmatch(element.name) or element.name == "*")
        elif name not in _KNOWN:
            if _holds_exact(child for child in element.get_children() if isinstance(child, ColumnElement)):
                raise NumericRefused(f"{type(element).__name__} is not defined for exact numbers; {_REMEDY}")
        elif name == "select":
            _check_sorting(element)
    return Survey(raw_text)


def _check_sorting(select: Any) -> None:
    for clause in (*select._order_by_clauses, *select._group_by_clauses):  # noqa: SLF001 - where SQLAlchemy keeps them
        if shape_of(clause) is DIGITS:
            raise NumericRefused(_TEXT_NUMERIC)
