"""A restore drill of one member of a cluster: what it holds is proved as far as it has executed it; the rest others decide."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.files import RealFiles
from replay.drill.drill import drill
from tests.cluster.served import ServedCluster

pytestmark = pytest.mark.slow
CALLS = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes after some calls."""
    made = ServedCluster(tmp_path_factory.mktemp("drilled"))
    try:
        made.start()
        made.leader()
        for number in range(CALLS):
            made.call("open_account", {"branch": 1 + number % 4, "customer": number}, f"00000000-0000-4000-8000-{number:012}")
        yield made
    finally:
        made.close()


def drilled(cluster: ServedCluster, node: int) -> dict[str, Any]:
    """What the command says, which ends well."""
    command = cluster.command("drill", f"n{node}", "--json")
    done = subprocess.run(command, cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.torture
def test_member_is_proven_beside_the_others_and_when_all_have_stopped(cluster: ServedCluster) -> None:
    """Leader and followers alike, with calls replayed; the other members are named."""
    for node in cluster.nodes:
        found = drilled(cluster, node)
        assert found["verdict"] == "proven"
        assert found["members"] == [other for other in cluster.nodes if other != node]
        assert {part["undecided"] >= 0 for part in found["partitions"]} == {True}
    cluster.kill(cluster.leader())
    cluster.close()
    reports = [drill(RealFiles(), str(Path(cluster.folder, f"n{node}")), seed=1) for node in cluster.nodes]
    assert [(report.error, report.verdict) for report in reports] == [(None, "proven")] * len(reports)
    assert all(sum(proof.calls for proof in report.newest.values()) > 0 for report in reports)
