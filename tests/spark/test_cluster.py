"""A real cluster of several processes whose executors have nothing of ours but what was shipped to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan import make_plan
from replay.recover import Target, execute
from replay.spark.staging import SUFFIX
from replay.trust import state_path
from snapshot.digest import open_image, table_digests
from tests.replay.ledgers import LEDGER, SMALL, TEXTS, importable, logged_calls
from tests.spark.cluster import RUN_S_MAX, Cluster, running_cluster, start_command
from tests.spark.drivers import FOREIGN

pytestmark = [pytest.mark.torture, pytest.mark.timeout(600)]
PARTITIONS = 3
DEPOSITS = 20_000
WINDOW = 500  # calls under way at a time
ACCOUNTS = 30


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
    execute(plan, Target(RealFiles(), str(work)), workers=0)
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
    deadline = time.monotonic() + RUN_S_MAX
    while not (attempts.is_dir() and any(attempts.iterdir())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
