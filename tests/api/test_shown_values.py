"""What leaves a server of a call that failed on values: they are neither in the answer, nor in log, status, page or metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.api.running import Running

MARKS: Final = ("zqmark", "481516234", "4815.16234")  # long enough to be in no identifier or time by chance
PROGRAM: Final = """
from decimal import Decimal
from sqlalchemy import CheckConstraint, Column, Enum, Integer, Numeric, String, insert, select, text, update
from procedures import Database

db = Database("marked")
people = db.table(
    "people", Column("id", Integer, primary_key=True), Column("mail", String, nullable=False, unique=True),
    Column("word", String(9)), Column("due", Numeric(6, 2)), Column("colour", Enum("red", "blue")), CheckConstraint("id > 0"),
    partition_by="id",
)
STATEMENTS = {
    "unique": (insert(people), {"mail": "zqmark"}),
    "null": (insert(people), {"mail": None, "word": "zqmark"}),
    "length": (insert(people), {"mail": "x", "word": "zqmark-zqmark"}),
    "due": (insert(people), {"mail": "y", "due": Decimal("4815.16234")}),
    "range": (insert(people), {"mail": "z", "due": Decimal("481516234")}),
    "colour": (text("INSERT INTO people (id, mail, colour) VALUES (:id, 'w', 'zqmark') RETURNING id"), {}),
    "path": (text("SELECT json_extract('{}', :path), :id"), {"path": "zqmark"}),
    "misplaced": (insert(people), {"id": 481516234, "mail": "v"}),
    "elsewhere": (select(people.c.mail).where(people.c.id == 481516234), {}),
}


@db.procedure(partition_by="id")
def keep(tx, id: int) -> None:
    tx.execute(insert(people), id=id, mail=f"zqmark-kept{id}")


@db.procedure(partition_by="id")
def fail(tx, id: int, how: str) -> None:
    statement, values = STATEMENTS[how]
    if how == "unique":
        tx.execute(insert(people), id=id, mail="zqmark")
        id += 16384
    if how != "elsewhere":
        values = {"id": id} | values
    tx.execute(statement, values).all()
    if how == "colour":
        tx.execute(select(people)).all()
"""
FAILING: Final = ("unique", "null", "length", "due", "range", "colour", "path", "misplaced", "elsewhere")


@pytest.mark.slow
def test_no_value_leaves_the_server(tmp_path: Path) -> None:
    """Each kind of failure on two partitions, so that every key lives elsewhere on one of them."""
    (tmp_path / "marked.py").write_text(PROGRAM)
    running = Running(tmp_path, app="marked:db")
    try:
        texts = []
        for how in FAILING:
            answers = [running.post("/v1/procedures/fail", {"id": id_, "how": how}) for id_ in (1, 2, 3, 4)]
            assert 500 in {answer.status_code for answer in answers}, how
            texts += [answer.text for answer in answers]
        running.call("keep", id=9)
        refused = running.post("/v1/query", {"sql": "SELECT json_extract('{}', mail) FROM people"})
        assert "bad JSON path" in refused.text
        texts.append(refused.text)
        for path in ("/v1/status", "/metrics", "/", "/v1/procedures"):
            texts.append(running.get(path).text)
        with running.client.stream("GET", "/v1/events", headers={"Authorization": "Bearer token-of-admin-and-so-on"}) as events:
            texts.append(next(events.iter_text()))
        assert "RowRefused" in texts[-5]
        assert '"event":"procedure_failed"' in running.logged().replace(" ", "")
    finally:
        running.stop()
    assert [text for text in [*texts, running.logged()] if any(mark in text for mark in MARKS)] == []
