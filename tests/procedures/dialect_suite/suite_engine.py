"""An engine, as SQLAlchemy's suite sees one, whose connections are transactions of a site.

Every statement is a call of a procedure, through the executor, and what it gets is `tx.execute`. What a test changes is undone
by putting back the state that was there before it. Two concessions to the suite's tables (`_declarable`): one without a key gets
a key that no statement names, and `autoincrement=False` is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
from sqlalchemy import Column, Insert, Integer, MetaData, Table
from sqlalchemy.engine import make_url
from sqlalchemy.sql.ddl import SchemaDropper
from sqlalchemy.sql.dml import UpdateBase

from procedures import Database, Transaction
from procedures.declaration.database import TableInfo
from procedures.declaration.dialect import DIALECT
from procedures.declaration.schema import check_table, create_indexes, create_table
from procedures.errors import DefinitionError
from procedures.execution.invocations import Invocations
from procedures.migration.stated_change import StatedChange
from procedures.numeric.columns import set_stored_types
from procedures.storage.state import Position
from tests.procedures.sites import Call, Site, txn_at

_Kept = tuple[apsw.Connection, Position, dict[str, TableInfo]]  # a copy of the state, its position, the tables declared
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class _GivenStatement:
    """A statement on its way into a call, and what comes out of it."""

    def __init__(self, statement: Any, parameters: Parameters) -> None:
        self.statement, self.parameters = statement, parameters
        self.result: Any = None
        self.error: Exception | None = None

    def run(self, tx: Transaction) -> None:
        try:
            self.result = tx.execute(self.statement, self.parameters)
        except Exception as error:  # noqa: BLE001 - the test gets it, outside of the call
            self.error = error


class SuiteDatabase(Database):
    """A database whose tables come and go with the tests; its one procedure runs the statement that is given."""

    def __init__(self) -> None:
        super().__init__("dialect_suite")
        self.given = _GivenStatement(None, None)
        self.procedure(partition_by=None, name="run_given")(self._run_given)

    def declare(self, table: Table) -> list[str]:
        """Declares a table that exists already; returns its DDL. Raises: DefinitionError."""
        if table.schema is not None:
            raise DefinitionError(f"table {table.name!r}: a state has one schema")
        set_stored_types(table, None)
        declared = _declarable(table)
        check_table(declared)
        self._tables[table.name] = TableInfo(table, None, replicated=True)
        return [create_table(declared), *create_indexes(declared).values()]

    def forget(self, table: Table) -> None:
        self._tables.pop(table.name, None)

    def _run_given(self, tx: Transaction) -> None:
        self.given.run(tx)


def _declarable(table: Table) -> Table:
    if table.primary_key.columns:
        for column in table.primary_key.columns:
            column.autoincrement = "auto"
        return table
    keyed = table.to_metadata(MetaData())
    keyed.append_column(Column("key_of_a_table_without_one", Integer, primary_key=True))
    return keyed


class SuiteSite(Site):
    """A site whose database changes: each set of tables is a catalog of its own."""

    def __init__(self, path: Path, db: Database) -> None:
        super().__init__(path, db, digest_rows=False)
        self._catalog = 1

    def batch(
        self,
        calls: Sequence[Call],
        *,
        keys: Sequence[bytes] | None = None,
        skips: Sequence[int] = (),
        floors: Mapping[bytes, int] | None = None,
    ) -> Invocations:
        return super().batch(calls, keys=keys, skips=skips, floors=floors)._replace(catalog=self._catalog)

    def add_tables(self, statements: Sequence[str]) -> None:
        self.milliseconds += 1
        self.executor.apply_schema(
            index=self.state.position.index + 1,
            term=1,
            checksum=7,
            txn_id=txn_at(self.milliseconds),
            change=StatedChange(tuple(statements)),
        )
        self.next_catalog()

    def drop_table(self, name: str) -> None:
        self.state.connection.execute(f'DROP TABLE IF EXISTS "{name}"')
        self.next_catalog()

    def next_catalog(self) -> None:
        """The tables of the database have changed."""
        self._catalog += 1


def _copy(source: apsw.Connection, target: apsw.Connection) -> None:
    with target.backup("main", source, "main") as backup:
        backup.step()


class _ResultOfChange:
    """A result that knows whether its statement is an INSERT, for tests that ask; those of `tx.execute` do not."""

    def __init__(self, statement: UpdateBase, result: Any) -> None:
        self.is_insert = isinstance(statement, Insert)
        self._result = result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def __iter__(self) -> Any:
        return iter(self._result)


class SuiteConnection:
    """Stands for `sqlalchemy.Connection`: a statement is run by `tx.execute`, a declaration by the database."""

    def __init__(self, engine: SuiteEngine) -> None:
        self.engine = engine
        self.dialect = engine.dialect
        self.db = engine  # as which `provision` knows it
        self._before: _Kept | None = None

    def execute(self, statement: Any, parameters: Parameters = None, *, execution_options: object = None) -> Any:
        result = self.engine.run(statement, parameters)
        return _ResultOfChange(statement, result) if isinstance(statement, UpdateBase) else result

    def execution_options(self, **_: object) -> SuiteConnection:
        return self

    def scalar(self, statement: Any, parameters: Parameters = None) -> Any:
        return self.execute(statement, parameters).scalar()

    def scalars(self, statement: Any, parameters: Parameters = None) -> Any:
        return self.execute(statement, parameters).scalars()

    def begin(self) -> SuiteConnection:
        """As the `connection` fixture calls it, and then `rollback`; a block has nothing to do at its end."""
        self._before = self.engine.keep_state()
        return self

    @property
    def is_active(self) -> bool:
        return self._before is not None

    def in_transaction(self) -> bool:
        return self.is_active

    def get_transaction(self) -> SuiteConnection:
        return self

    def rollback(self) -> None:
        if self._before is not None:
            self.engine.put_back(self._before)
        self._before = None

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> SuiteConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_ddl_visitor(self, visitor: Any, element: Any, **options: Any) -> None:
        self.engine._run_ddl_visitor(visitor, element, **options)


class SuiteEngine:
    """Stands for `sqlalchemy.Engine`: one site, which holds the tables that the suite has created."""

    name = "cmdlog"
    driver = "tx"
    url = make_url("cmdlog://")
    dialect = DIALECT

    def __init__(self, path: Path) -> None:
        self.engine = self.db = self  # as the suite and its `provision` know it
        self._database = SuiteDatabase()
        self.site = SuiteSite(path, self._database)

    def connect(self) -> SuiteConnection:
        return SuiteConnection(self)

    begin = connect

    def run(self, statement: Any, parameters: Parameters) -> Any:
        """What `tx.execute` gives in a call of its own. Raises: what it raises; RuntimeError where the call is refused."""
        given = self._database.given = _GivenStatement(statement, parameters)
        status, body = self.site.call("run_given")
        if given.error is not None:
            raise given.error
        if status != 0:
            raise RuntimeError(body)
        return given.result

    def keep_state(self) -> _Kept:
        rows = apsw.Connection(":memory:")
        _copy(self.site.state.connection, rows)
        return rows, self.site.state.position, dict(self._database._tables)

    def put_back(self, before: _Kept) -> None:
        rows, position, self._database._tables = before
        if self.site.state.position is not position:
            _copy(rows, self.site.state.connection)
            self.site.state.position = position
            self.site.next_catalog()
        rows.close()

    def close(self) -> None:
        self.site.close()

    def _run_ddl_visitor(self, visitor: Any, element: Any, **_: Any) -> None:
        """What `create` and `drop` of tables and metadata call."""
        tables = element.sorted_tables if isinstance(element, MetaData) else [element]
        if issubclass(visitor, SchemaDropper):
            self._drop(tables[::-1])
        else:
            self._create(tables)

    def _create(self, tables: Sequence[Any]) -> None:
        new = [table for table in tables if table.name not in self._database.tables]
        try:
            self.site.add_tables([statement for table in new for statement in self._database.declare(table)])
        except Exception:
            for table in new:
                self._database.forget(table)
            raise

    def _drop(self, tables: Sequence[Any]) -> None:
        for table in tables:
            self._database.forget(table)
            self.site.drop_table(table.name)
