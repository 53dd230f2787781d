"""CREATE statements of tables with exact decimals: each column as an integer with the range of its digits as a constraint."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.sqlite.base import SQLiteDDLCompiler

from procedures.numeric.numeric_types import ScaledNumeric
from procedures.numeric.operands import assigned
from procedures.numeric.shapes import holds_exact

_DDLCompiler: Any = SQLiteDDLCompiler  # whose methods are not typed


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
