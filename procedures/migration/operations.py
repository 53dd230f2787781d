"""`op` of a migration that is rehearsed: Alembic's operations, with their signatures, on the tables of this partition.

One rule: what a call does is SQL text that can be run again without Alembic. A call is one step, a `batch_alter_table` too.
What Alembic itself would do is not used: it reflects tables, which loses the CHECK constraints that mark a Numeric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, NoReturn, Protocol

from alembic.operations import BatchOperations, Operations, ops
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Column, ColumnClause, Table
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.visitors import replacement_traverse

from procedures.declaration.create_text import ColumnText, names_in_parentheses, parse_table, quoted
from procedures.declaration.database import Database
from procedures.declaration.dialect import DIALECT
from procedures.declaration.schema import check_table, column_definition, create_indexes, create_table
from procedures.errors import DefinitionError, StatementRefused
from procedures.migration.changed_constraints import STORED, restate_rules
from procedures.migration.column_change import numeric_of, renamed_column, scale_of, with_rules, with_type
from procedures.migration.row_fitness import UnfitRows
from procedures.migration.table_edit import TableEdit
from procedures.numeric.columns import check_texts, set_exact_types

_BY_TX: Final = "write it with tx.execute, which a replay runs again"


class StepTarget(Protocol):
    """The tables that the operations work on."""

    def schema(self) -> dict[str, str]: ...
    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...
    def run_statements(self, statements: list[str]) -> None: ...
    def end_step(self) -> None: ...


class _Batch:
    """What Alembic's batch operations ask their implementation: which table they are of."""

    schema = None

    def __init__(self, table_name: str) -> None:
        self.table_name = table_name


class _Collecting(BatchOperations):
    """The table inside `batch_alter_table`: its operations run at the end of the block."""

    def __init__(self, context: MigrationContext, table_name: str, add: Callable[[Any], None]) -> None:
        batch: Any = _Batch(table_name)
        super().__init__(context, impl=batch)
        self._add = add

    def invoke(self, operation: Any) -> None:  # type: ignore[override]  # it returns nothing, here and in a replay
        self._add(operation)


