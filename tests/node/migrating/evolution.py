"""Random lives of one table: calls, deploys, migrations, restarts and snapshots, beside a model in plain Python.

A program is written as text, one module for each version, as its authors would: the table as it is declared now, and all
migrations so far. The model knows the rows; it knows nothing of SQL.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from cmdlog.node.node import Node
from procedures import Database
from procedures.bundle import Bundle, capture_bundle
from tests.node.rig import ask, open_node

IDS = 40
SOURCE = '''
"""Version {version} of a program that grows."""

from decimal import Decimal

from sqlalchemy import Column, Index, Integer, Numeric, Text, column, delete, insert, select, table, update

from procedures import Database

db = Database("evolving")
t = db.table("t", {columns}, partition_by="id")
{indexes}
KINDS = {kinds!r}


def value(kind, n):
    """What a column of this kind holds for n."""
    return {{"int": n, "text": f"v{{n}}", "num2": Decimal(n) / 100, "num4": Decimal(n) / 100}}[kind]

{migrations}

@db.procedure(partition_by="id")
def put(tx, id: int, n: int) -> int:
    """Replaces the row."""
    tx.execute(delete(t).where(t.c.id == id))
    tx.execute(insert(t).values(id=id, **{{name: value(kind, n) for name, kind in KINDS.items()}}))
    return n


@db.procedure(read_only=True)
def show(tx) -> list[list[str]]:
    """All rows, column by column as declared."""
    return [[str(cell) for cell in row] for row in tx.execute(select(t).order_by(t.c.id))]
'''
TYPES = {"int": "Integer", "text": "Text", "num2": "Numeric(12, 2)", "num4": "Numeric(14, 4)"}
FIRST_VALUES: dict[str, Any] = {"int": 7, "text": "new", "num2": Decimal("1.50"), "num4": Decimal("1.5000")}


@dataclass(frozen=True)
class Declared:
    """A column of the model."""

    name: str
    kind: str
    defaulted: bool = False

    def source(self) -> str:
        default = f", nullable=False, server_default={str(FIRST_VALUES[self.kind])!r}" if self.defaulted else ""
        return f'Column("{self.name}", {TYPES[self.kind]}{default})'

    def value(self, n: int) -> Any:
        cents = Decimal(n) / 100
        return {"int": n, "text": f"v{n}", "num2": round(cents, 2), "num4": round(cents, 4)}[self.kind]

    @property
    def first_value(self) -> Any:
        """Of rows that were there before the column."""
        return FIRST_VALUES[self.kind] if self.defaulted else None


@dataclass
class Model:
    """The rows, and what the program's text is made of."""

    columns: list[Declared]
    indexes: list[str] = field(default_factory=list)
    migrations: list[str] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    version: int = 0
    names: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def source(self) -> str:
        columns = ['Column("id", Integer, primary_key=True)', *(column.source() for column in self.columns)]
        indexes = "\n".join(f'Index("by_{name}", t.c.{name})' for name in self.indexes)
        kinds = {column.name: column.kind for column in self.columns}
        return SOURCE.format(
            version=self.version, columns=", ".join(columns), indexes=indexes, kinds=kinds, migrations="\n".join(self.migrations)
        )

    def shown(self) -> list[list[str]]:
        """What `show` answers, over all partitions."""
        names = [column.name for column in self.columns]
        return [[str(id_), *(str(row[name]) for name in names)] for id_, row in sorted(self.rows.items())]

    def put(self, id_: int, n: int) -> None:
        self.rows[id_] = {column.name: column.value(n) for column in self.columns}

    def add_column(self, chance: random.Random) -> None:
        """Anywhere in the declaration, without a migration."""
        made = Declared(f"c{next(self.names)}", chance.choice(sorted(TYPES)), chance.random() < 0.5)
        self.columns.insert(chance.randrange(len(self.columns) + 1), made)
        for row in self.rows.values():
            row[made.name] = made.first_value

    def toggle_index(self, chance: random.Random) -> None:
        name = chance.choice(self.columns).name
        self.indexes = [known for known in self.indexes if known != name] if name in self.indexes else [*self.indexes, name]

    def migrate(self, chance: random.Random) -> None:
        """One more migration, of one or several operations."""
        steps = [self._step(chance) for _ in range(chance.randint(1, 3))]
        number = next(self.names)
        body = "\n".join(f"    {line}" for line in steps)
        self.migrations.append(f'\n@db.migration("m{number:04}")\ndef m{number:04}(tx, op):\n{body}\n')

    def _step(self, chance: random.Random) -> str:
        column = chance.choice(self.columns)
        kind = chance.choice(["rename", "drop", "update", "scale", "require"])
        if kind == "drop" and len(self.columns) > 1 and column.name not in self.indexes:
            self.columns.remove(column)
            for row in self.rows.values():
                del row[column.name]
            return f'op.drop_column("t", "{column.name}")'
        if kind == "scale" and column.kind == "num2" and not column.defaulted:
            self._replace(column, replace(column, kind="num4"))
            for row in self.rows.values():
                row[column.name] = None if row[column.name] is None else round(row[column.name], 4)
            return f'op.alter_column("t", "{column.name}", type_=Numeric(14, 4))'
        if kind == "update" and column.kind == "int":
            for row in self.rows.values():
                row[column.name] = None if row[column.name] is None else row[column.name] * 2 + 1
            lightweight = f'table("t", column("{column.name}"))'
            return f'tx.execute(update({lightweight}).values({column.name}=column("{column.name}") * 2 + 1))'
        if kind == "require" and column.kind == "text" and not column.defaulted:
            self._replace(column, replace(column, defaulted=True))
            for row in self.rows.values():
                row[column.name] = row[column.name] or "new"
            lightweight = f'table("t", column("{column.name}"))'
            fill = f'tx.execute(update({lightweight}).where(column("{column.name}").is_(None)).values({column.name}="new"))'
            return f'{fill}; op.alter_column("t", "{column.name}", existing_type=Text, nullable=False, server_default="new")'
        return self._rename(column)

    def _rename(self, column: Declared) -> str:
        new = f"c{next(self.names)}"
        self._replace(column, replace(column, name=new))
        self.indexes = [known for known in self.indexes if known != column.name]
        for row in self.rows.values():
            row[new] = row.pop(column.name)
        return f'op.alter_column("t", "{column.name}", new_column_name="{new}")'

    def _replace(self, column: Declared, other: Declared) -> None:
        self.columns[self.columns.index(column)] = other


