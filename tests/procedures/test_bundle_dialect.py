"""Which dialect a bundle states, and that one of before is loaded by the rules of its time."""

from __future__ import annotations

from typing import Final

import pytest

from procedures.bundle import capture_bundle, load_bundle
from procedures.bundle_dialect import (
    COUNTED_ARGUMENTS,
    EXACT_NUMERIC,
    GROUPED_OPERANDS,
    HIDDEN_VALUES,
    JOINED_BYTES,
    JUDGED_KEYS,
    KNOWN,
    STORED_FORMS,
    TEXT_NUMERIC,
    TYPED_ANY,
    dialect_of,
    rules_of,
)
from procedures.declaration.stored_forms import forms_are_unchecked
from procedures.deployed_code import deployed_code
from procedures.errors import DefinitionError, StatementRefused
from procedures.statements.compiled import sql_of
from tests.replay.ledgers import Versions

SOURCE: Final = """
from sqlalchemy import Column, Date, DateTime, Integer, update
from procedures import Database

db = Database("days")
days = db.table("days", Column("id", Integer, primary_key=True), Column("day", Date), Column("at", DateTime), partition_by="id")
FILL = update(days).values(at=days.c.day)


@db.procedure(partition_by="id")
def fill(tx, id: int) -> None:
    tx.execute(FILL)
"""


def test_a_bundle_of_before_keeps_its_statements(versions: Versions) -> None:
    """It says nothing of forms, so it loads as it ran; the same source is another bundle now."""
    with rules_of(TYPED_ANY):
        assert forms_are_unchecked()
        before = capture_bundle(versions.load("days_v1", SOURCE))
    assert not forms_are_unchecked()
    now = capture_bundle(versions.load("days_v2", SOURCE))
    assert (before.dialect, now.dialect) == (EXACT_NUMERIC, KNOWN[-1])
    assert before.sql["days_v1.FILL"] == "UPDATE days SET at=days.day"
    loaded = load_bundle(before)
    assert not loaded.dialect.checks_forms


@pytest.mark.parametrize(
    ("dialect", "returns"),
    [
        (TEXT_NUMERIC, "None"),
        (EXACT_NUMERIC, "None"),
        (TYPED_ANY, "dict"),
        (STORED_FORMS, "None"),
        (JUDGED_KEYS, "None"),
        (GROUPED_OPERANDS, "None"),
        (HIDDEN_VALUES, "None"),
    ],
)
def test_what_is_declared_by_the_rules_of_a_dialect_states_it(dialect: int, returns: str, versions: Versions) -> None:
    """A database that a bundle gave is the same bundle again; one says TYPED_ANY where it has such results."""
    source = SOURCE.replace(") -> None:", f") -> {returns}:")
    with rules_of(dialect):
        assert dialect_of(versions.load(f"days_of_{dialect}", source)) == dialect
    assert sorted(KNOWN) == list(KNOWN)


def test_an_application_without_such_columns_kept_its_bundle(versions: Versions) -> None:
    """Up to the dialect that concerns all; a replay loads it by what its bundle states."""
    plain = SOURCE.replace('Column("day", Date), Column("at", DateTime), ', "").replace("at=days.c.day", "id=1")
    hashes = []
    for dialect in (TYPED_ANY, JOINED_BYTES, KNOWN[-1]):
        versions.loaded.clear()  # the same source again
        with rules_of(dialect):
            db = versions.load("plain_v1", plain)
        hashes.append(capture_bundle(db).hash)
        assert not db.dialect.checks_forms
    assert hashes[0] == hashes[1] != hashes[2]


MONEY: Final = """
from sqlalchemy import Column, Integer, Numeric, func, update
from procedures import Database

db = Database("money")
money = db.table("money", Column("id", Integer, primary_key=True), Column("due", Numeric(9, 3)), partition_by="id")
CUT = update(money).values(due=func.trunc(money.c.due, 2))


@db.procedure(partition_by="id")
def cut(tx, id: int) -> None:
    tx.execute(CUT)
"""


def test_a_bundle_of_before_ignores_arguments_of_rounding(versions: Versions) -> None:
    """Its calls replay as they ran, although the same source is refused now."""
    with rules_of(STORED_FORMS):
        before = capture_bundle(versions.load("money_v1", MONEY))
    assert before.dialect == EXACT_NUMERIC
    loaded = load_bundle(before)
    assert dialect_of(loaded) == EXACT_NUMERIC
    assert "numeric_round" in before.sql["money_v1.CUT"]
    now = versions.load("money_v2", MONEY)
    assert dialect_of(now) == KNOWN[-1]
    with pytest.raises(StatementRefused, match="only round"):
        sql_of(now.procedures["cut"].function.__globals__["CUT"], now.dialect)


FILES: Final = """
from sqlalchemy import CheckConstraint, Column, Integer, LargeBinary, update
from procedures import Database

db = Database("files")
data = Column("data", LargeBinary)
tail = Column("tail", LargeBinary, onupdate=data.op("*")(2))
condition = CheckConstraint(data.op("*")(2) == 0)
files = db.table("files", Column("id", Integer, primary_key=True), data, tail, condition, partition_by="id")
JOIN = update(files).values(data=files.c.data + b"x")


@db.procedure(partition_by="id")
def join(tx, id: int) -> None:
    tx.execute(JOIN)
"""


def test_a_bundle_of_before_takes_bytes_for_numbers(versions: Versions) -> None:
    """Its statements, its conditions and what its columns compute are those of its time, although some are refused now."""
    with rules_of(COUNTED_ARGUMENTS), deployed_code():
        before = capture_bundle(versions.load("files_v1", FILES))
    assert before.dialect == EXACT_NUMERIC
    assert before.sql["files_v1.JOIN"] == "UPDATE files SET data=(files.data + :data_1), tail=(files.data * :data_2)"
    loaded = load_bundle(before)
    assert dialect_of(loaded) == EXACT_NUMERIC
    assert "CHECK ((data * 2) = 0)" in loaded.schema_statements()[0]
    with pytest.raises(DefinitionError, match=r"column files\.tail: onupdate: .*are no numbers"):
        versions.load("files_v2", FILES)
    now = capture_bundle(versions.load("files_v3", FILES.replace('.op("*")(2)', ' + b"y"')))
    assert now.dialect == KNOWN[-1]
    assert now.sql["files_v3.JOIN"].startswith("UPDATE files SET data=(CAST(files.data || :data_1 AS BLOB)), tail=(CAST(")
    assert load_bundle(now).dialect.joins_bytes


@pytest.mark.parametrize(("hint", "dialect"), [("bytes", JOINED_BYTES), ("list[bytes]", JOINED_BYTES), ("str", EXACT_NUMERIC)])
def test_bytes_of_a_procedure_state_it_as_well(hint: str, dialect: int, versions: Versions) -> None:
    """An application that neither stores nor passes bytes keeps its hash."""
    plain = SOURCE.replace('Column("day", Date), Column("at", DateTime), ', "").replace("at=days.c.day", "id=1")
    for place, (old, new) in enumerate(((") -> None", f", base64: {hint}) -> None"), (") -> None", f") -> {hint}"))):
        name = f"plain_{dialect}_{len(hint)}_{place}"
        with rules_of(JOINED_BYTES):
            assert dialect_of(versions.load(name, plain.replace(old, new))) == dialect
