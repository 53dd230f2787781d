"""Quarantine in a history whose tables changed: what a call changed before the change is watched after it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute
from tests.replay.deployed import FIRST, FOURTH, PARTITIONS, SECOND, tables_of
from tests.replay.ledgers import SMALL, Versions

pytestmark = pytest.mark.slow
TRAP = """
import os


@db.procedure(partition_by="id")
def trap(tx, id: int) -> int:
    tx.execute(ADJUST, id_=id, by=1, more=100)
    if os.environ.get("YEARS_TRAP"):
        raise MemoryError("as a test wants it")
    return id
"""


def test_rows_of_a_set_aside_call_are_watched_through_a_migration(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is left out; later calls on its row are listed, also those after the table was written again."""
    node = tmp_path / "node"
    with cmdlog.open(node, versions.load("trapped_1", FIRST + TRAP), partitions=PARTITIONS, **SMALL) as opened:
        for number in range(4):
            opened.call("put", id=number, tag=number)
        opened.call("trap", id=1)
    with cmdlog.open(node, versions.load("trapped_2", SECOND + TRAP), **SMALL) as opened:
        grown = opened.invoke("cheer", {"id": 1, "mood": "well"}).txn_id
        opened.call("cheer", id=2, mood="well")
    with cmdlog.open(node, versions.load("trapped_3", FOURTH + TRAP), migrate=True, **SMALL) as opened:
        migrated = opened.invoke("adjust", {"id": 1, "factor": 2, "plus": 0}).txn_id
        opened.call("adjust", id=2, factor=2, plus=0)
    wanted = tables_of(node)
    out = tmp_path / "out"
    (out / "state").mkdir(parents=True)
    monkeypatch.setenv("YEARS_TRAP", "on")
    planned = make_plan(RealFiles(), str(node), PAST)
    (aside,) = execute(planned, Target(RealFiles(), str(out)), quarantine=True, live=lambda _catalog: None).aside
    assert [(call.procedure, call.params) for call in aside.calls] == [("trap", {"id": 1})]
    assert [touch.txn_id for touch in aside.touches[0]] == [grown, migrated]
    wanted["items"][1]["tag"] -= 2 * 100
    assert tables_of(out) == wanted
