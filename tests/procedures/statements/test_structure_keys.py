"""Our keys of statements are equal exactly where SQLAlchemy's are, and give the values in the same order."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy import table as bare_table
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.orm import Mapped, aliased, mapped_column
from sqlalchemy.types import UserDefinedType

from procedures import Database
from procedures.statements import structure_keys
from procedures.statements.structure_keys import StructureKeys, structure_by_sqlalchemy

DB = Database("keys")
T = DB.table("t", Column("a", Integer, primary_key=True), Column("b", String(9)), Column("c", Numeric(8, 2)), partition_by="a")
U = DB.table("u", Column("a", Integer, primary_key=True), Column("b", String(9)), Column("d", Boolean), partition_by="a")
FOREIGN = Table("t", MetaData(), Column("a", Integer, primary_key=True), Column("b", String(9)))
BARE = bare_table("t", column("a"), column("b"))


class Model(DB.Model):  # type: ignore[name-defined,misc] # the base is made at run time
    __tablename__ = "m"
    __partition_by__ = "a"

    a: Mapped[int] = mapped_column(primary_key=True)
    b: Mapped[str]


class Uncacheable(UserDefinedType[Any]):
    """A type without a key."""

    cache_ok = False

    def get_col_spec(self, **_: Any) -> str:
        return "X"


_fresh = count(1)


def _value() -> int:
    """Another value each time: none may be part of a key."""
    return next(_fresh)


Maker = Callable[[], Any]
COLUMNS: list[Maker] = [
    *(lambda c=c: c for c in (T.c.a, T.c.b, T.c.c, U.c.a, U.c.d, FOREIGN.c.a, BARE.c.a, Model.a, Model.b)),
    lambda: T.alias().c.a,
    lambda: T.alias("named").c.a,
    lambda: aliased(Model).a,
    lambda: column("a"),
    lambda: literal_column("a"),
    lambda: select(T.c.a).subquery().c.a,
    lambda: select(T.c.a).where(T.c.a == _value()).cte("x").c.a,
]
LITERALS: list[Maker] = [
    _value,
    lambda: literal(_value()),
    lambda: literal(str(_value())),
    lambda: Decimal(_value()) / 4,
    lambda: bindparam("given"),
    lambda: bindparam("given", _value()),
    lambda: bindparam("other", _value(), Integer),
    lambda: bindparam("given", _value(), unique=True),
    lambda: bindparam("given", callable_=_value),
    lambda: bindparam("given", expanding=True),
    lambda: bindparam("given", _value(), literal_execute=True),
    null,
    true,
]
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a.like(b, escape="/"),
    lambda a, b: a.like(b),
    lambda a, b: a.op("||")(b),
    lambda a, b: a.between(b, b),
    lambda a, b: a.in_([b, _value()]),
    lambda a, b: tuple_(a, a) == tuple_(b, a),
    func.coalesce,
    lambda a, b: func.lower(a) == b,
    lambda a, b: case((a == b, _value()), else_=_value()),
    lambda a, b: case({_value(): b}, value=a),
    lambda a, b: select(a).where(a == b).scalar_subquery(),
    lambda a, b: exists().where(a == b),
    lambda a, b: and_(a == b, a > _value()),
    lambda a, b: or_(a == b, not_(a > _value())),
    lambda a, b: func.sum(a).over(partition_by=b),
    lambda a, b: func.count(a).filter(a == b),
]
UNARY: list[Callable[[Any], Any]] = [
    lambda a: a,
    lambda a: -a,
    lambda a: a.desc(),
    lambda a: a.label("name"),
    lambda a: a.label(None),
    lambda a: a.is_(None),
    lambda a: cast(a, Numeric(8, 2)),
    lambda a: cast(a, Numeric(8, 3)),
    lambda a: type_coerce(a, String(5)),
    lambda a: cast(a, Uncacheable()),
    lambda a: func.count(a.distinct()),
    lambda a: func.my_own(a, type_=Integer),
]


@st.composite
def expressions(draw: st.DrawFn) -> Maker:
    """How to make an expression; made twice it has the same structure and other values."""
    left, right = draw(st.sampled_from(COLUMNS)), draw(st.sampled_from(LITERALS + COLUMNS))
    binary, unary, depth = draw(st.sampled_from(BINARY)), draw(st.sampled_from(UNARY)), draw(st.integers(0, 2))

    def make() -> Any:
        a = left()
        a = a.__clause_element__() if hasattr(a, "__clause_element__") else a
        if depth == 0:
            return unary(a)
        return unary(binary(a, right())) if depth == 1 else binary(unary(a), right())

    return make


STATEMENTS: list[Callable[[Any, Any], Any]] = [
    select,
    lambda a, b: select(a).where(b),
    lambda a, b: select(a, a).where(a == b).where(b),
    lambda a, b: select(a).order_by(b).limit(_value()).offset(_value()),
    lambda a, b: select(a).group_by(b).having(b),
    lambda a, b: select(T, a).join(U, T.c.a == U.c.a).where(b),
    lambda a, b: select(a).select_from(T.outerjoin(U, b)),
    lambda a, b: select(a).distinct().with_only_columns(b),
    lambda a, b: select(a).correlate(T).where(exists(select(U.c.a).where(b).correlate(None))),
    lambda a, b: union_all(select(a), select(b)).limit(_value()),
    lambda a, b: select(Model).where(a == b),
    lambda a, b: select(a).where(b).prefix_with("ALL"),
    lambda a, b: select(a).add_cte(select(b).cte()),
    lambda a, b: select(a).with_hint(T, "hint").where(b),
    lambda a, b: insert(T).values(a=_value(), b=b),
    lambda a, b: insert(T).values({T.c.b: b, T.c.a: _value()}),
    lambda a, b: insert(T).values([{"a": _value()}, {"a": _value()}]),
    lambda a, b: insert(T).prefix_with("OR IGNORE").values(a=_value()).returning(a),
    lambda a, b: insert(T).from_select(["a"], select(a).where(b)),
    lambda a, b: upsert(T).values(a=_value()).on_conflict_do_update(index_elements=["a"], set_={"b": b}, where=a == b),
    lambda a, b: upsert(T).values(a=_value()).on_conflict_do_nothing(index_elements=[T.c.a]),
    lambda a, b: update(T).where(a == b).values(b=b, c=T.c.c + _value()),
    lambda a, b: update(T).ordered_values((T.c.b, b), (T.c.c, _value())).where(a == 1),
    lambda a, b: update(Model).where(a == b).values(b=_value()).returning(a),
    lambda a, b: delete(T).where(a == b),
    lambda a, b: text("SELECT a FROM t WHERE a = :a AND b = :b").bindparams(a=_value()),
    lambda a, b: text("SELECT :a").bindparams(bindparam("a", _value(), Integer)).columns(column("a", Integer)),
]
ANYTHING = st.tuples(st.sampled_from(STATEMENTS), expressions(), expressions(), st.booleans())


def _make(recipe: tuple[Callable[[Any, Any], Any], Maker, Maker, bool]) -> Any:
    """The statement; None where SQLAlchemy does not make such a one."""
    statement, left, right, same = recipe
    try:
        a = left()
        return statement(a, a if same else right())
    except Exception:  # noqa: BLE001 - whatever SQLAlchemy raises
        return None


def _two_values(named_alike: bool) -> tuple[Any, Any]:
    """Two literals; a clone has the anonymous name of what it was made of."""
    one = literal(_value())
    return one, one._clone(maintain_key=True) if named_alike else literal(_value())


KEYS = StructureKeys()  # one for all examples: what an earlier statement left must not change a later key


@settings(max_examples=50, deadline=None)
@given(recipes=st.lists(ANYTHING, min_size=2, max_size=5))
@pytest.mark.filterwarnings("ignore")
def test_keys_are_equal_exactly_where_those_of_sqlalchemy_are(recipes: list[Any]) -> None:
    """Over pairs of statements of the same recipe, with other values, and of others; the values are the same objects."""
    made = [statement for recipe in recipes for statement in (_make(recipe), _make(recipe)) if statement is not None]
    ours = [KEYS.structure_of(statement) for statement in made]
    theirs = [structure_by_sqlalchemy(statement) for statement in made]
    for our, their in zip(ours, theirs, strict=True):
        assert (our is None) == (their is None)
        if our is not None and their is not None:
            assert [id(literal) for literal in our[1]] == [id(literal) for literal in their[1]]
    keys = [(our[0], their[0]) for our, their in zip(ours, theirs, strict=True) if our is not None and their is not None]
    for our_key, their_key in keys:
        assert [our_key == other for other, _ in keys] == [their_key == other for _, other in keys]


@pytest.mark.filterwarnings("ignore")
def test_statements_that_differ_in_one_part_have_other_keys() -> None:
    """Each kind of statement, and of each part of one, is compared with each other; made again, it has an equal key."""

    def plain() -> Any:
        return T.c.a == _value()

    made = [_make((statement, lambda: T.c.a, plain, False)) for statement in STATEMENTS for _ in "ab"]
    made += [_make((select, make, make, same)) for make in COLUMNS for same in (True, False) for _ in "ab"]
    made += [_make((binary, lambda: T.c.b, make, False)) for binary in BINARY for make in LITERALS for _ in "ab"]
    made += [_make((lambda a, b: unary(a), lambda: T.c.a, plain, False)) for unary in UNARY for _ in "ab"]  # noqa: B023 - run at once
    made += [select(a, b) for a, b in (_two_values(named_alike) for named_alike in (True, False) for _ in "ab")]
    keys = StructureKeys()
    pairs = [(keys.structure_of(each), structure_by_sqlalchemy(each)) for each in made if each is not None]
    found = [(ours[0], theirs[0]) for ours, theirs in pairs if ours is not None and theirs is not None]
    assert len(found) > 100
    for ours, theirs in found:
        assert [ours == other for other, _ in found] == [theirs == other for _, other in found]
        assert all(hash(ours) == hash(other) for other, _ in found if ours == other)


def test_common_statements_are_not_left_to_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What procedures write has a key of ours: SQLAlchemy is not asked."""
    monkeypatch.setattr(structure_keys, "structure_by_sqlalchemy", lambda _: pytest.fail("asked SQLAlchemy"))
    keys = StructureKeys()
    for statement in (
        select(T.c.a, func.sum(T.c.c).label("s")).where(or_(T.c.a == 1, T.c.b.in_(["x"]))).group_by(T.c.a).limit(3),
        select(Model).where(Model.a == 1).order_by(Model.b.desc()),
        select(T.c.b).join(U, U.c.a == T.c.a).where(~exists().where(U.c.a == 2)),
        insert(T).values(a=1, b="x"),
        upsert(T).values(a=1).on_conflict_do_update(index_elements=["a"], set_={"b": "y"}),
        update(T).where(T.c.a == 1).values(c=T.c.c + 1),
        delete(T).where(T.c.a == 1),
        text("SELECT a FROM t WHERE a = :a"),
    ):
        assert keys.structure_of(statement) is not None


