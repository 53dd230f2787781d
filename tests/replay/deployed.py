"""A node whose application changed its tables and its signatures over the years, and a plain model of what it holds.

first     items(id, tag), rates
second    items has two columns and an index more; a table `lines`
third     `adjust` takes its parameters in another order, one of them under another name and one more; an index less
fourth    migrations: columns have other names, among them the one by which a table is partitioned, one is split into two,
          an exact decimal has another scale
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cmdlog
from cmdlog.wal.files import RealFiles
from cmdlog.wal.opening.home import adopt
from procedures import Database
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.replay.ledgers import SMALL, Versions

PARTITIONS: Final = 2
KEYS: Final = ("id", "item", "owner", "number", "name")
ITEMS: Final = 6
_HEAD = """
from sqlalchemy import Column, Index, Integer, Numeric, Text, bindparam, insert, select, update
from procedures import Database

db = Database("years")
items = db.table(
    "items",
    Column("id", Integer, primary_key=True),
    {grown}Column("tag", Integer, nullable=False),
    partition_by="id",
)
{index}rates = db.table("rates", Column("name", Text, primary_key=True), Column("rate", Integer, nullable=False), replicated=True)
PUT = insert(items).values(id=bindparam("id_"), tag=bindparam("tag_"))
ADJUST = update(items).where(items.c.id == bindparam("id_")).values(tag=items.c.tag * bindparam("by") + bindparam("more"))
TAG = select(items.c.tag).where(items.c.id == bindparam("id_"))
RATE = insert(rates).values(name=bindparam("name_"), rate=bindparam("rate_"))


@db.procedure(partition_by="id")
def put(tx, id: int, tag: int) -> int:
    tx.execute(PUT, id_=id, tag_=tag)
    return tag


@db.procedure()
def set_rate(tx, name: str, rate: int) -> int:
    tx.execute(RATE, name_=name, rate_=rate)
    return rate

"""
_ADJUST = """
@db.procedure(partition_by="id")
def adjust(tx, {signature}) -> int:
    tx.execute(ADJUST, id_=id, by={factor}, more=plus{more})
    return tx.execute(TAG, id_=id).scalar()

"""
_MOODS = """
Index("items_mood", items.c.mood)
lines = db.table(
    "lines", Column("item", Integer, primary_key=True), Column("number", Integer, primary_key=True), Column("body", Text),
    partition_by="item",
)
CHEER = update(items).where(items.c.id == bindparam("id_")).values(mood=bindparam("mood_"), score=items.c.score + 1)
LINE = insert(lines).values(item=bindparam("item_"), number=bindparam("number_"), body=bindparam("body_"))


@db.procedure(partition_by="id")
def cheer(tx, id: int, mood: str) -> int:
    return tx.execute(CHEER, id_=id, mood_=mood).rowcount


@db.procedure(partition_by="item")
def write(tx, item: int, number: int, body: str) -> int:
    tx.execute(LINE, item_=item, number_=number, body_=body)
    return number

"""
_GROWN = 'Column("mood", Text),\n    Column("score", Numeric(6, 2), nullable=False, server_default="1.5"),\n    '
_INDEX = 'Index("items_tag", items.c.tag)\n'
FIRST: Final = _HEAD.format(grown="", index=_INDEX) + _ADJUST.format(
    signature="id: int, times: int, plus: int = 1", factor="times", more=""
)
SECOND: Final = (
    _HEAD.format(grown=_GROWN, index=_INDEX)
    + _ADJUST.format(signature="id: int, times: int, plus: int = 1", factor="times", more="")
    + _MOODS
)
THIRD: Final = (
    _HEAD.format(grown=_GROWN, index="")
    + _ADJUST.format(signature="plus: int, factor: int, id: int, extra: int = 0", factor="factor", more=" + extra")
    + _MOODS
)
_HALF = 'Column("{}", Text, nullable=False, server_default="")'
_MIGRATIONS = """

@db.migration("0001_names")
def names(tx, op):
    op.alter_column("items", "mood", new_column_name="feeling")
    op.alter_column("lines", "item", new_column_name="owner")
    op.alter_column("rates", "rate", new_column_name="points")


@db.migration("0002_halves")
def halves(tx, op):
    op.alter_column("items", "score", type_=Numeric(8, 3))
    op.add_column("lines", Column("head", Text, nullable=False, server_default=""))
    op.add_column("lines", Column("tail", Text, nullable=False, server_default=""))
    tx.execute(update(table("lines", column("body"), column("head"), column("tail"))).values(
        head=func.substr(column("body"), 1, 1), tail=func.substr(column("body"), 2)))
    op.drop_column("lines", "body")

