"""Statements over exact numbers mean what SQL and arithmetic say, or are refused: never another value, never a float."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from random import Random
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import Numeric, cast, func, insert, literal, select, union_all, update
from sqlalchemy.dialects.sqlite import insert as upsert

from procedures import StatementRefused
from tests.procedures.numeric.exact_site import ExactSite, open_filled
from tests.procedures.numeric.expressions import Hazards, Maker, Node, Row, Value, away, rows_of, t


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactSite]:
    opened = open_filled(tmp_path_factory.mktemp("exact") / "state.db")
    yield opened
    opened.close()


def shown(value: Value, scale: int | None) -> Any:
    """As the product has to return it."""
    if value is None:
        return None
    if scale is None:
        return int(value)
    units = value * 10**scale
    assert units.denominator == 1
    return Decimal(int(units)).scaleb(-scale)


def same(found: Any, wanted: Any) -> bool:
    """Equal, with the same decimals, and of the same types."""
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(same(a, b) for a, b in zip(found, wanted, strict=True))
    return type(found) is type(wanted) and str(found) == str(wanted)


class Case:
    """One statement, and what it gives by arithmetic."""

    def __init__(self, maker: Maker, *, large: bool) -> None:
        self.maker, self.hazards, self.rows = maker, Hazards(), rows_of(large=large)
        self.chosen = t.c.id < (1000 if large else 100)

    def values(self, node: Node) -> list[Value]:
        return [node.value(row, self.hazards) for row in self.rows]

    def pairs(self, node: Node) -> list[tuple[Row, Value]]:
        return list(zip(self.rows, self.values(node), strict=True))


def as_rows(case: Case) -> tuple[Any, Any]:
    node = case.maker.number(2)
    wanted = [(int(row["id"] or 0), shown(value, node.scale)) for row, value in case.pairs(node)]
    return select(t.c.id, node.sql).where(case.chosen).order_by(t.c.id), wanted


def as_condition(case: Case) -> tuple[Any, Any]:
    test = case.maker.test(2)
    wanted = [(int(row["id"] or 0),) for row in case.rows if test.value(row, case.hazards)]
    return select(t.c.id).where(case.chosen, test.sql).order_by(t.c.id), wanted


def as_order(case: Case) -> tuple[Any, Any]:
    node = case.maker.exact(2)
    found = sorted(case.pairs(node), key=lambda pair: (pair[1] is not None, pair[1] or 0, pair[0]["id"]))
    return select(t.c.id).where(case.chosen).order_by(node.sql, t.c.id), [(int(row["id"] or 0),) for row, _ in found]


def as_aggregates(case: Case) -> tuple[Any, Any]:
    node, test = case.maker.exact(1), case.maker.test(1)
    scale = node.scale or 0
    everything = [value for value in case.values(node) if value is not None]
    some = [v for row, v in case.pairs(node) if v is not None and test.value(row, case.hazards)]
    unlike = sorted(set(everything))
    wanted = (
        shown(total(everything, case, scale), scale), shown(mean(everything, case, scale), scale + 4),
        shown(min(everything, default=None), scale), shown(max(everything, default=None), scale), len(everything),
        shown(total(some, case, scale), scale), shown(mean(some, case, scale), scale + 4),
        shown(total(unlike, case, scale), scale), shown(mean(unlike, case, scale), scale + 4), len(unlike),
    )  # fmt: skip
    x, few = node.sql, test.sql
    columns = (func.sum(x), func.avg(x), func.min(x), func.max(x), func.count(x), func.sum(x).filter(few), func.avg(x).filter(few))
    again = (func.sum(x.distinct()), func.avg(x.distinct()), func.count(x.distinct()))
    return select(*columns, *again).select_from(t).where(case.chosen), [wanted]


def total(values: list[Fraction], case: Case, scale: int) -> Value:
    for end in range(len(values) + 1):  # SQLite refuses a sum of which a part overflows
        case.hazards.bounded(sum(values[:end], Fraction()), scale)
    case.hazards.bounded(sum(map(abs, values), Fraction()), scale)
    return sum(values, Fraction()) if values else None


def mean(values: list[Fraction], case: Case, scale: int) -> Value:
    return case.hazards.bounded(away(sum(values, Fraction()) / len(values), scale + 4), scale + 4) if values else None


def as_groups(case: Case) -> tuple[Any, Any]:
    key, node = case.maker.exact(1), case.maker.exact(1)
    limit = literal(Decimal("-0.5"))
    pairs = sorted(zip(case.values(key), case.values(node), strict=True), key=lambda pair: (pair[0] is not None, pair[0] or 0))
    wanted = []
    for group, members in groupby(pairs, key=lambda pair: pair[0]):
        values = [value for _, value in members if value is not None]
        found = total(values, case, max(1, node.scale or 0))
        if found is not None and found > Fraction("-0.5"):
            wanted.append((shown(group, key.scale), shown(found, node.scale)))
    name = key.sql.label("grouped")
    summed = func.sum(node.sql)
    return select(name, summed).select_from(t).where(case.chosen).group_by("grouped").having(summed > limit).order_by("grouped"), wanted


def as_window(case: Case) -> tuple[Any, Any]:
    node = case.maker.exact(1)
    values, scale = case.values(node), node.scale or 0
    frames = [[v for v in values[max(0, at - 1) : at + 1] if v is not None] for at in range(len(values))]
    total([v for v in values if v is not None], case, scale)
    wanted = [
        (shown(total(frame, case, scale), scale), shown(mean(frame, case, scale), scale + 4), shown(before, scale))
        for frame, before in zip(frames, [None, *values], strict=False)
    ]
    x, frame = node.sql, {"order_by": t.c.id, "rows": (-1, 0)}
    columns = (func.sum(x).over(**frame), func.avg(x).over(**frame), func.lag(x).over(order_by=t.c.id))
    return select(*columns).select_from(t).where(case.chosen).order_by(t.c.id), wanted


def as_subquery(case: Case) -> tuple[Any, Any]:
    node, other = case.maker.exact(1), case.maker.exact(1)
    inner = select(t.c.id, node.sql.label("x"), other.sql.label("y")).select_from(t).where(case.chosen)
    part = inner.cte("part") if case.maker.random.random() < 0.5 else inner.subquery("part")
    scale = max(node.scale or 0, other.scale or 0)
    wanted = []
    for row, x, y in zip(case.rows, case.values(node), case.values(other), strict=True):
        for value in (x, y):
            case.hazards.bounded(value, scale)
        added = None if x is None or y is None else case.hazards.bounded(x + y, scale)
        wanted.append((int(row["id"] or 0), shown(added, scale)))
    return select(part.c.id, part.c.x + part.c.y).order_by(part.c.id), wanted


def as_join(case: Case) -> tuple[Any, Any]:
    node, other = case.maker.exact(1), case.maker.exact(1)
    left = select(t.c.id, node.sql.label("x")).select_from(t).where(case.chosen).subquery("l")
    right = select(t.c.id, other.sql.label("y")).select_from(t).where(case.chosen).subquery("r")
    scale = max(node.scale or 0, other.scale or 0)
    first, second = ([(row, case.hazards.bounded(value, scale)) for row, value in case.pairs(one)] for one in (node, other))
    wanted = sorted((int(a["id"] or 0), int(b["id"] or 0)) for a, x in first for b, y in second if x is not None and x == y)
    return select(left.c.id, right.c.id).join(right, left.c.x == right.c.y).order_by(left.c.id, right.c.id), wanted


def as_union(case: Case) -> tuple[Any, Any]:
    node, other = case.maker.exact(1), case.maker.exact(1)
    scale = 3
    both = union_all(
        *(select(cast(one.sql, Numeric(18, scale)).label("x")).select_from(t).where(case.chosen) for one in (node, other))
    ).subquery("both")
    values = [
        case.hazards.bounded(away(value, scale), scale) for one in (node, other) for value in case.values(one) if value is not None
    ]
    return select(func.sum(both.c.x), func.max(both.c.x) * 10), [
        (shown(total([v for v in values if v is not None], case, scale), scale), shown(highest(values, case), scale))
    ]


def highest(values: list[Value], case: Case) -> Value:
    known = [value for value in values if value is not None]
    return case.hazards.bounded(max(known) * 10, 3) if known else None


def as_scalar(case: Case) -> tuple[Any, Any]:
    """The rows above the average: a scalar subquery."""
    node = case.maker.exact(1)
    scale = node.scale or 0
    average = mean([value for value in case.values(node) if value is not None], case, scale)
    for value in case.values(node):
        case.hazards.bounded(value, scale + 4)
    inner = select(func.avg(node.sql)).select_from(t).where(case.chosen).scalar_subquery()
    wanted = [(int(r["id"] or 0),) for r, v in case.pairs(node) if v is not None and average is not None and v > average]
    return select(t.c.id).where(case.chosen, node.sql > inner).order_by(t.c.id), wanted


KINDS: Final[tuple[Callable[[Case], tuple[Any, Any]], ...]] = (
    as_rows, as_rows, as_condition, as_order, as_aggregates, as_groups, as_window, as_subquery, as_join, as_union, as_scalar,
)  # fmt: skip
ERRORS: Final = (OverflowError, ZeroDivisionError, ValueError, TypeError, apsw.SQLError)


def check_one(site: ExactSite, seed: int) -> str:
    """Runs one random statement; says how it ended. Raises AssertionError, with the seed, for a wrong value."""
    maker = Maker(Random(seed))
    case = Case(maker, large=maker.random.random() < 0.3)
    statement, wanted = maker.random.choice(KINDS)(case)
    try:
        found = site.run(statement, **{k: v for k, v in maker.binds.items() if k in str(statement)})
    except StatementRefused as error:
        assert "decimals, more than 18" in str(error) or "has more than 18 digits" in str(error), (seed, error, statement)
        return "refused"
    except ERRORS as error:
        assert case.hazards.overflow or case.hazards.zero_division, (seed, error, str(statement), wanted)
        return "error"
    assert same(found, wanted), (seed, str(statement), found, wanted)
    return "equal"


@pytest.mark.slow
def test_random_statements_agree_with_fractions(site: ExactSite) -> None:
    """A slice of `make fuzz`: equal in value and decimals, or an error where 64 bits or a division allow none."""
    ends = [check_one(site, seed) for seed in range(500)]
    assert ends.count("equal") > 300


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(40))
def test_random_statements_agree_with_fractions_for_minutes(site: ExactSite, part: int) -> None:
    """The same with more seeds; a failure names its own."""
    for seed in range(10_000 + part * 1000, 11_000 + part * 1000):
        check_one(site, seed)
