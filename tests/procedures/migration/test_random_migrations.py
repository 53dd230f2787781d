"""Random sequences of operations on a table with rows, beside the same in plain SQL on a plain SQLite."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Index, Integer, Numeric, Text, column, table, update

from procedures import Database
from tests.procedures.migration.people import ChangingSite, as_logged, program

ROWS = 7
NAMES = ("a", "b", "order", "Total")
Operation = tuple[str, str, int]
operations = st.lists(
    st.tuples(
        st.sampled_from(("add", "drop", "rename", "rename table", "rescale", "fill", "require", "free", "index", "default")),
        st.sampled_from(NAMES),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=8,
)


@dataclass(frozen=True)
class Col:
    """A column as the declaration has it."""

    kind: str  # integer, text, numeric
    scale: int = 0
    required: bool = False
    default: str | None = None

    def declare(self, name: str) -> Column[Any]:
        type_: Any = {"integer": Integer(), "text": Text(), "numeric": Numeric(16, self.scale)}[self.kind]
        return Column(name, type_, nullable=not self.required, server_default=self.default)


@dataclass
class Model:
    """The table in plain SQLite, and how its columns are declared."""

    plain: apsw.Connection = field(default_factory=lambda: apsw.Connection(":memory:"))
    name: str = "t"
    columns: dict[str, Col] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)  # name -> column
    tables: int = 0

    def __post_init__(self) -> None:
        self.plain.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        for key in range(ROWS):
            self.plain.execute("INSERT INTO t VALUES (?)", (key,))

    def declare(self, db: Database) -> None:
        """As it is now."""
        indexes = [Index(name, held) for name, held in self.indexes.items()]
        columns = [each.declare(name) for name, each in self.columns.items()]
        db.table(self.name, Column("id", Integer, primary_key=True), *columns, *indexes, partition_by="id")

    def rows(self, connection: apsw.Connection) -> list[tuple[Any, ...]]:
        """By the names of the columns, which may be in another order."""
        names = ", ".join(f'"{name}"' for name in ("id", *self.columns))
        return sorted(connection.execute(f'SELECT {names} FROM "{self.name}"').fetchall())  # noqa: S608 - names of this test

    def run(self, operation: Operation, tx: Any, op: Any) -> None:
        """Does it here and there; one that does not apply is left out."""
        what, name, number = operation
        held = self.columns.get(name)
        if what == "add" and held is None:
            self._add(name, number, op)
        elif what == "rename table":
            self.tables += 1
            op.rename_table(self.name, f"t{self.tables}")
            self.plain.execute(f'ALTER TABLE "{self.name}" RENAME TO t{self.tables}')
            self.name = f"t{self.tables}"
        elif held is not None:
            self._change(operation, held, tx, op)

    def _add(self, name: str, number: int, op: Any) -> None:
        kind = ("integer", "text", "numeric")[number % 3]
        default = None if number < 3 else "3"
        self.columns[name] = added = Col(kind, scale=number if kind == "numeric" else 0, required=number > 3, default=default)
        op.add_column(self.name, added.declare(name))
        stored: Any = default if default is None or kind == "text" else int(default) * 10**added.scale
        self.plain.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}"')
        self.plain.execute(f'UPDATE "{self.name}" SET "{name}" = ?', (stored,))  # noqa: S608 - names of this test

    def _has_null(self, name: str) -> bool:
        """A default that came later does not fill the rows that were there."""
        return bool(self.plain.execute(f'SELECT count(*) FROM "{self.name}" WHERE "{name}" IS NULL').get)  # noqa: S608 - as below

    def _change(self, operation: Operation, held: Col, tx: Any, op: Any) -> None:
        what, name, number = operation
        if what == "drop":
            op.drop_column(self.name, name)
            del self.columns[name]
            for index in [index for index, of in self.indexes.items() if of == name]:
                del self.indexes[index]
            self.plain.execute(f'ALTER TABLE "{self.name}" DROP COLUMN "{name}"')
        elif what == "rename" and (new := NAMES[number % len(NAMES)]) not in self.columns:
            op.alter_column(self.name, name, new_column_name=new)
            self.columns = {new if each == name else each: col for each, col in self.columns.items()}
            self.indexes = {index: new if of == name else of for index, of in self.indexes.items()}
            self.plain.execute(f'ALTER TABLE "{self.name}" RENAME COLUMN "{name}" TO "{new}"')
        elif what == "rescale" and held.kind == "numeric" and number >= held.scale:
            op.alter_column(self.name, name, type_=Numeric(16, number))
            self.columns[name] = replace(held, scale=number)
            self.plain.execute(f'UPDATE "{self.name}" SET "{name}" = "{name}" * {10 ** (number - held.scale)}')  # noqa: S608 - as above
        elif what == "fill" and held.kind != "numeric":
            value: Any = f"text {number}" if held.kind == "text" else number
            tx.execute(update(table(self.name, column("id"), column(name))).values({name: value}).where(column("id") < number))
            self.plain.execute(f'UPDATE "{self.name}" SET "{name}" = ? WHERE id < ?', (value, number))  # noqa: S608 - as above
        elif what == "require" and held.default is not None and not held.required and not self._has_null(name):
            op.alter_column(self.name, name, nullable=False)
            self.columns[name] = replace(held, required=True)
        elif what == "free" and held.required:
            op.alter_column(self.name, name, nullable=True)
            self.columns[name] = replace(held, required=False)
        elif what == "index" and f"by{number}" not in self.indexes:
            op.create_index(f"by{number}", self.name, [name])
            self.indexes[f"by{number}"] = name
        elif what == "default" and held.kind == "integer":
            op.alter_column(self.name, name, server_default=str(number))
            self.columns[name] = replace(held, default=str(number))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(operations, min_size=1, max_size=3))
def test_random_operations_equal_plain_sql_and_their_replay(migrations: list[list[Operation]]) -> None:
    """The declared tables are reached, rows are those of plain SQLite, and the replay of all entries is the same state."""
    with tempfile.TemporaryDirectory() as folder:
        model, done = Model(), []
        first = program(model.declare)
        live, replica = (ChangingSite(Path(folder) / name, first) for name in ("live.db", "replica.db"))
        for site in (live, replica):
            site.start()
            site.run_sql(*(f"INSERT INTO t VALUES ({key})" for key in range(ROWS)))  # noqa: S608 - numbers
        for number, steps in enumerate(migrations):
            done.append((f"{number:04}", _migration(model, steps)))
            later = _after(model, steps)
            db = program(later.declare, *done)
            change = live.deploy(db)
            for step in steps:
                model.run(step, _Nothing(), _Nothing())
            replica.programs |= live.programs
            replica.apply(as_logged(change))
            assert live.dump() == replica.dump()
            assert model.rows(live.state.connection) == model.rows(model.plain)
            assert live.rehearse(db) is None
        for site in (live, replica):
            site.close()


class _Nothing:
    """Stands in for `tx` and `op` where only the model moves."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def _copy(model: Model) -> Model:
    """The model as it is now, over a plain table of its own with the same rows."""
    copied = Model(name=model.name, columns=dict(model.columns), indexes=dict(model.indexes), tables=model.tables)
    with copied.plain.backup("main", model.plain, "main") as backup:
        backup.step()
    return copied


def _after(model: Model, steps: list[Operation]) -> Model:
    later = _copy(model)
    for step in steps:
        later.run(step, _Nothing(), _Nothing())
    return later


def _migration(model: Model, steps: list[Operation]) -> Any:
    """The function, which does the same each time that it is run."""
    before = _copy(model)

    def migrate(tx: Any, op: Any) -> None:
        run = _copy(before)
        for step in steps:
            run.run(step, tx, op)

    return migrate
