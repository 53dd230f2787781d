"""`Database`: the tables and procedures of one application, declared at import time.

It holds no connection and no state. A node, an embedded engine, a replay and a Spark task all work on the same object.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy import MetaData, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import SchemaItem

from procedures.declaration.procedure import NAME, Each, EverywhereFunction, Procedure, build_procedure, mark_procedure
from procedures.declaration.schema import check_table, create_statements
from procedures.declaration.schema_plan import SchemaPlan, check_older_program, plan_migrations, plan_schema
from procedures.declaration.schema_trial import try_references, try_table
from procedures.errors import DefinitionError
from procedures.numeric.columns import set_stored_types
from procedures.source.loading import is_loading
from procedures.source.main_module import share_main

MIGRATION_NAME: Final = re.compile(r"[0-9A-Za-z_]{1,63}", re.ASCII)
_ARGUMENTS: Final = ("tx", "op")
_NO_EFFECT: Final = "it would have no effect; leave it out"
_REFUSED_OPTIONS: Final = {
    "schema": "a state has one schema; leave it out",
    "prefixes": "a table is stored in the state, neither temporary nor virtual; leave it out",
    "extend_existing": "a table is declared once, with all its columns",
    "keep_existing": "a table is declared once, with all its columns",
    "autoload_with": "nothing is read from a database; declare the columns",
    "sqlite_with_rowid": "cmdlog chooses how a table is stored; leave it out",
    "sqlite_strict": "cmdlog chooses how a table is stored; leave it out",
    "sqlite_autoincrement": "cmdlog chooses how a table is stored; leave it out",
}  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class RegisterEverywhere(Protocol):
    """For type checkers: the decorator of procedures that run on all partitions."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # None is the narrower one, and comes first
        self, function: Callable[Concatenate[Any, P], None], /
    ) -> EverywhereFunction[P, None, None]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> EverywhereFunction[P, R, list[R]]: ...


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A declared table and where its rows live."""

    table: Table
    partition_by: str | None  # column; None for a replicated table
    replicated: bool  # every partition holds all rows


@dataclass(frozen=True, slots=True)
class Migration:
    """A declared migration; made by `Database.migration`."""

    name: str
    function: Callable[[Any, Any], None]


def build_migration(name: str, function: Callable[[Any, Any], None]) -> Migration:
    """Raises: DefinitionError, saying what to write."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(f"migration {name!r} must be a plain function")
    if tuple(inspect.signature(function).parameters) != _ARGUMENTS:
        raise DefinitionError(f"migration {name!r}: write `def {getattr(function, '__name__', 'migrate')}(tx, op):`")
    return Migration(name, function)


def check_name(name: object, known: tuple[Migration, ...]) -> str:
    """Raises: DefinitionError."""
    if not isinstance(name, str) or not MIGRATION_NAME.fullmatch(name):
        raise DefinitionError(
            f"migration {name!r}: write @db.migration('0001_what_it_does'); a name is letters, digits and _, at most 63"
        )
    if any(name == migration.name for migration in known):
        raise DefinitionError(f"migration {name!r} is declared twice")
    return name


