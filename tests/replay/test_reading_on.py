"""A log that is read while its running node recycles it: what is let go is read in the archive, or it is said what happened."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.dump import dump_log, verify_log
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import ReadBlock, Recycled, read_segment
from replay.errors import LogMovedOn
from replay.history.history import history
from replay.log.source import read_log_on
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
        files = sorted((data / "log").glob("seg-*.wal"))
        calls = history(RealFiles(), [str(data)]).calls
        records = dump_log(RealFiles(), str(data), read=read_log_on)
        begin = next(records)
        wait_for(lambda: (put(opened, range(30)), not any(file.exists() for file in files))[1])
        if archived:
            assert [call["params"]["id"] for call in calls] == list(range(CALLS))
            batches = [row for row in (begin, *records) if row["kind"] == "batch"]
            assert [call["params"]["id"] for row in batches for call in row["calls"]][:CALLS] == list(range(CALLS))
        else:
            with pytest.raises(LogMovedOn, match=r"was re.*was read") as moved:
                list(calls)
            with pytest.raises(Recycled, match=r"was re.*was read"):
                list(records)
            assert "nothing is damaged" in str(moved.value.hint)


def test_verify_beside_a_log_that_turns(versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that the node lets go before it is read is released, and nothing of the log is called damaged."""
    data = tmp_path / "data"
    with cmdlog.open(data, versions.load("notes", NOTE), **RING) as opened:
        wait_for(partial(put, opened, range(30)))

        def turn_then_read(files: Files, segment: SegmentFile, *, upto: int) -> Iterator[ReadBlock]:
            wait_for(lambda: (put(opened, range(30)), not Path(segment.path).exists())[1])
            return read_segment(files, segment, upto=upto)

        monkeypatch.setattr("cmdlog.wal.dump.read_segment", turn_then_read)
        report = verify_log(RealFiles(), str(data))
    assert (report.exit_code, report.error) == (0, None)
    assert [row["released"] for row in report.segments] == [True] * len(report.segments)
