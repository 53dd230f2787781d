"""Statements over exact numbers mean what SQL and arithmetic say, or are refused: never another value, never a float."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import groupby
from random import Random
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import Numeric, cast, func, insert, literal, null, select, tuple_, union_all, update
from sqlalchemy.dialects.sqlite import insert as upsert

from procedures import StatementRefused
from tests.procedures.numeric.exact_site import ExactSite, open_filled
from tests.procedures.numeric.expressions import Hazards, Maker, Node, Row, Value, away, rows_of, t


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactSite]:
    """A partition with the rows of `expressions`."""
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
    """An expression of every row."""
    node = case.maker.number(2)
    wanted = [(int(row["id"] or 0), shown(value, node.scale)) for row, value in case.pairs(node)]
    return select(t.c.id, node.sql).where(case.chosen).order_by(t.c.id), wanted


def as_condition(case: Case) -> tuple[Any, Any]:
    """The rows for which a condition is true."""
    test = case.maker.test(2)
    wanted = [(int(row["id"] or 0),) for row in case.rows if test.value(row, case.hazards)]
    return select(t.c.id).where(case.chosen, test.sql).order_by(t.c.id), wanted


def as_order(case: Case) -> tuple[Any, Any]:
    """The rows in the order of an expression, NULL first."""
    node = case.maker.exact(2)
    found = sorted(case.pairs(node), key=lambda pair: (pair[1] is not None, pair[1] or 0, pair[0]["id"]))
    return select(t.c.id).where(case.chosen).order_by(node.sql, t.c.id), [(int(row["id"] or 0),) for row, _ in found]


def as_aggregates(case: Case) -> tuple[Any, Any]:
    """All aggregates, also of some rows and of distinct values."""
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
    columns = (
        func.sum(x),
        func.avg(x),
        func.min(x),
        func.max(x),
        func.count(x),
        func.sum(x).filter(few),
        func.avg(x).filter(few),
    )
    again = (func.sum(x.distinct()), func.avg(x.distinct()), func.count(x.distinct()))
    return select(*columns, *again).select_from(t).where(case.chosen), [wanted]


def total(values: list[Fraction], case: Case, scale: int) -> Value:
    """Their sum, None of no values."""
    for end in range(len(values) + 1):  # SQLite refuses a sum of which a part overflows
        case.hazards.bounded(sum(values[:end], Fraction()), scale)
    case.hazards.bounded(sum(map(abs, values), Fraction()), scale)
    return sum(values, Fraction()) if values else None


def mean(values: list[Fraction], case: Case, scale: int) -> Value:
    """Their average, None of no values."""
    return case.hazards.bounded(away(sum(values, Fraction()) / len(values), scale + 4), scale + 4) if values else None


def as_groups(case: Case) -> tuple[Any, Any]:
    """Sums by group, those above a limit, in order."""
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
    return select(name, summed).select_from(t).where(case.chosen).group_by("grouped").having(summed > limit).order_by(
        "grouped"
    ), wanted


def as_window(case: Case) -> tuple[Any, Any]:
    """Sums and averages of two rows each, and the value before."""
    node = case.maker.exact(1)
    values, scale = case.values(node), node.scale or 0
    frames = [[v for v in values[max(0, at - 1) : at + 1] if v is not None] for at in range(len(values))]
    total([v for v in values if v is not None], case, scale)
    wanted = [
        (shown(total(frame, case, scale), scale), shown(mean(frame, case, scale), scale + 4), shown(before, scale))
        for frame, before in zip(frames, [None, *values], strict=False)
    ]
    x = node.sql
    columns = (
        func.sum(x).over(order_by=t.c.id, rows=(-1, 0)),
        func.avg(x).over(order_by=t.c.id, rows=(-1, 0)),
        func.lag(x).over(order_by=t.c.id),
    )
    return select(*columns).select_from(t).where(case.chosen).order_by(t.c.id), wanted


def as_subquery(case: Case) -> tuple[Any, Any]:
    """Columns of a subquery or CTE, added."""
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
    """Pairs of rows with equal expressions."""
    node, other = case.maker.exact(1), case.maker.exact(1)
    left = select(t.c.id, node.sql.label("x")).select_from(t).where(case.chosen).subquery("l")
    right = select(t.c.id, other.sql.label("y")).select_from(t).where(case.chosen).subquery("r")
    scale = max(node.scale or 0, other.scale or 0)
    first, second = ([(row, case.hazards.bounded(value, scale)) for row, value in case.pairs(one)] for one in (node, other))
    wanted = sorted((int(a["id"] or 0), int(b["id"] or 0)) for a, x in first for b, y in second if x is not None and x == y)
    return select(left.c.id, right.c.id).join(right, left.c.x == right.c.y).order_by(left.c.id, right.c.id), wanted


def as_union(case: Case) -> tuple[Any, Any]:
    """Aggregates over the rows of two queries."""
    node, other = case.maker.exact(1), case.maker.exact(1)
    scale = 3
    both = union_all(
        *(select(cast(one.sql, Numeric(18, scale)).label("x")).select_from(t).where(case.chosen) for one in (node, other))
    ).subquery("both")
    values = [
        case.hazards.bounded(away(value, scale), scale)
        for one in (node, other)
        for value in case.values(one)
        if value is not None
    ]
    return select(func.sum(both.c.x), func.max(both.c.x) * 10), [
        (shown(total([v for v in values if v is not None], case, scale), scale), shown(highest(values, case), scale))
    ]


def highest(values: list[Value], case: Case) -> Value:
    """Ten times the largest."""
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


def run_or_error(site: ExactSite, statement: Any, params: dict[str, Any]) -> tuple[Any, Exception | None]:
    """What it returned, or what it raised."""
    try:
        return site.run(statement, **params), None
    except ERRORS as error:
        return None, error


def check_one(site: ExactSite, seed: int) -> str:
    """Runs one random statement; says how it ended. Raises AssertionError, with the seed, for a wrong value."""
    maker = Maker(Random(seed))
    case = Case(maker, large=maker.random.random() < 0.3)
    statement, wanted = maker.random.choice(KINDS)(case)
    found, error = run_or_error(site, statement, {k: v for k, v in maker.binds.items() if k in str(statement)})
    if error is not None:
        allowed = case.hazards.overflow or case.hazards.zero_division
        assert allowed, (seed, error, str(statement), wanted)
        return "error"
    if case.hazards.integer_overflow:  # arithmetic of Integer columns alone is SQLite's
        return "integer"
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


# -- stated cases


@pytest.fixture
def fresh(tmp_path: Any) -> Iterator[ExactSite]:
    """A partition that the test may change."""
    opened = open_filled(tmp_path / "state.db")
    yield opened
    opened.close()


def test_a_change_stores_what_its_expression_means(fresh: ExactSite) -> None:
    """UPDATE, upsert with the refused row's values, INSERT of a query, each with RETURNING."""
    kept = t.c.kept
    changed = update(t).where(t.c.id == 1).values(kept=func.round(t.c.b / 3, 2) + t.c.n).returning(kept)
    assert fresh.run(changed) == [(Decimal("3.42"),)]
    statement = upsert(t).values(id=1, kept=Decimal("1.5"))
    statement = statement.on_conflict_do_update(index_elements=["id"], set_={"kept": kept + statement.excluded.kept})
    assert fresh.run(statement.returning(kept)) == [(Decimal("4.92"),)]
    copied = insert(t).from_select(["id", "kept"], select(t.c.id + 50, cast(t.c.b, Numeric(18, 2))).where(t.c.id == 6))
    assert fresh.run(copied) == 1
    assert fresh.stored("SELECT kept FROM t WHERE id = 56") == [(-778,)]
    several = insert(t).values([(60, literal(5)), (61, Decimal("6.1"))])
    assert fresh.run(several) == 2
    assert fresh.stored("SELECT a FROM t WHERE id IN (60, 61) ORDER BY id") == [(500,), (610,)]


