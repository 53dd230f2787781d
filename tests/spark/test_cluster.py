"""A real cluster of several processes: executors that are killed, and the same output."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan import make_plan
from replay.recover import Target, execute
from replay.spark.staging import SUFFIX
from replay.trust import state_path
from snapshot.digest import open_image, table_digests
from tests.replay.ledgers import SMALL, importable
from tests.spark.cluster import Cluster, running_cluster, start_command

pytestmark = [pytest.mark.torture, pytest.mark.timeout(600)]
PARTITIONS = 3
DEPOSITS = 60_000
WINDOW = 500  # calls under way at a time
JOB_S_MAX = 300.0


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
            for account in range(30):
                opened.call("begin", account=account)
            for first in range(0, DEPOSITS, WINDOW):
                for answer in [opened.submit("deposit", account=n % 30, amount=n) for n in range(first, first + WINDOW)]:
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


def test_killed_executor_costs_time_and_no_row(cluster: Cluster, node: Path, tmp_path: Path) -> None:
    """SIGKILL to an executor while its task runs: the task runs again, and the manifest names whole files alone."""
    out = tmp_path / "out"
    attempts, rows = (Path(f"{out}{SUFFIX}", name) for name in ("attempts", "rows"))
    process = start_command(cluster, "rebuild", str(node), "--to", str(out))
    try:
        deadline = time.monotonic() + JOB_S_MAX
        while not (attempts.is_dir() and any(attempts.iterdir())):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not any(rows.iterdir())
        begun = len(list(attempts.iterdir()))
        os.kill(cluster.executors()[0], signal.SIGKILL)
        printed, errors = process.communicate(timeout=JOB_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert begun
    manifest = json.loads(printed.splitlines()[-1])
    wanted = digests(node, tmp_path / "work")
    tables = manifest["points"][0]["tables"]
    found = {(file["partition"], name): file["digest"] for name, table in tables.items() for file in table["files"]}
    assert found == {key: wanted[key] for key in found}
    assert {key for key in found if key[1] == "accounts"} == {(p, "accounts") for p in range(PARTITIONS)}
    named = {file["path"] for table in tables.values() for file in table["files"]}
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet")} == named
