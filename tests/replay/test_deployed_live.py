"""The same history on a node that never stops: deltas, keys and recoveries on both sides of live deploys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures.bundle import capture_bundle
from replay.log.source import open_source
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from snapshot import lineage
from snapshot.catalog import list_snapshots
from tests.replay.deployed import PARTITIONS, application, copied, tables_of
from tests.replay.ledgers import SMALL, Versions

pytestmark = pytest.mark.slow
FILES = RealFiles()


@pytest.mark.parametrize("sites", [0, pytest.param(1, marks=pytest.mark.torture)], ids=["inline", "processes"])
def test_history_with_live_deploys_is_read_from_each_snapshot(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: int
) -> None:
    """A change of tables makes the next image a whole one; old keys have their answers; every snapshot leads to the end."""
    monkeypatch.setattr(lineage, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(lineage, "ROWS_SHARE", 100.0)
    settings = {**SMALL, "partitions": PARTITIONS, "sites": sites, "snapshots_kept": 16}
    directory, kinds = tmp_path / "node", list[set[str]]()
    with cmdlog.open(directory, application(versions, 1), **settings) as node:
        for number in range(4):
            node.call("put", id=number, tag=number)
        assert node.call("adjust", id=1, times=3, plus=5, idempotency_key="adjusted") == 8
        for step in (1, 2, 3, 4):
            if step > 1:
                node.node.deployer.deploy(capture_bundle(application(versions, step), f"years_{step}:db"), migrate=True)
            for number in range(3):
                node.call("put", id=10 * step + number, tag=step)
                kinds += [{taken["kind"] for taken in node.node.take_snapshot(None)}]
        for mood in ("moved", "still"):
            node.call("cheer", id=1, mood=mood)
        assert node.call("adjust", plus=5, factor=3, id=1, idempotency_key="adjusted") == 8
    assert kinds == [{"full"}, {"full"}, {"delta"}] * 4
    wanted, identity = tables_of(directory), open_source(FILES, str(directory)).instance.identity
    assert {row["feeling"] for row in wanted["items"] if row["id"] == 1} == {"still"}
    taken = [one for one in list_snapshots(FILES, str(directory), identity) if one.partition == 0 and one.manifest is not None]
    assert len(taken) >= 4
    for snapshot in taken:
        only = copied(directory, tmp_path / snapshot.name)
        for other in list_snapshots(FILES, str(only), identity):
            if other.partition == 0 and other.name not in {link.name for link in snapshot.chain}:
                shutil.rmtree(other.path)
        out = tmp_path / f"out-{snapshot.name}"
        rebuild(make_plan(FILES, str(only), PAST), FILES, str(out), workers=0)
        assert tables_of(out) == wanted, snapshot.name
