"""TYPES.md, row by row: each is declared, stored and read, run, or refused with the sentence that the page has."""

from __future__ import annotations

import enum
import itertools
import re
import uuid
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import inf, isnan, nan
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql, sqlite

from procedures import Database, DefinitionError
from procedures.checks.check import find_silent_parts
from procedures.declaration.columns.column_types import REFUSED as REASONS
from procedures.declaration.columns.column_types import WORKING
from snapshot.export import TableSource, write_tables
from tests.procedures.sites import Site

PAGE: Final = (Path(__file__).parents[2] / "procedures" / "TYPES.md").read_text(encoding="utf-8")
ABORTED: Final = "undo"


class Colour(enum.Enum):
    """As the page describes it."""

    RED = "r"
    BLUE = "b"


class Upper(types.TypeDecorator[str]):
    """As the page describes it."""

    impl = types.String(3)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()


NAMES: Final = {
    **{name: getattr(sqlalchemy, name) for name in dir(sqlalchemy) if not name.startswith("_")},
    "Colour": Colour, "Upper": Upper, "types": types, "sqlite": sqlite, "postgresql": postgresql,
    "mysql": mysql, "UTC": UTC, "date": date, "datetime": datetime, "time": time, "timedelta": timedelta, "Decimal": Decimal,
    "inf": inf, "nan": nan, "uuid": uuid,
}  # fmt: skip


def evaluated(expression: str, **more: Any) -> Any:
    """The value of a piece of code of the page."""
    return eval(expression, {**NAMES, **more})  # noqa: S307 - the page is ours


def rows(mark: str) -> list[list[str]]:
    """The cells of the table between `<!-- mark -->` and `<!-- end of mark -->`."""
    found = re.search(rf"<!-- {mark} -->\n\n(.*?)\n\n<!-- end of {mark} -->", PAGE, re.DOTALL)
    assert found is not None, mark
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()[2:]]


def codes(cell: str) -> list[str]:
    """The pieces of code in a cell."""
    return [code.strip() for code in re.findall(r"`([^`]*)`", cell)]


def same(value: Any, found: Any) -> bool:
    """Whether it came back as it was given, type included."""
    if isinstance(value, float) and isnan(value):
        return isinstance(found, float) and isnan(found)
    return type(found) is type(value) and bool(found == value)


def stored_values(type_: Any) -> tuple[Database, list[Any], list[Any]]:
    """A database with a column of the type, the values to write, and those that were read."""
    db = Database("page")
    columns = sqlalchemy.Column("id", types.Integer, primary_key=True), sqlalchemy.Column("x", type_)
    table = db.table("t", *columns, partition_by="id")
    given: list[Any] = []
    found: list[Any] = []

    @db.procedure(partition_by="number")
    def store(tx: Any, number: int) -> None:
        tx.execute(table.insert(), id=number, x=given[number])
        found.append(tx.execute(sqlalchemy.select(table.c.x).where(table.c.id == number)).scalar_one())

    return db, given, found


TYPES: Final = [
    pytest.param(type_, row[1:], id=type_) for row in rows("types") for type_ in codes(row[0])
]  # fmt: skip


@pytest.mark.parametrize(("type_", "row"), TYPES)
def test_type_keeps_and_refuses_what_the_page_says(type_: str, row: list[str], tmp_path: Path) -> None:
    """Through an executor: values come back, others fail their call, and the column has the stated types."""
    keeps, refuses, kind, parquet = row
    db, given, found = stored_values(evaluated(type_))
    assert f" x {kind}" in db.schema_statements()[0]
    kept = [*map(evaluated, codes(keeps)), None]
    given += kept + list(map(evaluated, codes(refuses)))
    site = Site(tmp_path / "s", db)
    try:
        for number in range(len(given)):
            status, answer = site.call("store", number=number)
            assert (status == 0) == (number < len(kept)), (given[number], answer)
        assert [value for value, read in zip(kept, found, strict=True) if not same(value, read)] == []
        check_exported(db, site, tmp_path, parquet, kept)
    finally:
        site.close()


def check_exported(db: Database, site: Site, folder: Path, parquet: str, kept: list[Any]) -> None:
    """The column of the Parquet file has the type, and as many values."""
    import pyarrow.parquet

    site.executor.close()
    source = TableSource(0, "", {}, site.state.connection)
    (exported,) = write_tables(source, str(folder), declared=dict(db.tables))
    assert exported.columns["x"] == parquet
    column = pyarrow.parquet.read_table(folder / exported.file).column("x")
    assert (str(column.type), len(column)) == (parquet, len(kept))


ABSTRACT: Final = {
    "Concatenable", "ExternalType", "Indexable", "NumericCommon", "OperatorClass", "SchemaType", "TypeDecorator", "TypeEngine",
    "Variant",
}  # fmt: skip