def test_a_value_beyond_its_column_is_an_error(fresh: ExactSite) -> None:
    """Digits, decimals, infinities and floats: refused before SQLite sees them, computed ones by the table itself."""
    for value in ("1.239", "1e400", "NaN", "sNaN", "Infinity", "1000.00"):
        with pytest.raises(ValueError, match=r"Numeric\(5, 2\)"):
            fresh.run(insert(t).values(id=70, a=Decimal(value)))
    for inexact in (1.5, True, Fraction(1, 3)):
        with pytest.raises(TypeError, match="takes Decimal or int"):
            fresh.run(insert(t).values(id=70, a=inexact))
    with pytest.raises(apsw.ConstraintError, match=r"a: the new value is out of range of Numeric\(5, 2\)"):
        fresh.run(update(t).where(t.c.id == 5).values(a=t.c.a * 100))
    assert fresh.stored("SELECT count(*) FROM t WHERE id = 70") == [(0,)]


def test_the_first_query_of_a_union_may_not_be_null(fresh: ExactSite) -> None:
    """It says what the columns are; with NULL there, the stored integers were returned."""
    with pytest.raises(StatementRefused, match="first query of a union"):
        fresh.run(union_all(select(null()), select(t.c.a)))
    nested = union_all(select(null()), select(t.c.n))
    with pytest.raises(StatementRefused, match="a union_all of"):
        fresh.run(union_all(select(t.c.a), nested))