class Life:
    """A node of that table, and what must be there at each of its moments."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.data, self.chance = folder, folder / "data", random.Random(seed)
        self.model = Model([Declared("a", "int"), Declared("b", "text"), Declared("m", "num2")])
        self.modules: list[str] = []
        self.app, _ = self._program()
        self.node = self._opened()
        self.moments: list[tuple[int, Database, list[list[str]]]] = []  # up to which transaction, code of then, rows

    def run(self, steps: int) -> None:
        """Ends with a closed node."""
        for _ in range(steps):
            getattr(self, self.chance.choice(["_calls", "_calls", "_deploy", "_restart", "_snapshot"]))()
            assert shown(self.node) == self.model.shown()
            self.moments.append((self.node.clock.closed(), self.app, self.model.shown()))
        self.node.close()

    def close(self) -> None:
        for name in self.modules:
            sys.modules.pop(name, None)

    def _calls(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            id_, n = self.chance.randrange(IDS), self.chance.randrange(100_000)
            assert ask(self.node, "put", id=id_, n=n) == n
            self.model.put(id_, n)

    def _deploy(self) -> None:
        """Other code: into the running node, or by a restart that migrates."""
        steps = [self.model.migrate, self.model.add_column, self.model.toggle_index]  # migrations run before additions
        for step in sorted(self.chance.sample(range(3), self.chance.randint(1, 2))):
            steps[step](self.chance)
        self.app, bundle = self._program()
        if self.chance.random() < 0.5:
            self.node.deployer.deploy(bundle, migrate=True)
        else:
            self._restart()

    def _restart(self) -> None:
        self.node.close()
        self.node = self._opened()

    def _snapshot(self) -> None:
        self.node.take_snapshot(None)

    def _opened(self) -> Node:
        return open_node(self.data, app=self.app, inline=True, partitions=2, migrate=True, segments=64)

    def _program(self) -> tuple[Database, Bundle]:
        self.model.version += 1
        name = f"evolving_{self.folder.name}_{self.model.version}"
        (self.folder / f"{name}.py").write_text(self.model.source())
        sys.path.insert(0, str(self.folder))
        try:
            importlib.invalidate_caches()
            module = importlib.import_module(name)
        finally:
            sys.path.remove(str(self.folder))
        self.modules.append(name)
        return module.db, capture_bundle(module.db, f"{name}:db")


def shown(node: Node) -> list[list[str]]:
    """All rows of all partitions, by id."""
    found = [row for of in ask(node, "show") for row in of]
    return sorted(found, key=lambda row: int(row[0]))
