"""What a job fetches of a node directory that is in an object store, byte by byte."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import fs

import cmdlog
from cmdlog.wal.errors import Corrupt
from replay.spark.base import fetching, filesystems
from replay.spark.base.fetching import FetchingFiles
from replay.spark.base.version_check import versions as versions_here
from replay.spark.datasource.state_table import read_state
from replay.spark.jobs import fetched_inputs
from replay.spark.jobs.rebuild import _orders
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.task_attempt import carry_out
from tests.replay.ledgers import SMALL, Versions, logged_calls
from tests.spark.spark_nodes import SHOP, make_node
from tests.spark.test_fetched_inputs import request, upload
from tests.spark.test_state_table import tasks_of

pytestmark = pytest.mark.slow
CHUNK = 4096


class Store:
    """A file system that says what was read of it: (path, offset) -> how often."""

    def __init__(self) -> None:
        self.memory = fs._MockFileSystem()
        self.reads: Counter[tuple[str, int]] = Counter()
        self.bytes = 0

    def get_file_info(self, selector: Any) -> Any:
        return self.memory.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        return Opened(self, path)


class Opened:
    """One of its files."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path, self._file = store, path, store.memory.open_input_file(path)

    def read_at(self, size: int, offset: int) -> bytes:
        data: bytes = self._file.read_at(size, offset)
        self._store.reads[self._path, offset] += 1
        self._store.bytes += len(data)
        return data

    def size(self) -> int:
        return int(self._file.size())

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Behind `store://`, fetched in small chunks."""
    found = Store()
    for module in (filesystems, fetching):
        monkeypatch.setattr(module, "filesystem_of", lambda uri: (found, uri.removeprefix("store://")))
    monkeypatch.setattr(fetching, "CHUNK_BYTES", CHUNK)
    return found


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with a log over several segments, and states that nobody reads."""
    options = {**SMALL, "segment_bytes": 64 << 10, "segments": 64, "snapshots_kept": 4}  # room for all, however small batches are
    folder = make_node(versions, tmp_path_factory.mktemp("shop") / "node", **options)
    with cmdlog.open(folder, versions.load("shop_v1", SHOP), **options) as opened:
        for n in range(12):
            for answer in [opened.submit("deposit", account=n % 8, amount=n) for n in range(700)]:
                answer.result()
            if n in (4, 8):
                opened.node.take_point()
    return folder


def size_of(node: Path) -> int:
    """Bytes of all files that a copy would have."""
    return sum(path.stat().st_size for path in node.rglob("*") if path.is_file() and path.relative_to(node).parts[0] != "state")


def planned(names: list[str], folder: Path) -> list[dict[str, Any]]:
    """Orders of a rebuild, as tasks get them."""
    for name in ("attempts", "rows", "progress"):
        (folder / name).mkdir(parents=True)
    with fetched_inputs.inputs(names) as given:
        orders = given.stamp(_orders(given.files, request(paths=given.directories), None))
    return [{**orjson.loads(orjson.dumps(order)), "staging": str(folder), "versions": versions_here()} for order in orders]


def test_plan_and_tasks_fetch_less_than_the_directory(node: Path, store: Store, tmp_path: Path) -> None:
    """A plan looks through the log from its snapshots on; a task for the newest state reads what it replays and one image."""
    upload(store.memory, node, "bucket/node")
    orders = planned(["store://bucket/node"], tmp_path)
    of_plan, store.bytes = store.bytes, 0
    assert "error" not in orjson.loads(carry_out(orders[0], rebuild_partition))
    assert of_plan < size_of(node) / 2
    assert store.bytes < size_of(node) / 2


def test_tasks_of_a_machine_fetch_each_byte_once(
    node: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second task on a machine finds what the first one has fetched, and a second attempt does too."""
    upload(store.memory, node, "bucket/node")
    orders = planned(["store://bucket/node"], tmp_path / "job")
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    store.reads.clear()
    for order in (*orders, orders[0]):
        assert "error" not in orjson.loads(carry_out(order, rebuild_partition))
    assert set(store.reads.values()) == {1}
    assert [name for name in os.listdir(tmp_path / "local") if name != fetched_inputs.CACHE] == []


def test_state_of_one_transaction_does_not_copy_the_directory(
    node: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking the table up, planning and replaying together fetch a part of it, as Spark's Pythons on one machine do."""
    upload(store.memory, node, "bucket/node")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    moment = logged_calls(node)[-1].txn_id
    tasks = tasks_of("store://bucket/node", "accounts", asOfTxn=moment)
    rows = [row for task in tasks for batch in read_state(task) for row in batch.to_pylist()]
    assert len(rows) == 8
    assert store.bytes < size_of(node)
    assert not any("/state/" in path for path, _ in store.reads)


def test_file_that_was_replaced_is_fetched_anew(store: Store, tmp_path: Path) -> None:
    """Chunks are of one version of a file: a listing sees another size, and nothing of the old one is given."""
    files = FetchingFiles({}, str(tmp_path))
    for number, content in enumerate((b"a" * 3 * CHUNK, b"b" * (2 * CHUNK + 5))):
        store.memory.create_dir("bucket/node")
        with store.memory.open_output_stream("bucket/node/x") as stream:
            stream.write(content)
        files = FetchingFiles({"/here": "store://bucket/node"}, str(tmp_path))
        opened = files.open("/here/x", read_only=True)
        assert opened.pread(len(content) + 9, 0) == content, number
        assert opened.pread(10, CHUNK - 5) == content[CHUNK - 5 : CHUNK + 5]
        assert opened.pread(10, len(content)) == b""
        opened.close()
    assert files.listdir("/here") == ["x"]
    assert files.exists("/here/x")
    assert not files.exists("/here/y")
    assert files.exists(str(tmp_path))


def test_store_is_never_written(store: Store, tmp_path: Path) -> None:
    """Whatever changes a directory elsewhere is refused, while beside it files are this machine's."""
    store.memory.create_dir("bucket")
    with store.memory.open_output_stream("bucket/x") as stream:
        stream.write(b"x")
    files = FetchingFiles({"/here": "store://bucket"}, str(tmp_path))
    for act in (files.mkdir, files.unlink, files.fsync_dir, files.lock, files.open, lambda p: files.rename(p, p)):
        with pytest.raises(OSError, match="never writes"):
            act("/here/x")
    files.mkdir(str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()


def test_unreadable_chunk_is_damage_of_that_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store names the file as damage does, and nothing half is kept."""
    store.memory.create_dir("bucket")
    with store.memory.open_output_stream("bucket/x") as stream:
        stream.write(b"x" * 3)
    files = FetchingFiles({"/here": "store://bucket"}, str(tmp_path))

    def fail(*_: Any) -> bytes:
        raise OSError("the store says no")

    with monkeypatch.context() as patch:
        patch.setattr(Opened, "read_at", fail)
        with pytest.raises(Corrupt, match="the store says no"):
            files.open("/here/x", read_only=True).pread(3, 0)
    assert files.open("/here/x", read_only=True).pread(3, 0) == b"xxx"