def test_objects_that_are_gone_leave_no_key_behind() -> None:
    """Types and tables that calls make get the addresses of others; their keys stay apart."""
    keys = StructureKeys()
    seen: dict[Any, Any] = {}
    for scale in [*range(8)] * 400:
        statement = select(cast(T.c.a, Numeric(8, scale)), T._annotate({"scale": scale}))
        ours, theirs = keys.structure_of(statement), structure_by_sqlalchemy(statement)
        assert ours is not None
        assert theirs is not None
        assert seen.setdefault(ours[0], theirs[0]) == theirs[0]


def test_types_that_calls_make_are_not_kept_for_ever() -> None:
    """Their number is bounded, and a key is the same after the bound was met."""
    keys = StructureKeys()
    first = keys.structure_of(select(cast(T.c.a, String(7))))
    for _ in range(structure_keys.TYPES_MAX + 10):
        keys.structure_of(select(cast(T.c.a, String(8))))
    assert len(keys.types) <= structure_keys.TYPES_MAX
    last = keys.structure_of(select(cast(T.c.a, String(7))))
    assert first is not None
    assert last is not None
    assert first[0] == last[0]


def test_statements_over_too_many_tables_are_left_to_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for tables and columns is bounded, too."""
    monkeypatch.setattr(structure_keys, "ATOMS_MAX", 8)
    keys = StructureKeys()
    for number in range(20):
        made = Table(f"x{number}", MetaData(), Column("a", Integer))
        statement = select(made.c.a).where(made.c.a == number)
        ours, theirs = keys.structure_of(statement), structure_by_sqlalchemy(statement)
        assert ours is not None
        assert theirs is not None
        assert [id(bind) for bind in ours[1]] == [id(bind) for bind in theirs[1]]
    assert len(keys.atoms) <= 8