class TableOperations(Operations):
    """Runs each operation as one step. It returns None."""

    def __init__(self, database: Database, target: StepTarget) -> None:
        super().__init__(MigrationContext.configure(dialect=DIALECT))
        self._target = target
        self._tables = database.tables

    def invoke(self, operation: Any) -> None:  # type: ignore[override]  # it returns nothing, here and in a replay
        self._run_all([operation])

    @contextmanager
    def batch_alter_table(self, table_name: str, schema: str | None = None, **_: Any) -> Iterator[BatchOperations]:  # type: ignore[override]
        """All that is done with the table in the block is one step: it is written again once, if at all."""
        _check_schema(schema)
        found: list[Any] = []
        yield _Collecting(self.migration_context, table_name, found.append)
        self._run_all(found)

    def execute(self, *_: Any, **__: Any) -> NoReturn:
        raise StatementRefused(f"op.execute is not for migrations here; {_BY_TX}")

    def bulk_insert(self, *_: Any, **__: Any) -> NoReturn:
        raise StatementRefused(f"op.bulk_insert is not for migrations here; {_BY_TX}")

    def get_bind(self) -> NoReturn:
        raise StatementRefused("there is no connection: tx.execute reads and changes rows")

    def get_context(self) -> NoReturn:
        raise StatementRefused("there is no migration context: op and tx are all that a migration has")

    def _run_all(self, operations: list[Any]) -> None:
        edit: TableEdit | None = None
        for operation in operations:
            _check_schema(getattr(operation, "schema", None))
            if (edits := self._edits.get(type(operation))) is not None:
                edit = edit or self._edit(operation)
                edit = edits(self, edit, operation)
                continue
            if edit is not None:
                self._target.run_statements(edit.statements())
                edit = None
            statements = self._statements.get(type(operation))
            if statements is None:
                raise StatementRefused(f"op has no {type(operation).__name__.removesuffix('Op')} here")
            self._target.run_statements(statements(self, operation))
        if edit is not None:
            self._target.run_statements(edit.statements())
        self._target.end_step()

    def _edit(self, operation: Any) -> TableEdit:
        name = str(getattr(operation, "table_name", None) or operation.source_table)
        schema = self._target.schema()
        if name not in schema:
            raise DefinitionError(f"there is no table {name!r}; it may have another name at this point of the migrations")
        return TableEdit(schema[name], schema)

    # -- of one table ------------------------------------------------------------------------------------------------------

    def _add_column(self, edit: TableEdit, operation: ops.AddColumnOp) -> TableEdit:
        table = self._described(edit, operation.column._copy())  # noqa: SLF001 - as Alembic does itself
        (column,) = (found for found in table.columns if found.name == operation.column.name)
        if column.primary_key:
            raise DefinitionError(f"column {column.name!r}: add it, fill it, then op.create_primary_key")
        constraints = [self._constraint(found) for found in _constraints_of(table)]
        edit.add_column(ColumnText(column.name, column_definition(column)), constraints)
        if table.indexes:
            self._target.run_statements(edit.statements())
            self._target.run_statements(list(create_indexes(table).values()))
            return self._edit(operation)
        return edit

    def _drop_column(self, edit: TableEdit, operation: ops.DropColumnOp) -> TableEdit:
        edit.drop_column(operation.column_name)
        return edit

    def _alter_column(self, edit: TableEdit, operation: ops.AlterColumnOp) -> TableEdit:
        if operation.modify_comment is not False:
            raise DefinitionError("a comment has no effect: SQLite keeps none")
        name = operation.column_name
        if operation.modify_name and operation.modify_name != name:  # first: the declaration knows the new name
            edit = self._rename_column(edit, operation, name, operation.modify_name)
            name = operation.modify_name
        if operation.modify_type is not None and operation.modify_server_default is not False:
            edit.change_column(with_rules(edit.column(name), nullable=None, default=""))  # the new type has its own below
        if operation.modify_type is not None:
            typed = self._typed(edit, name, operation.modify_type)
            change = with_type(edit.column(name), typed)
            if change.unfit:
                self._check_fit(edit, name, change.unfit, f"loses digits as <{typed.text}>")
            before = edit.table
            edit.change_column(change.column, change.value)
            if change.value:
                info = self._tables.get(before.name)
                restate_rules(edit, before, name, None if info is None else info.table)
        default = None if operation.modify_server_default is False else self._default(edit, operation, name)
        if operation.modify_nullable is not None or default is not None:
            edit.change_column(with_rules(edit.column(name), nullable=operation.modify_nullable, default=default))
        return edit

    def _rename_column(self, edit: TableEdit, operation: Any, name: str, new: str) -> TableEdit:
        """By SQLite, which knows every index and foreign key that names it."""
        edit.column(name)
        rename = f"ALTER TABLE {quoted(edit.table.name)} RENAME COLUMN {quoted(name)} TO {quoted(new)}"
        self._target.run_statements([*edit.statements(), rename])
        edit = self._edit(operation)
        edit.change_column(renamed_column(edit.column(new)))
        return edit

    def _check_fit(self, edit: TableEdit, name: str, unfit: str, why: str) -> None:
        keys = edit.table.primary_key
        wanted = ", ".join(map(quoted, (*keys, name)))
        sql = f"SELECT count(*) OVER (), {wanted} FROM {quoted(edit.table.name)} WHERE {unfit} LIMIT 1"  # noqa: S608 - names of the schema
        for count, *key, value in self._target.rows(sql):
            scale = scale_of(edit.column(name))
            shown = value if scale is None else Decimal(value).scaleb(-scale)
            first = UnfitRows(count, dict(zip(keys, key, strict=True)), shown, why)
            raise DefinitionError(first.sentence(edit.table.name, name))

    def _typed(self, edit: TableEdit, name: str, type_: Any) -> ColumnText:
        table = self.schema_obj.table(edit.table.name, Column(name, type_))
        set_exact_types(table)
        return ColumnText(name, column_definition(table.columns[name]))

    def _default(self, edit: TableEdit, operation: ops.AlterColumnOp, name: str) -> str:
        """SQL of the new default; "" for none."""
        if operation.modify_server_default is None:
            return ""
        given: Any = operation.modify_server_default
        held = edit.column(name)
        kind: Any = operation.modify_type or operation.existing_type or STORED.get(held.type)
        scale = scale_of(held)
        if operation.modify_type is None and operation.existing_type is None and scale is not None:
            raise DefinitionError(f"the server_default of {name}, a Numeric: give its type, too: existing_type=Numeric(p, s)")
        table = self.schema_obj.table(edit.table.name, Column(name, kind, server_default=given))
        set_exact_types(table)
        return ColumnText(name, column_definition(table.columns[name])).default

    def _add_constraint(self, edit: TableEdit, operation: ops.AddConstraintOp) -> TableEdit:
        edit.add_constraint(self._constraint(operation.to_constraint(self.migration_context)))
        return edit

    def _add_check(self, edit: TableEdit, operation: ops.CreateCheckConstraintOp) -> TableEdit:
        """Columns are those of now. One of a declared table is a name here: SQLAlchemy would add the check to that table."""
        condition: Any = operation.condition
        if not isinstance(condition, str):
            condition = replacement_traverse(condition, {}, _named_only)
        check = CheckConstraint(condition, name=operation.constraint_name, **operation.kw)
        check_texts(self._described(edit, check))
        edit.add_constraint(self._constraint(check))
        return edit

    def _described(self, edit: TableEdit, *items: Any) -> Table:
        """The table as it is now, with these items: what they say about a Numeric is said in its units."""
        held = [Column(column.name, numeric_of(column)) for column in edit.table.columns]
        table = self.schema_obj.table(edit.table.name, *held, *items)
        set_exact_types(table)
        return table

    def _drop_constraint(self, edit: TableEdit, operation: ops.DropConstraintOp) -> TableEdit:
        edit.drop_constraint(str(operation.constraint_name))
        return edit

    def _change_primary_key(self, edit: TableEdit, operation: ops.CreatePrimaryKeyOp) -> TableEdit:
        text = self._constraint(operation.to_constraint(self.migration_context))
        edit.change_primary_key(text, self._options(edit, names_in_parentheses(text)))
        return edit

    def _options(self, edit: TableEdit, key: list[str]) -> str:
        """Options of the declaration; for a table that is not declared, from its text."""
        info = self._tables.get(edit.table.name)
        if info is not None:
            declared = parse_table(create_table(info.table))
            if declared.primary_key == key:
                return declared.options
        first = edit.column(key[0])
        has_rowid = len(key) == 1 and first.type == "INTEGER" and scale_of(first) is None
        return "STRICT" if has_rowid else "STRICT, WITHOUT ROWID"

    def _constraint(self, constraint: Any) -> str:
        compiler: Any = DIALECT.ddl_compiler(DIALECT, None)
        return " ".join(str(compiler.process(constraint)).split())

    # -- by themselves -----------------------------------------------------------------------------------------------------

    def _rename_table(self, operation: ops.RenameTableOp) -> list[str]:
        return [f"ALTER TABLE {quoted(operation.table_name)} RENAME TO {quoted(operation.new_table_name)}"]

    def _create_table(self, operation: ops.CreateTableOp) -> list[str]:
        table = operation.to_table(self.migration_context)
        set_exact_types(table)
        check_table(table)
        return [create_table(table), *create_indexes(table).values()]

    def _drop_table(self, operation: ops.DropTableOp) -> list[str]:
        return [f"DROP TABLE {quoted(operation.table_name)}"]

    def _create_index(self, operation: ops.CreateIndexOp) -> list[str]:
        return [str(CreateIndex(operation.to_index(self.migration_context)).compile(dialect=DIALECT)).strip()]

    def _drop_index(self, operation: ops.DropIndexOp) -> list[str]:
        return [f"DROP INDEX {quoted(str(operation.index_name))}"]

    _edits: Final[dict[type, Callable[[Any, TableEdit, Any], TableEdit]]] = {
        ops.AddColumnOp: _add_column,
        ops.DropColumnOp: _drop_column,
        ops.AlterColumnOp: _alter_column,
        ops.CreateUniqueConstraintOp: _add_constraint,
        ops.CreateCheckConstraintOp: _add_check,
        ops.CreateForeignKeyOp: _add_constraint,
        ops.DropConstraintOp: _drop_constraint,
        ops.CreatePrimaryKeyOp: _change_primary_key,
    }
    _statements: Final[dict[type, Callable[[Any, Any], list[str]]]] = {
        ops.RenameTableOp: _rename_table,
        ops.CreateTableOp: _create_table,
        ops.DropTableOp: _drop_table,
        ops.CreateIndexOp: _create_index,
        ops.DropIndexOp: _drop_index,
    }


def _constraints_of(table: Table) -> list[Any]:
    """The constraints of a new column, without its primary key and what its type brings."""
    return sorted(
        (found for found in table.constraints if found.__visit_name__ != "primary_key_constraint"),
        key=lambda found: str(found.__visit_name__),
    )


def _named_only(element: Any, **_: Any) -> Any:
    return ColumnClause(element.name) if isinstance(element, Column) else None


def _check_schema(schema: str | None) -> None:
    if schema is not None:
        raise StatementRefused(f"schema={schema!r}: a partition has one schema; leave it out")
