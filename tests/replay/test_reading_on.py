"""A log that is read while its running node recycles it: what is let go is read in the archive, or it is said what happened."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.errors import LogMovedOn
from replay.history.history import history
from tests.replay.ledgers import Versions
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
CALLS = 900
RING: dict[str, Any] = {"segments": 6, "segment_bytes": 1 << 20, "partitions": 1}
NOTE = """
from sqlalchemy import Column, Integer, Text
from cmdlog import Database

db = Database("notes")
notes = db.table("notes", Column("id", Integer, primary_key=True), Column("text", Text), partition_by="id")
NEW = notes.insert().prefix_with("OR REPLACE")


@db.procedure(partition_by="id")
def put(tx, id: int, text: str) -> None:
    tx.execute(NEW, id=id, text=text)
"""


def put(opened: cmdlog.Embedded, ids: range) -> bool:
    """Calls at once; whether the log had room for them."""
    try:
        for answer in [opened.submit("put", id=number, text="x" * 3000) for number in ids]:
            answer.result()
    except cmdlog.Unavailable:
        return False
    return True


@pytest.mark.parametrize("archived", [True, False], ids=["archive", "no archive"])
def test_history_beside_a_log_that_turns(versions: Versions, tmp_path: Path, *, archived: bool) -> None:
    """All calls of the moment when it began are listed, from the archive; without one it is not called damage."""
    data, kept = tmp_path / "data", {"retention_window_s": 3600.0 * archived}
    with cmdlog.open(data, versions.load("notes", NOTE), **RING, **kept) as opened:
        for first in range(0, CALLS, 30):
            wait_for(partial(put, opened, range(first, first + 30)))
        files = sorted((data / "log").glob("seg-*.log"))
        calls = history(RealFiles(), [str(data)]).calls
        wait_for(lambda: (put(opened, range(30)), not any(file.exists() for file in files))[1])
        if archived:
            assert [call["params"]["id"] for call in calls] == list(range(CALLS))
        else:
            with pytest.raises(LogMovedOn, match=r"was re.*was read") as moved:
                list(calls)
            assert "nothing is damaged" in str(moved.value.hint)
