"""H5 under jobs on Spark: code that is not what its hash names, and code that changed over an unfinished output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.loaded_modules import load_bundle
from procedures.errors import BundleForged
from replay.errors import Interrupted
from replay.spark.base.options import parse_options
from replay.spark.base.version_check import versions as own_versions
from replay.spark.datasource.state_table import find_table
from replay.spark.jobs.backfill import _orders as whatif_orders
from replay.spark.jobs.backfill import backfill
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.rebuild import _orders, rebuild
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.staging import OtherJob, Staging
from replay.spark.jobs.task_attempt import carry_out
from tests.replay.ledgers import Versions
from tests.replay.rig import Rig, make_bundle
from tests.spark.spark_nodes import SHOP, make_node

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("executor_here")]
NO_SPARK = cast(Any, None)  # a job that is refused before its tasks needs none


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped node."""
    return str(make_node(versions, tmp_path_factory.mktemp("shop") / "node"))


def forged_node(folder: Path, text: str) -> str:
    """A node whose second catalog record names the hash of one bundle and holds that text; then calls of that version."""
    rig = Rig(folder)
    rig.deposits(4)
    rig.version, rig.factor, rig.cluster_index = rig.version + 1, 2, rig.cluster_index + 1
    value = {"version": rig.version, "hash": make_bundle(2).hash, "bundle": text}
    rig.log(encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=rig.term, index=rig.cluster_index))
    rig.catalogs.add_live(rig.version, load_bundle(make_bundle(2)))
    rig.deposits(4)
    rig.close()
    return rig.directory


@pytest.mark.parametrize("forged", ["text", "other"])
def test_code_that_is_not_what_its_hash_names_is_refused_by_its_version(tmp_path: Path, forged: str) -> None:
    """A bundle in the log whose text was changed, or that is another one: no job begins, nothing is published."""
    text = make_bundle(2).to_bytes().decode().replace("FACTOR = 2", "FACTOR = 3")
    directory = forged_node(tmp_path, text if forged == "text" else make_bundle(3).to_bytes().decode())
    with pytest.raises(BundleForged, match="catalog version 2"):
        rebuild(NO_SPARK, directory, to=str(tmp_path / "out"))
    with pytest.raises(BundleForged, match="catalog version 2"):
        whatif(directory)
    with pytest.raises(BundleForged, match="catalog version 2"):
        find_table(parse_options({"path": directory, "table": "state.accounts"}))
    assert [name for name in os.listdir(tmp_path) if name.startswith("out")] == []


def whatif(directory: str) -> list[dict[str, Any]]:
    """The orders of other code over all of the log."""
    bundle = make_bundle(7)
    request = {"paths": [directory], "tables": None, "missing": "refuse"}
    return list(whatif_orders(RealFiles(), request, load_bundle(bundle), bundle, fork=0, end=None))


def carried_out(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a task answers to the order; nothing else of it is left when it is an error."""
    for name in ("attempts", "rows", "progress"):
        (folder / name).mkdir(exist_ok=True)
    answer = carried_out_in(str(folder), order)
    assert ("error" in answer) == (not os.listdir(folder / "rows") and not os.listdir(folder / "attempts"))
    return answer


def carried_out_in(folder: str, order: dict[str, Any]) -> dict[str, Any]:
    """The same in the staging folder of a job."""
    told = {**orjson.loads(orjson.dumps(order, option=orjson.OPT_NON_STR_KEYS)), "staging": folder, "versions": own_versions()}
    row: dict[str, Any] = orjson.loads(carry_out(told, backfill_partition if "stream" in order else rebuild_partition))
    return row


def test_order_with_other_code_than_it_names_is_not_carried_out(tmp_path: Path) -> None:
    """A task runs no bundle but the one that its job was asked for; changed or exchanged, the answer is an error with hashes."""
    rig = Rig(tmp_path)
    rig.deposits(6)
    rig.close()
    (order, _) = whatif(rig.directory)
    other, text = make_bundle(8), str(order["bundle"])
    exchanged = carried_out({**order, "bundle": other.to_bytes().decode()}, tmp_path)
    assert exchanged["error"]["kind"] == "BundleForged"
    assert f"code {order['code'][:12]}, and holds {other.hash[:12]}" in exchanged["error"]["message"]
    changed = carried_out({**order, "bundle": text.replace("FACTOR = 7", "FACTOR = 8")}, tmp_path)
    assert (changed["error"]["kind"], changed["error"]["exit_code"]) == ("BundleForged", 13)
    assert f"calls itself {order['code'][:12]}" in changed["error"]["message"]
    request = {"paths": [rig.directory], "until": [""], "tables": None, "accept_data_loss": False}
    (rebuilding, _) = _orders(RealFiles(), request, None)
    stated = {"1": {"bundle": make_bundle(1).to_bytes().decode().replace("FACTOR = 1", "FACTOR = 2")}}
    answer = carried_out({**rebuilding, "catalogs": stated}, tmp_path)
    assert answer["error"]["message"].startswith("catalog version 1: the bundle calls itself")
    assert "error" not in carried_out(order, tmp_path)


def broken_off(*_: Any) -> Any:
    """Instead of the tasks."""
    raise Interrupted("the test's own")


@pytest.mark.parametrize("moment", ["at the tasks", "at the end"])
def test_changed_code_does_not_go_on_with_an_unfinished_output(
    node: str, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The folder is named and stays as it is, also when its manifest is written already and only files have to be moved."""
    first, second = versions.load("shop_first", SHOP), versions.load("shop_second", SHOP, factor="amount * 2")
    for job, run in (
        ("backfill", lambda app: backfill(NO_SPARK, node, app, to=str(tmp_path / "backfill"))),
        ("rebuild", lambda app: rebuild(NO_SPARK, node, app, to=str(tmp_path / "rebuild"))),
    ):
        with monkeypatch.context() as patch:
            if moment == "at the tasks":
                patch.setattr("replay.spark.jobs.job.run_orders", broken_off)
            else:
                patch.setattr("replay.spark.jobs.job.run_orders", here)
                patch.setattr("replay.spark.jobs.staging.parent", broken_off)  # asked for behind the manifest
            with pytest.raises(Interrupted):
                run(first)
        folder = tmp_path / f"{job}.unfinished"
        assert (folder / "manifest.json").exists() == (moment == "at the end")
        before = sorted(folder.rglob("*"))
        other = "code" if job == "backfill" else "types"
        with pytest.raises(OtherJob, match=rf"{folder} contains an unfinished {job}, but you asked for one with other {other}"):
            run(second)
        assert (sorted(folder.rglob("*")), (tmp_path / job).exists()) == (before, False)
        with monkeypatch.context() as patch:
            patch.setattr("replay.spark.jobs.job.run_orders", here)
            run(first)
        assert (tmp_path / job / "_SUCCESS").exists()


def here(_spark: object, folder: Staging, orders: list[dict[str, Any]], *_: object) -> list[dict[str, Any]]:
    """The tasks, without Spark."""
    found = [carried_out_in(folder.folder, order) for order in orders]
    assert not any("error" in row for row in found)
    return found
