"""Drivers that end in the middle, as processes: nothing partial is published, the next run goes on, nothing of them stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replay.spark.base.scratch import sweep
from replay.spark.jobs.rebuild import rebuild
from replay.spark.jobs.staging import SUFFIX
from tests.replay.ledgers import Versions
from tests.spark import failing_work
from tests.spark.failing_work import runs
from tests.spark.spark_nodes import make_node
from tests.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = [
    "--master=local[2,4]", "--conf=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "--conf=spark.sql.codegen.wholeStage=false", "--conf=spark.sql.codegen.factoryMode=NO_CODEGEN",
]  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node."""
    return make_node(versions, tmp_path_factory.mktemp("shop") / "node")


@dataclass(frozen=True, slots=True)
class Ended:
    """What was left of a driver."""

    code: int
    printed: str
    scratch: list[str]  # folders in its TMPDIR
    processes: list[int]  # of it, that had run and were gone in the end
    logged: str  # to standard error


def below(process: int) -> list[int]:
    """Process ids of all that it started, and they."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *below(child)]
    return found


def is_running(process: int) -> bool:
    """Also one that waits to be taken note of has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_in_the_middle(
    folder: Path, number: signal.Signals, is_waiting: Callable[[], bool], *arguments: str, path: str = ""
) -> Ended:
    """Starts `cmdlog spark …` and sends it the signal when its job waits."""
    tmp = folder / "tmp"
    tmp.mkdir()
    inherited = [str(Path(__file__).parents[2]), *([path] if path else [])]
    environ = {**os.environ, "TMPDIR": str(tmp), "PYTHONPATH": os.pathsep.join(inherited), "WAITS": str(folder / "waits")}
    end, leash = os.pipe()
    command = [sys.executable, "-m", "tests.spark.held_program", str(end), "spark", *arguments, "--json", *QUICK]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=err, start_new_session=True, pass_fds=[end])
    os.close(end)
    try:
        wait_for(lambda: is_waiting() or process.poll() is not None, PATIENCE_S, "the job does not come to its middle")
        assert process.poll() is None, (folder / "stderr").read_text() + (folder / "stdout").read_text()
        theirs = below(process.pid)
        process.send_signal(number)
        process.wait(PATIENCE_S)
        wait_for(lambda: not any(map(is_running, theirs)), PATIENCE_S, "processes of the dead driver go on")
    finally:
        os.close(leash)
        with contextlib.suppress(ProcessLookupError):  # of a group that is gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    return Ended(
        process.returncode, (folder / "stdout").read_text(), sorted(os.listdir(tmp)), theirs, (folder / "stderr").read_text()
    )


def test_held_program_ends_with_who_started_it(tmp_path: Path) -> None:
    """A test run that is killed leaves none: the kernel closes its end of the pipe."""
    started = (
        "import os, subprocess, sys; end, _ = os.pipe(); "
        "held = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(end)], pass_fds=[end], start_new_session=True, "
        "stdout=subprocess.DEVNULL); "
        "print(held.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    held = "import signal, sys; from cmdlog.die_with_parent import watch; watch(int(sys.argv[1])); signal.pause()"
    ended = subprocess.run([sys.executable, "-c", started, held], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    wait_for(lambda: not is_running(int(ended.stdout)), PATIENCE_S, "the held program goes on")


def half_done(out: Path) -> Callable[[], bool]:
    """Whether the first partition is done, the second one under way, and the command has told so, though to no terminal."""
    staging = Path(f"{out}{SUFFIX}")

    def look() -> bool:
        if not runs(staging, "waits", "p0001") or not any(name.startswith("p0000") for name in os.listdir(staging / "rows")):
            return False
        told = [json.loads(line)["progress"] for line in (out.parent / "stdout").read_text().splitlines()]
        return any(of["partitions_done"] == 1 and of["partitions"] == 2 and "left_s" in of for of in told)

    return look


def rebuilt(manifest: Any) -> Any:
    """What must be the same of two rebuilds."""
    return [
        (point["partitions"], {name: [(f["path"], f["rows"], f["digest"]) for f in of["files"]] for name, of in tables.items()})
        for point in manifest["points"]
        for tables in [point["tables"]]
    ]


def check_ended(ended: Ended, number: signal.Signals, out: Path) -> None:
    """How the command ended, and that there is no output."""
    assert not out.exists()
    assert any(not name.endswith(".parquet") for name in os.listdir(f"{out}{SUFFIX}/attempts"))
    assert len(ended.processes) >= 3  # java, the Python that forks workers, workers
    if number is signal.SIGKILL:
        assert ended.code == -number
        return
    assert ended.code == 128 + number
    told = json.loads(ended.printed.splitlines()[-1])["error"]
    assert told["exit_code"] == 128 + number
    assert f"{out}{SUFFIX} keeps the finished tasks" in told["message"]
    assert "Traceback" not in ended.logged, ended.logged
    assert not ended.scratch  # who is asked to end tidies up


def go_on_rebuild(spark: SparkSession, node: Path, tmp_path: Path, number: signal.Signals) -> None:
    """A rebuild that is ended, and the second run."""
    wanted = rebuild(spark, str(node), to=str(tmp_path / "sound"))
    out = tmp_path / "out"
    ended = end_in_the_middle(tmp_path, number, half_done(out), "rebuild", str(node), "--to", str(out))
    check_ended(ended, number, out)
    before = sorted(os.listdir(f"{out}{SUFFIX}/attempts"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["replay.spark.jobs.rebuild"], "rebuild_partition", failing_work.count_runs)
        done = rebuild(spark, str(node), to=str(out))
    assert [runs(out, "ran", key) for key in ("p0000", "p0001")] == [1, 1]
    assert any(name.startswith("p0001") for name in before)
    assert rebuilt(done.manifest) == rebuilt(wanted.manifest)
    assert not Path(f"{out}{SUFFIX}").exists()
    swept = sweep(str(tmp_path / "tmp"))
    assert [Path(path).name for path in swept] == ended.scratch
    assert not os.listdir(tmp_path / "tmp")


def test_killed_driver_of_a_rebuild_is_followed_up(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """SIGKILL: its java and Pythons go, the next run does what is left, and its scratch folder goes with the next sweep."""
    go_on_rebuild(spark, node, tmp_path, signal.SIGKILL)
