"""Classes as declarations of tables: `class Account(db.Model)` with `Mapped[…]`, as users of SQLAlchemy's ORM write them.

One rule: a class is a table and its columns, for statements of Core. There is no Session: what needs one (relationships, loader
options, instances with state) is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import ColumnProperty, DeclarativeBase, Mapper, RelationshipProperty

from procedures.errors import DefinitionError, StatementRefused

Declare = Callable[..., Table]
_FOR_READERS = frozenset(("comment", "info"))


def make_model(tables: MetaData, declare: Declare) -> type[DeclarativeBase]:
    """The base class of one database; `declare` is `Database.table`."""

    class Model(DeclarativeBase):
        """Base of classes that declare tables; `__partition_by__` or `__replicated__` says where their rows live."""

        metadata = tables

        def __init_subclass__(cls, **options: Any) -> None:
            bases = [base.__name__ for base in cls.__mro__[1:] if "__table__" in vars(base)]
            if bases:
                raise DefinitionError(f"class {cls.__name__}: a class is one table, so it cannot extend {bases[0]}; use a mixin")
            if "__mapper_args__" in vars(cls):
                raise DefinitionError(f"class {cls.__name__}: __mapper_args__ is for a Session, which there is none of")
            try:
                super().__init_subclass__(**options)
            except SQLAlchemyError as error:
                raise DefinitionError(f"class {cls.__name__}: {error}") from None
            if "__mapper__" in vars(cls):
                _check_mapper(cls.__name__, cls.__mapper__)

        @classmethod
        def __table_cls__(cls, name: str, _metadata: MetaData, *items: Any, **options: Any) -> Table:
            if unknown := sorted(options.keys() - _FOR_READERS):
                raise DefinitionError(f"class {cls.__name__}: __table_args__ {unknown[0]!r} would have no effect; leave it out")
            partition_by = getattr(cls, "__partition_by__", None)
            replicated = bool(getattr(cls, "__replicated__", False))
            if (partition_by is None) == (not replicated):
                raise DefinitionError(f"class {cls.__name__}: give either __partition_by__ = <column> or __replicated__ = True")
            return declare(name, *items, partition_by=partition_by, replicated=replicated, **options)

        def __init__(self, **_: Any) -> None:
            name = type(self).__name__
            raise StatementRefused(
                f"{name}(…) makes no row, since there is no Session to store it; write tx.execute(insert({name}).values(…))"
            )

    return Model


def _check_mapper(name: str, mapper: Mapper[Any]) -> None:
    for key, found in mapper._props.items():  # noqa: SLF001 - public access would configure relationships
        where = f"class {name}: {key}"
        if isinstance(found, RelationshipProperty):
            raise DefinitionError(f"{where}: a relationship is loaded by a Session, which there is none of; join the tables")
        if not isinstance(found, ColumnProperty) or not isinstance(found.columns[0], Column):
            raise DefinitionError(f"{where} is no column; write the expression in the statement, or declare Computed")
        if found.columns[0].name != key:
            raise DefinitionError(f"{where}: a column has one name, so call the attribute {found.columns[0].name}")
        if found.deferred:
            raise DefinitionError(f"{where}: deferred=True is for a Session; select the columns that you want")
        if found.active_history:
            raise DefinitionError(f"{where}: active_history has no effect: there is no Session; leave it out")
    if mapper.validators:
        name_of = next(iter(mapper.validators))
        raise DefinitionError(f"class {name}: @validates({name_of!r}) is for objects of a Session; write a CheckConstraint")
