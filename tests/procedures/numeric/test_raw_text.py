"""No statement reaches the stored integers: text, other tables, custom SQL and unknown constructs are refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import pytest
from sqlalchemy import (
    Column,
    Float,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    extract,
    func,
    insert,
    literal,
    literal_column,
    not_,
    select,
    table,
    text,
    try_cast,
    tuple_,
    type_coerce,
    types,
    union_all,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import GenericFunction

from procedures import Database, StatementRefused
from tests.procedures.numeric.exact_site import ExactSite

db = Database("refusals")
t = db.table(
    "t", Column("id", Integer, primary_key=True), Column("a", Numeric(12, 2)), Column("b", Numeric(18, 4)), Column("n", Integer),
    Column("name", String), partition_by="id",
)  # fmt: skip
d = db.table("d", Column("id", Integer, primary_key=True), Column("x", String), partition_by="id")
a, b, n, x = t.c.a, t.c.b, t.c.n, d.c.x
other = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("a", Integer), Column("b", Numeric(12, 5)))
light = table("t", column("id"), column("a"))


class Money(types.TypeDecorator[Decimal]):
    impl = Numeric(12, 2)
    cache_ok = True


class doubled(GenericFunction[Any]):
    type = Integer()
    inherit_cache = True


@compiles(doubled)
def _double(element: Any, compiler: Any, **kw: Any) -> str:
    return f"abs({compiler.process(element.clauses, **kw)})"


class Named(ColumnElement[Any]):
    type = Integer()
    inherit_cache = False


@compiles(Named)
def _name(element: Any, compiler: Any, **kw: Any) -> str:
    return "t.a"


def upserting(**options: Any) -> Any:
    """An upsert of one row."""
    return upsert(t).values(id=1, a=Decimal("1.5")).on_conflict_do_update(index_elements=["id"], **options)


def of_json(kind: Any) -> Any:
    """A value out of JSON that claims to be of this type."""
    return func.json_each("[150]").table_valued(column("value", kind)).c.value


REFUSED: Final[dict[str, Callable[[], Any]]] = {
    "all columns as text": lambda: select(literal_column("*")).select_from(t),
    "text star": lambda: select(text("*")).select_from(t),
    "a text": lambda: text("select a from t"),
    "a text with types": lambda: text("select a from t").columns(column("a", Numeric(12, 2))),
    "an insert as text": lambda: text("insert into t values (11, 5, 5, 5, 'x')"),
    "a copy as text": lambda: text("insert into d select id, a from t"),
    "a prefix": lambda: select(n).prefix_with("a,"),
    "a suffix": lambda: select(n).suffix_with("ORDER BY a > 5"),
    "a hint": lambda: select(n).with_statement_hint("ORDER BY a * 1.0"),
    "text order": lambda: select(n).order_by(text("a")),
    "a column without table": lambda: select(column("a")).select_from(t),
    "a typed column without table": lambda: select(column("a", Numeric(12, 4))).select_from(t),
    "a light table": lambda: select(table("t", column("a", Integer)).c.a),
    "a light table with decimals": lambda: select(table("t", column("a", Numeric(12, 4))).c.a),
    "another table of that name": lambda: select(other.c.a),
    "another table with decimals": lambda: select(other.c.b),
    "an insert by another table": lambda: insert(other).values(id=9, a=5),
    "an insert by a light table": lambda: insert(light).values(id=9, a=5),
    "an update by a light table": lambda: update(light).values(a=5),
    "a delete by a light table": lambda: delete(light).where(light.c.a > 5),
    "custom function": lambda: select(doubled(a)),
    "custom element": lambda: select(Named()).select_from(t),
    "custom element in VALUES": lambda: insert(t).values([{"id": 5, "a": 1}, {"id": 6, "a": doubled(literal(5))}]),
    "within group": lambda: select(func.percentile_cont(0.5, type_=Integer).within_group(a)),
    "median": lambda: select(func.median(a)),
    "total": lambda: select(func.total(a)),
    "group_concat": lambda: select(func.group_concat(a)),
    "json": lambda: select(func.json_array(a)),
    "json of a subquery": lambda: select(func.json_array(select(a).limit(1).scalar_subquery())),
    "json typed as decimal": lambda: select(of_json(Numeric(12, 2))),
    "hex": lambda: select(func.hex(a)),
    "printf": lambda: select(func.printf("%d", a)),
    "a function typed as decimal": lambda: select(func.length(t.c.name, type_=Numeric(12, 2))),
    "a sum typed as decimal": lambda: select(func.sum(n, type_=Numeric(12, 2))),
    "type_coerce to integer": lambda: select(type_coerce(a, Integer)),
    "type_coerce from integer": lambda: select(type_coerce(n, Numeric(12, 2))),
    "type_coerce to other decimals": lambda: select(type_coerce(a, Numeric(12, 4))),
    "cast to a decorator": lambda: select(cast(n, Money)),
    "coerced to a decorator": lambda: select(type_coerce(n, Money)),
    "a function with a decorator": lambda: select(func.abs(n, type_=Money)),
    "a literal with a decorator": lambda: select(literal(Decimal("1.5"), Money)),
    "a variant": lambda: select(cast(n, Integer().with_variant(Numeric(12, 2), "sqlite"))),
    "a variant that is a float": lambda: select(cast(a, Numeric(12, 2).with_variant(Float(), "sqlite"))),
    "without decimals": lambda: select(cast(n, Numeric)),
    "cast to text": lambda: select(cast(a, String)),
    "cast from text": lambda: select(cast(t.c.name, Numeric(12, 2))),
    "cast to float": lambda: select(cast(a, Float)),
    "try_cast": lambda: select(try_cast(a, Integer)),
    "a float literal": lambda: select(func.coalesce(a, 1.5)),
    "a float in CASE": lambda: select(case((a > 5, 1.5), else_=a)),
    "NaN": lambda: select(literal(Decimal("NaN")) + a),
    "equal to text": lambda: select(n).where(a == "10.50"),
    "equal to a truth": lambda: select(n).where(a == True),  # noqa: E712
    "like": lambda: select(n).where(a.like("1%")),
    "concatenated": lambda: select(a.concat("x")),
    "a custom operator": lambda: select(a.op("+", return_type=Numeric(12, 2))(1)),
    "a custom comparison": lambda: select(n).where(a.bool_op(">")(5)),
    "floor division": lambda: select(a // 2),
    "not": lambda: select(n).where(not_(a)),
    "extract": lambda: select(extract("year", a)),
    "a range frame": lambda: select(func.sum(a).over(order_by=a, range_=(-5, 5))),
    "round by a parameter": lambda: select(func.round(b, bindparam("k", 2) + 0)),
    "tuples of a subquery": lambda: select(n).where(tuple_(a, n).in_(select(b, n))),
    "text set by an upsert": lambda: upserting(set_={"a": text("excluded.a + 1")}),
    "literal_column set by an upsert": lambda: upserting(set_={"a": literal_column("excluded.a + 1", Integer)}),
    "condition of an upsert": lambda: upserting(set_={"n": 1}, where=text("t.a > 5")),
    "unknown column of an upsert": lambda: upserting(set_={"c": 5}),
    "more decimals of an upsert": lambda: upserting(set_={"a": b}),
    "one value in two places": lambda: select(n).where(a == bindparam("q", type_=Numeric(12, 2)), b == bindparam("q")),
    "literal_execute": lambda: select(n).where(a == bindparam("q", Decimal("10.50"), literal_execute=True)),
    "filled with integers": lambda: insert(t).from_select(["id", "a"], select(t.c.id + 100, n)),
    "filled from a union": lambda: insert(t).from_select(
        ["id", "a"], union_all(select(literal(1), literal_column("NULL")), select(n, n))
    ),
    "integers filled with decimals": lambda: insert(t).from_select(["id", "n"], select(t.c.id + 100, a)),
    "text filled with decimals": lambda: insert(d).from_select(["id", "x"], select(t.c.id + 500, a)),
    "decimals filled with text": lambda: insert(t).from_select(["id", "a"], select(d.c.id, x)),
    "assigned to an integer": lambda: update(t).values(n=a),
    "assigned to a text": lambda: update(t).values(name=a),
    "assigned with more decimals": lambda: update(t).values(a=a / 3),
    "a limit": lambda: select(n).limit(select(a).limit(1).scalar_subquery()),
    "a literal as limit": lambda: select(n).limit(literal(Decimal("1.5"))),
    "an offset of a union": lambda: union_all(select(n), select(n)).offset(literal(Decimal("1.5"))),
    "a distance": lambda: select(func.lag(n, a).over(order_by=n)),
    "cast to 19 digits": lambda: select(cast(n, Numeric(19, 2))),
    "cast to tens": lambda: select(cast(n, Numeric(5, -1))),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactSite]:
    """A partition with one row in each table."""
    opened = ExactSite(tmp_path_factory.mktemp("refusals") / "state.db", db)
    opened.run(insert(t).values(id=1, a=Decimal("10.50"), b=Decimal("2.25"), n=3, name="x"))
    opened.run(insert(d).values(id=1, x="5.00"))
    yield opened
    opened.close()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused(site: ExactSite, name: str) -> None:
    """Each with a sentence, before it runs: none gives a value, none an internal error."""
    with pytest.raises(StatementRefused) as refused:
        site.run(REFUSED[name](), **({"q": Decimal(1)} if name == "one value in two places" else {}))
    assert len(str(refused.value).split()) > 4


ALLOWED: Final[dict[str, tuple[Callable[[], Any], Any]]] = {
    "count(*) as text": (lambda: text("select count(*) from t"), [(1,)]),
    "count": (lambda: select(func.count()).select_from(t), [(1,)]),
    "a column of no decimals": (lambda: text("select n from t"), [(3,)]),
    "exists": (lambda: select(n).where(exists().where(a > 5)), [(3,)]),
    "a constant as text": (lambda: select(a, text("1")), [(Decimal("10.50"), 1)]),
    "another table without decimals": (lambda: select(table("t", column("n", Integer)).c.n), [(3,)]),
    "an alias": (lambda: select(t.alias().c.a), [(Decimal("10.50"),)]),
    "the sign": (lambda: select(func.sign(a)), [(1,)]),
    "null": (lambda: select(cast(None, Numeric(12, 2))), [(None,)]),
    "json typed as integer": (lambda: select(of_json(Integer)), [(150,)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_reads_no_stored_integer_runs(site: ExactSite, name: str) -> None:
    """The refusals are no wider than they need to be."""
    statement, wanted = ALLOWED[name]
    found = site.run(statement())
    assert str(found) == str(wanted)


def test_json_that_is_no_integer_is_an_error(site: ExactSite) -> None:
    """A value that only claims to be an integer is not rounded."""
    with pytest.raises(TypeError, match="an exact number was expected"):
        site.run(select(n).where(a > func.json_each("[15.5]").table_valued(column("value", Integer)).c.value))
