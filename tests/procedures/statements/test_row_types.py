"""What a type checker knows of a procedure that reads and writes rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.type_checkers import EACH_CHECKER, marked_lines, wrong_lines

IMPORTS = """
from typing import Any, assert_type
from cmdlog import EACH, Database, Transaction
from sqlalchemy import ClauseElement, Column, Integer, String, delete, func, insert, select, text, update
from sqlalchemy.dialects.sqlite import insert as upsert
"""

TABLES = """
db = Database("library")
NUMBER, TITLE = Column("number", Integer, primary_key=True), Column("title", String(80), nullable=False)
books = db.table("books", NUMBER, TITLE, Column("count", Integer), partition_by="number")
"""

GOOD = (
    IMPORTS
    + TABLES
    + """
@db.procedure(partition_by="number")
def walked(tx: Transaction, number: int) -> list[int]:
    known = select(books).where(books.c.number == number)
    titles = [f"{row.title}{row.count + row.index}" for row in tx.execute(known)]
    pairs = {number: title.upper() for number, title in tx.execute(select(NUMBER, TITLE))}
    either = select(books.c.number).union(select(func.max(books.c.number)))
    return [row.number for row in tx.execute(either)] + [len(titles), *pairs]

@db.procedure(partition_by="number")
def single(tx: Transaction, number: int) -> tuple[int, str]:
    least, title = tx.execute(select(NUMBER, TITLE).where(NUMBER == number)).one()
    assert_type(title, str)
    assert_type(tx.scalars(select(books)).all(), list[Any])
    assert_type([each for each in tx.scalars(select(TITLE))], list[str])
    assert_type(tx.execute(select(TITLE)).scalars().one(), str)
    found = tx.execute(select(books)).one_or_none()
    count: int = least if found is None else found.count
    count += tx.execute(select(books)).first().count + tx.execute(select(books))[-1].number
    count += tx.scalar(select(func.count()).select_from(books)) + tx.execute(select(NUMBER)).scalar_one()
    names: str = tx.execute(select(books)).mappings().one()["title"]
    names += tx.execute(select(books)).mappings().one()[books.c.title]
    return tx.execute(select(NUMBER, TITLE).where(NUMBER == count, TITLE == names)).one()

@db.procedure(partition_by=None, read_only=True)
def listed(tx: Transaction) -> list[tuple[int, str]]:
    return tx.execute(select(NUMBER, TITLE)).all()

@db.procedure(partition_by="number")
def written(tx: Transaction, number: int, title: str | None = None) -> int:
    added = tx.execute(insert(books).values(number=number).returning(TITLE, NUMBER))
    for title, number in added:
        print(title.upper(), number + 1)
    tx.execute(insert(books), [{"number": 1}, {"number": 2}])
    key: int = tx.execute(insert(books), number=number, title=title).inserted_primary_key.number
    count = tx.execute(upsert(books).values(number=1).on_conflict_do_nothing()).rowcount
    return key + count + tx.execute(update(books).values(count=books.c.count + 1)).rowcount + tx.execute(delete(books)).rowcount

@db.procedure(partition_by=EACH)
def any_statement(tx: Transaction) -> list[Any]:
    def read(statement: ClauseElement) -> list[Any]:
        return [row[0] for row in tx.execute(statement)]
    return read(text("SELECT 1")) + [row[0] for row in tx.execute(text("VALUES (1)"))]
"""
)

BAD = (
    """
from cmdlog import Database, Transaction
from sqlalchemy import Column, Integer, String, select, update
"""
    + TABLES
    + """
def wrong(tx: Transaction) -> int:
    _number, _later, _more = tx.execute(select(NUMBER, TITLE)).one()  # bad
    for title, number in tx.execute(select(NUMBER, TITLE)):
        title.upper()  # bad
        print(number)
    name: str = tx.scalars(select(NUMBER)).all()[0]  # bad
    print(name)
    tx.execute("SELECT 1")  # bad
    tx.execute(update(books)).rowcout  # bad
    return tx.execute(select(TITLE)).one()[0]  # bad
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_a_type_checker_knows_what_rows_hold(tmp_path: Path, checker: str) -> None:
    """mypy and pyright, both strict, let rows be read in all ways that work, and see a wrong number or type of columns."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    bad.write_text(BAD)
    assert wrong_lines(checker, [good, bad]) == marked_lines(bad)
