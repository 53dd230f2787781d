"""`cmdlog cluster status` beside a cluster of real processes, in each situation that an operator may find it in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ACCOUNT = {"branch": 1, "customer": 1}
CHROMIUM = shutil.which("chromium")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--timeout=8000")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    """Three nodes that are starting."""
    served = ServedCluster(tmp_path)
    served.start()
    yield served
    served.close()


class Operator:
    """Looks at the cluster."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.cluster = cluster

    def look(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code and answer of `cmdlog cluster status`."""
        found = arguments or ("--cluster", "cluster.json")
        done = subprocess.run(
            [sys.executable, "-m", "cmdlog.cli", "cluster", "status", *found, "--json"], cwd=self.cluster.folder,
            env=self.cluster._environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, orjson.loads(done.stdout)

    def await_verdict(self, code: int, *findings: str) -> dict[str, Any]:
        """The answer, once it has this exit code and these findings, such as `unreachable 3`."""

        def look() -> dict[str, Any]:
            found, told = self.look()
            named = {f"{finding['code']} {finding['node'] or ''}".strip() for finding in told["health"]["findings"]}
            return told if found == code and set(findings) <= named and bool(findings) is bool(named) else {}

        return wait_for(look, 90, self.cluster.logs)


def states(told: dict[str, Any]) -> dict[int, str]:
    """Node -> state."""
    return {node["node"]: node["state"] for node in told["nodes"]}


@pytest.mark.timeout(400)
def test_status_tells_every_situation_and_its_exit_code(cluster: ServedCluster) -> None:
    """All up: 0. One stopped or killed: 18, with what it lacks. No majority: 19, and nobody is ready. All up again: 0."""
    operator, leader = Operator(cluster), cluster.leader()
    told = operator.await_verdict(0)
    assert (told["health"]["leader"], set(states(told).values())) == (leader, {"running"})
    one, other = (node for node in cluster.nodes if node != leader)
    code, seen = operator.look("--url", cluster.urls[one])
    assert (code, [node["node"] for node in seen["nodes"]]) == (0, [1, 2, 3])
    ready = httpx.get(f"{cluster.urls[one]}/readyz", timeout=10)
    assert (ready.status_code, ready.json()["role"], ready.json()["leader"]) == (200, "follower", cluster.urls[leader])
    if CHROMIUM is not None:
        check_page(cluster, one, leader)

    cluster.pause(one)
    assert cluster.call("open_account", {**ACCOUNT, "savings": 0, "checking": 0}, "open")["status"] == 200
    told = operator.await_verdict(18, f"unreachable {one}")
    lags = told["health"]["lag"][str(one)].values()
    assert {lag["seen"] for lag in lags} == {"leader"}
    assert any(lag["entries"] and lag["seconds"] > 0 for lag in lags)
    assert states(told) == {leader: "running", other: "running", one: "unreachable"}
    cluster.pause(one, over=True)
    told = operator.await_verdict(0)
    assert all(lag["entries"] == 0 for lag in told["health"]["lag"][str(one)].values())

    leader = told["health"]["leader"]
    one, other = (node for node in cluster.nodes if node != leader)
    cluster.kill(one)
    operator.await_verdict(18, f"unreachable {one}")
    cluster.kill(other)
    told = operator.await_verdict(19, "no_leader", f"unreachable {one}", f"unreachable {other}", f"not_running {leader}")
    assert states(told)[leader] == "configuring"
    refused = httpx.get(f"{cluster.urls[leader]}/readyz", timeout=10)
    assert (refused.status_code, refused.json()["state"]) == (503, "configuring")
    assert httpx.get(f"{cluster.urls[leader]}/healthz", timeout=10).status_code == 200
    last = next(node for node in told["nodes"] if node["node"] == leader)
    assert "quorum_lost" in {change["reason"] for change in last["role_changes"]}

    cluster.start(one, other)
    operator.await_verdict(0)


def check_page(cluster: ServedCluster, node: int, leader: int) -> None:
    """The status page, opened at a follower by a browser, has a row for every node, and the leader's is marked."""
    browser = [CHROMIUM or "", *HEADLESS, f"--user-data-dir={cluster.folder / 'browser'}", "--dump-dom", f"{cluster.urls[node]}/"]

    def rows() -> list[str]:
        page = subprocess.run(browser, capture_output=True, text=True, timeout=120, check=False).stdout
        table = page.partition('<table id="nodes">')[2].partition("</table>")[0]
        return table.split("<tr")[2:]

    found = wait_for(rows, 180)
    assert len(found) == len(cluster.nodes)
    assert ['class="leads"' in row for row in found] == [number == leader for number in cluster.nodes]
    assert f"{node}, this node" in found[node - 1]
