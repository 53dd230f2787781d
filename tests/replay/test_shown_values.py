"""Logs from before errors left values out: a replay of that code has the texts that its calls had, to the byte."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures.bundle import Bundle, capture_bundle, load_bundle
from procedures.bundle_dialect import GROUPED_OPERANDS, HIDDEN_VALUES, rules_of
from replay.drill.drill import drill
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.replay.ledgers import SMALL, Versions, rows_of

SOURCE: Final = """
from decimal import Decimal
from sqlalchemy import Column, Integer, Numeric, String, insert
from procedures import Database

db = Database("notes")
notes = db.table(
    "notes", Column("id", Integer, primary_key=True), Column("said", String), Column("due", Numeric(5, 2)), partition_by="id"
)


@db.procedure(partition_by="note")
def put(tx, note: int, due: Decimal) -> str:
    said = "nothing"
    try:
        with tx.savepoint():
            tx.execute(insert(notes).values(id=note, said="first", due=due))
            tx.execute(insert(notes).values(id=note, said="second", due=due))
    except Exception as error:
        said = str(error)
    tx.execute(insert(notes).values(id=note, said=said, due=None))
    return said


@db.procedure(partition_by="note")
def fail(tx, note: int, due: Decimal) -> None:
    tx.execute(insert(notes).values(id=note, said="", due=due))
"""
FILES: Final = RealFiles()
GOLDEN: Final = Path(__file__).parents[1] / "golden" / "values_shown.tar.xz"
"""A node directory without states, made by code of before: calls that fail on a constraint, a type, a row and a pinned key."""


def test_a_log_of_that_time_is_proven(tmp_path: Path) -> None:
    """Its digests hold outcomes with values; no other text leads to them."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    report = drill(FILES, str(tmp_path), seed=1)
    assert (report.verdict, sum(proof.calls for proof in report.newest.values())) == ("proven", 17)


@pytest.mark.slow
def test_texts_with_values_are_so_in_a_replay(versions: Versions, tmp_path: Path) -> None:
    """Rows and outcomes hold them, and digests are compared; from the next start on the same code has texts without."""
    with rules_of(GROUPED_OPERANDS):
        before = versions.load("notes_v1", SOURCE)
    bundle = capture_bundle(before)
    assert bundle.dialect == GROUPED_OPERANDS
    assert load_bundle(Bundle.from_bytes(bundle.to_bytes())).shows_values
    with cmdlog.open(tmp_path / "node", before, partitions=2, **SMALL) as opened:
        opened.call("put", note=1, due="1.25")
        opened.call("put", note=2, due="12345.5")
        with pytest.raises(cmdlog.ProcedureFailed, match=r"12345\.5 is out of range"):
            opened.call("fail", note=3, due="12345.5")
    now = versions.load("notes_v1", SOURCE + "\n# of now\n")
    assert capture_bundle(now).dialect == HIDDEN_VALUES
    with cmdlog.open(tmp_path / "node", now) as opened:
        opened.call("put", note=4, due="1.25")
        opened.call("put", note=5, due="12345.5")
        with pytest.raises(cmdlog.ProcedureFailed, match=r"the value is out of range"):
            opened.call("fail", note=3, due="12345.5")
    rebuild(make_plan(FILES, str(tmp_path / "node"), PAST), FILES, str(tmp_path / "out"))
    assert rows_of(tmp_path / "out", "notes") == rows_of(tmp_path / "node", "notes")
    assert sorted(row[:2] for row in rows_of(tmp_path / "out", "notes")) == [
        (1, "UNIQUE constraint failed: notes.id; values: id=1"),
        (2, "12345.5 is out of range of Numeric(5, 2)"),
        (4, "UNIQUE constraint failed: notes.id"),
        (5, "the value is out of range of Numeric(5, 2)"),
    ]
    assert drill(FILES, str(tmp_path / "node"), seed=1).verdict == "proven"
