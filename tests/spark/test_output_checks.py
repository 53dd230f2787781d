"""Where jobs write, and what they read, fails as places do: full, read-only, no folder, gone. The path is named."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmdlog.cli.cli_errors import explain
from cmdlog.wal.errors import DiskFull
from replay.spark.base.version_check import versions as versions_here
from replay.spark.jobs import task_attempt
from replay.spark.jobs.job import TaskError
from replay.spark.jobs.rebuild import rebuild
from replay.spark.jobs.staging import SUFFIX
from replay.spark.jobs.task_attempt import carry_out
from tests.replay.ledgers import importable
from tests.small_volume import small_volume
from tests.spark import failing_work
from tests.spark.failing_work import runs
from tests.spark.spark_nodes import make_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VOLUME_BYTES = 2 << 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stopped node."""
    with importable(tmp_path_factory.mktemp("versions")) as made:
        yield make_node(made, tmp_path_factory.mktemp("shop") / "node")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; only root can have one."""
    with small_volume(tmp_path / "volume", VOLUME_BYTES) as path:
        yield path


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the executors other work."""

    def use(function: Any) -> None:
        monkeypatch.setattr(sys.modules["replay.spark.jobs.rebuild"], "rebuild_partition", function)

    return use


def fill(volume: Path) -> Path:
    """Takes all the room there is."""
    filler = volume / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def test_full_volume_of_the_output_is_named_and_the_job_goes_on_when_there_is_room(
    spark: SparkSession, node: Path, volume: Path, work: Any
) -> None:
    """In the middle and before the beginning; nothing of what failed is left, and the next run does all of it."""
    out = volume / "out"
    work(failing_work.fill_disk)
    with pytest.raises(TaskError) as error:
        rebuild(spark, str(node), to=str(out))
    assert (error.value.kind, error.value.exit_code) == ("DiskFull", DiskFull.exit_code)
    assert f"no space left for the output in {out}{SUFFIX}" in str(error.value)
    assert not out.exists()
    assert not list(Path(f"{out}{SUFFIX}", "attempts").iterdir())
    with pytest.raises(DiskFull, match=f"no space left for the output in {volume}/other"):
        rebuild(spark, str(node), to=str(volume / "other"))
    (volume / "filler").unlink()
    work(failing_work.count_runs)
    done = rebuild(spark, str(node), to=str(out))
    assert runs(f"{out}{SUFFIX}", "ran", "p0000") == 1
    assert done.rows > 0
    assert rebuild(spark, str(node), to=str(volume / "other")).rows == done.rows


def test_full_scratch_disk_is_tried_elsewhere(volume: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is this executor's disk alone, so the error is raised for Spark; it names the disk, and no attempt stays."""
    for name in ("attempts", "rows", "progress"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(task_attempt, "local_folder", lambda: str(volume))

    def write(_order: Any, of: task_attempt.Attempt) -> dict[str, Any]:
        Path(of.folder, "half").touch()
        Path(of.scratch, "state").write_bytes(bytes(2 * VOLUME_BYTES))
        return {}

    order = {"key": "p0000", "staging": str(tmp_path), "versions": versions_here()}
    with pytest.raises(DiskFull, match=f"scratch files of p0000 in {volume}"):
        carry_out(order, write)
    assert not list((tmp_path / "attempts").iterdir())
    assert not list(volume.iterdir())


def test_volume_that_is_read_only_is_named(spark: SparkSession, node: Path, volume: Path) -> None:
    """Nothing was begun; the message says what to look at."""
    subprocess.run(["mount", "-o", "remount,ro", str(volume)], check=True)
    with pytest.raises(OSError, match="Read-only") as error:
        rebuild(spark, str(node), to=str(volume / "out"))
    failure = explain(error.value)
    assert failure is not None
    assert str(volume / "out") in failure.message
    assert (failure.exit_code, "read-only" in failure.hint) == (15, True)


def test_file_in_the_way_of_the_output_is_named(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """A file where the output, or a folder above it, should be."""
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(OSError, match=str(tmp_path / "file")):
            rebuild(spark, str(node), to=str(out))
    assert (tmp_path / "file").read_text() == "mine"


def test_input_that_disappears_is_named(spark: SparkSession, node: Path, work: Any, tmp_path: Path) -> None:
    """Before the plan and behind it; it is not tried four times, and the job goes on when it is back."""
    away = node.with_name("node.away")
    work(failing_work.take_input_away)
    with pytest.raises(TaskError, match=str(node)) as error:
        rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert error.value.kind == "WrongDirectory"
    assert runs(f"{tmp_path}/out{SUFFIX}", "ran", "p0000") == 1
    with pytest.raises(Exception, match=str(node)):
        rebuild(spark, str(node), to=str(tmp_path / "other"))
    assert not list(tmp_path.glob("other*"))
    away.rename(node)
    work(failing_work.count_runs)
    assert rebuild(spark, str(node), to=str(tmp_path / "out")).rows > 0
