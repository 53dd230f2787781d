"""Logs from before results of type `Any` could hold times and models: calls that failed by it fail in every replay."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, load_bundle
from procedures.bundle_dialect import EXACT_NUMERIC, KNOWN, rules_of
from procedures.wire.result_json import encode_any, encode_first_types
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.replay.ledgers import SMALL, Versions, rows_of

SOURCE = """
from datetime import timedelta
from typing import Any
from sqlalchemy import Column, Integer, insert
from procedures import Database

db = Database("visits")
visits = db.table("visits", Column("id", Integer, primary_key=True), partition_by="id")


@db.procedure(partition_by="visit")
def put(tx, visit: int) -> Any:
    tx.execute(insert(visits).values(id=visit))
    return {"length": timedelta(hours=visit)} if visit else {}


@db.procedure(partition_by="visit")
def put_typed(tx, visit: int) -> int:
    tx.execute(insert(visits).values(id=visit))
    return visit
"""
FILES = RealFiles()


def load_before(versions: Versions) -> Database:
    """As cmdlog ran it before."""
    with rules_of(EXACT_NUMERIC):
        return versions.load("visits_v1", SOURCE)


def test_bundles_state_which_results_their_code_gives(versions: Versions) -> None:
    """Both ways a bundle loads as it was captured; one without such results is the same as ever."""
    now, before = capture_bundle(versions.load("visits_v2", SOURCE)), capture_bundle(load_before(versions))
    typed = versions.load("visits_v3", SOURCE.replace("-> Any", "-> dict[str, str]"))
    assert (now.dialect, before.dialect) == (KNOWN[-1], EXACT_NUMERIC)
    for bundle, encode in ((now, encode_any), (before, encode_first_types)):
        assert load_bundle(Bundle.from_bytes(bundle.to_bytes())).procedures["put"].encode is encode
    assert orjson.loads(capture_bundle(typed).to_bytes())["dialect"] == KNOWN[-1]


@pytest.mark.slow
def test_calls_that_failed_by_their_result_fail_in_a_replay(versions: Versions, tmp_path: Path) -> None:
    """The log of before gives the state of before; from the next start on the same code gives results."""
    with cmdlog.open(tmp_path / "node", load_before(versions), partitions=2, **SMALL) as opened:
        assert opened.call("put", visit=0) == {}
        with pytest.raises(cmdlog.ProcedureFailed, match="timedelta has no JSON form; return numbers, strings, lists"):
            opened.call("put", visit=1)
        opened.call("put_typed", visit=2)
    with cmdlog.open(tmp_path / "node", versions.load("visits_v1", SOURCE + "\n# of now\n")) as opened:
        assert opened.call("put", visit=3) == {"length": "PT3H"}
    rebuild(make_plan(FILES, str(tmp_path / "node"), PAST), FILES, str(tmp_path / "out"))
    assert rows_of(tmp_path / "out", "visits") == rows_of(tmp_path / "node", "visits")
    assert sorted(row[0] for row in rows_of(tmp_path / "out", "visits")) == [0, 2, 3]