"""


def _fourth() -> str:
    """The third with the names and types that its migrations make."""
    source = THIRD
    for old, new in (
        ("import Column, Index", "import Column, Index, column, func, table"),
        ('Column("mood"', 'Column("feeling"'),
        ("items.c.mood", "items.c.feeling"),
        ('values(mood=bindparam("mood_")', 'values(feeling=bindparam("mood_")'),
        ("Numeric(6, 2)", "Numeric(8, 3)"),
        ('Column("item", Integer', 'Column("owner", Integer'),
        ('Text),\n    partition_by="item",', 'Text),\n    partition_by="owner",'),
        ('values(item=bindparam("item_")', 'values(owner=bindparam("item_")'),
        ('Column("body", Text)', f"{_HALF.format('head')}, {_HALF.format('tail')}"),
        ('body=bindparam("body_")', 'head=bindparam("head_"), tail=bindparam("tail_")'),
        ("body_=body", "head_=body[:1], tail_=body[1:]"),
        ('Column("rate", Integer', 'Column("points", Integer'),
        ("rate=bindparam(", "points=bindparam("),
    ):
        assert old in source, old
        source = source.replace(old, new)
    return source + _MIGRATIONS


FOURTH: Final = _fourth()
SOURCES: Final = (FIRST, SECOND, THIRD, FOURTH)
Tables = dict[str, list[dict[str, Any]]]


@dataclass
class Model:
    """The tables as plain rows. A `Numeric(6, 2)` is its number of hundredths, as a state has it."""

    tables: Tables = field(default_factory=dict)
    migrated: bool = False

    def deploy(self, step: int) -> None:
        """The code of this step started."""
        if step == 1:
            self.tables = {"items": [], "rates": []}
        elif step == 2:
            self.tables["lines"] = []
            for row in self.tables["items"]:
                row |= {"mood": None, "score": 150}
        elif step == 4:
            self.migrated = True
            for row in self.tables["items"]:
                row |= {"feeling": row.pop("mood"), "score": row["score"] * 10}
            for row in self.tables["lines"]:
                body = row.pop("body")
                row |= {"owner": row.pop("item"), "head": body[:1], "tail": body[1:]}
            for row in self.tables["rates"]:
                row["points"] = row.pop("rate")

    def put(self, id: int, tag: int) -> None:  # noqa: A002 - a column's name
        grown: dict[str, Any] = {"mood": None, "score": 150} if "lines" in self.tables else {}
        grown = {"feeling": None, "score": 1500} if self.migrated else grown
        self.tables["items"].append({"id": id, "tag": tag, **grown})

    def adjust(self, id: int, plus: int = 1, times: int = 0, factor: int = 0, extra: int = 0) -> None:  # noqa: A002
        row = self._item(id)
        row["tag"] = row["tag"] * (times or factor) + plus + extra

    def cheer(self, id: int, mood: str) -> None:  # noqa: A002
        row = self._item(id)
        row |= {"feeling": mood, "score": row["score"] + 1000} if self.migrated else {"mood": mood, "score": row["score"] + 100}

    def write(self, item: int, number: int, body: str) -> None:
        halves = {"owner": item, "number": number, "head": body[:1], "tail": body[1:]}
        self.tables["lines"].append(halves if self.migrated else {"item": item, "number": number, "body": body})

    def set_rate(self, name: str, rate: int) -> None:
        self.tables["rates"].append({"name": name, "points" if self.migrated else "rate": rate})

    def _item(self, number: int) -> dict[str, Any]:
        return next(row for row in self.tables["items"] if row["id"] == number)


@dataclass(frozen=True, slots=True)
class Moment:
    """After one call."""

    step: int  # whose code ran it
    txn_id: int
    name: str
    params: dict[str, Any]
    tables: Tables


@dataclass
class Deployed:
    """A stopped node and its past."""

    directory: Path
    moments: list[Moment] = field(default_factory=list)

    def last(self, step: int) -> Moment:
        """The last one of this code."""
        return [moment for moment in self.moments if moment.step == step][-1]

    def forked(self, at: int, step: int) -> Tables:
        """What this code makes of the calls after `at`, of those that it can run."""
        before = [moment for moment in self.moments if moment.txn_id <= at]
        model = Model(deepcopy(before[-1].tables), before[-1].step == len(SOURCES)) if before else Model()
        for later in range(before[-1].step + 1 if before else 1, step + 1):
            model.deploy(later)
        for moment in self.moments[len(before) :]:
            if fits(moment, step):
                getattr(model, moment.name)(**moment.params)
        return ordered(model.tables)

    def first(self, step: int) -> Moment:
        """The first one of this code."""
        return next(moment for moment in self.moments if moment.step == step)


def fits(moment: Moment, step: int) -> bool:
    """Whether the code of this step has such a procedure with such parameters."""
    if moment.name == "adjust":
        return (moment.step < 3) == (step < 3)
    return step > 1 or moment.name in ("put", "set_rate")


class _Life:
    """The node at work."""

    def __init__(self, past: Deployed, versions: Versions, settings: dict[str, Any]) -> None:
        self.past, self.versions, self.settings = past, versions, settings
        self.model, self.step = Model(), 0
        self.node: Any = None

    @contextmanager
    def serving(self, source: str, **more: Any) -> Iterator[None]:
        """The next version of the code runs."""
        self.step += 1
        db = self.versions.load(f"years_{self.step}", source)
        with cmdlog.open(self.past.directory, db, **{**SMALL, "partitions": PARTITIONS, **self.settings, **more}) as self.node:
            self.model.deploy(self.step)
            yield

    def call(self, name: str, /, *, key: str | None = None, **params: Any) -> None:
        """A call that goes well, in the node and in the model."""
        answer = self.node.invoke(name, params, idempotency_key=key)
        getattr(self.model, name)(**params)
        self.past.moments.append(Moment(self.step, answer.txn_id, name, params, deepcopy(self.model.tables)))


def make_deployed(directory: Path, versions: Versions, **settings: Any) -> Deployed:
    """A node with snapshots within the time of each version."""
    past = Deployed(directory)
    life = _Life(past, versions, settings)
    with life.serving(FIRST):
        for number in range(ITEMS):
            life.call("put", id=number, tag=number)
        life.call("set_rate", name="eur", rate=3)
        life.node.node.take_point()
        life.call("adjust", id=1, times=3, plus=5, key="adjusted")
        life.call("adjust", id=2, times=7, key="adjusted by default")
    with life.serving(SECOND):
        life.call("cheer", id=3, mood="well")
        life.call("put", id=ITEMS, tag=6)
        life.node.node.take_point()
        for number in range(ITEMS):
            life.call("write", item=number, number=1, body="one")
        life.call("set_rate", name="usd", rate=4)
        life.node.node.take_point()
        life.call("adjust", id=3, times=2)
    with life.serving(THIRD):
        life.call("adjust", plus=4, factor=2, id=5)
        life.node.node.take_point()
        for number in range(ITEMS):
            life.call("adjust", plus=number, factor=1, id=number, extra=1)
        life.call("cheer", id=0, mood="late")
    with life.serving(FOURTH, migrate=True):
        life.call("cheer", id=1, mood="moved")
        life.call("write", item=2, number=2, body="two halves")
        life.node.node.take_point()
        life.call("set_rate", name="chf", rate=5)
        life.call("put", id=ITEMS + 1, tag=7)
        life.call("adjust", plus=1, factor=2, id=ITEMS + 1)
    return past


def copied(directory: Path, to: Path) -> Path:
    """The node elsewhere, to be changed; the original is not served any more."""
    shutil.copytree(directory, to)
    adopt(RealFiles(), str(to))
    return to


def application(versions: Versions, step: int) -> Database:
    """The code of that step."""
    return versions.load(f"years_{step}", SOURCES[step - 1])


def tables_of(directory: Path | str, *, partitions: int = PARTITIONS) -> Tables:
    """All rows of a node's states, sorted; a replicated table is equal everywhere and counts once."""
    found: Tables = {}
    for partition in range(partitions):
        connection = open_image(state_path(str(directory), partition))
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_cmdlog\\_%' ESCAPE '\\'"
            )
        ]
        for name in names:
            cursor = connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of ours
            rows = [dict(zip(columns_of(connection, name), row, strict=True)) for row in cursor]
            found[name] = rows if name == "rates" else found.get(name, []) + rows
        connection.close()
    return ordered(found)


def columns_of(connection: Any, table: str) -> list[str]:
    """Names of a table's columns."""
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def ordered(tables: Tables) -> Tables:
    """Each table's rows by key."""
    return {name: sorted(rows, key=lambda row: [row[key] for key in KEYS if key in row]) for name, rows in sorted(tables.items())}