def test_every_type_of_sqlalchemy_is_on_the_page() -> None:
    """A type that a later SQLAlchemy adds makes this fail until it is decided what it does here."""
    for module in (types, sqlite):
        for name in dir(module):
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, types.TypeEngine) and name not in ABSTRACT and name[0] != "_":
                assert kind in WORKING or kind in REASONS, f"{module.__name__}.{name}"
    kept = {kind for kind in WORKING if kind.__module__.startswith("sqlalchemy.sql")}
    assert kept <= {kind_of(type_) for row in rows("types") for type_ in codes(row[0])}
    on_page = {kind_of(type_) for row in rows("refused types") for type_ in codes(row[0])}
    others = set(REASONS) - on_page - {types.UserDefinedType}
    assert others <= {types.MatchType, sqlite.DATE, sqlite.TIME}
    for kind in others:
        with pytest.raises(DefinitionError):
            stored_values(kind())


def kind_of(type_: str) -> Any:
    """The class of a type that the page names."""
    found = evaluated(type_)
    return found if isinstance(found, type) else type(found)


def test_sqlite_turns_numbers_and_digits_into_the_type_of_the_column(tmp_path: Path) -> None:
    """As the page says; an Integer column gets no other text."""
    for type_, value, read in (("String", 5, "5"), ("Integer", "5", 5)):
        db, given, found = stored_values(evaluated(type_))
        given.append(value)
        site = Site(tmp_path / type_, db)
        assert site.call("store", number=0)[0] == 0
        assert found == [read]
        site.close()


def test_a_json_null_is_null_only_on_request(tmp_path: Path) -> None:
    """`None` in a JSON column is stored as the page says."""
    for type_, stored in (("JSON", "null"), ("JSON(none_as_null=True)", None)):
        db, given, _ = stored_values(evaluated(type_))
        given.append(None)
        site = Site(tmp_path / str(stored), db)
        assert site.call("store", number=0)[0] == 0
        assert site.rows("SELECT x FROM t") == [(stored,)]
        site.close()


@pytest.mark.parametrize("type_", [str(param.id) for param in TYPES])
def test_what_a_table_may_be_partitioned_by(type_: str) -> None:
    """Any type that works but those that the page names."""
    db = Database("page")
    kind = evaluated(type_)
    columns = sqlalchemy.Column("id", types.Integer, primary_key=True), sqlalchemy.Column("x", kind)
    kind = columns[1].type
    if isinstance(kind, types.JSON | types.Float | types.Numeric):
        with pytest.raises(DefinitionError, match="cannot be partitioned by"):
            db.table("t", *columns, partition_by="x")
    else:
        db.table("t", *columns, partition_by="x")


REFUSED_TYPES: Final = [
    pytest.param(type_, row[1], id=type_) for row in rows("refused types") for type_ in codes(row[0])
]  # fmt: skip


@pytest.mark.parametrize(("type_", "sentence"), REFUSED_TYPES)
def test_type_is_refused_with_the_sentence(type_: str, sentence: str) -> None:
    """Where it is declared."""
    with pytest.raises(DefinitionError) as refused:
        stored_values(evaluated(type_))
    assert sentence in str(refused.value)


def declared_items(items: str) -> tuple[Database, Any]:
    """A database with the table of these items, and its parent."""
    db = Database("page")
    number = types.Integer
    db.table("parent", sqlalchemy.Column("id", number, primary_key=True), sqlalchemy.Column("left", number), replicated=True)
    key = sqlalchemy.Column("id", number, primary_key=True)
    return db, db.table("t", key, *evaluated(f"({items},)"), replicated=True)


@pytest.mark.parametrize(("items", "schema", "takes", "refuses"), rows("items"))
def test_items_have_the_effect_that_the_page_says(items: str, schema: str, takes: str, refuses: str, tmp_path: Path) -> None:
    """They are in the schema; rows are taken and refused."""
    db, table = declared_items(codes(items)[0])
    assert codes(schema)[0] in " ; ".join(db.schema_statements())
    taken, refused = (evaluated_rows(cell) for cell in (takes, refuses))
    numbers = itertools.count(1)

    @db.procedure(partition_by=None)
    def store(tx: Any, number: int) -> list[Any]:
        tx.execute(db.tables["parent"].table.insert(), id=1)
        for values in taken:
            tx.execute(table.insert(), id=next(numbers), **values)
        tx.execute(table.update().where(table.c.id == 1).values(id=1))
        for values in refused:
            with pytest.raises(sqlalchemy.exc.IntegrityError), tx.savepoint():
                tx.execute(table.insert(), id=next(numbers), **values)
        return [list(map(str, row)) for row in tx.execute(table.select())]

    site = Site(tmp_path / "s", db)
    status, answer = site.call("store", number=1)
    site.close()
    assert status == 0, answer
    check_special_rows(items, answer)


def check_special_rows(items: str, answer: Any) -> None:
    """What options do to rows that are taken."""
    expected = {
        "default=7": [["1", "7"]], "default=func.abs(-7)": [["1", "7"]], 'server_default="5"': [["1", "5"]],
        "server_default=text": [["1", "it's\n2 lines"]], "server_default=false": [["1", "False"]], "Computed": [["1", "2"]],
        "onupdate=column": [["1", "2"]], 'sqlite_on_conflict="REPLACE"': [["2", "1"]],
        'sqlite_on_conflict_unique="IGNORE"': [["1", "1"]], 'sqlite_on_conflict_not_null="IGNORE"': [],
    }  # fmt: skip
    for mark, wanted in expected.items():
        if mark in items:
            assert answer == wanted
            return
    assert answer


