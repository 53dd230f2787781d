"""SQLite as the state of a partition speaks it: what a statement compiles to, and which ones are refused.

How single values are stored is in `stored_types`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

import orjson
from sqlalchemy import types
from sqlalchemy.dialects.sqlite.base import SQLiteDDLCompiler, SQLiteDialect, SQLiteTypeCompiler
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import Label, UnaryExpression

from procedures.declaration.grouped_operands import group_operands
from procedures.declaration.joined_bytes import check_no_text_of_bytes, is_bytes, sides_of_join
from procedures.declaration.stored_forms import check_assigned, check_cast, check_compared, check_results
from procedures.declaration.stored_types import (
    IsoDate,
    IsoTime,
    MicrosecondInterval,
    NumberFloat,
    StoredBoolean,
    StoredBytes,
    StoredEnum,
    TextUuid,
    UtcDateTime,
)
from procedures.errors import StatementRefused
from procedures.numeric.compiler import ExactCompiler
from procedures.numeric.numeric_types import ScaledNumeric
from procedures.numeric.operands import Assign, assigned, assigning_statement, check_filled, filled_columns, queries_of
from procedures.numeric.raw_text import check_limits
from procedures.numeric.shapes import (
    NULL,
    DecimalShape,
    NumericRefused,
    fold_steps,
    holds_exact,
    is_decimal,
    results_of,
    shape_of,
    shape_of_rows,
)

Processor = Callable[[Any], Any] | None


class _TypeCompiler(SQLiteTypeCompiler):
    """Names of the column types that a STRICT table accepts."""

    def _text(self, type_: Any, **kw: Any) -> str:
        return "TEXT"

    visit_string = visit_text = visit_unicode = visit_unicode_text = visit_enum = visit_datetime = visit_date = _text
    visit_uuid = visit_JSON = visit_VARCHAR = visit_NVARCHAR = visit_CHAR = visit_TEXT = visit_UUID = _text
    visit_DATETIME = visit_TIMESTAMP = visit_DATE = visit_NCHAR = visit_CLOB = visit_time = visit_TIME = _text

    def _integer(self, type_: Any, **kw: Any) -> str:
        return "INTEGER"

    visit_integer = visit_big_integer = visit_small_integer = visit_boolean = visit_numeric = _integer
    visit_BIGINT = visit_SMALLINT = visit_INTEGER = visit_BOOLEAN = visit_NUMERIC = visit_DECIMAL = _integer

    def visit_type_decorator(self, type_: Any, **kw: Any) -> str:
        if isinstance(type_, types.Interval) and types.Interval in self.dialect.colspecs:
            return "INTEGER"
        return str(super().visit_type_decorator(type_, **kw))

    def _blob(self, type_: Any, **kw: Any) -> str:
        return "BLOB"

    visit_BINARY = visit_VARBINARY = _blob

    def _real(self, type_: Any, **kw: Any) -> str:
        return "REAL"

    visit_float = visit_double = visit_FLOAT = visit_DOUBLE = visit_DOUBLE_PRECISION = visit_REAL = _real


_TIMES: Final = (types.DateTime, types.Date, types.Time)
_ARITHMETIC: Final = (
    operators.add, operators.sub, operators.mul, operators.truediv, operators.floordiv, operators.mod,
)  # fmt: skip
_COMPARISONS: Final = (
    operators.eq, operators.ne, operators.lt, operators.le, operators.gt, operators.ge, operators.is_distinct_from,
    operators.is_not_distinct_from, operators.between_op, operators.not_between_op, operators.in_op, operators.not_in_op,
)  # fmt: skip
_CHOOSING: Final = frozenset(("coalesce", "ifnull", "nullif", "min", "max"))  # among their arguments
_TYPED_FUNCTIONS: Final = frozenset(("count", "min", "max", "coalesce", "ifnull", "nullif", "first_value", "last_value",
    "nth_value", "lag", "lead", "typeof", "group_concat", "string_agg", "json_group_array", "json_array"))  # fmt: skip


def _is_time(type_: Any) -> bool:
    return isinstance(type_, _TIMES)


def _is_interval(type_: Any) -> bool:
    return isinstance(type_, types.Interval)


def _check_range(over: Any) -> None:
    """SQLite gives a RANGE of so much before and after to numbers alone; of texts it would silently take equal ones."""
    offsets = [bound.type for bound in (over.range_.lower_bind, over.range_.upper_bind) if bound is not None]
    for ordered in () if over.order_by is None else over.order_by:
        while isinstance(ordered, UnaryExpression | Label):
            ordered = ordered.element  # noqa: PLW2901 - desc() and labels have no type of their own
        if not offsets or isinstance(ordered.type, types.Integer | types.Float | types.NullType):
            continue
        if not (_is_interval(ordered.type) and all(map(_is_interval, offsets))):
            raise StatementRefused(
                f"a RANGE frame over {ordered}, a {ordered.type!r}: SQLite counts from numbers alone, and for an Interval in "
                "timedelta; use ROWS, or order by a number"
            )


def _assigner(table: Any) -> Assign:
    """Makes of a column's key and a value what the column stores, or refuses it; SQLAlchemy refuses a key that is none."""

    def assign(key: Any, value: Any) -> Any:
        column = table.c.get(getattr(key, "key", key))
        if column is None:
            return value
        check_assigned(column, value)
        return assigned(value, column)

    return assign


