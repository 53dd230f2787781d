"""Rebuilding from several nodes' directories: the plan's authority, carried out partition by partition. No session needed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from replay.errors import Incomplete
from replay.spark.attempt import carry_out
from replay.spark.backfill import Stitched, _logs
from replay.spark.rebuild import _orders
from replay.spark.rebuildtask import rebuild_partition
from replay.spark.versions import versions
from tests.replay import damage
from tests.replay.historycheck import FILES
from tests.replay.historymembers import History

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Three nodes whose logs have several small segments, written in different orders; everything is committed."""
    history = History(tmp_path_factory.mktemp("template") / "h", seed=43, segment_bytes=32 << 10)
    rng = random.Random(43)
    for step in range(60):
        partition = rng.randrange(2)
        history.deposits(partition, rng.randint(1, 6))
        history.spread(partition, rng.choice([[2, 3], [3, 2], [2], [3]]))
        history.nodes[rng.randint(1, 3)].flush()
        if step == 30:
            history.change_code(3)
    for partition in (1, 0):
        assert history.spread(partition)
    history.finish()
    return history


@pytest.fixture
def nodes(template: History, tmp_path: Path) -> list[str]:
    """Copies of the three directories, to be damaged."""
    copies = [str(tmp_path / f"node-{number}") for number in template.nodes]
    for directory, copy in zip(template.directories, copies, strict=True):
        shutil.copytree(directory, copy)
    return copies


def balances(nodes: list[str], work: Path, moments: list[int | None]) -> list[dict[int, int]]:
    """For each moment: account -> balance, as the tasks of one rebuild write them."""
    texts = ["" if moment is None else str(moment) for moment in moments]
    request = {"paths": nodes, "until": texts, "tables": ["accounts"], "accept_data_loss": False}
    for name in ("attempts", "rows", "progress"):
        (work / name).mkdir(parents=True)
    found: list[dict[int, int]] = [{} for _ in moments]
    for order in _orders(FILES, request, None):
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(work), "versions": versions()}
        row: dict[str, Any] = orjson.loads(carry_out(told, rebuild_partition))
        assert "error" not in row, row
        for file in row["files"]:
            rows = parquet.read_table(work / file["path"]).to_pylist()
            found[file["point"]] |= {r["id"]: r["balance"] for r in rows}
    return found


def test_moments_over_several_nodes_are_those_of_the_history(template: History, nodes: list[str], tmp_path: Path) -> None:
    """Two moments in the past and the end, in one run, whichever node holds what."""
    txn_ids = sorted(txn_id for _, _, txn_id in template.acknowledged)
    moments: list[int | None] = [txn_ids[len(txn_ids) // 3], txn_ids[2 * len(txn_ids) // 3], None]
    for moment, found in zip(moments, balances(nodes, tmp_path / "work", moments), strict=True):
        assert found == (template.balances_at(moment) if moment is not None else template.balances_at())


def test_damage_in_one_copy_is_read_around(template: History, nodes: list[str], tmp_path: Path) -> None:
    """A segment that is lost in every chosen log comes from the others, in legs; a what-if asks for a recovery first."""
    for directory in nodes[:2]:
        damage.delete(damage.segments(directory)[1])
    found = balances(nodes, tmp_path / "work", [None])
    assert found == [template.balances_at()]
    damage.delete(damage.segments(nodes[2])[2])
    with pytest.raises(Stitched, match="no single undamaged log"):
        _logs(FILES, nodes, None)
    with pytest.raises(Incomplete):
        balances(nodes[:1], tmp_path / "alone", [None])
