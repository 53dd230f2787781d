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

from sqlalchemy import types
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDDLCompiler
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BindParameter, ClauseElement, ColumnElement, Tuple
from sqlalchemy.sql.functions import Function

from procedures.numeric.numeric_types import PRECISION_MAX, ScaledNumeric, TextNumeric, is_exact
from procedures.numeric.operands import (
    COMPARED,
    TEXT_NUMERIC,
    assigned,
    assigning_statement,
    at_scale,
    brought_to,
    check_selected,
    compared_at_scale,
    exact_union,
    list_is_decimal,
    tuples_at_scale,
    with_type,
)
from procedures.numeric.shapes import (
    ADDED,
    DIGITS,
    DIVISION_DIGITS,
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

_Compiler: Any = SQLiteCompiler  # whose methods are not typed
_DDLCompiler: Any = SQLiteDDLCompiler
_KNOWN_NAMES: Final = """select compound_select column table alias subquery cte lateral join label grouping bindparam binary unary
    select_statement_grouping clauselist expression_clauselist order_by_list element_list case cast function over funcfilter null
    true false tuple insert update delete on_conflict_do_update on_conflict_do_nothing label_reference textual_label_reference
    values scalar_values type_coerce typeclause rescaled frame_clause dmltargetcopy"""
_KNOWN: Final = frozenset(_KNOWN_NAMES.split())

_NAMES: Final = {operators.add: "numeric_add", operators.sub: "numeric_sub", operators.mul: "numeric_mul"}

_CONSTANT: Final = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?|'(?:[^']|'')*'|NULL|TRUE|FALSE)\s*", re.ASCII | re.IGNORECASE)

_SIGNS: Final = {
    operators.add: "+", operators.sub: "-", operators.mul: "*", operators.eq: "=", operators.ne: "!=", operators.lt: "<",
    operators.le: "<=", operators.gt: ">", operators.ge: ">=",
}  # fmt: skip


class ExactCompiler(_Compiler):  # type: ignore[misc]
    """SQLite's compiler, with exact decimals."""

    def process(self, obj: Any, **kwargs: Any) -> Any:
        return obj._compiler_dispatch(self, **kwargs)  # noqa: SLF001 - as in SQLAlchemy

    # -- steps and comparisons

    def visit_binary(self, binary: Any, override_operator: Any = None, **kw: Any) -> Any:
        operator = override_operator or binary.operator
        left, right = shape_of(binary.left), shape_of(binary.right)
        if operator in (operators.is_, operators.is_not) and right is NULL:
            return super().visit_binary(binary, override_operator=override_operator, **kw)
        if isinstance(binary.left, Tuple) and holds_exact(binary.left.clauses):
            binary = tuples_at_scale(binary, operator)
        elif operator is operators.truediv and isinstance(left, DecimalShape) and isinstance(right, DecimalShape):
            return self._step(binary, operator, left, right, **kw)
        elif is_decimal(left) or is_decimal(right) or DIGITS in (left, right) or list_is_decimal(binary.right):
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
        if not passes and holds_exact([unary.element]):
            raise NumericRefused(f"{unary} is not defined for exact numbers")
        if (unary.operator is operators.neg or unary.modifier is not None) and shape_of(unary.element) is DIGITS:
            raise NumericRefused(TEXT_NUMERIC)
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
        if not holds_exact(arguments):
            return super().visit_function(func, add_to_result_map=add_to_result_map, **kwargs)
        name = func.name.lower()
        if add_to_result_map is not None:
            add_to_result_map(func.name, func.name, (func,), func.type)
        if name in RAW_ARGUMENTS:
            return super().visit_function(func, **kwargs)
        if any(shape_of(argument) is DIGITS for argument in arguments):
            raise NumericRefused(TEXT_NUMERIC)
        if name in RESULT_ARGUMENTS:
            chosen = RESULT_ARGUMENTS[name](arguments)
            shape = exact_union(chosen, f"the arguments of {name}()")
            by_id = {id(argument): brought_to(argument, shape) for argument in chosen}
            return super().visit_function(
                Function(func.name, *(by_id.get(id(argument), argument) for argument in arguments), type_=func.type), **kwargs
            )
        if name in ROUNDING or name == "avg":
            return self._by_function(func, name, arguments, **kwargs)
        if name in TYPE_ONLY and holds_exact(arguments[:1]) and not holds_exact(arguments[1:]):
            return super().visit_function(func, **kwargs)
        raise NumericRefused(f"{name}() is not defined for exact numbers; {REMEDY}")

    def _by_function(self, func: Any, name: str, arguments: list[Any], **kwargs: Any) -> str:
        _forbid_functions(kwargs)
        shape = shape_of(arguments[0])
        if not isinstance(shape, DecimalShape):
            raise NumericRefused(f"{name}() needs an exact number, not {shape}")
        text = self.process(at_scale(arguments[0], shape, shape.scale), **kwargs)
        if name == "avg":
            return f"numeric_avg({text}, {DIVISION_DIGITS})"
        dropped = shape.scale - min(shape.scale, decimals_of(func))
        return f"numeric_round({text}, {dropped}, '{ROUNDING[name]}')"

    def visit_over(self, over: Any, **kwargs: Any) -> Any:
        if over.range_ is not None and over.order_by is not None and holds_exact(over.order_by):
            raise NumericRefused("a RANGE frame over an exact number is not defined; use ROWS")
        return super().visit_over(over, **kwargs)

    def visit_cast(self, cast: Any, **kwargs: Any) -> Any:
        source = shape_of(cast.clause)
        to_exact = is_exact(cast.type) and not isinstance(cast.type, TextNumeric)
        if not is_decimal(source) and not to_exact:
            if source is DIGITS:
                raise NumericRefused(TEXT_NUMERIC)
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
        if is_exact(type_) and not isinstance(type_, TextNumeric | ScaledNumeric):
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

    # -- whole statements

    def visit_compound_select(self, cs: Any, **kwargs: Any) -> Any:
        columns = [list(select.selected_columns) for select in cs.selects]
        for row in zip(*columns, strict=False):
            shapes = [shape_of(column) for column in row]
            kinds = {_decimals(shape) for shape in shapes if shape is not NULL}
            if len(kinds) > 1 and any(map(is_decimal, shapes)):
                raise NumericRefused(
                    f"a {cs.keyword.name.lower()} of {' and '.join(map(str, shapes))}; cast them to one Numeric(p, s)"
                )
        return super().visit_compound_select(cs, **kwargs)

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> Any:
        stmt = assigning_statement(insert_stmt)
        check_selected(stmt)
        return super().visit_insert(stmt, *args, **kw)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> Any:
        return super().visit_update(assigning_statement(update_stmt), *args, **kw)

    def visit_on_conflict_do_update(self, on_conflict: Any, **kw: Any) -> Any:
        columns = self.stack[-1]["selectable"].table.c
        copied = on_conflict._clone()  # noqa: SLF001 - a statement is left as it is
        copied.update_values_to_set = {
            key: assigned(value, columns[getattr(key, "key", key)])
            for key, value in dict(on_conflict.update_values_to_set).items()
        }
        return super().visit_on_conflict_do_update(copied, **kw)

    def _add_to_result_map(self, keyname: str, name: str, objects: Any, type_: Any) -> None:
        element = objects[0]
        if isinstance(element, ClauseElement) or hasattr(element, "element"):
            shape = shape_of(element)
            if is_decimal(shape):
                type_ = ScaledNumeric(PRECISION_MAX, shape.scale)  # type: ignore[union-attr]
            elif is_exact(type_) and not isinstance(type_, TextNumeric):
                raise NumericRefused(f"{shape} cannot be read as an exact number; {REMEDY}")
        super()._add_to_result_map(keyname, name, objects, type_)