class Database:
    """The declarations of one application.

    Example:
        db = Database("bank")
        accounts = db.table("accounts", Column("id", Integer, primary_key=True), partition_by="id")

        @db.procedure(partition_by="account_id")
        def balance(tx, account_id: int) -> int: ...
    """

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise DefinitionError(f"database {name!r}: a name is lower-case letters, digits and _, at most 63, a letter first")
        share_main(sys._getframe(1).f_globals)  # noqa: SLF001 - that of the module that declares it
        self.name = name
        self.metadata = MetaData()
        self._tables: dict[str, TableInfo] = {}
        self._procedures: dict[str, Procedure] = {}
        self._listed: tuple[Procedure, ...] | None = None
        self._migrations: tuple[Migration, ...] = ()
        self._is_tried = not is_loading()  # what the log has was tried when it was declared
        self._model: Any = None

    def table(
        self,
        name: str,
        *items: SchemaItem,
        partition_by: str | None = None,
        replicated: bool = False,
        comment: str | None = None,
        info: dict[Any, Any] | None = None,
        **options: Any,
    ) -> Table:
        """Declares a table: either its rows live on one partition each, by a column, or all of them on every partition.

        Args:
            comment, info: notes for readers.
            options: the others of SQLAlchemy's Table; each is refused.

        Raises:
            DefinitionError: the table could not be replayed; the message says what to write instead.
        """
        # Refused before SQLAlchemy has it; what is refused after that is taken off the metadata, so its name is free again.
        if (partition_by is None) == (not replicated):
            raise DefinitionError(f"table {name!r}: give either partition_by=<column> or replicated=True")
        if any(name.lower() == known.lower() for known in self._tables):
            raise DefinitionError(f"table {name!r} is declared twice")
        for option in options:
            raise DefinitionError(f"table {name!r}: {option}: {_REFUSED_OPTIONS.get(option, _NO_EFFECT)}")
        try:
            table = Table(name, self.metadata, *items, comment=comment, info=info or {})
        except SQLAlchemyError as error:
            raise DefinitionError(f"table {name!r}: {error}") from None
        try:
            if partition_by is not None and partition_by not in table.columns:
                raise DefinitionError(f"table {name!r}: partition_by={partition_by!r} is none of its columns")
            set_stored_types(table, partition_by)
            check_table(table, partition_by=partition_by)
            self._check_references(table, partition_by)
            if self._is_tried:
                try_table(table)
        except DefinitionError:
            self.metadata.remove(table)
            raise
        except SQLAlchemyError as error:
            self.metadata.remove(table)
            raise DefinitionError(f"table {name!r}: {error}") from None
        self._tables[name] = TableInfo(table, partition_by, replicated)
        return table

    @property
    def Model(self) -> Any:
        """Base of classes that declare tables, as `class Account(db.Model)`; see `procedures.declaration.models`."""
        if self._model is None:
            from procedures.declaration.models import make_model  # noqa: PLC0415 - SQLAlchemy's ORM is for those who use it

            self._model = make_model(self.metadata, self.table)
        return self._model

    @overload
    def procedure(
        self, bare: None = None, /, *, partition_by: str, read_only: bool = False, name: str | None = None
    ) -> Callable[[Function], Function]: ...
    @overload
    def procedure(  # type: ignore[overload-overlap]  # None is the narrower one, and comes first
        self, bare: None = None, /, *, partition_by: Each | None = None, read_only: bool = False, name: str | None = None
    ) -> RegisterEverywhere: ...
    @overload
    def procedure(
        self, bare: None = None, /, *, partition_by: str | Each | None, read_only: bool = False, name: str | None = None
    ) -> Callable[[Function], Function]: ...
    def procedure(
        self, bare: None = None, /, *, partition_by: str | Each | None = None, read_only: bool = False, name: str | None = None
    ) -> Any:
        """Registers the decorated function; it stays an ordinary function.

        Args:
            bare: the function, where the brackets were forgotten; refused.
            partition_by: parameter whose value says on which partition a call runs; None: on all of them, alike; EACH: on each
                of them, on rows of its own.
            read_only: writes nothing, and is therefore not logged.
            name: under which callers know it; default: the function's own.

        Raises:
            DefinitionError: the signature cannot be a contract, the name is taken, or the decorator has no brackets.
        """
        if bare is not None:
            raise DefinitionError(
                f"{getattr(bare, '__name__', bare)!r}: write @db.procedure(partition_by='<parameter>'), whose value says on "
                "which partition a call runs, or @db.procedure(partition_by=None) to run on all of them"
            )

        def register(function: Function) -> Function:
            procedure = build_procedure(function, name=name, partition_by=partition_by, read_only=read_only)
            if procedure.name in self._procedures:
                raise DefinitionError(f"procedure {procedure.name!r} is declared twice")
            self._procedures[procedure.name] = procedure
            self._listed = None
            mark_procedure(procedure)
            return function

        return register

    def migration(self, name: str) -> Callable[[Function], Function]:
        """Registers the decorated function `(tx, op)`: it runs once on each partition whose state has not done it.

        Args:
            name: under which states remember it; migrations run in the order of their declaration.

        Raises:
            DefinitionError: the name is taken or no name, or the function has other parameters.
        """
        check_name(name, self._migrations)

        def register(function: Function) -> Function:
            self._migrations += (build_migration(name, function),)
            return function

        return register

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """In the order of their declaration."""
        return self._migrations

    @property
    def procedure_list(self) -> tuple[Procedure, ...]:
        """All procedures by name; the position is the number that the log holds."""
        if self._listed is None:
            self._listed = tuple(self._procedures[name] for name in sorted(self._procedures))
        return self._listed

    @property
    def procedures(self) -> Mapping[str, Procedure]:
        return MappingProxyType(self._procedures)

    @property
    def tables(self) -> Mapping[str, TableInfo]:
        return MappingProxyType(self._tables)

    def check_tables(self) -> None:
        """Checks the tables as they are now, with what was added to them after their declaration.

        Raises: DefinitionError, also for a table on `metadata` that was not declared here.
        """
        for name, table in self.metadata.tables.items():
            if name not in self._tables:
                raise DefinitionError(
                    f"table {name!r} is on {self.name}.metadata, but was not declared: where its rows live is not known; declare "
                    f"it with db.table({name!r}, …), or its class as a db.Model"
                )
            info = self._tables[name]
            check_table(table, partition_by=info.partition_by)
            self._check_references(table, info.partition_by)
        if self._is_tried:
            try_references(self.metadata.tables.values())

    def _check_references(self, table: Table, partition_by: str | None) -> None:
        """A foreign key holds where both rows are: it must not say something else on each partition.

        Between the kinds, a change of a replicated table would fail on some partitions alone. Between partitioned tables, the row
        that is referred to may live elsewhere, unless the foreign key joins their partition columns.
        """
        for constraint in table.foreign_key_constraints:
            referred = constraint.referred_table
            if referred is not table and referred.name not in self._tables:
                continue
            target = partition_by if referred is table else self._tables[referred.name].partition_by
            # Two cases: tables of two kinds, and partitioned ones whose rows need not be together.
            if (target is None) != (partition_by is None):
                kinds = ("partitioned", "replicated")
                raise DefinitionError(
                    f"table {table.name!r} is {kinds[partition_by is None]}, and its foreign key refers to {referred.name!r}, "
                    f"which is {kinds[target is None]}: a change could fail on some partitions alone; leave the foreign key out, "
                    "and check it in the procedure"
                )
            joined = {(key.parent.name, key.column.name) for key in constraint.elements}
            if partition_by is not None and (partition_by, target) not in joined:
                pairs = ", ".join(f"{one} → {referred.name}.{other}" for one, other in sorted(joined))
                raise DefinitionError(
                    f"table {table.name!r} is partitioned by {partition_by!r}, and its foreign key ({pairs}) refers to "
                    f"{referred.name!r}, which is partitioned by {target!r}: the row that it refers to may live on another "
                    "partition, and then it fails for a row that exists; partition both tables by columns that the foreign key "
                    "joins, or leave it out, and check it in a call on the other partition"
                )

    def schema_statements(self) -> list[str]:
        """DDL that makes an empty state ready for this application. Raises: DefinitionError."""
        self.check_tables()
        return create_statements(info.table for info in self._tables.values())

    def plan_schema(self, existing: Mapping[str, str]) -> list[str]:
        """Statements that lead from a state's tables to these; see `schema_plan.plan_schema`. Raises: DefinitionError."""
        self.check_tables()
        return plan_schema(existing, (info.table for info in self._tables.values()))

    def plan_change(self, existing: Mapping[str, str], done: Collection[str] | None) -> SchemaPlan:
        """What leads from a state's tables to these, with the migrations that it lacks.

        Args:
            existing: `PartitionState.schema`.
            done: `PartitionState.migrations_done`; None: none.

        Raises:
            DefinitionError, SchemaConflict: see `plan_schema`, `check_older_program`, and migrations that are out of order.
        """
        declared = [migration.name for migration in self._migrations]
        plan = plan_migrations(existing, done or (), declared)
        if plan.pending:
            return plan
        statements = tuple(self.plan_schema(existing))
        check_older_program(statements, done or (), declared)
        return replace(plan, statements=statements)
