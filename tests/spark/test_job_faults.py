"""Jobs whose tasks, executors, drivers or input fail: the same output in the end, or none."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from cmdlog.wal.errors import Locked, NotEmpty, WrongDirectory
from replay.errors import Interrupted
from replay.recover.progress import RecoveryProgress
from replay.spark.base.version_check import OtherVersions, check_versions, versions
from replay.spark.jobs import job, task_attempt
from replay.spark.jobs.backfill import backfill
from replay.spark.jobs.job import SparkFailed, TaskError
from replay.spark.jobs.rebuild import Rebuilt, rebuild
from replay.spark.jobs.staging import OUTDATED, OtherJob
from tests.node.apps import faulty
from tests.replay.archiverig import ArchiveRig
from tests.replay.ledgers import Versions, importable
from tests.spark import failing_work
from tests.spark.failing_work import runs
from tests.spark.spark_nodes import make_node, read_tables
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
LOOKS_MAX = 40  # of a driver at the progress of its tasks, until one that hangs is ended


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stopped node."""
    with importable(tmp_path_factory.mktemp("versions")) as made:
        versions: Versions = made
        yield make_node(versions, tmp_path_factory.mktemp("shop") / "node")


@pytest.fixture(scope="module")
def sound(spark: SparkSession, node: Path, tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """What comes of it when nothing fails."""
    return rebuild(spark, str(node), to=str(tmp_path_factory.mktemp("sound") / "out"))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the executors other work."""

    def use(function: Any) -> None:
        monkeypatch.setattr(sys.modules["replay.spark.jobs.rebuild"], "rebuild_partition", function)

    return use


def check(out: Path, done: Rebuilt, sound: Rebuilt) -> None:
    """The same rows as when nothing fails, and no file that the manifest does not name."""
    for mine, its in zip(done.manifest["points"], sound.manifest["points"], strict=True):
        assert mine["partitions"] == its["partitions"]
        for name, table in its["tables"].items():
            assert [(f["path"], f["rows"], f["digest"]) for f in mine["tables"][name]["files"]] == [
                (f["path"], f["rows"], f["digest"]) for f in table["files"]
            ]
    assert read_tables(dict(done.manifest), out) == read_tables(dict(sound.manifest), Path(sound.path))
    named = {file["path"] for table in done.manifest["points"][0]["tables"].values() for file in table["files"]}
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == named | {"manifest.json", "_SUCCESS"}
    assert not Path(f"{out}.unfinished").exists()


def test_attempt_that_dies_in_the_middle_is_done_again(
    spark: SparkSession, node: Path, sound: Rebuilt, work: Any, tmp_path: Path
) -> None:
    """Executors that end with half a file behind them cost time only: the file is in no output."""
    work(failing_work.die_once)
    done = rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert runs(tmp_path / "out", "died", "p0000") == 2
    check(tmp_path / "out", done, sound)


def test_second_run_does_only_what_is_left(spark: SparkSession, node: Path, sound: Rebuilt, work: Any, tmp_path: Path) -> None:
    """A task that fails four times ends the job without output; the same call goes on, and repeats no task that was done."""
    work(failing_work.fail_first_partition)
    with pytest.raises(SparkFailed, match="No space left"):
        rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert runs(tmp_path / "out", "failed", "p0000") == 4
    assert not (tmp_path / "out").exists()
    with pytest.raises(OtherJob, match=r"unfinished rebuild, but you asked for one with other tables"):
        rebuild(spark, str(node), to=str(tmp_path / "out"), tables=["accounts"])
    work(failing_work.count_runs)
    done = rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert [runs(tmp_path / "out", "ran", key) for key in ("p0000", "p0001")] == [1, 1]
    check(tmp_path / "out", done, sound)


def test_finished_output_answers_its_own_request_only(spark: SparkSession, sound: Rebuilt, node: Path, tmp_path: Path) -> None:
    """A scheduler that tries again gets the same manifest, without Spark, and no file is touched; another request is named."""
    before = {path: path.stat().st_mtime_ns for path in Path(sound.path).rglob("*")}

    def no_session() -> SparkSession:
        raise AssertionError("Spark was asked for")

    again = rebuild(no_session, str(node), to=sound.path)
    assert (again.already, again.manifest) == (True, orjson.loads(orjson.dumps(sound.manifest)))
    with pytest.raises(
        OtherJob, match=r'contains a finished rebuild, but you asked for one with other tables .*then none, now \["accounts"\]'
    ):
        rebuild(no_session, str(node), to=sound.path, tables=["accounts"])
    with pytest.raises(OtherJob, match=r"contains a finished rebuild, but you asked for a backfill"):
        backfill(no_session, str(node), faulty.db, to=sound.path)
    assert {path: path.stat().st_mtime_ns for path in Path(sound.path).rglob("*")} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(NotEmpty, match=r"thesis\.txt"):
        rebuild(no_session, str(node), to=str(tmp_path / "mine"))


def test_output_in_or_around_an_input_or_a_node_is_refused(node: Path, tmp_path: Path) -> None:
    """Also by another name of the folder; a node's directory stays as it is, for jobs that do not read it, too."""
    (tmp_path / "link").symlink_to(node)
    app = faulty.db

    def no_session() -> SparkSession:
        raise AssertionError("Spark was asked for")

    for out in (node / "out", node, node.parent, tmp_path / "link" / "new" / "out"):
        with pytest.raises(WrongDirectory, match="never changed"):
            rebuild(no_session, str(node), to=str(out))
        with pytest.raises(WrongDirectory, match="never changed"):
            backfill(no_session, str(node), app, to=str(out))
    with pytest.raises(WrongDirectory, match="the directory of a node, which must not be changed"):
        rebuild(no_session, str(tmp_path / "other"), to=str(node / "out"))
    assert not list(tmp_path.rglob("*.unfinished"))
    assert not list(node.parent.rglob("*.unfinished"))


def test_driver_that_dies_while_it_publishes_is_followed_up(
    spark: SparkSession, node: Path, sound: Rebuilt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever step of the end is the last one, OUT is not there; the next run ends it, without Spark."""
    rename, done_tasks = os.rename, tmp_path / "done_tasks"

    def end_at(out: Path, limit: int, session: Any) -> bool:
        """Whether the run came to its end before so many steps were done."""
        calls = 0

        def stop_at(source: str, target: str) -> None:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise KeyboardInterrupt
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr("os.replace", stop_at)
            patch.setattr("os.rename", stop_at)
            try:
                rebuild(session, str(node), to=str(out))
            except (KeyboardInterrupt, Interrupted):
                assert not out.exists()
                return False
        return True

    def no_session() -> SparkSession:
        raise AssertionError("Spark was asked for")

    assert not end_at(done_tasks, 0, spark)  # the request is not there
    assert not end_at(done_tasks, 1, spark)  # it is, and all tasks are done
    assert len(os.listdir(f"{done_tasks}.unfinished/rows")) == 2
    steps = 0
    while True:
        out = tmp_path / f"out{steps}"
        shutil.copytree(f"{done_tasks}.unfinished", f"{out}.unfinished")
        if end_at(out, steps, spark):
            break
        begun = os.path.exists(f"{out}.unfinished/manifest.json")
        check(out, rebuild(no_session if begun else spark, str(node), to=str(out)), sound)
        steps += 1 if steps < 3 else 4
    assert steps > 4


def test_ctrl_c_keeps_what_is_done(spark: SparkSession, node: Path, sound: Rebuilt, work: Any, tmp_path: Path) -> None:
    """The signal cancels the job and frees its cores; nothing is published, and the second run does the rest."""
    work(failing_work.wait_in_second)
    staging = tmp_path / "out.unfinished"

    def interrupt() -> None:
        rows = staging / "rows"
        wait_for(lambda: runs(staging, "waits", "p0001") and any(name.startswith("p0000") for name in os.listdir(rows)))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted):
        rebuild(spark, str(node), to=str(tmp_path / "out"))
    thread.join()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    work(failing_work.count_runs)
    done = rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert [runs(tmp_path / "out", "ran", key) for key in ("p0000", "p0001")] == [1, 1]
    check(tmp_path / "out", done, sound)


class Hanging:
    """A job whose worker stands still in partition 1, until the progress has named its process."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.shown = list[str]()
        self.named = False

    def listen(self, progress: RecoveryProgress) -> None:
        """What a job shows; it kills the named process, or at last the one that was to be named, so that the job ends."""
        if not self.named and progress.waiting.startswith("task p0001"):
            self.named = True
            os.kill(int(progress.waiting.partition(", process ")[2].split()[0]), signal.SIGKILL)
        if len(self.shown) == LOOKS_MAX and not self.named:
            silent = orjson.loads(Path(f"{self.out}.unfinished", "progress", "p0001").read_bytes())
            os.kill(int(silent["process"].split()[1]), signal.SIGKILL)
        self.shown.append(progress.waiting)

    def check_once(self) -> None:
        """It was named; the other attempt alone counts, and nothing stays of either."""
        assert self.named
        assert self.shown[-1] == ""
        assert [runs(self.out, what, "p0001") for what in ("stops", "ran")] == [2, 1]
        assert not Path(f"{self.out}.unfinished").exists()
        assert not list(self.out.rglob("half*"))


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hanging:
    """Of a rebuild or a back-fill."""
    monkeypatch.setattr(task_attempt, "STALLED_S", 0.5)
    monkeypatch.setattr(sys.modules["replay.spark.jobs.rebuild"], "rebuild_partition", failing_work.stop_in_second)
    monkeypatch.setattr(sys.modules["replay.spark.jobs.backfill"], "backfill_partition", failing_work.stop_in_second_whatif)
    return Hanging(tmp_path / "out")


def test_worker_that_hangs_in_a_rebuild_costs_time_alone(
    spark: SparkSession, node: Path, sound: Rebuilt, hanging: Hanging
) -> None:
    """Spark waits for it, and the progress says since when, and which process; after that is killed, each row is there once."""
    check(hanging.out, rebuild(spark, str(node), to=str(hanging.out), progress=hanging.listen), sound)
    hanging.check_once()


@pytest.mark.parametrize("archive", ["kept", "gone"])
def test_segments_that_a_node_recycles_under_a_job_are_never_mixed_in(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, archive: str
) -> None:
    """A node uses its ring several times over between plan and tasks: the rows are those of the plan, from the archive, or the
    job says that the log went on, publishes nothing, and the same call plans anew."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(1, batches=16)
    planned, last = dict(rig.balances), rig.last_txn
    run_orders = job.run_orders

    def go_on_first(*arguments: Any) -> Any:
        rig.rotate(3, batches=16)
        if archive == "gone":
            shutil.rmtree(Path(rig.directory, "archive"))
            shutil.rmtree(Path(rig.directory, "snapshots", max(os.listdir(Path(rig.directory, "snapshots")))))
        return run_orders(*arguments)

    monkeypatch.setattr(job, "run_orders", go_on_first)
    out = tmp_path / "out"
    if archive == "kept":
        done = rebuild(spark, rig.directory, to=str(out), until=last)
    else:
        with pytest.raises(TaskError, match=r"run the same command to plan again") as error:
            rebuild(spark, rig.directory, to=str(out))
        assert error.value.kind in OUTDATED
        assert not list(tmp_path.glob("out*"))
        monkeypatch.setattr(job, "run_orders", run_orders)
        planned = dict(rig.balances)
        done = rebuild(spark, rig.directory, to=str(out))
    rig.close()
    assert {row["id"]: row["balance"] for row in read_tables(dict(done.manifest), out)["accounts"]} == planned


def test_executor_of_another_version_refuses(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """A replay on another SQLite, Python or cmdlog than the driver's does not begin; each that differs is named with both."""
    others = {"sqlite": "3.1.0", "python": "3.8", "cmdlog": "0.0.1"}
    own = versions()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "versions", lambda: others)
        with pytest.raises(TaskError, match=r"the executor of p000\d has ") as error:
            rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert error.value.exit_code == OtherVersions.exit_code
    for what, other in others.items():
        assert f"{what} {own[what]} instead of {other}" in str(error.value)
        with pytest.raises(OtherVersions, match=f"^here has {what} {re.escape(own[what])} instead of {other}\n"):
            check_versions({**own, what: other}, "here")


def test_two_drivers_do_not_write_one_output(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """While one holds the folder another one is refused, and refused is also a folder that is none of ours."""
    from cmdlog.wal.files import RealFiles
    from replay.spark.jobs.staging import staging

    with staging(RealFiles(), str(tmp_path / "out")), pytest.raises(Locked):
        rebuild(spark, str(node), to=str(tmp_path / "out"))
    (tmp_path / "mine.unfinished").mkdir()
    (tmp_path / "mine.unfinished" / "thesis.txt").write_text("do not lose")
    with pytest.raises(OtherJob, match=r"thesis\.txt"):
        rebuild(spark, str(node), to=str(tmp_path / "mine"))
    assert (tmp_path / "mine.unfinished" / "thesis.txt").exists()
