"""An application that is migrated: `first`, `second` after one migration, `third` after two, `raising` whose migration raises."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Index, Integer, Numeric, String, Text, bindparam, func, insert, select, update

from procedures import Database, Transaction


def _people(made: Database, step: int) -> Any:
    """The table as it is after `step` - 1 migrations."""
    names: list[Column[Any]] = [Column("name", Text, nullable=False)]
    if step > 1:
        names = [Column("given", String(20), nullable=False), Column("family", Text, nullable=False, server_default="")]
    money = Column("money", Numeric(12, 4) if step > 2 else Numeric(10, 2), nullable=False)
    people = made.table("people", *names, Column("id", Integer, primary_key=True), money, partition_by="id")
    Index("people_names", *(people.c[column.name] for column in names))
    return people


def _application(step: int, *, raises: bool = False) -> Database:
    made = Database("migrating")
    people = _people(made, step)
    given = people.c.name if step == 1 else people.c.given
    if step > 1:

        @made.migration("0001_split_name")
        def split_name(tx: Transaction, op: Any) -> None:
            op.alter_column("people", "name", new_column_name="given")
            op.add_column("people", Column("family", Text, nullable=False, server_default=""))
            tx.execute(update(people).values(family=func.substr(given, 3), given=func.substr(given, 1, 2)))
            if raises and tx.partition == 1:
                raise ValueError("not on partition 1")

    if step > 2:

        @made.migration("0002_finer_money")
        def finer_money(tx: Transaction, op: Any) -> None:
            op.alter_column("people", "money", type_=Numeric(12, 4))

    new = insert(people).values({given: bindparam("given_")} | {"id": bindparam("id_"), "money": bindparam("money_")})
    every = select(people).order_by(people.c.id)

    @made.procedure(partition_by="id")
    def put(tx: Transaction, id: int, name: str, money: str = "1.25") -> int:  # noqa: A002 - a column's name
        """A new row."""
        tx.execute(new, id_=id, given_=name, money_=_exact(money))
        return id

    @made.procedure(read_only=True)
    def show(tx: Transaction) -> list[list[str]]:
        """All rows, column by column as declared."""
        return [[str(value) for value in row] for row in tx.execute(every)]

    return made


def _exact(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


first, second, third = (_application(step) for step in (1, 2, 3))
raising = _application(2, raises=True)
