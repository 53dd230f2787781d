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
from tests.waiting import PATIENCE_S, ask_for, wait_for

pytestmark = pytest.mark.slow

ACCOUNT = {"branch": 1, "customer": 1}
LOOK_EVERY_S = 0.3  # each is a program of its own
CHROMIUM = shutil.which("chromium")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=500")
"""The page is printed once its requests are answered and half a second, which does not pass meanwhile, is over."""


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
            env=self.cluster.environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, orjson.loads(done.stdout)

    def await_verdict(self, code: int, *findings: str, patience_s: float = 2.0) -> dict[str, Any]:
        """The answer, once it has this exit code and these findings, such as `unreachable 3`.

        `patience_s`: for a node that does not answer.
        """

        def look() -> dict[str, Any]:
            found, answer = self.look("--cluster", "cluster.json", "--timeout", str(patience_s))
            named = {f"{finding['code']} {finding['node'] or ''}".strip() for finding in answer["health"]["findings"]}
            return answer if found == code and set(findings) <= named and bool(findings) is bool(named) else {}

        return wait_for(look, why=self.cluster.logs, every_s=LOOK_EVERY_S)

    def await_caught_up(self, node: int) -> dict[str, Any]:
        """The answer, once everything is well and this node lacks no entry of the leader's."""

        def look() -> dict[str, Any]:
            answer = self.await_verdict(0)
            lags = answer["health"]["lag"].get(str(node), {})
            return answer if lags and not any(lag["entries"] for lag in lags.values()) else {}

        return wait_for(look, why=self.cluster.logs, every_s=LOOK_EVERY_S)

    def await_behind(self, node: int) -> dict[str, Any]:
        """The answer, once the leader has seen that this node alone does not answer, and for how long it lacks what."""

        def look() -> dict[str, Any]:
            answer = self.await_verdict(18, f"unreachable {node}", patience_s=0.5)
            lags = answer["health"]["lag"].get(str(node), {}).values()
            seen = any(lag["entries"] and (lag["seconds"] or 0) > 0 for lag in lags)
            return answer if seen and {lag["seen"] for lag in lags} == {"leader"} else {}

        return wait_for(look, why=self.cluster.logs, every_s=LOOK_EVERY_S)

    def await_alone(self, node: int, *others: int) -> dict[str, Any]:
        """The answer, once this node is the only one, follows nobody, and has said so."""

        def look() -> dict[str, Any]:
            gone = [f"unreachable {other}" for other in others]
            answer = self.await_verdict(19, "no_leader", f"not_running {node}", *gone)
            return answer if states(answer)[node] == "configuring" and "quorum_lost" in reasons(answer, node) else {}

        return wait_for(look, why=self.cluster.logs, every_s=LOOK_EVERY_S)


def states(answer: dict[str, Any]) -> dict[int, str]:
    """Node -> state."""
    return {node["node"]: node["state"] for node in answer["nodes"]}


def reasons(answer: dict[str, Any], node: int) -> set[str]:
    """Why its roles changed."""
    row = next(row for row in answer["nodes"] if row["node"] == node)
    return {change["reason"] for change in row["role_changes"]}


def test_status_tells_every_situation_and_its_exit_code(cluster: ServedCluster) -> None:
    """All up: 0. One stopped or killed: 18, with what it lacks. No majority: 19, and nobody is ready. All up again: 0."""
    operator = Operator(cluster)
    cluster.leader()
    answer = operator.await_verdict(0)
    leader = answer["health"]["leader"]
    assert set(states(answer).values()) == {"running"}
    one, other = (node for node in cluster.nodes if node != leader)
    seen = ask_for(lambda: (found := operator.look("--url", cluster.urls[one]))[0] == 0 and found[1], why=cluster.logs)
    assert seen
    assert [node["node"] for node in seen["nodes"]] == [1, 2, 3]

    def ready() -> tuple[object, ...]:
        answer = httpx.get(f"{cluster.urls[one]}/readyz")
        return (answer.status_code, answer.json().get("role"), answer.json().get("leader"))

    ask_for(lambda: ready() == (200, "follower", cluster.urls[leader]), why=cluster.logs)
    if CHROMIUM is not None:
        check_page(cluster, one, leader)

    cluster.pause(one)
    awake = [leader, other]
    assert cluster.call("open_account", {**ACCOUNT, "savings": 0, "checking": 0}, "open", only=awake)["status"] == 200
    answer = operator.await_behind(one)
    assert states(answer) == {leader: "running", other: "running", one: "unreachable"}
    cluster.pause(one, over=True)
    answer = operator.await_caught_up(one)

    leader = answer["health"]["leader"]
    one, other = (node for node in cluster.nodes if node != leader)
    cluster.kill(one)
    operator.await_verdict(18, f"unreachable {one}")
    cluster.kill(other)
    operator.await_alone(leader, one, other)
    refused = httpx.get(f"{cluster.urls[leader]}/readyz")
    assert (refused.status_code, refused.json()["state"]) == (503, "configuring")
    assert httpx.get(f"{cluster.urls[leader]}/healthz").status_code == 200

    cluster.start(one, other)
    operator.await_verdict(0)


def check_page(cluster: ServedCluster, node: int, leader: int) -> None:
    """The status page, opened at a follower by a browser, has a row for every node, and the leader's is marked."""
    browser = [CHROMIUM or "", *HEADLESS, f"--user-data-dir={cluster.folder / 'browser'}", "--dump-dom", f"{cluster.urls[node]}/"]

    def rows() -> list[str]:
        page = subprocess.run(browser, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout
        table = page.partition('<table id="nodes">')[2].partition("</table>")[0]
        return table.split("<tr")[2:]

    found = ask_for(rows)
    assert len(found) == len(cluster.nodes)
    assert ['class="leads"' in row for row in found] == [number == leader for number in cluster.nodes]
    assert f"{node}, this node" in found[node - 1]
