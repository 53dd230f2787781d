"""What of an unfinished output counts: rows of complete attempts whose files are there, and nothing else. No session needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from replay.errors import Interrupted
from replay.spark.base.version_check import versions
from replay.spark.jobs import job
from replay.spark.jobs.rebuild import Rebuilt, rebuild
from replay.spark.jobs.staging import Staging
from replay.spark.jobs.task_attempt import Work, carry_out
from tests.replay.damage import truncate
from tests.replay.rig import Rig
from tests.spark.spark_nodes import read_tables

pytestmark = pytest.mark.slow
NO_SPARK = cast(Any, None)


class Here:
    """Instead of Spark: carries out the orders one after the other, and is broken off in front of one of them."""

    def __init__(self) -> None:
        self.left = 1 << 30
        self.done: list[str] = []

    def __call__(self, _spark: object, folder: Staging, orders: Sequence[Any], work: Work, _cancel: object) -> list[Any]:
        rows = []
        for order in sorted(orders, key=lambda order: str(order["key"])):
            if len(self.done) >= self.left:
                raise Interrupted("the test's own")
            told = orjson.loads(orjson.dumps({**order, "staging": folder.folder, "versions": versions()}))
            rows.append(orjson.loads(carry_out(told, work)))
            self.done.append(str(order["key"]))
        return rows


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """Jobs of this test run here."""
    instead = Here()
    monkeypatch.setattr(job, "_collect", instead)
    return instead


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped node of two partitions."""
    rig = Rig(tmp_path_factory.mktemp("node"))
    rig.deposits(8)
    rig.close()
    return rig.directory


def file_of(staging: Path) -> Path:
    """The first file of the one complete attempt."""
    (row,) = (staging / "rows").iterdir()
    return staging / str(orjson.loads(row.read_bytes())["files"][0]["path"])


def gone(staging: Path) -> None:
    """A file of a complete attempt is lost."""
    file_of(staging).unlink()


def short(staging: Path) -> None:
    """A file of a complete attempt has lost its end, as a power cut may do where a disk lied."""
    truncate(str(file_of(staging)), file_of(staging).stat().st_size // 2)


def half(staging: Path) -> None:
    """An attempt has all its files, and its row is not there, or half of it."""
    (row,) = (staging / "rows").iterdir()
    half = row.read_bytes()[: row.stat().st_size // 2]
    row.unlink()
    row.with_name(f"{row.name}.tmp").write_bytes(half)


@pytest.mark.parametrize("damage", [None, gone, short, half], ids=lambda of: of.__name__ if of else "whole")
def test_only_a_row_whose_files_are_there_is_a_task_that_is_done(
    node: str, here: Here, tmp_path: Path, damage: Callable[[Path], None] | None
) -> None:
    """P14: what a dead driver left half is done again, what it left whole is not; the output is the same, and nothing else."""
    sound = rebuild(NO_SPARK, node, to=str(tmp_path / "sound"))
    here.done, here.left, out = [], 1, tmp_path / "out"
    with pytest.raises(Interrupted):
        rebuild(NO_SPARK, node, to=str(out))
    if damage is not None:
        damage(Path(f"{out}.unfinished"))
    here.left = 1 << 30
    done = rebuild(NO_SPARK, node, to=str(out))
    assert here.done == (["p0000", "p0001"] if damage is None else ["p0000", "p0000", "p0001"])
    assert told(done, out) == told(sound, tmp_path / "sound")
    assert not os.path.exists(f"{out}.unfinished")


def told(done: Rebuilt, out: Path) -> Any:
    """Rows, and names of files."""
    return read_tables(dict(done.manifest), out), sorted(str(path.relative_to(out)) for path in out.rglob("*"))


def test_output_is_not_there_before_its_manifest(node: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are moved only when it is durable which ones count: else the end of a job could not be gone on with."""
    seen = []
    replace = os.replace

    def watched(source: str, target: str) -> None:
        if target.endswith(".parquet"):
            seen.append(Path(f"{tmp_path}/out.unfinished/manifest.json").exists())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    done = rebuild(NO_SPARK, node, to=str(tmp_path / "out"))
    assert seen == [True, True]
    assert orjson.loads((tmp_path / "out" / "manifest.json").read_bytes()) == orjson.loads(orjson.dumps(done.manifest))
