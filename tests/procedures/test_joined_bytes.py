"""Bytes in statements are joined byte for byte or refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import (
    VARBINARY,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    null,
    select,
    type_coerce,
    types,
    update,
)  # fmt: skip

from procedures import Database
from procedures.declaration.joined_bytes import is_bytes, works_on_bytes
from procedures.statements.compiled import sql_of
from tests.procedures.sites import Site

AWKWARD: Final = (b"", b"\0", b"\0\0a", b"a\0b", b"\xff\xfe", b"\xc3", "ä🙂".encode()[:-1], b"5", b"0x10", bytes(range(256)))


class Sealed(types.TypeDecorator[bytes]):
    """Stores the bytes that it is given with a mark before them."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else b"#" + value


db = Database("joined")
t = db.table(
    "t", Column("id", Integer, primary_key=True), Column("data", LargeBinary), Column("more", VARBINARY), Column("n", Integer),
    Column("name", String), Column("sealed", Sealed), partition_by="id",
)  # fmt: skip
c = t.c
JOINED: Final[dict[str, tuple[Any, Any]]] = {
    "+": (c.data + b"x", b"abx"),
    "+ from the left": (b"x" + c.data, b"xab"),
    "three": (c.data + b"x" + c.data, b"abxab"),
    "four": (c.data + c.data + b"\0" + c.data, b"abab\0ab"),
    "a parameter": (c.data + bindparam("x", b"y"), b"aby"),
    "a parameter on the left": (bindparam("x", b"y") + c.data, b"yab"),
    "concat": (c.data.concat(b"x"), b"abx"),
    "concat twice": (c.data.concat(b"x").concat(c.data), b"abxab"),
    "op": (c.data.op("||")(b"x"), b"abx"),
    "op twice": (c.data.op("||")(b"x").op("||")(c.data), b"abxab"),
    "op +": (c.data.op("+")(b"x"), b"abx"),
    "VARBINARY": (c.more + c.data, b"\xff\0ab"),
    "a TypeDecorator": (c.sealed + b"x", b"#s#x"),
    "literals": (literal(b"5") + b"7", b"57"),
    "coalesce": (func.coalesce(null(), c.data, b"") + b"x", b"abx"),
    "CASE": (case((c.id > 0, c.data), else_=b"z") + b"x", b"abx"),
    "substr": (func.substr(c.data, 1, 1) + func.substr(c.data, 2), b"ab"),
    "zeroblob": (func.zeroblob(2) + c.data, b"\0\0ab"),
    "a subquery": (select(c.data).scalar_subquery() + b"x", b"abx"),
    "a label": ((c.data + b"x").label("y") + b"z", b"abxz"),
    "a type that is given": (type_coerce(func.ifnull(c.data, b""), LargeBinary) + b"x", b"abx"),
    "cast": (cast(c.name, LargeBinary) + c.data, b"nab"),
    "an argument": (func.length(c.data + b"xyz"), 5),
    "a comparison": ((c.data + b"x") == b"abx", True),
    "NULL": (c.data + null(), None),
    "None": (c.data + None, None),
    "NULL before": (null() + c.data, None),
    "NULL in a column": (c.data + func.nullif(c.data, b"ab") + b"x", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A state with one row; `run` executes the statements of `GIVEN`."""

    @db.procedure(partition_by="row")
    def run(tx: Any, row: int) -> None:
        for statement, values in GIVEN:
            result = tx.execute(statement, **values)
            ANSWERS.append(result.all() if result.returns_rows else result.rowcount)

    made = Site(tmp_path_factory.mktemp("joined") / "s", db)
    answers(made, (insert(t).values(id=1, data=b"ab", more=b"\xff\0", n=3, name="n", sealed=b"s"), {}))
    yield made
    made.close()


GIVEN: list[tuple[Any, dict[str, Any]]] = []
ANSWERS: list[Any] = []


def answers(site: Site, *statements: tuple[Any, dict[str, Any]]) -> list[Any]:
    """What they give in one call."""
    GIVEN[:], ANSWERS[:] = statements, []
    status, body = site.call("run", row=1)
    assert status == 0, body
    return list(ANSWERS)


@pytest.mark.parametrize("name", JOINED)
def test_bytes_are_joined(name: str, site: Site) -> None:
    """The value, and its type, that Python's own + gives."""
    expression, expected = JOINED[name]
    ((row,),) = answers(site, (select(expression).select_from(t).where(c.id == 1), {}))
    assert (row[0], type(row[0])) == (expected, type(expected))


def test_every_byte_is_kept(site: Site) -> None:
    """NUL bytes, half a character, what is no UTF-8, digits: bound, in a column, and of statements that are one structure."""
    chance = random.Random(8)
    pairs = [(left, right) for left in AWKWARD for right in AWKWARD]
    pairs += [(chance.randbytes(chance.randrange(9)), chance.randbytes(chance.randrange(9))) for _ in range(300)]
    given: list[Any] = [(select(literal(left) + right), {}) for left, right in pairs]
    assert answers(site, *given) == [[(left + right,)] for left, right in pairs]
    joined = update(t).where(c.id == 2).values(data=c.data + bindparam("tail")).returning(c.data, func.typeof(c.data))
    put = insert(t).prefix_with("OR REPLACE").values(id=2, data=bindparam("head"))
    both = [
        (statement, {name: value})
        for left, right in pairs
        for statement, name, value in ((put, "head", left), (joined, "tail", right))
    ]
    assert answers(site, *both)[1::2] == [[(left + right, "blob")] for left, right in pairs]


@pytest.mark.parametrize("value", ["x", 5])
def test_a_value_that_is_no_bytes_is_refused_when_it_is_bound(value: object, site: Site) -> None:
    """SQLAlchemy calls a text beside bytes a LargeBinary, and does not look at a parameter."""
    GIVEN[:] = [(select(c.data + bindparam("x")), {"x": value})]
    _, body = site.call("run", row=1)
    assert "bytes are joined with bytes, not with" in body["message"]
    assert site.rows("SELECT data FROM t WHERE id = 1") == [(b"ab",)]


def test_other_statements_are_left_alone() -> None:
    """Sums, texts, comparisons and functions of bytes."""
    for expression in (
        c.n + c.n,
        c.name + "x",
        c.name.concat(c.name).concat("y"),
        c.data == b"x",
        func.hex(c.data),
        func.max(c.data),
    ):
        assert "AS BLOB" not in sql_of(select(expression))


def test_a_condition_and_an_index_join_as_well(tmp_path: Path) -> None:
    """The schema has the same expression, which needs no function of ours."""
    found = Database("found")
    data = Column("data", LargeBinary)
    table = found.table(
        "found", Column("id", Integer, primary_key=True), data, CheckConstraint(data + b"\0x" != b"a\0x"), partition_by="id"
    )
    Index("tailed", table.c.data + b"\0", unique=True)

    @found.procedure(partition_by="row")
    def put(tx: Any, row: int, data: bytes) -> None:
        tx.execute(insert(table).values(id=row, data=data))

    site = Site(tmp_path / "s", found)
    assert site.call("put", row=1, data=b"b")[0] == 0
    assert re.search("CHECK", str(site.call("put", row=2, data=b"a")[1]))
    assert re.search("UNIQUE", str(site.call("put", row=3, data=b"b")[1]))
    site.close()


def test_what_is_known_to_be_bytes() -> None:
    """By its type, or by its function; what has no type is not known."""
    assert all(
        map(is_bytes, (c.data, c.more, c.sealed, literal(b""), func.substr(c.data, 1), func.unhex("00"), c.data.label("x")))
    )
    assert not any(map(is_bytes, (c.name, func.substr(c.name, 1), func.hex(c.data), null(), func.zero(), bindparam("x"))))
    joined: Any = c.data + b"x"
    compared: Any = c.data == b"x"
    assert works_on_bytes(joined, joined.operator)
    assert not works_on_bytes(compared, compared.operator)
