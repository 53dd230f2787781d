"""Whole statements over exact decimals: rows that are united, and values that are assigned to columns.

What the expressions in them become is the business of `compiler`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from procedures.numeric.operands import assigned_to, assigning_statement, check_selected, queries_of
from procedures.numeric.raw_text import check_limits
from procedures.numeric.shapes import NULL, AnyShape, DecimalShape, NumericRefused, is_decimal, shape_of, shape_of_rows

_Compiler: Any = SQLiteCompiler  # whose methods are not typed


class ExactStatements(_Compiler):  # type: ignore[misc]
    """The part of SQLite's compiler that is about statements."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.raw_text = False  # parts are SQL text, of which no shape is known
        self.tables: list[Any] = []  # that are named, each at least once
        self._stars: set[int] = set()  # of count(*) and EXISTS (SELECT *)
        super().__init__(*args, **kwargs)

    def visit_compound_select(self, cs: Any, **kwargs: Any) -> Any:
        check_limits(cs)
        columns = [list(query.selected_columns) for query in queries_of(cs)]
        for row in zip(*columns, strict=False):
            shapes = [shape_of(column) for column in row]
            kinds = {_decimals(shape) for shape in shapes if shape is not NULL}
            if is_decimal(shape_of_rows(shapes)) and shapes[0] is NULL:
                raise NumericRefused("the first query of a union says what its columns are: write cast(null(), Numeric(12, 2))")
            if len(kinds) > 1 and any(map(is_decimal, shapes)):
                raise NumericRefused(
                    f"a {cs.keyword.name.lower()} of {' and '.join(map(str, shapes))}; cast them to one Numeric(p, s)"
                )
        return super().visit_compound_select(cs, **kwargs)

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(insert_stmt.table)
        stmt = assigning_statement(insert_stmt)
        check_selected(stmt)
        return super().visit_insert(stmt, *args, **kw)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(update_stmt.table)
        return super().visit_update(assigning_statement(update_stmt), *args, **kw)

    def visit_delete(self, delete_stmt: Any, *args: Any, **kw: Any) -> Any:
        self.tables.append(delete_stmt.table)
        return super().visit_delete(delete_stmt, *args, **kw)

    def visit_on_conflict_do_update(self, on_conflict: Any, **kw: Any) -> Any:
        columns = self.stack[-1]["selectable"].table.c
        copied = on_conflict._clone()  # noqa: SLF001 - a statement is left as it is
        values = dict(on_conflict.update_values_to_set)
        for key in values:
            if getattr(key, "key", key) not in columns:
                raise NumericRefused(f"set_: {getattr(key, 'key', key)!r} is no column of the table")
        copied.update_values_to_set = {key: assigned_to(columns, key, value) for key, value in values.items()}
        return super().visit_on_conflict_do_update(copied, **kw)


def _decimals(shape: AnyShape) -> int | None:
    return shape.scale if isinstance(shape, DecimalShape) and not shape.whole else None
