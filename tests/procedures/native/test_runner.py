"""Calls with the steps in C and without them: the same rows, results, errors and digests."""

from __future__ import annotations

import copy
import itertools
import sys
import tempfile
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    TypeDecorator,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql import delete, update

from procedures import Database, Transaction
from tests.procedures.native.both_ways import both_ways, described, needs_accelerator, outcome
from tests.procedures.sites import counters

pytestmark = needs_accelerator


class Number(IntEnum):
    TWO = 2


class Word(StrEnum):
    ONE = "one"


class Text(str):
    __slots__ = ()


class Real(float):
    __slots__ = ()


VALUES: Final[tuple[Any, ...]] = (
    0, 1, 2, 3, -1, True, Number.TWO, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 80,
    "", "one", "two", "nul \x00 inside", "\ud800", "ü\U0001f600", Word.ONE, Text("three"),
    b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"cd"),
    0.0, -0.0, 1.0, 1.5, float("nan"), float("inf"), Real(2.5), None, object, [1], (),
)  # fmt: skip


# Call sites whose keywords are constants: the order of their names is learnt once. Some have names that the statement lacks.
SITES: Final[dict[str, tuple[Any, ...]]] = {
    "": (lambda tx, s: tx.execute(s), lambda tx, s: tx.execute(s, x=1)),
    "x": (lambda tx, s, x: tx.execute(s, x=x), lambda tx, s, x: tx.execute(s, o=x)),
    "xy": (
        lambda tx, s, x, y: tx.execute(s, x=x, y=y),
        lambda tx, s, x, y: tx.execute(s, y=y, x=x),
        lambda tx, s, x, y: tx.execute(s, o=y, x=x),
    ),
    "xyz": (
        lambda tx, s, x, y, z: tx.execute(s, z=z, y=y, x=x),
        lambda tx, s, x, y, z: tx.execute(s, y=y, z=z, x=x),
        lambda tx, s, x, y, z: tx.execute(s, y=y, x=x, o=z),
    ),
}


def bindparams(*names: str) -> tuple[Any, ...]:
    """Parameters of any type."""
    return tuple(bindparam(name) for name in names)


