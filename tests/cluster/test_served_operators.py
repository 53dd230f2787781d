"""An operator's commands against a cluster of real processes: a node joins, one retires, a majority is lost and given up."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cli.demo.nodes import free_ports
from tests.cluster.served import ServedCluster
from tests.waiting import PATIENCE_S, ask_for

pytestmark = pytest.mark.slow


class Operated(ServedCluster):
    """Nodes that may be added; what a command prints is read."""

    def json(self, *arguments: str) -> Any:
        """What a command says that succeeds."""
        return orjson.loads(self.run(*arguments, "--json").splitlines()[-1])

    def run(self, *arguments: str) -> str:
        """A command that succeeds in the end: what is refused, as long as nobody leads or a node is not level, is asked again."""
        done: list[subprocess.CompletedProcess[str]] = []

        def succeeds() -> bool:
            done[:] = [self._done(*arguments)]
            return done[0].returncode == 0

        ask_for(succeeds, why=lambda: f"{arguments}: {done[0].stderr}\n{self.logs()}")
        return done[0].stdout

    def code(self, *arguments: str) -> int:
        """The exit code of a command."""
        return self._done(*arguments).returncode

    def _done(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("log*")))

    def join_options(self, node: int) -> list[str]:
        """A node that joined later has a file of its own."""
        own = f"cluster-{node}.json"
        return ["--join", own if (self.folder / own).exists() else "cluster.json"]

    def members(self) -> dict[int, tuple[str, str]]:
        """State and seat of each, as the newest view has them."""

        def answering() -> list[dict[str, Any]]:
            nodes = orjson.loads(self._done("cluster", "status", "--url", self.url, "--json").stdout)["nodes"]
            return [node for node in nodes if "groups" in node]

        view = max(ask_for(answering, why=self.logs), key=lambda node: int(node["version"]))
        return {member["node"]: (member["state"], member["seat"]) for member in view["members"]}

    @property
    def url(self) -> str:
        return ",".join(self.urls.values())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Operated]:
    """Three nodes that run."""
    served = Operated(tmp_path)
    served.start()
    yield served
    served.close()


def test_node_joins_another_retires_and_one_comes_back_with_an_empty_disk(cluster: Operated) -> None:
    """By the commands of CLUSTER.md, and nothing else; calls of before are there in the end."""
    cluster.leader()
    account = {"branch": 1, "customer": 1}
    assert cluster.call("open_account", {**account, "savings": 0, "checking": 7}, "open")["status"] == 200
    peer, client = (f"127.0.0.1:{port}" for port in free_ports(2))
    address = ("--peer", peer, "--client", f"http://{client}")
    cluster.run("cluster", "join", "4", "--cluster", "cluster.json", *address)
    cluster.urls[4] = f"http://{client}"
    cluster.start(4)
    told = cluster.json("cluster", "add", "4", *address, "--url", cluster.url, "--wait")
    assert (told["already"], told["progress"]["done"]) == (True, True)
    cluster.run("cluster", "transfer", "4", "--url", cluster.url, "--wait")
    assert cluster.code("cluster", "remove", "9", "--url", cluster.url) == 1
    retired = cluster.json("cluster", "retire", "1", "--url", cluster.url, "--wait")
    assert retired["progress"]["done"]
    assert cluster.members() == {1: ("removed", ""), 2: ("member", "voter"), 3: ("member", "voter"), 4: ("member", "voter")}
    cluster.kill(3)
    shutil.rmtree(cluster.folder / "n3")
    cluster.run("cluster", "replace", "3", "--url", cluster.url)
    cluster.start(3)
    cluster.run("cluster", "replace", "3", "--url", cluster.url, "--wait")
    assert cluster.members()[3] == ("member", "voter")
    assert cluster.call("balance", account, "read", only=[2, 3, 4])["status"] == 200


@pytest.mark.torture
def test_survivor_continues_alone_and_a_lost_node_comes_back(cluster: Operated) -> None:
    """unsafe-recover is refused while a majority lives; afterwards the survivor takes calls."""
    leader = cluster.leader()
    survivor, lost = (node for node in cluster.nodes if node != leader)
    assert cluster.code("cluster", "unsafe-recover", str(survivor), "--url", cluster.url, "--yes") == 1
    cluster.kill(leader)
    cluster.kill(lost)
    url = cluster.urls[survivor]
    recover = ("cluster", "unsafe-recover", str(survivor), "--url", url)
    ask_for(lambda: cluster.code(*recover, "--plan") == 0, why=cluster.logs)
    done = cluster.json(*recover, "--yes")
    assert (done["already"], done["lost"]) == (False, sorted((leader, lost)))
    cluster.run("cluster", "remove", str(leader), "--url", url, "--wait")
    shutil.rmtree(cluster.folder / f"n{lost}")
    cluster.run("cluster", "replace", str(lost), "--url", url)
    cluster.start(lost)
    cluster.run("cluster", "replace", str(lost), "--url", url, "--wait")
    assert cluster.members() == {leader: ("removed", ""), survivor: ("member", "voter"), lost: ("member", "voter")}
    account = {"branch": 1, "customer": 1, "savings": 0, "checking": 7}
    assert cluster.call("open_account", account, "open", only=[survivor])["status"] == 200
    cluster.kill(lost, signal.SIGTERM)
