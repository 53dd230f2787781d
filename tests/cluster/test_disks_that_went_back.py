"""Real nodes, one of them on a disk that went back: who holds more is named, leads nothing, and calls go on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def test_who_holds_more_than_the_leader_is_named_and_never_leads(tmp_path: Path) -> None:
    """Two of three took the calls; the disk of one of them goes back, and it starts with the third. When the first is back,
    `cluster status` names it, its status says `diverged`, a transfer to it is refused, and calls are taken all the time."""
    cluster = ServedCluster(tmp_path)
    account = {"branch": 1, "customer": 1}
    try:
        cluster.start()
        cluster.leader()
        cluster.call("open_account", {**account, "savings": 0, "checking": 0}, "open")
        ask_for(lambda: len(set(cluster.positions().values())) == 1 and len(cluster.positions()) == 3, why=cluster.logs)
        cluster.kill(ABSENT)
        cluster.leader([HOLDER, BACK])
        cluster.pause(BACK)
        image = take_image(tmp_path / f"n{BACK}")  # of the volume of a machine that runs
        cluster.pause(BACK, over=True)
        for number in range(LOST):
            assert (
                cluster.call("deposit_checking", {**account, "amount": 1}, f"lost{number}", only=[HOLDER, BACK])["status"] == 200
            )
        ask_for(lambda: len(set(cluster.positions().values())) == 1, why=cluster.logs)
        for node in (HOLDER, BACK):
            cluster.kill(node)
        put_back(tmp_path / f"n{BACK}", image)
        cluster.start(BACK, ABSENT)
        leader = cluster.leader([BACK, ABSENT])
        assert cluster.call("balance", account, "", only=[leader])["result"] == 0  # consensus cannot keep what two disks lost
        cluster.start(HOLDER)
        ask_for(lambda: cluster.status(HOLDER).get("cluster", {}).get("diverged"), why=cluster.logs)
        ask_for(lambda: "diverged" in cluster.status(HOLDER)["cluster"]["unfit"], why=cluster.logs)
        ask_for(lambda: cluster.status(HOLDER)["cluster"]["state"] == "diverged", why=cluster.logs)
        assert "history_diverged" in (tmp_path / f"log{HOLDER}").read_text()
        told = json.loads(run(cluster, "status", "--cluster", "cluster.json", "--json").stdout)["health"]["findings"]
        assert "diverged" in {finding["code"] for finding in told if finding["node"] == HOLDER}
        refused = run(cluster, "transfer", str(HOLDER), "--url", cluster.urls[leader])
        assert refused.returncode != 0
        assert "should not lead" in refused.stderr
        answer = cluster.call("deposit_checking", {**account, "amount": 5}, "new", only=[BACK, ABSENT])
        assert answer["status"] == 200
        assert cluster.leader([BACK, ABSENT]) in (BACK, ABSENT)
    finally:
        cluster.close()
