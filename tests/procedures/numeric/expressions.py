"""Random expressions over exact numbers, each with what it means: SQLAlchemy, PostgreSQL's text, and arithmetic of fractions.

`Node.value` computes with `Fraction`, without any limit. Where 64 bits would not suffice on the way, it leaves a mark in
`Hazards`: there, and only there, the product may raise an error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any, Final

from sqlalchemy import (
    Column,
    Integer,
    Numeric,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    not_,
    or_,
)

from procedures import Database

Value = Fraction | None
Row = Mapping[str, Value]

db = Database("exact")
t = db.table(
    "t",
    Column("id", Integer, primary_key=True),
    Column("a", Numeric(5, 2)),
    Column("b", Numeric(12, 4)),
    Column("c", Numeric(18, 0)),
    Column("d", Numeric(18, 6)),
    Column("n", Integer),
    Column("m", Integer),
    Column("kept", Numeric(18, 2)),
    partition_by="id",
)
SCALES: Final[dict[str, int | None]] = {"a": 2, "b": 4, "c": 0, "d": 6, "n": None, "m": None}
SMALL: Final = (
    (1, "0.00", "1.2500", "7", "0.000001", 3, 0),
    (2, "-1.05", "-0.0005", "0", "2.500000", -2, 7),
    (3, None, "3.1415", None, "-9.999999", None, 2),
    (4, "1.00", "1.0000", "1", "1.000000", 1, 1),
    (5, "12.34", None, "-45", "0.125000", 10, None),
    (6, "1.00", "-7.7750", "2", None, -7, -3),
)
LARGE: Final = (
    (101, "999.99", "99999999.9999", "999999999999999999", "999999999999.999999", 4611686018427387904, 2),
    (102, "-999.99", "-99999999.9999", "-999999999999999999", "-999999999999.999999", -9007199254740993, 3),
    (103, "0.01", "0.0001", "1", "0.000001", 9007199254740993, 1),
)


def rows_of(*, large: bool) -> list[dict[str, Value]]:
    """The rows as fractions, by id."""
    chosen = SMALL + LARGE if large else SMALL
    return [
        {name: None if value is None else Fraction(value) for name, value in zip(("id", *SCALES), row, strict=True)}
        for row in chosen
    ]


@dataclass
class Hazards:
    """What an evaluation met on its way, over all its rows."""

    overflow: bool = False
    zero_division: bool = False
    integer_overflow: bool = False  # of plain integers, which SQLite continues as floats

    def bounded(self, value: Value, scale: int | None) -> Value:
        if value is not None and abs(value) * 10 ** (scale or 0) >= 10**18:
            self.overflow = True
            self.integer_overflow |= scale is None
        return value


@dataclass(frozen=True)
class Node:
    """An expression. `scale`: its decimals; None: a plain integer."""

    sql: Any
    scale: int | None
    value: Callable[[Row, Hazards], Value]
    pg: str


@dataclass(frozen=True)
class Test:
    """A condition: True, False or None for unknown."""

    sql: Any
    value: Callable[[Row, Hazards], bool | None]
    pg: str


def away(value: Fraction, scale: int) -> Fraction:
    """Rounded half away from zero."""
    shifted = abs(value) * 10**scale
    rounded = int(shifted + Fraction(1, 2))
    return Fraction(rounded if value >= 0 else -rounded, 10**scale)


def top(*nodes: Node) -> int | None:
    """The decimals that have room for all; None for plain integers."""
    known = [node.scale for node in nodes if node.scale is not None]
    return max(known) if known else None


@dataclass
class Maker:
    """Draws expressions from one source of chance."""

    random: Random
    names: int = 0
    binds: dict[str, Any] = field(default_factory=dict)

    def number(self, depth: int) -> Node:
        if depth <= 0:
            return self.random.choice((self.column, self.column, self.column, self.literal, self.bind))()
        makers = (self.step, self.step, self.step, self.negated, self.chosen, self.coalesced, self.nulled, self.largest)
        return self.random.choice((*makers, self.rounded, self.casted, self.absolute))(depth - 1)

    def exact(self, depth: int) -> Node:
        """A number with decimals of its own, if only none."""
        node = self.number(depth)
        return node if node.scale is not None else self.casted_from(node)

    def column(self) -> Node:
        name = self.random.choice(list(SCALES))
        return Node(t.c[name], SCALES[name], lambda row, _: row[name], name)

    def literal(self) -> Node:
        if self.random.random() < 0.4:
            whole = self.random.choice((0, 1, 2, -3, 10, 999))
            return Node(literal(whole), None, lambda *_: Fraction(whole), f"({whole})::numeric(40)")
        digits = self.random.choice(("1", "0.5", "-0.05", "2.50", "1.239", "-12.3456", "0.00", "100"))
        scale = max(0, -int(Decimal(digits).as_tuple().exponent))
        return Node(literal(Decimal(digits)), scale, lambda *_: Fraction(digits), f"({digits})::numeric")

    def bind(self) -> Node:
        scale = self.random.choice((0, 1, 3))
        digits = self.random.choice(("0", "1", "-2", "7"))
        self.names += 1
        name = f"given_{self.names}"
        self.binds[name] = Decimal(digits)
        return Node(bindparam(name, type_=Numeric(9, scale)), scale, lambda *_: Fraction(digits), f"({digits})::numeric")

    def step(self, depth: int) -> Node:
        left, right = self.number(depth), self.number(depth)
        sign = self.random.choice("++--**/%")
        if sign == "*":
            scale = None if left.scale is right.scale is None else (left.scale or 0) + (right.scale or 0)
        elif sign == "/":
            scale = (left.scale or 0) + 4
        else:
            scale = top(left, right)
        sql = {
            "+": lambda: left.sql + right.sql, "-": lambda: left.sql - right.sql, "*": lambda: left.sql * right.sql,
            "/": lambda: left.sql / right.sql, "%": lambda: left.sql % right.sql,
        }[sign]()  # fmt: skip
        pg = f"({left.pg} {sign} {right.pg})"
        if sign == "/":
            pg = f"round(({left.pg})::numeric(100,50) / {right.pg}, {scale})"
        elif sign == "%" and scale is None:
            pg = f"({left.pg} % nullif({right.pg}, 0))"

        def value(row: Row, hazards: Hazards) -> Value:
            a, b = left.value(row, hazards), right.value(row, hazards)
            if scale is not None:
                hazards.bounded(a, max(scale, left.scale or 0))
                hazards.bounded(b, max(scale, right.scale or 0))
            if a is None or b is None:
                return None
            if sign in "+-*":
                return hazards.bounded(a + b if sign == "+" else a - b if sign == "-" else a * b, scale)
            if not b:
                if sign == "/" or scale is not None:
                    hazards.zero_division = True
                return None
            if sign == "%":
                rest = abs(a) % abs(b)
                return -rest if a < 0 else rest
            return hazards.bounded(away(a / b, scale or 0), scale)

        return Node(sql, scale, value, pg)

    def negated(self, depth: int) -> Node:
        inner = self.number(depth)

        def value(row: Row, hazards: Hazards) -> Value:
            found = inner.value(row, hazards)
            return None if found is None else -found

        return Node(-inner.sql, inner.scale, value, f"(- {inner.pg})")

    def absolute(self, depth: int) -> Node:
        inner = self.exact(depth)

        def value(row: Row, hazards: Hazards) -> Value:
            found = inner.value(row, hazards)
            return None if found is None else abs(found)

        return Node(func.abs(inner.sql), inner.scale, value, f"abs({inner.pg})")

    def chosen(self, depth: int) -> Node:
        test, first, second = self.test(depth), self.number(depth), self.number(depth)
        scale = top(first, second)

        def value(row: Row, hazards: Hazards) -> Value:
            truth, a, b = test.value(row, hazards), first.value(row, hazards), second.value(row, hazards)
            return hazards.bounded(a if truth else b, scale)

        return Node(
            case((test.sql, first.sql), else_=second.sql), scale, value,
            f"(CASE WHEN {test.pg} THEN {first.pg} ELSE {second.pg} END)",
        )  # fmt: skip

    def coalesced(self, depth: int) -> Node:
        first, second = self.exact(depth), self.number(depth)
        scale = top(first, second)

        def value(row: Row, hazards: Hazards) -> Value:
            a, b = first.value(row, hazards), second.value(row, hazards)
            return hazards.bounded(b if a is None else a, scale)

        return Node(func.coalesce(first.sql, second.sql), scale, value, f"coalesce({first.pg}, {second.pg})")

    def nulled(self, depth: int) -> Node:
        first, second = self.exact(depth), self.number(depth)
        scale = top(first, second)

        def value(row: Row, hazards: Hazards) -> Value:
            a, b = (hazards.bounded(node.value(row, hazards), scale) for node in (first, second))
            return None if a == b else a

        return Node(func.nullif(first.sql, second.sql), scale, value, f"nullif({first.pg}, {second.pg})")

    def largest(self, depth: int) -> Node:
        first, second = self.exact(depth), self.number(depth)
        scale, name = top(first, second), self.random.choice(("max", "min"))

        def value(row: Row, hazards: Hazards) -> Value:
            a, b = (hazards.bounded(node.value(row, hazards), scale) for node in (first, second))
            if a is None or b is None:
                return None
            return max(a, b) if name == "max" else min(a, b)

        pg = {"max": "greatest", "min": "least"}[name]
        null = f"{first.pg} IS NULL OR {second.pg} IS NULL"
        return Node(
            getattr(func, name)(first.sql, second.sql), scale, value,
            f"(CASE WHEN {null} THEN NULL ELSE {pg}({first.pg}, {second.pg}) END)",
        )  # fmt: skip

    def rounded(self, depth: int) -> Node:
        inner = self.exact(depth)
        name = self.random.choice(("round", "round", "floor", "ceil", "trunc"))
        places = self.random.choice((0, 1, 2, 3)) if name == "round" else 0
        scale = min(inner.scale or 0, places)

        def value(row: Row, hazards: Hazards) -> Value:
            found = inner.value(row, hazards)
            if found is None:
                return None
            if name == "round":
                return hazards.bounded(away(found, places), scale)
            down = found.numerator // found.denominator
            if name == "floor":
                return Fraction(down)
            up = -(-found.numerator // found.denominator)
            return Fraction(up if name == "ceil" or found < 0 else down)

        sql = func.round(inner.sql, places) if name == "round" else getattr(func, name)(inner.sql)
        return Node(sql, scale, value, f"{name}({inner.pg}{f', {places}' if name == 'round' else ''})")

    def casted(self, depth: int) -> Node:
        return self.casted_from(self.number(depth))

    def casted_from(self, inner: Node) -> Node:
        scale = self.random.choice((0, 2, 5))

        def value(row: Row, hazards: Hazards) -> Value:
            found = inner.value(row, hazards)
            return None if found is None else hazards.bounded(away(found, scale), scale)

        return Node(cast(inner.sql, Numeric(18, scale)), scale, value, f"round({inner.pg}, {scale})")

    # -- conditions

    def test(self, depth: int) -> Test:
        if depth > 0 and self.random.random() < 0.25:
            return self.joined(depth - 1)
        return self.random.choice((self.compared, self.compared, self.between, self.listed, self.distinct, self.is_null))(depth)

    def joined(self, depth: int) -> Test:
        first, second = self.test(depth), self.test(depth)
        way = self.random.choice(("and", "or", "not"))

        def value(row: Row, hazards: Hazards) -> bool | None:
            a, b = first.value(row, hazards), second.value(row, hazards)
            if way == "not":
                return None if a is None else not a
            ends = way == "or"
            if a is ends or b is ends:
                return ends
            return None if a is None or b is None else not ends

        if way == "not":
            return Test(not_(first.sql), value, f"(NOT {first.pg})")
        sql = and_(first.sql, second.sql) if way == "and" else or_(first.sql, second.sql)
        return Test(sql, value, f"({first.pg} {way} {second.pg})")

    def compared(self, depth: int) -> Test:
        first, second = self.number(depth), self.number(depth)
        sign = self.random.choice(("=", "<>", "<", "<=", ">", ">="))
        sql = {
            "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
            ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
        }  # fmt: skip

        def value(row: Row, hazards: Hazards) -> bool | None:
            a, b = self._met(row, hazards, first, second)
            return None if a is None or b is None else bool(sql[sign](a, b))

        return Test(sql[sign](first.sql, second.sql), value, f"({first.pg} {sign} {second.pg})")

    def _met(self, row: Row, hazards: Hazards, *nodes: Node) -> list[Value]:
        scale = top(*nodes)
        return [hazards.bounded(node.value(row, hazards), scale) for node in nodes]

    def between(self, depth: int) -> Test:
        nodes = [self.exact(depth), self.number(depth - 1), self.number(depth - 1)]

        def value(row: Row, hazards: Hazards) -> bool | None:
            x, low, high = self._met(row, hazards, *nodes)
            above = None if x is None or low is None else x >= low
            below = None if x is None or high is None else x <= high
            if above is False or below is False:
                return False
            return None if above is None or below is None else True

        x, low, high = nodes
        return Test(x.sql.between(low.sql, high.sql), value, f"({x.pg} BETWEEN {low.pg} AND {high.pg})")

    def listed(self, depth: int) -> Test:
        node = self.exact(depth)
        digits = self.random.sample(("0", "1.00", "-1.05", "2.5", "7", "0.000001", "3.1415"), 3)

        def value(row: Row, hazards: Hazards) -> bool | None:
            found = hazards.bounded(node.value(row, hazards), max(node.scale or 0, 6))
            return None if found is None else found in [Fraction(d) for d in digits]

        return Test(node.sql.in_([Decimal(d) for d in digits]), value, f"({node.pg} IN ({', '.join(digits)}))")

    def distinct(self, depth: int) -> Test:
        first, second = self.exact(depth), self.number(depth)

        def value(row: Row, hazards: Hazards) -> bool | None:
            a, b = self._met(row, hazards, first, second)
            return a != b

        return Test(first.sql.is_distinct_from(second.sql), value, f"({first.pg} IS DISTINCT FROM {second.pg})")

    def is_null(self, depth: int) -> Test:
        node = self.number(depth)
        return Test(
            node.sql.is_(None), lambda row, hazards: node.value(row, hazards) is None, f"({node.pg} IS NULL)"
        )  # fmt: skip
