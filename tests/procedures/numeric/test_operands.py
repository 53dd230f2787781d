"""Operands are brought to the decimals of their operation: literals when they are bound, expressions by a power of ten."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import bindparam, cast, insert, literal, null, select, tuple_, union, update
from sqlalchemy.types import Numeric

from procedures import StatementRefused
from procedures.numeric.operands import queries_of
from procedures.statements.compiled import compile_statement
from tests.procedures.numeric.expressions import t

a, b, c, n = t.c.a, t.c.b, t.c.c, t.c.n


def sql_and_values(statement: Any) -> tuple[str, list[Any]]:
    """The text, and what is bound for the values that the statement itself holds."""
    compiled = compile_statement(statement)
    convert = compiled.binds
    return compiled.sql, [process(value) if (process := convert.get(k)) else value for k, value in compiled.constants.items()]


@pytest.mark.parametrize(("expression", "text", "values"), [
    (a == b, "(t.a * 100) = t.b", []),
    (a > 5, "t.a > :a_1", [500]),
    (a > Decimal("0.005"), "(t.a * 10) > :a_1", [5]),
    (a + Decimal("0.1") == b, "((t.a + :a_1) * 100) = t.b", [10]),
    (a * 2 > b, "((t.a * :a_1) * 100) > t.b", [2]),
    (n == a, "numeric_compare(t.n, 0, t.a, 2) = 0", []),
    (a.between(1, Decimal("2.5")), "t.a BETWEEN :a_1 AND :a_2", [100, 250]),
    (a.is_distinct_from(b), "(t.a * 100) IS NOT t.b", []),
    (a == null(), "t.a IS NULL", []),
    (tuple_(a, n) > tuple_(b, 1), "((t.a * 100), t.n) > (t.b, :param_1)", [1]),
    (c * b > 0, "numeric_mul(t.c, t.b) > :param_1", [0]),
])  # fmt: skip
def test_comparisons_by_example(expression: Any, text: str, values: list[Any]) -> None:
    """What SQLite gets."""
    sql, bound = sql_and_values(select(n).where(expression))
    assert sql.split("WHERE ")[1] == text
    assert bound == values


def test_a_value_takes_the_decimals_of_its_place() -> None:
    """The same literal in a column of two decimals, and in one of four."""
    assert sql_and_values(update(t).values(a=literal(5), b=literal(5)))[1] == [500, 50000]
    assert sorted(map(str, sql_and_values(insert(t).values(id=1, a=Decimal(5), b=literal(5)))[1])) == ["1", "500", "50000"]


def test_one_name_has_one_place() -> None:
    """Two places of different decimals would need two integers for one value."""
    with pytest.raises(StatementRefused, match="give it two names"):
        compile_statement(select(n).where(a == bindparam("q"), b == bindparam("q")))


def test_the_queries_of_a_nested_union() -> None:
    """All of them, in order."""
    first, second, third = select(a), select(cast(b, Numeric(5, 2))), select(a + 1)
    assert queries_of(union(first, union(second, third))) == [first, second, third]


def test_a_statement_is_left_as_it_is() -> None:
    """Compiling copies what it changes: the same object compiles again to the same text."""
    statement = update(t).values(a=literal(5) + a).where(a > Decimal("0.001")).returning(a * b)
    assert compile_statement(statement) == compile_statement(statement) or (
        compile_statement(statement).sql == compile_statement(statement).sql
    )
