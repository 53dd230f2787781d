"""A back-fill over migrations that write rows is held against a model, and against a fork of the same log; all is generated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.fork.fork import START, fork
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.replay.ledgers import SMALL, Versions, logged_calls
from tests.replay.test_side_by_side import run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("executor_here")]
IDS = 6
SOURCE = """
from sqlalchemy import Column, Integer, String, column, table, update
from cmdlog import Database

db = Database("grown")
t = db.table("t", {columns}, partition_by="id")
NEW, ADD = t.insert(), t.update()


@db.procedure(partition_by="id")
def put(tx, id: int) -> None:
    tx.execute(NEW, id=id, n=1 + id % 2 * {odd})


@db.procedure(partition_by="id")
def add(tx, id: int) -> None:
    tx.execute(ADD.where(t.c.id == id).values(n=t.c.n + 1 + id % 2 * {odd}))
{migrations}
"""
MIGRATION = """

@db.migration("{name}")
def migrate_{name}(tx, op):
{steps}
"""


@dataclass
class Step:
    """Of a migration: a column more or less, before or behind others; or rows that it writes."""

    what: str  # add, drop, fill, raise, key
    column: str = "n"

    @property
    def text(self) -> str:
        """In a migration."""
        whole = f'update(table("t", column("n"), column("{self.column}")))'
        some = f'update(table("t", column("id"), column("n"))).where(column("id") < {IDS // 2})'
        return {
            "add": f'op.add_column("t", {declared(self.column)})',
            "drop": f'op.drop_column("t", "{self.column}")',
            "fill": f"tx.execute({whole}.values({self.column}=column('n') * 10))",
            "raise": f'tx.execute({some}.values(n=column("n") + 7))',
            "key": "op.create_primary_key(None, 't', ['id'])",
        }[self.what]

    def change(self, rows: dict[int, dict[str, int]]) -> None:
        """The same on the model."""
        for key, row in rows.items():
            if self.what == "add":
                row[self.column] = 0
            elif self.what == "drop":
                del row[self.column]
            elif self.what == "fill":
                row[self.column] = row["n"] * 10
            elif self.what == "raise" and key < IDS // 2:
                row["n"] += 7


def declared(name: str) -> str:
    """A column of the table."""
    return f'Column("{name}", Integer, nullable=False, server_default="0")'


def generated(draw: random.Random) -> list[tuple[list[str], list[Step]]]:
    """Migrations one after the other: the columns after each, and its steps."""
    columns, found = list[str](), []
    for number in range(draw.randint(1, 3)):
        steps = []
        for at in range(draw.randint(1, 4)):
            what = draw.choice(("add", "add", "fill", "fill", "raise", "drop", "key"))
            if what == "add":
                columns = [*columns, f"c{number}{at}"]
                steps.append(Step("add", columns[-1]))
            elif what in ("raise", "key"):
                steps.append(Step(what))
            elif columns:
                name = draw.choice(columns)
                steps.append(Step(what, name))
                columns = [each for each in columns if what != "drop" or each != name]
        found.append((columns, steps))
    return found


def source(migrations: list[tuple[list[str], list[Step]]], odd: int) -> str:
    """The program after these migrations; calls on odd keys count `odd` more."""
    columns = migrations[-1][0] if migrations else []
    texts = []
    for number, (_, steps) in enumerate(migrations):
        lines = "\n".join(f"    {step.text}" for step in steps) or "    pass"
        texts.append(MIGRATION.format(name=f"m{number}", steps=lines))
    listed = ['Column("id", Integer, primary_key=True)', 'Column("n", Integer, nullable=False)', *map(declared, columns)]
    return SOURCE.format(columns=", ".join(listed), odd=odd, migrations="".join(texts))


def differing(left: dict[int, dict[str, int]], right: dict[int, dict[str, int]]) -> set[int]:
    """Keys whose rows differ in a column that both have."""
    found = set()
    for key in left.keys() | right.keys():
        one, other = left.get(key), right.get(key)
        if one is None or other is None or any(one[name] != other[name] for name in one.keys() & other.keys()):
            found.add(key)
    return found


def table_of(directory: Path) -> dict[int, dict[str, Any]]:
    """Its rows by key, as the file has them."""
    connection = open_image(state_path(str(directory), 0))
    names = [str(name) for _, name, *_ in connection.execute("PRAGMA table_info(t)")]
    rows = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in connection.execute("SELECT * FROM t")}
    connection.close()
    return rows


def check(versions: Versions, folder: Path, seed: int) -> int:
    """Differing rows of a generated history; what made each differ is that of the model."""
    draw, node = random.Random(seed), folder / "node"
    migrations = generated(draw)
    left, right, cause = dict[int, dict[str, int]](), dict[int, dict[str, int]](), dict[int, str | int]()
    sent = list[tuple[str, int]]()
    for done in range(len(migrations) + 1):
        with cmdlog.open(
            node, versions.load("grown", source(migrations[:done], 0)), partitions=1, migrate=True, **SMALL
        ) as opened:
            sent += [("migration", done - 1)] if done else []
            for _ in range(draw.randint(2, 9)):
                key = draw.randrange(IDS)
                sent.append(("add" if ("put", key) in sent else "put", key))
                opened.call(sent[-1][0], id=key)
    calls, held = iter(logged_calls(node)), list[str]()
    for name, key in sent:
        if name == "migration":
            at: str | int = f"migration m{key}"
            for step in migrations[key][1]:
                step.change(left)
            held = migrations[key][0]
        else:
            at = next(calls).txn_id
            for side, columns, more in ((left, held, 1), (right, migrations[-1][0], 1 + key % 2)):
                side.setdefault(key, {"n": 0, **dict.fromkeys(columns, 0)})["n"] += more
        for each in differing(left, right):
            cause.setdefault(each, at)
    other = versions.load("grown", source(migrations, 1))
    rows, _ = run(node, other, folder / "work", START, None)
    assert {row["id"] for row in rows} == differing(left, right), seed
    for row in rows:
        first = row["first_procedure"] if str(row["first_procedure"]).startswith("migration") else row["first_txn_id"]
        assert first == cause[row["id"]], (seed, row)
    fork(RealFiles(), str(node), at=START, db=other, out=str(folder / "fork"))
    live, forked = table_of(node), table_of(folder / "fork")
    assert {key for key in live if live[key] != forked[key]} == {row["id"] for row in rows}
    assert (live, forked) == (left, right)
    return len(rows)


@pytest.mark.parametrize("seed", range(6))
def test_back_fill_over_migrations_is_that_of_a_fork(versions: Versions, tmp_path: Path, seed: int) -> None:
    """The same rows differ, and what made each differ first is the model's: a call, or the migration itself."""
    check(versions, tmp_path, seed)


@pytest.mark.torture
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_back_fill_over_many_generated_migrations(versions: Versions, tmp_path: Path, first: int) -> None:
    """The same for many seeds."""
    assert sum(check(versions, tmp_path / str(seed), seed) for seed in range(first, first + 10)) > 0