def test_a_recursive_query_grows_up_to_an_error(fresh: ExactSite) -> None:
    """Its columns have as many digits as any number: growth is checked in each step."""
    grown = select(t.c.a.label("x"), literal(1).label("k")).where(t.c.id == 5).cte(recursive=True)
    grown = grown.union_all(select(grown.c.x * 10, grown.c.k + 1).where(grown.c.k < 25))
    with pytest.raises(OverflowError):
        fresh.run(select(func.count()).select_from(grown).where(grown.c.x > 100))


def test_a_list_of_tuples_is_compared_with_their_decimals(site: ExactSite) -> None:
    """SQLAlchemy gives a list of tuples the types of its first values, whose decimals are others."""
    pair = tuple_(t.c.a, t.c.n)
    assert site.run(select(t.c.id).where(pair.in_([(Decimal("12.3"), 9), (Decimal("12.34"), 10), (1, 1)])).order_by(t.c.id)) == [
        (4,),
        (5,),
    ]


def test_a_list_takes_values_of_different_digits(site: ExactSite) -> None:
    """The first value of an IN does not limit the others."""
    given = [Decimal(1), Decimal("12.34"), Decimal("12345.67"), Decimal("1.2345"), None]
    assert site.run(select(t.c.id).where(t.c.a.in_(given)).order_by(t.c.id)) == [(4,), (5,), (6,)]


def test_the_decimal_context_of_an_application_has_no_part(site: ExactSite) -> None:
    """getcontext().prec = 3 rounds an application's own sums, not what a statement binds and returns."""
    with localcontext() as context:
        context.prec = 3
        assert str(site.run(select(t.c.b, t.c.b * 10).where(t.c.id == 101))) == (
            "[(Decimal('99999999.9999'), Decimal('999999999.9990'))]"
        )
        assert site.run(select(t.c.id).where(t.c.b > Decimal("99999999.9998"))) == [(101,)]


def test_a_row_in_the_way_is_replaced_with_its_decimals(fresh: ExactSite) -> None:
    """OR REPLACE, OR ABORT and OR FAIL take numbers as any change does, given or computed; one out of range is an error."""
    replace = insert(t).prefix_with("OR REPLACE")
    assert fresh.run(replace.values(id=1, a=Decimal("1.5"), kept=2)) == 1
    assert fresh.run(replace.from_select(["id", "a"], select(t.c.id, t.c.a + Decimal("0.05")).where(t.c.id == 2))) == 1
    assert fresh.run(update(t).prefix_with("or  replace").where(t.c.id == 4).values(id=5, a=t.c.a * 3)) == 1
    assert fresh.run(select(t.c.id, t.c.a, t.c.kept).where(t.c.id < 6).order_by(t.c.id)) == [
        (1, Decimal("1.50"), Decimal("2.00")), (2, Decimal("-1.00"), None), (3, None, None), (5, Decimal("3.00"), None)
    ]  # fmt: skip
    for prefix in ("OR REPLACE", "OR ABORT", "OR FAIL"):
        with pytest.raises(apsw.ConstraintError, match="out of range"):
            fresh.run(update(t).prefix_with(prefix).where(t.c.id == 5).values(a=t.c.a * 1000))
        with pytest.raises(ValueError, match=r"Numeric\(5, 2\)"):
            fresh.run(insert(t).prefix_with(prefix).values(id=1, a=Decimal("1.505")))
    for ignoring in (insert(t).values(id=1, a=3), update(t).values(a=t.c.a * 1000)):
        with pytest.raises(StatementRefused, match=r"instead of OR IGNORE.*on_conflict_do_nothing\(\)"):
            fresh.run(ignoring.prefix_with("OR IGNORE"))
    assert fresh.run(upsert(t).values(id=1, a=3).on_conflict_do_nothing()) == 0
