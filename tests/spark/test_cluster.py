"""A real cluster of several processes whose executors have nothing of ours but what was shipped to them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyspark
import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan.node_plan import Planned
from replay.plan.planner import make_plan
from replay.recover.execute import Target, execute
from replay.spark.base.executor_zip import PACKAGES
from replay.spark.base.version_check import versions
from replay.spark.jobs.staging import SUFFIX
from replay.state.trust import state_path
from snapshot.table_digest import open_image, table_digests
from tests.replay.ledgers import LEDGER, SMALL, TEXTS, importable, logged_calls
from tests.spark.cluster import (
    RUN_S_MAX,
    Cluster,
    bare_python,
    children,
    command_line,
    open_files,
    other_python,
    running_cluster,
    start_command,
)
from tests.spark.drivers import FOREIGN, SUBMITTED
from tests.waiting import wait_for

T = TypeVar("T")
pytestmark = pytest.mark.torture
PARTITIONS = 3
DEPOSITS = 20_000
WINDOW = 500  # calls under way at a time
ACCOUNTS = 30
TREE = Path(__file__).parents[2]
SPECULATION = ("=true", ".interval=100ms", ".multiplier=1.1", ".quantile=0.3", ".minTaskRuntime=100ms")
PLANTED = """
import platform, sys
import apsw
sys.path.insert(0, {old!r})
import replay.spark.jobs.task_attempt, replay.spark.jobs.rebuild_task
apsw.sqlite_lib_version = lambda: "3.1.0"
platform.python_version_tuple = lambda: ("2", "7", "18")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stopped node with some seconds of work."""
    with importable(tmp_path_factory.mktemp("versions")) as versions:
        folder = tmp_path_factory.mktemp("ledger") / "node"
        with cmdlog.open(folder, versions.load("ledger_v1"), partitions=PARTITIONS, **{**SMALL, "segments": 12}) as opened:
            for account in range(ACCOUNTS):
                opened.call("begin", account=account)
            for first in range(0, DEPOSITS, WINDOW):
                for answer in [opened.submit("deposit", account=n % ACCOUNTS, amount=n) for n in range(first, first + WINDOW)]:
                    answer.result()
        yield folder


def digests(node: Path, work: Path) -> dict[tuple[int, str], str]:
    """(partition, table) -> digest, of a recovery in this process."""
    (work / "state").mkdir(parents=True)
    plan = make_plan(RealFiles(), str(node), use_state="never").plan
    execute(Planned.of(RealFiles(), plan), Target(RealFiles(), str(work)), workers=0)
    found = {}
    for part in plan.partitions:
        connection = open_image(state_path(str(work), part.partition))
        for table, digest in table_digests(connection).items():
            found[part.partition, table] = digest.sha256
        connection.close()
    return found


def read_manifest(out: Path) -> dict[tuple[str, int], tuple[str, int, str, str]]:
    """(table, partition) -> path, rows, digest and hash of the file; no other file is there."""
    manifest = json.loads((out / "manifest.json").read_text())
    found = {
        (name, file["partition"]): (file["path"], file["rows"], file["digest"], file["sha256"])
        for name, table in manifest["points"][0]["tables"].items()
        for file in table["files"]
    }
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == {path for path, *_ in found.values()} | {"manifest.json", "_SUCCESS"}
    assert not out.with_name(out.name + SUFFIX).exists()
    return found


def finish(process: subprocess.Popen[str]) -> None:
    """Waits for a command that ends well."""
    try:
        _, errors = process.communicate(timeout=RUN_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors


def wait_for_attempts(process: subprocess.Popen[str], out: Path) -> None:
    """Until a task runs."""
    attempts = Path(f"{out}{SUFFIX}", "attempts")
    wait_while_it_runs(process, lambda: attempts.is_dir() and any(attempts.iterdir()))


def wait_while_it_runs(process: subprocess.Popen[str], what: Callable[[], T]) -> T:
    """What the condition finds before the command ends."""

    def look() -> T:
        assert process.poll() is None, process.communicate()
        return what()

    return wait_for(look, RUN_S_MAX)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, node: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """The manifest of a rebuild to which nothing happened."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    finish(start_command(cluster, "rebuild", str(node), "--to", str(out)))
    return read_manifest(out)


