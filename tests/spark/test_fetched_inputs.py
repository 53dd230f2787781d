"""Jobs over node directories that are no local folders: `file:` URIs, object stores. No session needed but where a server is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pyarrow import fs, parquet

from procedures.code.bundle import capture_bundle
from replay.fork.fork import START
from replay.spark.base import fetching, filesystems
from replay.spark.base.options import BadOption
from replay.spark.base.version_check import versions as versions_here
from replay.spark.jobs import fetched_inputs
from replay.spark.jobs.backfill import _orders as whatif_orders
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.fetched_inputs import input_names, output_path
from replay.spark.jobs.rebuild import _orders, rebuild
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.task_attempt import carry_out
from tests.replay.damage import flip, segments, used_bytes
from tests.replay.ledgers import SMALL, Versions
from tests.spark.spark_nodes import SHOP, make_node, read_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node."""
    folder = tmp_path_factory.mktemp("shop") / "node"
    return make_node(versions, folder, **{**SMALL, "segments": 4})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    """A file system without local paths, behind `store://`, as an executor's Python in this process sees it."""
    memory = fs._MockFileSystem()

    def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
        return memory, uri.removeprefix("store://")

    monkeypatch.setattr(filesystems, "filesystem_of", filesystem_of)
    monkeypatch.setattr(fetching, "filesystem_of", filesystem_of)
    return memory


def upload(store: fs.FileSystem, folder: Path, inner: str) -> None:
    """Copies a folder there; like an object store, it has no empty folders."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = f"{inner}/{path.relative_to(folder)}"
            store.create_dir(os.path.dirname(target), recursive=True)
            with store.open_output_stream(target) as stream:
                stream.write(path.read_bytes())


def outcome(names: list[str], orders_of: Callable[[fetched_inputs.Inputs], Any], work: Any, folder: Path) -> list[dict[str, Any]]:
    """What the tasks answer, and the rows in their files."""
    for name in ("attempts", "rows", "progress"):
        (folder / name).mkdir(parents=True)
    with fetched_inputs.inputs(names) as given:
        orders = given.stamp(orders_of(given))
    assert not any(os.path.exists(directory) for directory in given.fetched)
    answers = []
    for order in orders:
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(folder), "versions": versions_here()}
        row = orjson.loads(carry_out(told, work))
        for file in row.get("files", ()):
            file["read"] = parquet.read_table(folder / file.pop("path")).to_pylist()
        answers.append({key: value for key, value in row.items() if key != "attempt"})
    return answers


def request(**more: Any) -> dict[str, Any]:
    """What is asked for, but for the place."""
    return {"until": [""], "tables": None, "accept_data_loss": False, "missing": "refuse", **more}


def test_rebuild_and_what_if_of_a_copy_in_a_store_are_those_of_the_directory(
    versions: Versions, node: Path, store: fs.FileSystem, tmp_path: Path
) -> None:
    """Files, digests and first calls; the copies are gone behind the plan and behind each task, and the store is only read."""
    db = versions.load("shop_store", SHOP, factor="amount * 2")
    bundle = capture_bundle(db)
    upload(store, node, "bucket/a b/node")

    def rebuilds(given: fetched_inputs.Inputs) -> Any:
        return _orders(given.files, request(paths=given.directories), None)

    def what_ifs(given: fetched_inputs.Inputs) -> Any:
        return whatif_orders(given.files, request(paths=given.directories), db, bundle, fork=START, end=None)

    for number, (orders_of, work) in enumerate([(rebuilds, rebuild_partition), (what_ifs, backfill_partition)]):
        wanted = outcome([str(node)], orders_of, work, tmp_path / f"local{number}")
        found = outcome(input_names("store://bucket/a b/node/"), orders_of, work, tmp_path / f"store{number}")
        assert found == wanted
        assert all(row["files"] for row in found)


def test_damage_in_a_store_is_named_by_its_uri(node: Path, store: fs.FileSystem, tmp_path: Path) -> None:
    """Segment, offset and partition as ever, and the place where the file really is."""
    damaged = tmp_path / "damaged"
    shutil.copytree(node, damaged)
    flip(segment := segments(str(damaged))[0], used_bytes(segment) * 2 // 3)
    upload(store, damaged, "bucket/node")
    with pytest.raises(Exception, match="store://bucket/node/log/") as error:
        outcome(
            ["store://bucket/node"],
            lambda given: _orders(given.files, request(paths=given.directories), None),
            None,
            tmp_path / "work",
        )
    assert re.search(r"at offset \d+", str(error.value))
    assert "cmdlog-spark-" not in str(error.value)


def test_damage_behind_the_plan_is_named_by_its_uri(node: Path, store: fs.FileSystem, tmp_path: Path) -> None:
    """A task that finds what the plan did not see speaks of the original as well."""
    upload(store, node, "bucket/node")
    damaged = tmp_path / "damaged"
    shutil.copytree(node, damaged)
    flip(segment := segments(str(damaged))[0], used_bytes(segment) * 2 // 3)

    def orders(given: fetched_inputs.Inputs) -> Any:
        found = list(_orders(given.files, request(paths=given.directories), None))
        upload(store, damaged, "bucket/node")
        return found

    for row in outcome(["store://bucket/node"], orders, rebuild_partition, tmp_path / "work"):
        assert row["error"]["kind"] == "Corrupt"
        assert re.search(r"store://bucket/node/log/\S+ at offset \d+", row["error"]["message"])


def test_what_is_not_in_a_store_is_named(store: fs.FileSystem) -> None:
    """No directory, and no file system."""
    with pytest.raises(BadOption, match="store://bucket/none does not exist"), fetched_inputs.inputs(["store://bucket/none"]):
        pass
    store.create_dir("bucket")
    with (
        pytest.raises(BadOption, match="store://bucket does not exist, or is empty"),
        fetched_inputs.inputs(["store://bucket"]),
    ):
        pass


def test_names_of_inputs_do_not_depend_on_how_they_are_written(tmp_path: Path) -> None:
    """A job is known by them: `file:` URIs are paths, and the slash that a `Path` takes from a URI is put back."""
    (tmp_path / "a b").mkdir()
    path = str(tmp_path / "a b")
    assert input_names([path, f"{path}/", (tmp_path / "a b").as_uri(), f"file:{path}"]) == [path] * 4
    assert input_names(str(Path("s3://bucket/node/"))) == ["s3://bucket/node"]
    assert input_names("hdfs://name:9000/node") == ["hdfs://name:9000/node"]
    with pytest.raises(BadOption, match="contains a secret") as error:
        input_names("s3://me" + ":hush@bucket/node")
    assert "hush" not in str(error.value)


def test_output_in_a_store_is_refused(tmp_path: Path) -> None:
    """Nothing there can be renamed, so nothing could appear whole; a `file:` URI is a path."""
    assert output_path((tmp_path / "a b").as_uri()) == str(tmp_path / "a b")
    for uri in ("s3://bucket/out", "hdfs://name/out", "file://elsewhere/out"):
        with pytest.raises(BadOption, match=uri.partition("://")[2]):
            output_path(uri)


def test_rebuild_takes_file_uris(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """Of input and output."""
    done = rebuild(spark, node.as_uri(), to=(tmp_path / "the out").as_uri(), tables=["accounts"])
    assert done.path == str(tmp_path / "the out")
    assert read_tables(dict(done.manifest), tmp_path / "the out")["accounts"]