class ExactDDLCompiler(_DDLCompiler):  # type: ignore[misc]
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
        if isinstance(column.type, ScaledNumeric) or holds_exact([generated.sqltext]):
            copied = generated._copy()  # noqa: SLF001 - a declaration is left as it is
            copied.sqltext = assigned(generated.sqltext, column)
            generated = copied
        return str(super().visit_computed_column(generated, **kw))


def _decimals(shape: AnyShape) -> int | None:
    return shape.scale if isinstance(shape, DecimalShape) and not shape.whole else None


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


def holds_raw_text(statement: Any) -> bool:
    """Whether parts of the statement are SQL text, of which no shape is known; constants and count(*) are none.

    Raises: NumericRefused for a construct in which this module does not know what an exact number becomes.
    """
    texts: set[str | int] = set()
    counted = set()
    for found in visitors.iterate(statement):
        element: Any = found
        name = element.__visit_name__
        if name in ("textclause", "textual_select", "tstring"):
            texts |= set() if _CONSTANT.fullmatch(getattr(element, "text", "?")) else {id(element)}
        elif name == "column" and element.is_literal:
            texts |= set() if _CONSTANT.fullmatch(element.name) else {id(element)}
        elif name == "function" and element.name.lower() == "count":
            counted |= {id(argument) for argument in element.clauses if getattr(argument, "name", "") == "*"}
        elif name == "select":
            _check_sorting(element)
        elif name not in _KNOWN and holds_exact(c for c in element.get_children() if isinstance(c, ColumnElement)):
            raise NumericRefused(f"{type(element).__name__} is not defined for exact numbers; {REMEDY}")
    return bool(texts - counted)


def _check_sorting(select: Any) -> None:
    for clause in (*select._order_by_clauses, *select._group_by_clauses):  # noqa: SLF001 - where SQLAlchemy keeps them
        if shape_of(clause) is DIGITS:
            raise NumericRefused(TEXT_NUMERIC)