@pytest.fixture(scope="module")
def foreign(cluster: Cluster, node: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program tells that made its session itself."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "driver.py").write_text(FOREIGN)
    sources = []
    for factor in (2, 3):
        sources.append(folder / f"factor{factor}.txt")
        sources[-1].write_text(LEDGER.replace(TEXTS["factor"], f"amount * {factor}"))
    ended = cluster.run(sys.executable, str(folder / "driver.py"), cluster.url, str(node), str(folder), *map(str, sources))
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def test_executors_have_what_was_shipped_and_nothing_else(foreign: dict[str, Any]) -> None:
    """Before it is shipped the package is on no executor; afterwards it is in the zip, which is sent once."""
    assert foreign["before"] == ["No module named 'replay'"]
    name = f"cmdlog-{foreign['version']}.zip"
    assert [Path(path).parts[-3:] for path in foreign["after"]] == [(name, "replay", "__init__.py")] * len(foreign["after"])
    assert foreign["files"] == [name]


def test_table_and_stream_give_every_call(foreign: dict[str, Any], node: Path) -> None:
    """Each call of the log is one row of the table, and one row of the stream over its micro-batches."""
    per_partition = Counter(call.partition for call in logged_calls(node))
    assert foreign["scan"] == foreign["stream"] == [[p, count] for p, count in sorted(per_partition.items())]
    assert foreign["twice"] == 0


def test_changed_code_runs_in_reused_workers(foreign: dict[str, Any]) -> None:
    """A module that changes between two back-fills of a session runs as it is now, under the same name."""
    deposited = sum(range(DEPOSITS))
    assert foreign["changes"] == [[ACCOUNTS, 2 * deposited], [ACCOUNTS, 3 * deposited]]


def test_undisturbed_rebuild_is_the_recovery(undisturbed: dict[tuple[str, int], Any], node: Path, tmp_path: Path) -> None:
    """The digests are those of a recovery in this process."""
    wanted = digests(node, tmp_path / "work")
    assert {key: digest for key, (_, _, digest, _) in undisturbed.items()} == {(t, p): wanted[p, t] for t, p in undisturbed}
    assert {p for table, p in undisturbed if table == "accounts"} == set(range(PARTITIONS))


def test_killed_executor_costs_time_and_no_row(
    cluster: Cluster, node: Path, undisturbed: dict[tuple[str, int], Any], tmp_path: Path
) -> None:
    """SIGKILL to an executor while its task runs: the task runs again, and the output is the same to the byte."""
    out = tmp_path / "out"
    process = start_command(cluster, "rebuild", str(node), "--to", str(out))
    wait_for_attempts(process, out)
    assert not any(Path(f"{out}{SUFFIX}", "rows").iterdir())
    os.kill(cluster.executors()[0], signal.SIGKILL)
    finish(process)
    assert read_manifest(out) == undisturbed


def find_attempt(cluster: Cluster) -> tuple[int, str] | None:
    """(process, key of the task) of a Python worker that has the state of its partition open."""
    for executor in cluster.executors():
        for worker in (worker for daemon in children(executor) for worker in children(daemon)):
            if key := next((found[1] for path in open_files(worker) if (found := re.search(r"/cmdlog-(p\d+)\.", path))), None):
                return worker, key
    return None


def test_speculation_is_harmless(cluster: Cluster, node: Path, undisturbed: dict[tuple[str, int], Any], tmp_path: Path) -> None:
    """A worker stands still until another attempt at its task runs beside it; the output is the same to the byte, and no more."""
    out = tmp_path / "out"
    conf = [f"--conf=spark.speculation{setting}" for setting in SPECULATION]
    process = start_command(cluster, "rebuild", str(node), "--to", str(out), *conf)
    found = wait_while_it_runs(process, lambda: find_attempt(cluster))
    assert found is not None
    worker, key = found
    os.kill(worker, signal.SIGSTOP)
    try:
        wait_while_it_runs(process, lambda: len(list(Path(f"{out}{SUFFIX}", "attempts").glob(f"{key}.*"))) >= 2)
    finally:
        if "pyspark" in command_line(worker):
            os.kill(worker, signal.SIGCONT)
        finish(process)
    assert read_manifest(out) == undisturbed


def test_spark_submit_needs_the_zip_alone(cluster: Cluster, node: Path, tmp_path: Path) -> None:
    """The documented line: a driver without the package gets everything from `--py-files`, and nothing is sent twice."""
    packaged = cluster.run(sys.executable, "-m", "cmdlog.cli", "spark", "package", str(tmp_path))
    (archive,) = packaged.stdout.splitlines()
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    ended = cluster.run(submit, "--master", cluster.url, "--py-files", archive, str(job), str(node), str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    calls = len(logged_calls(node))
    assert {name: told[name] for name in ("table", "stream", "rebuilt")} == dict.fromkeys(("table", "stream", "rebuilt"), calls)
    assert Path(archive).name in Path(told["home"]).parts
    assert (told["master"], told["files"]) == (cluster.url, [Path(archive).name])
    assert told["plain"] == "DATA_SOURCE_NOT_FOUND"  # Spark looks before it knows --py-files: `session` or `register` tells it


def test_local_cluster_gives_the_same(
    cluster: Cluster, node: Path, undisturbed: dict[tuple[str, int], Any], tmp_path: Path
) -> None:
    """Two executors that Spark starts itself are a cluster, too: they get the zip, and the output is the same to the byte."""
    work = Path(pyspark.__file__).parent / "work"  # where they live; nothing moves it
    before = set(work.iterdir()) if work.exists() else None
    try:
        command = [sys.executable, "-m", "cmdlog.cli", "spark", "rebuild", str(node), "--to", str(tmp_path / "out"), "--json"]
        ended = cluster.run(*command, "--master", "local-cluster[2,1,700]", "--conf", "spark.executor.memory=700m")
    finally:
        for path in set(work.iterdir()) - (before or set()) if work.exists() else ():
            shutil.rmtree(path)
        if before is None and work.exists():
            work.rmdir()
    assert ended.returncode == 0, ended.stderr
    assert read_manifest(tmp_path / "out") == undisturbed


def test_executor_with_other_versions_is_refused(cluster: Cluster, node: Path, tmp_path: Path) -> None:
    """Another SQLite, another Python, and other code of this package that a worker had before: each is named with both sides."""
    for package in PACKAGES:
        shutil.copytree(TREE / package, tmp_path / "old" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "old" / "replay" / "apply.py").open("a") as file:
        file.write("# as it was before\n")
    python = bare_python(tmp_path / "python", PLANTED.format(old=str(tmp_path / "old")))
    out = tmp_path / "out"
    command = start_command(cluster, "rebuild", str(node), "--to", str(out), PYSPARK_PYTHON=python)
    printed, _ = command.communicate(timeout=RUN_S_MAX)
    error = json.loads(printed.splitlines()[-1])["error"]
    here = versions()
    told = (
        rf"the executor of p000\d has cmdlog 0\.1\.0-\w+ instead of {here['cmdlog']}, python 2\.7 instead of {here['python']}, "
    )
    assert re.fullmatch(told + rf"sqlite 3\.1\.0 instead of {here['sqlite']}; task p000\d", error["message"])
    assert (command.returncode, error["kind"]) == (11, "TaskError")
    assert not out.exists()


def test_executor_with_another_python_is_refused(cluster: Cluster, node: Path, tmp_path: Path) -> None:
    """A real one: Spark itself names both sides, and so does the command, without a trace."""
    found = other_python()
    if found is None:
        pytest.skip("there is no other Python on this machine")
    minor, python = found
    command = start_command(cluster, "rebuild", str(node), "--to", str(tmp_path / "out"), PYSPARK_PYTHON=python)
    printed, _ = command.communicate(timeout=RUN_S_MAX)
    error = json.loads(printed.splitlines()[-1])["error"]
    assert (command.returncode, error["kind"]) == (1, "SparkFailed")
    assert {versions()["python"], minor} <= set(re.findall(r"3\.\d+", error["message"]))
    assert "Traceback" not in error["message"]


def test_master_that_does_not_answer_is_given_up(tmp_path: Path, cluster: Cluster) -> None:
    """What listens there is no Spark master: the command ends with a sentence."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "cmdlog.cli", "spark", "rebuild", str(tmp_path), "--to", str(tmp_path / "out"), "--json"]
        ended = cluster.run(*command, "--master", master)
    error = json.loads(ended.stdout.splitlines()[-1])["error"]
    assert (ended.returncode, error["kind"]) == (1, "NoSession")
    assert master in error["message"]
