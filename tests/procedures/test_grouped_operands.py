"""Operands that are comparisons: expressions of booleans beside a model in Python."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    String,
    and_,
    between,
    case,
    cast,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    type_coerce,
    update,
)

from procedures import Database, Transaction
from procedures.declaration.grouped_operands import is_condition
from procedures.statements.compiled import sql_of
from tests.procedures.sites import Site

SLICE = 150
SEEDS = int(os.environ.get("SEEDS") or "20000")
FIRST = int(os.environ.get("FIRST", "0"))
Row = dict[str, Any]
COMPARED: list[Callable[[Any, Any], Any]] = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@dataclass(frozen=True)
class Both:
    """An expression for SQLite, and what it means."""

    sql: Any
    of: Callable[[Row], Any]


class World:
    """A table with a row for every combination of values."""

    def __init__(self, folder: Path) -> None:
        self.db = Database("flags")
        columns: list[Any] = [Column("a", Boolean), Column("b", Boolean), Column("n", Integer), Column("new", Boolean)]
        self.t = self.db.table("t", Column("id", Integer, primary_key=True), *columns, partition_by="id")
        self.body: Callable[[Transaction], Any] = lambda tx: None

        @self.db.procedure(partition_by="key")
        def run(tx: Transaction, key: int) -> Any:
            return self.body(tx)

        three = (False, True, None)
        self.rows = [dict(zip("abn", row, strict=True)) for row in itertools.product(three, three, (-1, 0, 1, None))]
        self.site = Site(folder / "s", self.db)
        self.run(lambda tx: [tx.execute(insert(self.t).values(id=at, **row)) and None for at, row in enumerate(self.rows)])

    def run(self, body: Callable[[Transaction], Any]) -> Any:
        self.body = body
        status, answer = self.site.call("run", key=1)
        assert status == 0, answer
        return answer

    def values(self, expression: Any) -> list[Any]:
        """Of each row, as a column of the result."""
        statement = select(expression.label("x")).order_by(self.t.c.id)
        return list(self.run(lambda tx: [row.x for row in tx.execute(statement)]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Rows of every kind."""
    made = World(tmp_path_factory.mktemp("flags"))
    yield made
    made.site.close()


class Draw:
    """Draws conditions."""

    def __init__(self, random: Random, t: Any) -> None:
        self.random, self.c = random, t.c

    def flag(self, depth: int) -> Both:
        """Something that is true, false or NULL."""
        name = self.random.choice("ab")
        if depth == 0:
            return Both(self.c[name], lambda row: row[name])
        return self.random.choice((self.negated, self.compared, self.joined, self.tested, self.chosen, self.numbered))(depth - 1)

    def negated(self, depth: int) -> Both:
        x = self.flag(depth)
        return Both(not_(x.sql), lambda row: None if x.of(row) is None else not x.of(row))

    def compared(self, depth: int) -> Both:
        x, y, sign = self.flag(depth), self.flag(depth), self.random.choice(COMPARED)
        named = {operator.lt: "<", operator.eq: "=", operator.ge: ">="}.get(sign)
        written = self.random.choice([sign(x.sql, y.sql), *([x.sql.bool_op(named)(y.sql)] if named else [])])
        return Both(written, lambda row: lifted(sign, x.of(row), y.of(row)))

    def joined(self, depth: int) -> Both:
        x, y = self.flag(depth), self.flag(depth)
        if self.random.random() < 0.5:
            return Both(and_(x.sql, y.sql), lambda row: three_and(x.of(row), y.of(row)))
        return Both(or_(x.sql, y.sql), lambda row: negation(three_and(negation(x.of(row)), negation(y.of(row)))))

    def tested(self, depth: int) -> Both:
        x, y, z = (self.flag(depth) for _ in range(3))
        return self.random.choice([
            Both(x.sql.is_(None), lambda row: x.of(row) is None),
            Both(x.sql.is_distinct_from(y.sql), lambda row: x.of(row) is not y.of(row)),
            Both(x.sql.is_not_distinct_from(y.sql), lambda row: x.of(row) is y.of(row)),
            Both(x.sql.in_([y.sql]), lambda row: lifted(operator.eq, x.of(row), y.of(row))),
            Both(x.sql.not_in([True]), lambda row: lifted(operator.ne, x.of(row), True)),
            Both(between(x.sql, y.sql, z.sql), lambda row: within(x.of(row), y.of(row), z.of(row))),
        ])  # fmt: skip

    def chosen(self, depth: int) -> Both:
        x, y, z = (self.flag(depth) for _ in range(3))
        return self.random.choice([
            Both(func.coalesce(x.sql, y.sql), lambda row: y.of(row) if x.of(row) is None else x.of(row)),
            Both(case((x.sql, y.sql), else_=z.sql), lambda row: y.of(row) if x.of(row) else z.of(row)),
        ])  # fmt: skip

    def numbered(self, depth: int) -> Both:
        x, n = self.flag(depth), self.c.n
        as_number = self.random.choice((lambda flag: type_coerce(flag, Integer), lambda flag: cast(flag, Integer)))(x.sql)
        whole = self.random.choice([
            Both(n + as_number, lambda row: lifted(operator.add, row["n"], x.of(row))),
            Both(-as_number, lambda row: lifted(operator.mul, -1, x.of(row))),
            Both(as_number * 2 - n, lambda row: lifted(lambda flag, number: flag * 2 - number, x.of(row), row["n"])),
            Both(as_number.op("|")(n == 1), lambda row: lifted(lambda flag, number: flag | (number == 1), x.of(row), row["n"])),
        ])  # fmt: skip
        return self.random.choice([
            Both(whole.sql == 1, lambda row: lifted(operator.eq, whole.of(row), 1)),
            Both(literal("x").concat(whole.sql) == literal("x1"), lambda row: lifted(operator.eq, whole.of(row), 1)),
        ])  # fmt: skip