def evaluated_rows(cell: str) -> list[dict[str, Any]]:
    """`n=1` as {"n": 1}; an empty piece of code is a row without values."""
    return [evaluated(f"dict({code})") for code in codes(cell)]


@pytest.mark.parametrize(("items", "sentence"), rows("refused items"))
def test_items_are_refused_with_the_sentence(items: str, sentence: str) -> None:
    """Where they are declared, or when all tables are looked at together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy warns of some of them
        with pytest.raises(DefinitionError) as refused:
            declared_items(codes(items)[0])[0].check_tables()
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("option", "sentence"), [(option, row[1]) for row in rows("refused options") for option in codes(row[0])]
)
def test_option_of_a_table_is_refused_with_the_sentence(option: str, sentence: str) -> None:
    """And `comment` and `info` are kept."""
    db = Database("page")
    key = sqlalchemy.Column("id", types.Integer, primary_key=True)
    with pytest.raises(DefinitionError, match=re.escape(sentence)):
        db.table("t", key, partition_by="id", **evaluated(f"dict({option})"))
    key = sqlalchemy.Column("id", types.Integer, primary_key=True)
    table = db.table("t", key, partition_by="id", comment="kept", info={"n": 1})
    assert (table.comment, table.info) == ("kept", {"n": 1})


class Shop:
    """The tables and rows of the page, and a procedure that runs a statement on them and undoes it."""

    def __init__(self, folder: Path) -> None:
        names: dict[str, Any] = {}
        (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        exec(block, names)  # noqa: S102 - the page is ours
        self.db: Database = names["db"]
        self.names = {"stock": names["stock"], "sale": names["sale"], "s": names["stock"].c, "i": names["sale"].c}
        self.statement: Any = None
        self.answer: Any = None

        @self.db.procedure(partition_by="number")
        def run(tx: Any, number: int) -> None:
            self._fill(tx)
            result = tx.execute(self.statement)
            self.answer = [tuple(row) for row in result] if result.returns_rows else result.rowcount
            tx.abort(ABORTED)

        self.site = Site(folder / "s", self.db)

    def _fill(self, tx: Any) -> None:
        sales = itertools.count(1)
        for number, kind, name, left, tags, sold in ([*map(codes, row)] for row in rows("rows")):
            values = [evaluated(cell[0]) for cell in (number, kind, name, left, tags)]
            tx.execute(self.names["stock"].insert(), dict(zip(("id", "kind", "name", "left", "tags"), values, strict=True)))
            for n in sold:
                tx.execute(self.names["sale"].insert(), id=next(sales), item=values[0], n=evaluated(n))

    def run(self, statement: str) -> Any:
        """The call's error, or None; the answer is in `answer`."""
        self.statement = evaluated(statement, **self.names)
        _, body = self.site.call("run", number=1)
        return None if body.get("code") == ABORTED else body


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One for all statements: each call is undone."""
    made = Shop(tmp_path_factory.mktemp("shop"))
    yield made
    made.site.close()


@pytest.mark.parametrize(("statement", "answer"), [*rows("statements"), *(row[:2] for row in rows("other answers"))])
def test_statement_has_the_answer_of_the_page(statement: str, answer: str, shop: Shop) -> None:
    """It runs in a procedure on the page's rows."""
    assert shop.run(codes(statement)[0]) is None
    assert shop.answer == evaluated(codes(answer)[0])


@pytest.mark.parametrize(
    ("statement", "message"), [(code, row[1]) for row in rows("refused statements") for code in codes(row[0])]
)
def test_statement_is_refused_with_the_message(statement: str, message: str, shop: Shop) -> None:
    """It fails its call."""
    assert message in str(shop.run(statement))


def test_like_is_not_for_bytes(shop: Shop) -> None:
    """It misses what PostgreSQL finds, with SQLAlchemy's warning; the comparison of the page finds it."""
    with pytest.warns(sqlalchemy.exc.SADeprecationWarning, match="like_op"):
        assert shop.run('select(literal(b"abc", LargeBinary).like(b"ab%"))') is None
    assert shop.answer == [(False,)]
    assert shop.run('select(func.substr(literal(b"abc", LargeBinary), 1, 2) == b"ab")') is None
    assert shop.answer == [(True,)]


@pytest.mark.parametrize(("statement", "finding"), rows("silent statements"))
def test_statement_that_would_say_less_is_found(statement: str, finding: str, shop: Shop) -> None:
    """`cmdlog check` names what is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy warns of some of them
        (found,) = find_silent_parts(evaluated(codes(statement)[0], **shop.names))
    assert finding in found


def test_every_table_of_the_page_is_held() -> None:
    """A table that no test reads would promise what nobody tried."""
    marks = set(re.findall(r"<!-- (?!end of )(.*?) -->", PAGE))
    read = set(re.findall(r'rows\("([a-z ]+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert marks == read
    assert len(re.findall(r"^\|---", PAGE, re.MULTILINE)) == len(marks)