class Tables:
    """Tables of every kind of key, and statements on them; `tried` gets what each statement did."""

    def __init__(self, tried: list[Any]) -> None:
        self.tried = tried
        self.program: list[list[Any]] = []
        self.db = db = Database("shapes")
        single = db.table(
            "single",
            Column("id", Integer, primary_key=True),
            Column("word", String, unique=True),
            Column("amount", Integer),
            CheckConstraint("amount < 50", name="small"),
            partition_by="id",
        )
        pair = db.table(
            "pair",
            Column("a", Integer, primary_key=True),
            Column("b", Integer, primary_key=True),
            Column("of", Integer, ForeignKey("single.id")),
            Column("raw", LargeBinary),
            partition_by="of",
        )
        words = db.table("words", Column("word", String, primary_key=True), Column("real", Float), partition_by="word")
        reals = db.table(
            "reals",
            Column("site", Integer, primary_key=True),
            Column("real", Float, primary_key=True),
            Column("last", String, primary_key=True),
            Column("number", Integer),
            partition_by="site",
        )
        x, y, z = bindparams("x", "y", "z")
        put = insert(single).values(id=x, word=y, amount=z)
        self.statements: list[tuple[Any, str]] = [
            (put, "xyz"),
            (put.prefix_with("OR IGNORE"), "xyz"),
            (put.prefix_with("OR REPLACE"), "xyz"),
            (put.prefix_with("OR FAIL"), "xyz"),
            (put.on_conflict_do_update(index_elements=["id"], set_={"amount": single.c.amount + 1}), "xyz"),
            (put.on_conflict_do_nothing(), "xyz"),
            (put.returning(single.c.id, single.c.word), "xyz"),
            (insert(single).from_select(["id", "amount"], select(single.c.id + x, single.c.amount)), "x"),
            (update(single).where(single.c.id >= x).values(id=single.c.id + y), "xy"),
            (update(single).where(single.c.id == x).values(id=y, amount=z), "xyz"),
            (update(single).values(amount=single.c.amount + x), "x"),
            (update(single).prefix_with("OR FAIL").values(amount=single.c.amount + x), "x"),
            (update(single).where(single.c.id == x).values(word=y).returning(single.c.amount), "xy"),
            (delete(single).where(single.c.id == x), "x"),
            (delete(single), ""),
            (insert(pair).values(a=x, b=y, of=z), "xyz"),
            (insert(pair).values(a=x, b=y, raw=z), "xyz"),
            (update(pair).where(pair.c.a == x).values(b=pair.c.b + y), "xy"),
            (update(pair).where(pair.c.b == x).values(a=y, of=z), "xyz"),
            (delete(pair).where(pair.c.b == x), "x"),
            (insert(words).values(word=x, real=y), "xy"),
            (update(words).where(words.c.word == x).values(word=y), "xy"),
            (update(words).values(word=words.c.word + x), "x"),
            (delete(words).where(words.c.word == x), "x"),
            (insert(reals).values(site=x, real=y, last="l", number=z), "xyz"),
            (update(reals).where(reals.c.number == x).values(real=y, last=z), "xyz"),
            (select(single).order_by(single.c.id), ""),
            (select(single.c.word).where(single.c.id == x), "x"),
            (select(pair).where(pair.c.a == x, pair.c.b == y).order_by(pair.c.b), "xy"),
            (select(words), ""),
            (select(reals).where(reals.c.site.in_([1, 2])), ""),
            (select(reals.c.number).where(reals.c.site.in_(x)), "x"),
            (select(func.char(x, y), func.json_extract("{}", z)), "xyz"),
            (select(bindparam("x", type_=Integer), bindparam("y", type_=String), bindparam("z", type_=LargeBinary)), "xyz"),
            (select(func.json_extract("{}", func.char(x + 0xD7FF)), y), "xy"),
            (select(func.abs(x), func.sum(single.c.amount + y)), "xy"),
        ]

        @db.procedure(partition_by="at")
        def run(tx: Transaction, at: int) -> int:
            for step in self.program[at]:
                self.do(tx, *step)
            return len(self.program[at])

        @db.procedure(partition_by="at", read_only=True)
        def look(tx: Transaction, at: int) -> int:
            return run(tx, at)

    def do(self, tx: Transaction, what: str, number: int, values: tuple[Any, ...]) -> None:
        statement, names = self.statements[number % len(self.statements)]
        params = dict(zip(names, values, strict=False))
        if what == "abort":
            tx.abort("no", str(number))
        if what == "raise":
            raise ValueError(number)
        if what == "fail":
            tx.execute(statement, **params)
        if what == "undo":
            try:
                with tx.savepoint():
                    self.tried.append(self.tried_call(tx, statement, params, 0))
                    raise LookupError
            except LookupError:
                return
        if what == "do":
            self.tried.append(self.tried_call(tx, statement, params, number // len(self.statements)))

    def tried_call(self, tx: Transaction, statement: Any, params: dict[str, Any], form: int) -> Any:
        """One of the ways in which parameters are given; some of them are wrong."""
        turned = dict(reversed(params.items()))
        forms = (
            lambda: tx.execute(statement, **params),
            lambda: tx.execute(statement, **turned),
            lambda: tx.execute(statement, params),
            lambda: tx.execute(statement, None, **params),
            lambda: tx.execute(statement, [params, turned]),
            lambda: tx.execute(statement, **dict(itertools.islice(params.items(), 1))),
            lambda: tx.execute(statement, **params, more=1),
            lambda: tx.scalar(statement, **params),
            lambda: tx.execute(statement, **{Text(name): value for name, value in params.items()}),
            lambda: tx.execute(statement, **{"o" if name == "x" else name: value for name, value in turned.items()}),
            lambda: self.execute_while_handling(tx, statement, params),
        )
        sites = SITES["".join(params)]
        form %= len(forms) + len(sites)
        return outcome(forms[form] if form < len(forms) else lambda: sites[form - len(forms)](tx, statement, *params.values()))

    def execute_while_handling(self, tx: Transaction, statement: Any, params: dict[str, Any]) -> Any:
        try:
            raise LookupError("before")
        except LookupError:
            return tx.execute(statement, **params)


steps = st.tuples(
    st.sampled_from(("do",) * 12 + ("undo", "undo", "fail", "raise", "abort")),
    st.integers(0, 36 * 14 - 1),
    st.tuples(*[st.one_of(st.integers(0, 5), st.sampled_from(VALUES))] * 3),
)
batches = st.lists(st.lists(st.lists(steps, max_size=6), min_size=1, max_size=4), min_size=1, max_size=4)


def run_program(program: list[list[list[Any]]], *, keys: bool) -> None:
    """Batches of calls, each of a list of steps, on both sites."""
    tables: list[Tables] = []

    def make_db(seen: list[Any]) -> Database:
        tables.append(Tables(seen))
        return tables[-1].db

    with tempfile.TemporaryDirectory() as folder, both_ways(Path(folder), make_db) as sites:
        for number, calls in enumerate(program):
            for each in tables:
                each.program = calls
            given_keys = [bytes([number, at]) * 8 for at in range(len(calls))] if keys else None
            sites.apply(*[("run", {"at": at}) for at in range(len(calls))], keys=given_keys)
            sites.read(*[("look", {"at": at}) for at in range(len(calls))])
        sites.compare_files()


def test_both_ways_are_two_ways(tmp_path: Path) -> None:
    """The comparisons of this folder compare: one site has prepared statements of its own, the other has none."""
    with both_ways(tmp_path, lambda seen: counters()) as sites:
        sites.apply(("count", {"name": "a", "by": 1}), ("count", {"name": "a", "by": 2}))
        assert sites.native.state.statements is not None
        assert sites.native.state.statements.open == 3
        assert sites.python.state.statements is None
        rows = sites.native.executor._rows, sites.python.executor._rows
        assert [type(each._touched["counters"]).__module__ for each in rows if each] == [
            "procedures.native.accelerator",
            "procedures.storage.row_digest",
        ]


@pytest.mark.slow
@given(program=batches, keys=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_calls_do_the_same_in_c_and_in_python(program: list[list[list[Any]]], keys: bool) -> None:
    """Whatever calls do, and however they fail, both ways agree on outcomes, digests, changed rows and files."""
    run_program(program, keys=keys)


@pytest.mark.fuzz
@given(program=batches, keys=st.booleans())
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_calls_do_the_same_in_c_and_in_python(program: list[list[list[Any]]], keys: bool) -> None:
    """The same, for minutes."""
    run_program(program, keys=keys)


@pytest.mark.slow
@pytest.mark.parametrize("form", range(14))
def test_every_statement_takes_every_kind_of_value(form: int) -> None:
    """Each statement, with values of each kind in each place, does the same both ways."""
    count = 36
    program = [
        [
            [("do", number, (1, "one", 1)), ("do", number + form * count, (value, VALUES[at - 7], VALUES[at - 3]))]
            for number in range(count)
        ]
        for at, value in enumerate(VALUES)
        if at % 14 == form
    ]
    run_program(program, keys=False)


CALLS: Final[dict[str, Any]] = {
    "no statement": lambda tx, s: tx.execute(),
    "only keywords": lambda tx, s: tx.execute(x=1, y=2),
    "statement as a keyword": lambda tx, s: tx.execute(statement=s, x=1, y=2),
    "a parameter named statement": lambda tx, s: tx.execute(s, statement=1, x=1),
    "self as a parameter": lambda tx, s: tx.execute(s, self=1, x=1),
    "too many": lambda tx, s: tx.execute(s, {"x": 1}, {"y": 1}),
    "far too many": lambda tx, s: tx.execute(s, {"x": 1}, 1, 2, 3, y=2),
    "twice": lambda tx, s: tx.execute(s, {"x": 1, "y": 1}, y=2),
    "no names": lambda tx, s: tx.execute(s, **{1: 2}),  # type: ignore[arg-type]
    "parameters of another kind": lambda tx, s: tx.execute(s, 5),
    "no list of dicts": lambda tx, s: tx.execute(s, [1]),
    "an empty list": lambda tx, s: tx.execute(s, []),
    "no statement but a text": lambda tx, s: tx.execute("SELECT 1"),
    "nothing that can be a key": lambda tx, s: tx.execute([s]),
    "None": lambda tx, s: tx.execute(None),
    "a copy": lambda tx, s: copy.copy(tx),
    "a deep copy": lambda tx, s: copy.deepcopy(tx),
    "another attribute": lambda tx, s: setattr(tx, "execute", None),
    "a table": lambda tx, s: tx.execute(s.table),
}


@pytest.mark.parametrize("name", [*CALLS])
def test_misuse_has_the_same_words(tmp_path: Path, name: str) -> None:
    """The text of an exception is part of an outcome, so a wrong call of `execute` fails in the same words both ways."""

    def make_db(seen: list[Any]) -> Database:
        tables = Tables(seen)

        @tables.db.procedure(partition_by="at")
        def misuse(tx: Transaction, at: int) -> None:
            found = outcome(lambda: CALLS[name](tx, tables.statements[9][0]))
            seen.append(found)
            CALLS[name](tx, tables.statements[9][0])

        return tables.db

    with both_ways(tmp_path, make_db) as sites:
        sites.apply(("misuse", {"at": 1}))


def test_wrong_names_leave_the_order_of_right_ones(tmp_path: Path) -> None:
    """A call with names that the statement lacks does not change what a call site with the right ones binds."""

    def make_db(seen: list[Any]) -> Database:
        db = Database("order")
        ask = select(bindparam("a", type_=Integer), bindparam("b", type_=Integer), bindparam("c", type_=Integer))
        sites_of_calls: tuple[Any, ...] = (
            lambda tx: tx.execute(ask, a=1, b=2, c=3),
            lambda tx: tx.execute(ask, c=3, a=1, b=2),
            lambda tx: tx.execute(ask, d=7, c=8, a=9),
        )

        @db.procedure(partition_by="n")
        def run(tx: Transaction, n: int) -> None:
            for site in (0, 1, 0, 2, 0, 1, 2, 1):
                seen.append(outcome(lambda site=site: sites_of_calls[site](tx)))  # type: ignore[misc]

        return db

    with both_ways(tmp_path, make_db) as sites:
        sites.apply(("run", {"n": 1}))
        rows = [found for found in sites.seen[0] if found[0] is not TypeError]
    assert {found[1] for found in rows} == {"[Row(anon_1=1, anon_2=2, anon_3=3)]"}


def test_errors_are_in_the_context_of_what_was_handled(tmp_path: Path) -> None:
    """A refused row raises what is caused by APSW's error, whose context is the exception that the procedure was handling."""

    def make_db(seen: list[Any]) -> Database:
        db = counters()
        put = insert(db.tables["counters"].table).values(name=bindparam("name"), value=bindparam("value"))

        def steps_of(tx: Transaction) -> Iterator[Any]:
            """A generator has handled exceptions of its own."""
            tx.execute(put, name="a", value=1)
            try:
                raise LookupError("before")
            except LookupError:
                yield outcome(lambda: tx.execute(put, name="a", value=1))
                yield described(sys.exc_info()[1])
            yield described(sys.exc_info()[1])

        @db.procedure(partition_by="n")
        def run(tx: Transaction, n: int) -> None:
            try:
                raise KeyError("around")
            except KeyError:
                seen.extend(steps_of(tx))
            seen.append(described(sys.exc_info()[1]))

        return db

    with both_ways(tmp_path, make_db) as sites:
        sites.apply(("run", {"n": 1}))
        (*_, cause, context), inside, around, after = sites.seen[0][-4:]
    assert cause == context
    assert context[4][0] is LookupError
    assert (inside[0], around[0], after) == (LookupError, KeyError, None)


class Coded(TypeDecorator[str]):
    """Texts that are stored as numbers; a text that has none raises KeyError."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return {"one": 1, "two": 2}[value]


def test_conversions_that_raise_key_errors(tmp_path: Path) -> None:
    """A conversion of a value that raises KeyError fails the same way both ways."""

    def make_db(seen: list[Any]) -> Database:
        db = Database("coded")
        ask = select(bindparam("x", type_=Coded), bindparam("y", type_=Integer))

        @db.procedure(partition_by="n")
        def run(tx: Transaction, n: int) -> None:
            seen.extend(outcome(lambda text=text: tx.execute(ask, x=text, y=1)) for text in ("one", "three"))  # type: ignore[misc]
            tx.execute(ask, x="three", y=1)

        return db

    with both_ways(tmp_path, make_db) as sites:
        sites.apply(("run", {"n": 1}))
        assert sites.seen[0][1][0] is TypeError