def lifted(sign: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """NULL beside anything is NULL."""
    return None if x is None or y is None else sign(x, y)


def within(x: Any, low: Any, high: Any) -> Any:
    """BETWEEN."""
    return three_and(lifted(operator.ge, x, low), lifted(operator.le, x, high))


def negation(x: Any) -> Any:
    """Of SQL's three values."""
    return None if x is None else not x


def three_and(x: Any, y: Any) -> Any:
    """Of SQL's three values."""
    return False if x is False or y is False else None if x is None or y is None else True


def check_seed(seed: int, world: World) -> None:
    """As a column, as a condition, as a column of a subquery and as a new value. Raises: AssertionError."""
    drawn = Draw(Random(seed), world.t).flag(3)
    wanted = [drawn.of(row) for row in world.rows]
    said = f"seed {seed}: {drawn.sql}"
    found = world.values(drawn.sql)
    assert (found, [type(value) for value in found]) == (wanted, [type(value) for value in wanted]), said
    inner = select(world.t.c.id, drawn.sql.label("x")).subquery()
    chosen = select(world.t.c.id).where(drawn.sql).order_by(world.t.c.id)

    def body(tx: Transaction) -> Any:
        tx.execute(update(world.t).values(new=drawn.sql))
        return [
            list(tx.scalars(chosen)),
            list(tx.scalars(select(inner.c.x).order_by(inner.c.id))),
            list(tx.scalars(select(world.t.c.new).order_by(world.t.c.id))),
        ]

    assert world.run(body) == [[at for at, value in enumerate(wanted) if value], wanted, wanted], said


@pytest.mark.slow
def test_random_conditions_mean_what_they_say(world: World) -> None:
    """Of every nesting, and in every place of a statement."""
    for seed in range(SLICE):
        check_seed(seed, world)


@pytest.mark.torture
def test_many_random_conditions_mean_what_they_say(world: World) -> None:
    """The same of SEEDS conditions, from seed FIRST on; a failure names its seed."""
    for seed in range(FIRST, FIRST + SEEDS):
        check_seed(seed, world)


def test_conditions_are_grouped_beside_any_operator(world: World) -> None:
    """Comparisons, arithmetic, `||`, operators that the application names, and bounds."""
    a, b, n, text = world.t.c.a, world.t.c.b, world.t.c.n, literal("x", String)
    texts = [
        (a < not_(b), "t.a < (t.b = 0)"),
        (not_(a) >= b, "(t.a = 0) >= t.b"),
        (a.is_(~b), "t.a IS (t.b = 0)"),
        (between(n, not_(a), not_(b)), "t.n BETWEEN (t.a = 0) AND (t.b = 0)"),
        (text.concat(n + 1), ":param_1 || (t.n + :n_1)"),
        (text.concat(n).concat(text), ":param_1 || t.n || :param_1"),
        (n.op("&")(n + 1), "t.n & (t.n + :n_1)"),
        (-type_coerce(not_(b), Integer), "-(t.b = 0)"),
        (not_(a.op("&")(b)), "(t.a & t.b) = 0"),
        (and_(not_(a), b), "t.a = 0 AND t.b = 1"),
    ]
    for expression, wanted in texts:
        assert sql_of(select(expression.label("x"))).split("\n")[0].rstrip() == f"SELECT {wanted} AS x"


def test_conditions_without_a_type_are_known(world: World) -> None:
    """BETWEEN, NOT of several, and what is made of these; a number is none."""
    a, b, n = world.t.c.a, world.t.c.b, world.t.c.n
    some = between(n, 0, 1)
    conditions = [
        some,
        not_(some),
        not_(and_(a, b)),
        some.label("x"),
        func.coalesce(some, a),
        case((a, some)),
        select(some).scalar_subquery(),
    ]
    assert all(map(is_condition, [*conditions, select(some.label("x")).subquery().c.x]))
    assert not any(map(is_condition, [n, n + 1, func.coalesce(n, 1), case((a, n)), select(n).scalar_subquery()]))