class StateCompiler(ExactCompiler):
    """Statements over what is stored in another form than it is seen: times are text, intervals are whole numbers."""

    # In SQLite the name of a parameter ends at the first of these; a column may have them in its name.
    bindname_escape_characters = MappingProxyType(
        {chr(code): f"_{code:02x}_" for code in range(128) if not chr(code).isalnum() and chr(code) not in "_$"}
    )

    def visit_binary(self, binary: Any, override_operator: Any = None, **kw: Any) -> Any:
        operator = override_operator or binary.operator
        binary = group_operands(binary, operator)
        if operator in _COMPARISONS:
            check_compared(binary, binary.left, binary.right)
        if operator in _ARITHMETIC:
            sides = binary.left.type, binary.right.type
            if any(map(_is_time, sides)):
                raise StatementRefused(f"<{binary}>: times are stored as text, so they are compared; add and subtract in Python")
            if any(map(_is_interval, sides)) and not (
                operator in (operators.add, operators.sub) and all(map(_is_interval, sides))
            ):
                raise StatementRefused(
                    f"<{binary}>: an Interval is added to another one, or subtracted; compute others in Python"
                )
        if (joined := sides_of_join(binary, operator)) is not None:
            kw.pop("add_to_result_map", None)
            left, right = (self.process(side, **kw) for side in joined)
            return f"CAST({left} || {right} AS BLOB)"
        return super().visit_binary(binary, override_operator=override_operator, **kw)

    def visit_unary(self, unary: Any, *args: Any, **kw: Any) -> Any:
        if unary.operator not in (None, operators.inv, operators.exists):
            unary = group_operands(unary, unary.operator)
        return super().visit_unary(unary, *args, **kw)

    def visit_expression_clauselist(self, clauselist: Any, **kw: Any) -> Any:
        if clauselist.operator not in (operators.and_, operators.or_):
            clauselist = group_operands(clauselist, clauselist.operator)
        if any(map(is_bytes, clauselist.clauses)):
            return self.process(fold_steps(clauselist), **kw)
        return super().visit_expression_clauselist(clauselist, **kw)

    def visit_over(self, over: Any, **kwargs: Any) -> Any:
        if over.range_ is not None:
            _check_range(over)
        return super().visit_over(over, **kwargs)

    def visit_case(self, clause: Any, **kw: Any) -> Any:
        check_results("CASE", results_of(clause))
        return super().visit_case(clause, **kw)

    def visit_cast(self, cast: Any, **kwargs: Any) -> Any:
        check_cast(cast)
        return super().visit_cast(cast, **kwargs)

    def visit_compound_select(self, cs: Any, **kwargs: Any) -> Any:
        check_limits(cs)
        for row in zip(*(query.selected_columns for query in queries_of(cs)), strict=False):
            shapes = [shape_of(column) for column in row]
            if is_decimal(shape_of_rows(shapes)) and shapes[0] is NULL:
                raise NumericRefused("the first query of a union says what its columns are: write cast(null(), Numeric(12, 2))")
            kinds = {
                shape.scale if isinstance(shape, DecimalShape) and is_decimal(shape) else None
                for shape in shapes
                if shape is not NULL
            }
            if len(kinds) > 1:
                raise NumericRefused(
                    f"a {cs.keyword.name.lower()} of {' and '.join(map(str, shapes))}; cast them to one Numeric(p, s)"
                )
        return super().visit_compound_select(cs, **kwargs)

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(insert_stmt.table)
        for column, source in filled_columns(insert_stmt):
            check_assigned(column, source)
            check_filled(column, source)
        return super().visit_insert(assigning_statement(insert_stmt, _assigner(insert_stmt.table)), *args, **kw)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(update_stmt.table)
        return super().visit_update(assigning_statement(update_stmt, _assigner(update_stmt.table)), *args, **kw)

    def visit_delete(self, delete_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(delete_stmt.table)
        return super().visit_delete(delete_stmt, *args, **kw)

    def visit_on_conflict_do_update(self, on_conflict: Any, **kw: Any) -> Any:
        table, values = self.stack[-1]["selectable"].table, dict(on_conflict.update_values_to_set)
        for key in values:
            if getattr(key, "key", key) not in table.c:
                raise NumericRefused(f"set_: {getattr(key, 'key', key)!r} is no column of the table")
        copied, assign = on_conflict._clone(), _assigner(table)  # noqa: SLF001 - a statement is left as it is
        copied.update_values_to_set = {key: assign(key, value) for key, value in values.items()}
        return super().visit_on_conflict_do_update(copied, **kw)

    def fetch_clause(self, select: Any, **kw: Any) -> Any:
        raise StatementRefused("SQLite has no FETCH; write limit(n)")

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> Any:
        raise StatementRefused(f"<{binary}>: SQLite has no regular expressions; write like(), or match in Python")

    visit_not_regexp_match_op_binary = visit_regexp_match_op_binary

    def visit_function(self, func: Any, add_to_result_map: Any = None, **kwargs: Any) -> Any:
        name = func.name.lower()
        if name in _CHOOSING:
            check_results(f"{name}()", func.clauses)
        check_no_text_of_bytes(func)
        for argument in func.clauses:
            times, interval = _is_time(argument.type), _is_interval(argument.type)
            if (times or interval) and name not in _TYPED_FUNCTIONS and not (interval and name == "sum"):
                raise StatementRefused(f"{name}() would see how {argument} is stored; compute it in Python")
            if (times or interval) and isinstance(func.type, types.NullType):
                raise StatementRefused(
                    f"{name}() of {argument} needs a type: func.{name}(…, type_={type(argument.type).__name__})"
                )
        return super().visit_function(func, add_to_result_map=add_to_result_map, **kwargs)


_DDLCompiler: Any = SQLiteDDLCompiler  # whose methods are not typed


class StateDDLCompiler(_DDLCompiler):  # type: ignore[misc]
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


class StateDialect(SQLiteDialect):
    """SQLite as the state of a partition speaks it: named parameters, exact values, STRICT types."""

    supports_statement_cache = True
    type_compiler_cls = _TypeCompiler
    statement_compiler: Any = StateCompiler
    ddl_compiler: Any = StateDDLCompiler
    colspecs = {  # noqa: RUF012 - SQLAlchemy declares it so
        **{
            kind: spec
            for kind, spec in SQLiteDialect.colspecs.items()
            if kind not in {types.DateTime, types.Date, types.Time, types.Float}
        },
        types.Numeric: ScaledNumeric,
        types.Float: NumberFloat,
        types.DateTime: UtcDateTime,
        types.Date: IsoDate,
        types.Time: IsoTime,
        types.Interval: MicrosecondInterval,
        types.Uuid: TextUuid,
        types.LargeBinary: StoredBytes,
        types.VARBINARY: StoredBytes,
        types.Enum: StoredEnum,
        types.Boolean: StoredBoolean,
    }

    def __init__(self) -> None:
        super().__init__(paramstyle="named", json_serializer=self.to_json, json_deserializer=orjson.loads)

    @staticmethod
    def to_json(value: Any) -> str:
        """Raises: TypeError or ValueError for what would come back as something else, or as null."""
        _check_json(value)
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _check_json(value: Any) -> None:
    if value is None or type(value) in (str, int, bool):
        return
    if type(value) is float:
        if not isfinite(value):
            raise ValueError(f"a JSON column takes finite numbers; {value} would come back as null")
    elif isinstance(value, list | tuple):
        for part in value:
            _check_json(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if type(key) is not str:
                raise TypeError(f"the keys of a JSON object are strings, not {type(key).__name__}")
            _check_json(part)
    else:
        raise TypeError(f"a JSON column takes lists, dicts, str, int, float, bool and None, not {type(value).__name__}")


DIALECT: Final = StateDialect()
"""The only one: statements and types remember by dialect what they compiled to."""


def bind_processor_of(type_: Any) -> Processor:
    processor: Processor = type_.dialect_impl(DIALECT).bind_processor(DIALECT)
    return processor


def result_processor_of(type_: Any) -> Processor:
    processor: Processor = type_.dialect_impl(DIALECT).result_processor(DIALECT, None)
    return processor
