"""Real nodes, one of them on a disk that went back: who holds more is named, leads nothing, and calls go on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import PATIENCE_S, ask_for

pytestmark = pytest.mark.slow
HOLDER, BACK, ABSENT = 1, 2, 3
LOST = 12


def take_image(directory: Path) -> dict[str, bytes]:
    """All files below a node's directory, as an image of its volume has them."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def put_back(directory: Path, image: dict[str, bytes]) -> None:
    """The volume is as it was: the same files, with inodes and births as they were."""
    for path in list(directory.rglob("*")):
        if path.is_file() and str(path.relative_to(directory)) not in image:
            path.unlink()
    for name, data in image.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()
            os.fsync(file.fileno())


def run(cluster: ServedCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of `cmdlog cluster`, however it ends."""
    return subprocess.run(
        cluster.command("cluster", *arguments), cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


class Went:
    """Three nodes, of which `ABSENT` lacks the last calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster = folder, ServedCluster(folder)
        self.account = {"branch": 1, "customer": 1}

    def begin(self) -> None:
        """An account that all nodes know; then one of them is gone."""
        cluster = self.cluster
        cluster.start()
        cluster.leader()
        cluster.call("open_account", {**self.account, "savings": 0, "checking": 0}, "open")
        ask_for(lambda: len(set(cluster.positions().values())) == 1 and len(cluster.positions()) == 3, why=cluster.logs)
        cluster.kill(ABSENT)
        cluster.leader([HOLDER, BACK])

    def image_of(self, node: int, *, running: bool) -> dict[str, bytes]:
        """What its volume is put back to. The node is started again since, and the others have met that."""
        if running:
            self.cluster.pause(node)
        else:
            self.cluster.kill(node)
        image = take_image(self.folder / f"n{node}")
        if running:
            self.cluster.pause(node, over=True)
            self.cluster.kill(node)
        self.cluster.start(node)
        return image

    def deposit(self, key: str, *only: int) -> None:
        """A call that is acknowledged."""
        answer = self.cluster.call("deposit_checking", {**self.account, "amount": 1}, key, only=only)
        assert answer["status"] == 200

    def findings(self) -> dict[int, set[str]]:
        """What `cluster status` says of each node."""
        told = json.loads(run(self.cluster, "status", "--cluster", "cluster.json", "--json").stdout)["health"]["findings"]
        return {node: {finding["code"] for finding in told if finding["node"] == node} for node in self.cluster.nodes}

    def wait_until_named(self, node: int, *met_by: int) -> None:
        """Status, metric, fitness and log say that the node's directory is older than what those have met."""
        cluster = self.cluster
        ask_for(lambda: cluster.status(node).get("cluster", {}).get("went_back") == [*met_by], why=cluster.logs)
        ask_for(lambda: "diverged" in cluster.status(node)["cluster"]["unfit"], why=cluster.logs)
        assert cluster.status(node)["cluster"]["state"] == "diverged"
        metrics = httpx.get(f"{cluster.urls[node]}/metrics", timeout=PATIENCE_S).text
        assert f'cmdlog_cluster_went_back{{peer="{met_by[0]}"}} 1' in metrics
        log = (self.folder / f"log{node}").read_text()
        assert "directory_went_back" in log
        assert f"cmdlog cluster replace {node}" in log


@pytest.mark.parametrize("running", [False, True], ids=["image of a stopped node", "image of a running node"])
def test_a_node_on_an_older_disk_never_leads(tmp_path: Path, running: bool) -> None:
    """A peer has met a later start of it. With the third, which has not, it takes calls until that one is back; from then on it
    is named, one of the others leads, a transfer to it is refused, and calls are taken. A restart knows it still."""
    went = Went(tmp_path)
    cluster = went.cluster
    try:
        went.begin()
        image = went.image_of(BACK, running=running)
        for number in range(LOST):
            went.deposit(f"lost{number}", HOLDER, BACK)
        ask_for(lambda: len(set(cluster.positions().values())) == 1, why=cluster.logs)
        for node in (HOLDER, BACK):
            cluster.kill(node)
        put_back(tmp_path / f"n{BACK}", image)
        cluster.start(BACK, ABSENT)
        cluster.leader([BACK, ABSENT])
        went.deposit("between", BACK, ABSENT)
        cluster.start(HOLDER)
        went.wait_until_named(BACK, HOLDER)
        ask_for(lambda: "diverged" in went.findings()[BACK], why=cluster.logs)
        went.deposit("after", HOLDER, ABSENT)
        leader = cluster.leader([HOLDER, ABSENT])
        assert run(cluster, "transfer", str(BACK), "--url", cluster.urls[leader]).returncode != 0
        cluster.kill(BACK)
        cluster.start(BACK)
        went.wait_until_named(BACK, HOLDER)
        assert HOLDER not in cluster.status(leader)["cluster"]["failure_set"]["nodes"]
        went.deposit("last", HOLDER, ABSENT)
    finally:
        cluster.close()


def test_a_node_on_an_older_disk_hears_it_before_it_votes(tmp_path: Path) -> None:
    """The one that has met a later start lives: it leads with the third, whichever of them lacks calls, and none is lost."""
    went = Went(tmp_path)
    cluster = went.cluster
    try:
        went.begin()
        image = went.image_of(BACK, running=False)
        for number in range(LOST):
            went.deposit(f"kept{number}", HOLDER, BACK)
        cluster.kill(BACK)
        put_back(tmp_path / f"n{BACK}", image)
        cluster.start(BACK, ABSENT)
        went.wait_until_named(BACK, HOLDER)
        assert cluster.leader([HOLDER, ABSENT]) == HOLDER
        assert cluster.call("balance", went.account, "", only=[HOLDER])["result"] == LOST
        went.deposit("after", HOLDER, ABSENT)
        assert run(cluster, "transfer", str(BACK), "--url", cluster.urls[HOLDER]).returncode != 0
        went.deposit("last", HOLDER, ABSENT)
    finally:
        cluster.close()


def test_two_older_disks_elect_nobody_beside_the_one_that_holds_all(tmp_path: Path) -> None:
    """Both are named, and the third, which they took calls without, is not declared failed. The cluster waits for an operator,
    who continues from it."""
    went = Went(tmp_path)
    cluster = went.cluster
    others = (BACK, ABSENT)
    try:
        cluster.start()
        cluster.leader()
        cluster.call("open_account", {**went.account, "savings": 0, "checking": 0}, "open")
        for node in others:
            cluster.kill(node)
        images = {node: take_image(tmp_path / f"n{node}") for node in others}  # neither has met the other's next start
        cluster.start(*others)
        cluster.leader()
        for number in range(LOST):
            went.deposit(f"lost{number}")
        ask_for(lambda: len(set(cluster.positions().values())) == 1 and len(cluster.positions()) == 3, why=cluster.logs)
        for node in cluster.nodes:
            cluster.kill(node)
        for node in others:
            put_back(tmp_path / f"n{node}", images[node])
        cluster.start(*others)
        cluster.leader(others)
        cluster.start(HOLDER)
        for node in others:
            went.wait_until_named(node, HOLDER)
        ask_for(lambda: all(cluster.status(node)["cluster"]["leader"] is None for node in others), why=cluster.logs)
        found = went.findings()
        assert all("diverged" in found[node] for node in others)
        assert all(HOLDER not in cluster.status(node)["cluster"]["failure_set"]["nodes"] for node in others)
        places = cluster.positions()
        assert all(sum(end for end, _ in places[HOLDER]) >= sum(end for end, _ in places[node]) + LOST // 2 for node in others)
    finally:
        cluster.close()
