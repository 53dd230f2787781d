"""Random statements that pin partition columns or do not, and what they must do: judged beside rows of every kind.

The tables of `Everything` hold a row for every combination of values. So the keys of the rows on which a condition is true are
the keys that it can be about: few, if it pins the key, and most of them, if it does not.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import apsw
from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    not_,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter

from procedures import Database, Transaction
from tests.procedures.sites import Site

KEYS: Final = range(6)
FLAGS: Final = ("b", "c", "d")
FEW: Final = 2  # keys that a condition names at most; then what it pins has no more, and what it does not pin has all but these
PARTITIONS: Final = 2


class Everything:
    """Two partitioned tables and a replicated one, in a state that has all rows, and in one of a partition."""

    def __init__(self, folder: Path) -> None:
        self.body: Callable[[Transaction], Any] = lambda tx: None
        db = Database("everything")
        columns = [Column(name, Integer) for name in ("u", "ref", *FLAGS)]
        self.w = db.table("w", Column("id", Integer, primary_key=True), *columns, partition_by="u")
        self.o = db.table("o", Column("k", Integer, primary_key=True), Column("n", Integer), partition_by="k")
        self.r = db.table("r", Column("x", Integer, primary_key=True), replicated=True)

        def run(tx: Transaction, key: int) -> Any:
            return self.body(tx)

        db.procedure(name="run", partition_by="key")(run)
        self.whole = self._site(folder / "whole", db, partition=0, partitions=None)
        self.part = self._site(folder / "part", db, partition=1, partitions=PARTITIONS)
        self.here = {key for key in KEYS if self._is_here(key)}

    def _site(self, path: Path, db: Database, *, partition: int, partitions: int | None) -> Site:
        site = Site(path, db, partition=partition, partitions=partitions)
        rows = [(at, *row) for at, row in enumerate(itertools.product(KEYS, KEYS, *(range(2) for _ in FLAGS)))]
        connection = apsw.Connection(str(path))
        connection.executemany("INSERT INTO w VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.executemany("INSERT INTO o VALUES (?, ?)", [(key, key % 2) for key in KEYS])
        connection.executemany("INSERT INTO r VALUES (?)", [(key,) for key in KEYS])
        connection.close()
        return site

    def _is_here(self, key: int) -> bool:
        """As rows are judged."""
        return self.run(self.part, lambda tx: tx.execute(insert(self.w).values(u=key)).rowcount)[0] == 1

    def run(self, site: Site, body: Callable[[Transaction], Any]) -> tuple[int, Any]:
        """(status, answer) of a call whose changes are undone: 1 and what it found, or 2 and its failure."""
        self.body = lambda tx: tx.abort("found", repr(body(tx)))
        status, answer = site.call("run", key=0)
        return status, answer["message"] if status == 1 else answer

    def close(self) -> None:
        self.whole.close()
        self.part.close()


@dataclass
class Drawn:
    """A statement with its parameters, and which keys its condition can be about, by table."""

    statement: Any
    asked: dict[str, Any]  # table -> a query for the keys; the whole state answers it
    params: dict[str, int]
    named: set[int]


class StatementDraw:
    """Draws one statement."""

    def __init__(self, random: Random, world: Everything) -> None:
        self._random, self._world = random, world
        self._params: dict[str, int] = {}
        self._named: list[int] = []
        self._flags = list(FLAGS)
        self._pairs = 1  # comparisons of two columns that may still come
        self._atoms = 0  # comparisons with keys
        self._joins = random.random() < 0.3
        w = world.w
        sources = [w, w, w.alias("a"), select(w).subquery("a"), select(w).cte("a"), select(w).where(w.c.id >= 0).subquery("a")]
        self._source: Any = random.choice(sources)

    def draw(self) -> Drawn:
        condition, source, o = self._condition(self._random.choice((1, 2, 2, 3))), self._source, self._world.o
        sources = (source, o) if self._joins else (source,)
        asked = {"w": select(source.c.u).distinct().select_from(*sources).where(condition)}
        if not self._joins:
            return self._drawn(self._random.choice(list(self._alone(condition))), asked)
        if self._random.random() < 0.3:
            joined = select(func.count(source.c.u)).select_from(o.outerjoin(source, condition))
            return self._drawn(joined, asked)
        asked["o"] = select(o.c.k).distinct().select_from(*sources).where(condition)
        return self._drawn(select(func.count()).select_from(*sources).where(condition), asked)

    def _drawn(self, statement: Any, asked: dict[str, Any]) -> Drawn:
        held = {part.key for part in visitors.iterate(statement) if isinstance(part, BindParameter)}  # `x OR true` is left out
        return Drawn(statement, asked, {name: self._params[name] for name in held & self._params.keys()}, set(self._named))

    def _alone(self, condition: Any) -> Iterator[Any]:
        """Statements over one table."""
        source, r, w = self._source, self._world.r, self._world.w
        yield select(source.c.id).where(condition).order_by(source.c.id)
        yield select(func.count()).select_from(source).where(condition)
        yield select(exists(select(source.c.id).where(condition)))
        yield select(func.count()).select_from(select(source).where(condition).subquery("inner"))
        yield select(func.count()).where(r.c.x.in_(select(source.c.ref).where(condition)))
        yield select(select(func.count()).select_from(source).where(condition).scalar_subquery())
        moved = select(source.c.id + 1000, literal(min(self._world.here))).where(condition)
        yield insert(w).from_select(["id", "u"], moved)
        if source is w:
            yield update(w).where(condition).values(b=7)
            yield delete(w).where(condition)

    def _condition(self, depth: int) -> Any:
        if depth == 0 or self._random.random() < 0.2:
            return self._comparison()
        parts = [self._condition(depth - 1) for _ in range(self._random.choice((1, 2, 2)))]
        joined = self._random.choice((and_, and_, or_))(*parts)
        return not_(joined) if self._random.random() < 0.25 else joined

    def _comparison(self) -> Any:
        source = self._source
        columns = [source.c.u, source.c.u, source.c.ref, *([self._world.o.c.k] if self._joins else [])]
        column = self._random.choice(columns)
        # More of them could contradict each other, and so imply what no reader of a text sees.
        if len(self._named) < FEW and self._atoms <= self._pairs and self._random.random() < 0.6:
            self._atoms += 1
            return self._random.choice(list(self._named_comparisons(column)))()
        if self._pairs and self._atoms <= 1 and self._random.random() < 0.4:
            self._pairs -= 1
            return source.c.u == self._random.choice(columns[2:])
        return source.c[self._flags.pop()] == 1 if self._flags else true()

    def _named_comparisons(self, column: Any) -> Iterator[Callable[[], Any]]:
        x, flag = self._world.r.c.x, self._source.c.id
        yield lambda: column == self._key()
        yield lambda: self._key() == column
        yield lambda: column != self._key()
        yield lambda: column.is_not_distinct_from(self._key())
        yield lambda: column.in_([self._value()])
        yield lambda: column.not_in([self._value()])
        yield lambda: column.in_(select(x).where(x == self._key()))
        yield lambda: column == select(x).where(x == self._key()).scalar_subquery()
        yield lambda: column.in_(select(self._key()))
        yield lambda: column == select(self._key()).scalar_subquery()
        yield lambda: exists().where(x == column, x == self._key())
        yield lambda: tuple_(column, literal(1)).in_([(self._value(), 1)])
        yield lambda: and_(column == self._key(), flag >= 0)
        yield lambda: literal_column(f"({column.table.name}.{column.name} = {self._value()})", Boolean)
        if len(self._named) + 1 < FEW:
            yield lambda: column.in_([self._value(), self._value()])
            yield lambda: or_(column == self._key(), column == self._key())

    def _value(self) -> int:
        value = self._random.choice(KEYS)
        self._named.append(value)
        return value

    def _key(self) -> Any:
        """A key in the statement, or a parameter."""
        value = self._value()
        if self._random.random() < 0.5:
            return literal(value)
        name = f"p{len(self._params)}"
        self._params[name] = value
        return bindparam(name, type_=Integer)


def check_seed(seed: int, world: Everything) -> str:
    """Draws a statement, and compares; returns how it went: "refused", "ran" or "open", where both are right.

    Raises: AssertionError.
    """
    drawn = StatementDraw(Random(seed), world).draw()
    params, here = drawn.params, world.here

    def keys_of(query: Any) -> set[int]:
        status, found = world.run(world.whole, lambda tx: [*tx.execute(query, **params).scalars()])
        assert status == 1, found
        return set(ast.literal_eval(found))

    keys = [keys_of(query) for query in drawn.asked.values()]
    status, found = world.run(world.part, lambda tx: _read(tx.execute(drawn.statement, **params)))
    said = f"seed {seed}: {drawn.statement} with {params}, keys {keys}, here {here}: {found}"
    if status == 2:
        assert found["type"] == "RowRefused", said
        assert "looks for" in found["message"], said
        assert not drawn.named <= here, said
        assert any(len(several) <= FEW for several in keys), said
        return "refused"
    assert all(not several or len(several) > FEW or several <= here for several in keys), said
    if all(several <= here for several in keys):
        assert (status, found) == world.run(world.whole, lambda tx: _read(tx.execute(drawn.statement, **params))), said
        return "ran"
    return "open"


def _read(result: Any) -> Any:
    return [tuple(row) for row in result] if result.returns_rows else result.rowcount
