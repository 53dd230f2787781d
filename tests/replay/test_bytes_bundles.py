"""Logs from before bytes were joined: what SQLite made of them as numbers is what every replay of that code has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, load_bundle
from procedures.bundle_dialect import COUNTED_ARGUMENTS, EXACT_NUMERIC, KNOWN, rules_of
from replay.drill.drill import drill
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.replay.ledgers import SMALL, Versions, rows_of

SOURCE: Final = """
from sqlalchemy import Column, Integer, LargeBinary, literal, insert, select
from procedures import Database

db = Database("notes")
notes = db.table("notes", Column("id", Integer, primary_key=True), Column("data", LargeBinary), partition_by="id")


@db.procedure(partition_by="note")
def put(tx, note: int, head: bytes, tail: bytes) -> bytes:
    joined = tx.execute(select(literal(head) + tail)).scalar_one()
    tx.execute(insert(notes).values(id=note, data=joined))
    return joined
"""
FILES: Final = RealFiles()


def load_before(versions: Versions) -> Database:
    """As cmdlog ran it before."""
    with rules_of(COUNTED_ARGUMENTS):
        return versions.load("notes_v1", SOURCE)


def test_a_bundle_states_whether_it_joins_bytes(versions: Versions) -> None:
    """Both ways it loads as it was captured."""
    before, now = capture_bundle(load_before(versions)), capture_bundle(versions.load("notes_v2", SOURCE))
    assert (before.dialect, now.dialect) == (EXACT_NUMERIC, KNOWN[-1])
    for bundle, joins in ((before, False), (now, True)):
        assert load_bundle(Bundle.from_bytes(bundle.to_bytes())).dialect.joins_bytes is joins


@pytest.mark.slow
def test_bytes_that_were_numbers_are_so_in_a_replay(versions: Versions, tmp_path: Path) -> None:
    """Digests of rows and results are compared; from the next start on the same code joins them."""
    with cmdlog.open(tmp_path / "node", load_before(versions), partitions=2, **SMALL) as opened:
        assert opened.call("put", note=0, head=b"ab", tail=b"c") == b""
        assert opened.call("put", note=1, head=b"1", tail=b"2") == b"\0\0\0"
    with cmdlog.open(tmp_path / "node", versions.load("notes_v1", SOURCE + "\n# of now\n")) as opened:
        assert opened.call("put", note=2, head=b"a\0", tail=b"\xff") == b"a\0\xff"
    rebuild(make_plan(FILES, str(tmp_path / "node"), PAST), FILES, str(tmp_path / "out"))
    assert rows_of(tmp_path / "out", "notes") == rows_of(tmp_path / "node", "notes")
    assert sorted(rows_of(tmp_path / "out", "notes")) == [(0, b""), (1, b"\0\0\0"), (2, b"a\0\xff")]
    assert drill(FILES, str(tmp_path / "node"), seed=1).verdict == "proven"
