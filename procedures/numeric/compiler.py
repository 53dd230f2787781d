"""Statements over exact decimals: every operand is brought to the decimals that its operation needs, or the statement is refused.

A Numeric(p, s) is stored as an integer (`numeric_types`), so the SQL text has to say by which power of ten two operands
differ; `shapes` says how many decimals each of them has.

While a result has at most 18 digits, SQLite's own integer arithmetic is exact. Beyond, SQLite would continue in floating
point without a word; so such a step is a function of ours (`functions`), which raises OverflowError.

Bound values take no part in the text: they are converted when they are bound, to the decimals of their place. What cannot be
exact (floats, text, functions that this module does not know, casts to either) is refused with a sentence.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import null, type_coerce, types
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter, ClauseElement, Tuple
from sqlalchemy.sql.functions import Function
from sqlalchemy.sql.selectable import TableClause

from procedures.numeric.numeric_types import DIVISION_DIGITS, PRECISION_MAX, ScaledNumeric, hides_numeric, is_exact
from procedures.numeric.operands import (
    COMPARED,
    at_scale,
    brought_to,
    compared_at_scale,
    exact_union,
    list_is_decimal,
    tuples_at_scale,
    with_type,
)
from procedures.numeric.raw_text import check_limits
from procedures.numeric.shapes import (
    ADDED,
    NULL,
    QUOTIENTS,
    RAW_ARGUMENTS,
    REMEDY,
    RESULT_ARGUMENTS,
    ROUNDING,
    TYPE_ONLY,
    UNTYPED,
    WHOLE,
    AnyShape,
    DecimalShape,
    NumericRefused,
    check_arguments,
    decimals_of,
    fold_steps,
    holds_exact,
    is_decimal,
    results_of,
    shape_of,
    shape_of_bind,
    shape_of_cast,
    shape_of_numeric,
    shape_of_step,
)

_NAMES: Final = {operators.add: "numeric_add", operators.sub: "numeric_sub", operators.mul: "numeric_mul"}

_CONSTANT: Final = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?|'(?:[^']|'')*'|NULL|TRUE|FALSE)\s*", re.ASCII | re.IGNORECASE)
# Prefixes that let no row out. OR IGNORE is not one: it passes over a number that is out of range.
_ON_CONFLICT: Final = re.compile(r"\s*OR\s+(?:REPLACE|ABORT|FAIL)\s*", re.ASCII | re.IGNORECASE)

_SIGNS: Final = {
    operators.add: "+", operators.sub: "-", operators.mul: "*", operators.eq: "=", operators.ne: "!=", operators.lt: "<",
    operators.le: "<=", operators.gt: ">", operators.ge: ">=",
}  # fmt: skip


_Compiler: Any = SQLiteCompiler  # whose methods are not typed


class ExactCompiler(_Compiler):  # type: ignore[misc]
    """SQLite's compiler of expressions, with exact decimals."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.raw_text = False  # parts are SQL text, of which no shape is known
        self.tables: list[Any] = []  # that are named, each at least once
        self._stars: set[int] = set()  # of count(*) and EXISTS (SELECT *)
        super().__init__(*args, **kwargs)

    def process(self, obj: Any, **kwargs: Any) -> Any:
        return obj._compiler_dispatch(self, **kwargs)  # noqa: SLF001 - as in SQLAlchemy

    # -- text, and tables that may not be the declared ones

    def visit_textclause(self, textclause: Any, *args: Any, **kwargs: Any) -> Any:
        self.raw_text |= not (_CONSTANT.fullmatch(textclause.text) or _ON_CONFLICT.fullmatch(textclause.text))
        return super().visit_textclause(textclause, *args, **kwargs)

    def visit_column(self, column: Any, *args: Any, **kwargs: Any) -> Any:
        if column.is_literal:
            self.raw_text |= not _CONSTANT.fullmatch(column.name) and id(column) not in self._stars
        elif column.table is None:
            self.raw_text = True
        elif isinstance(column.table, TableClause):
            self.tables.append(column.table)
        return super().visit_column(column, *args, **kwargs)

    def visit_table(self, table: Any, *args: Any, **kwargs: Any) -> Any:
        self.tables.append(table)
        return super().visit_table(table, *args, **kwargs)

    def get_statement_hint_text(self, hint_texts: Any) -> Any:
        self.raw_text = True
        return super().get_statement_hint_text(hint_texts)

    def visit_select(self, select_stmt: Any, *args: Any, **kwargs: Any) -> Any:
        check_limits(select_stmt)
        return super().visit_select(select_stmt, *args, **kwargs)

    # -- steps and comparisons

    def visit_binary(self, binary: Any, override_operator: Any = None, **kw: Any) -> Any:
        operator = override_operator or binary.operator
        left, right = shape_of(binary.left), shape_of(binary.right)
        if operator in (operators.is_, operators.is_not) and right is NULL:
            return super().visit_binary(binary, override_operator=override_operator, **kw)
        if isinstance(binary.left, Tuple) and holds_exact((*binary.left.clauses, *_tuple_parts(binary.right))):
            binary = tuples_at_scale(binary, operator)
        elif operator is operators.truediv and isinstance(left, DecimalShape) and isinstance(right, DecimalShape):
            return self._step(binary, operator, left, right, **kw)
        elif is_decimal(left) or is_decimal(right) or list_is_decimal(binary.right):
            if operator in (*ADDED, operators.mul, *QUOTIENTS):
                return self._step(binary, operator, left, right, **kw)
            if operator in COMPARED and self._is_wide(binary, left, right):
                return self._compare(binary, operator, left, right, **kw)
            binary = compared_at_scale(binary, operator, left)
        return super().visit_binary(binary, override_operator=override_operator, **kw)

    def visit_expression_clauselist(self, clauselist: Any, **kw: Any) -> Any:
        if clauselist.operator in (operators.add, operators.mul) and holds_exact(clauselist.clauses):
            return self.process(fold_steps(clauselist), **kw)
        return super().visit_expression_clauselist(clauselist, **kw)

    def _step(self, binary: Any, operator: Any, left: AnyShape, right: AnyShape, **kw: Any) -> str:
        """One arithmetic step, in SQLite's integers where they suffice."""
        kw.pop("add_to_result_map", None)
        for shape, other in ((left, right), (right, left)):
            if not isinstance(shape, DecimalShape) and shape is not NULL and shape is not UNTYPED:
                raise NumericRefused(f"{other} and {shape} have no exact {_verb(operator)}; {REMEDY}")
        result = shape_of_step(operator, left, right, binary)
        if not isinstance(result, DecimalShape):
            raise NumericRefused(f"{binary} has no exact decimals; {REMEDY}")
        first, second = binary.left, binary.right
        first_shape, second_shape = self._known(first, left, right), self._known(second, right, left)
        # Sums and products are SQLite's own where their digits fit 64 bits; quotients are always functions.
        if operator not in QUOTIENTS:
            scales = (first_shape.scale, second_shape.scale) if operator is operators.mul else (result.scale, result.scale)
            a = self.process(at_scale(first, first_shape, scales[0]), **kw)
            b = self.process(at_scale(second, second_shape, scales[1]), **kw)
            if result.digits <= PRECISION_MAX:
                return f"({a} {_SIGNS[operator]} {b})"
            _forbid_functions(kw)
            return f"{_NAMES[operator]}({a}, {b})"
        _forbid_functions(kw)
        if operator is operators.truediv:
            a = self.process(at_scale(first, first_shape, first_shape.scale), **kw)
            b = self.process(at_scale(second, second_shape, second_shape.scale), **kw)
            return f"numeric_div({a}, {b}, {second_shape.scale + DIVISION_DIGITS})"
        a = self.process(at_scale(first, first_shape, result.scale), **kw)
        b = self.process(at_scale(second, second_shape, result.scale), **kw)
        return f"numeric_mod({a}, {b})"

    def _known(self, element: Any, shape: AnyShape, beside: AnyShape) -> DecimalShape:
        """The shape of an operand; that of the other for NULL and for a value without a type."""
        if isinstance(shape, DecimalShape):
            return shape
        if shape is UNTYPED and not isinstance(element, BindParameter):
            raise NumericRefused(f"{element} has no known type, so it cannot be exact beside {beside}; {REMEDY}")
        if not isinstance(beside, DecimalShape):
            raise NumericRefused(f"{element} has no known decimals; {REMEDY}")
        return beside

    def _is_wide(self, binary: Any, left: AnyShape, right: AnyShape) -> bool:
        """Whether a side would have more digits than an integer, once both have the same decimals."""
        if not isinstance(left, DecimalShape) or not isinstance(right, DecimalShape):
            return False
        scale = max(left.scale, right.scale)
        return any(
            not isinstance(element, BindParameter) and shape.scale < scale and shape.digits + scale - shape.scale > PRECISION_MAX
            for element, shape in ((binary.left, left), (binary.right, right))
        )

    def _compare(self, binary: Any, operator: Any, left: AnyShape, right: AnyShape, **kw: Any) -> str:
        if not isinstance(left, DecimalShape) or not isinstance(right, DecimalShape):
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
        if unary.operator is operators.exists:
            inner = unary.element.element if hasattr(unary.element, "element") else unary.element
            self._stars |= {id(column) for column in getattr(inner, "_raw_columns", ()) if getattr(column, "name", "") == "*"}
        if not passes and holds_exact([unary.element]):
            raise NumericRefused(f"{unary} is not defined for exact numbers")
        return super().visit_unary(unary, add_to_result_map=add_to_result_map, **kw)

    def visit_case(self, clause: Any, **kw: Any) -> Any:
        results = results_of(clause)
        whens, else_, value = clause.whens, clause.else_, clause.value
        if holds_exact(results):
            shape = exact_union(results, "the results of CASE")
            whens = [(condition, brought_to(result, shape)) for condition, result in whens]
            else_ = None if else_ is None else brought_to(else_, shape)
        if value is not None and holds_exact([value, *(condition for condition, _ in whens)]):
            shape = exact_union([value, *(condition for condition, _ in whens)], "the values of CASE")
            value = brought_to(value, shape)
            whens = [(brought_to(condition, shape), result) for condition, result in whens]
        copied = clause._clone()  # noqa: SLF001 - with the same class, annotations and all
        copied.whens, copied.else_, copied.value = whens, else_, value
        return super().visit_case(copied, **kw)

    def visit_function(self, func: Any, add_to_result_map: Any = None, **kwargs: Any) -> Any:
        arguments = list(func.clauses)
        if func.name.lower() == "count":
            self._stars |= {id(argument) for argument in arguments if getattr(argument, "name", "") == "*"}
        if not holds_exact(arguments):
            return super().visit_function(func, add_to_result_map=add_to_result_map, **kwargs)
        name = func.name.lower()
        if add_to_result_map is not None:
            add_to_result_map(func.name, func.name, (func,), func.type)
        # By how much a function may know of its arguments: units as they are, one scale for all, the value, the type alone.
        if name in RAW_ARGUMENTS:
            return super().visit_function(func, **kwargs)
        if name in RESULT_ARGUMENTS:
            chosen = RESULT_ARGUMENTS[name](arguments)
            if holds_exact(a for a in arguments if not any(a is one for one in chosen)):
                raise NumericRefused(f"{name}() takes an exact number as its result alone; {REMEDY}")
            shape = exact_union(chosen, f"the arguments of {name}()")
            by_id = {id(argument): brought_to(argument, shape) for argument in chosen}
            return super().visit_function(
                Function(func.name, *(by_id.get(id(argument), argument) for argument in arguments), type_=func.type), **kwargs
            )
        if name in ROUNDING or name == "avg":
            return self._by_function(func, name, arguments, **{**kwargs, "within_aggregate_function": True})
        if name in TYPE_ONLY and holds_exact(arguments[:1]) and not holds_exact(arguments[1:]):
            return super().visit_function(func, **kwargs)
        raise NumericRefused(f"{name}() is not defined for exact numbers; {REMEDY}")

    def _by_function(self, func: Any, name: str, arguments: list[Any], **kwargs: Any) -> str:
        _forbid_functions(kwargs)
        shape = shape_of(arguments[0])
        if not isinstance(shape, DecimalShape):
            raise NumericRefused(f"{name}() needs an exact number, not {shape}")
        text = self.process(at_scale(arguments[0], shape, shape.scale), **kwargs)
        check_arguments(func)
        if name == "avg":
            return f"numeric_avg({text})"
        dropped = shape.scale - min(shape.scale, decimals_of(func))
        return f"numeric_round({text}, {dropped}, '{ROUNDING[name]}')"

    def visit_over(self, over: Any, **kwargs: Any) -> Any:
        if over.range_ is not None and over.order_by is not None and holds_exact(over.order_by):
            raise NumericRefused("a RANGE frame over an exact number is not defined; use ROWS")
        return super().visit_over(over, **kwargs)

    def visit_cast(self, cast: Any, **kwargs: Any) -> Any:
        _check_type(cast.type)
        source = shape_of(cast.clause)
        to_exact = is_exact(cast.type)
        if not is_decimal(source) and not to_exact:
            return super().visit_cast(cast, **kwargs)
        whole = isinstance(cast.type, types.Integer)
        if (not to_exact and not whole) or (
            not isinstance(source, DecimalShape) and not isinstance(cast.clause, BindParameter) and source is not NULL
        ):
            raise NumericRefused(f"{source} cannot be cast to {cast.type!r} exactly; convert it in Python")
        wanted = WHOLE if whole else shape_of_numeric(cast.type)
        if not isinstance(source, DecimalShape):
            return self.process(
                with_type(cast.clause, ScaledNumeric(wanted.digits, wanted.scale)) if source is not NULL else cast.clause
            )
        _forbid_functions(kwargs)
        text = self.process(at_scale(cast.clause, source, source.scale), **kwargs)
        limit = 10**PRECISION_MAX - 1 if whole else 10**wanted.digits - 1
        return f"numeric_cast({text}, {wanted.scale - source.scale}, {limit})"

    def visit_type_coerce(self, type_coerce: Any, **kw: Any) -> Any:
        source = shape_of(type_coerce.clause)
        wanted = shape_of_cast(type_coerce)
        if (is_decimal(source) or is_decimal(wanted)) and not isinstance(type_coerce.clause, BindParameter) and (
            not isinstance(source, DecimalShape) or not isinstance(wanted, DecimalShape) or source.scale != wanted.scale
        ):  # fmt: skip
            raise NumericRefused("type_coerce would read the stored integer as something else; use cast")
        return super().visit_type_coerce(type_coerce, **kw)

    def visit_bindparam(self, bindparam: Any, **kwargs: Any) -> Any:
        type_ = bindparam.type
        _check_type(type_)
        if is_exact(type_) and not isinstance(type_, ScaledNumeric):
            shape = shape_of_bind(bindparam)
            if isinstance(shape, DecimalShape):
                bindparam = with_type(bindparam, ScaledNumeric(shape.digits, shape.scale))
        stored = bindparam.type.scale if isinstance(bindparam.type, ScaledNumeric) else None
        known = self.__dict__.setdefault("_stored_as", {})
        if known.setdefault(bindparam.key, stored) != stored:
            raise NumericRefused(
                f"the value {bindparam.key!r} is used in places of different decimals; give it two names, one for each place"
            )
        return super().visit_bindparam(bindparam, **kwargs)

    def _add_to_result_map(self, keyname: str, name: str, objects: Any, type_: Any) -> None:
        element = objects[0]
        _check_type(type_)
        if isinstance(element, ClauseElement) or hasattr(element, "element"):
            shape = shape_of(element)
            if is_decimal(shape):
                type_ = ScaledNumeric(PRECISION_MAX, shape.scale)  # type: ignore[union-attr]
            elif is_exact(type_):
                raise NumericRefused(f"{shape} cannot be read as an exact number; {REMEDY}")
        super()._add_to_result_map(keyname, name, objects, type_)


def _tuple_parts(right: Any) -> list[Any]:
    """The right side of a comparison of tuples, as far as it may be exact by itself."""
    if isinstance(right, Tuple):
        return list(right.clauses)
    types_ = getattr(right.type, "types", ()) if isinstance(right, BindParameter) else ()
    return [type_coerce(null(), type_) for type_ in types_ if is_exact(type_) and type_.scale is not None]


def _check_type(type_: Any) -> None:
    if hides_numeric(type_):
        raise NumericRefused(f"{type_!r} wraps or varies a Numeric, whose decimals are then not known; use Numeric(p, s) itself")


def _verb(operator: Any) -> str:
    return {operators.add: "sum", operators.sub: "difference", operators.mul: "product"}.get(operator, "quotient")


def _forbid_functions(kw: dict[str, Any]) -> None:
    """In a CHECK, a generated column or an index, functions of ours are not there when another program opens the state."""
    if kw.get("literal_binds"):
        raise NumericRefused(
            "a CHECK, a generated column or an index may add, subtract, multiply and compare exact numbers up to "
            f"{PRECISION_MAX} digits; this one needs more, or a division or rounding; declare fewer digits, or compute it in "
            "the procedure"
        )
