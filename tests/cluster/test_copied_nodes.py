"""Real nodes whose directories are emptied or damaged, or that join: they are copied, and level with the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # processes


@pytest.mark.torture
def test_emptied_follower_is_replaced_copied_and_level_again(cluster: ServedCluster) -> None:
    """Its disk is lost; an operator says that another one takes its place."""
    node = cluster.a_follower()
    cluster.kill(node)
    shutil.rmtree(cluster.folder / f"n{node}")
    open_accounts(cluster, 20)
    cluster.run("cluster", "replace", str(node), "--url", cluster.urls[cluster.leader()])
    cluster.start(node)
    cluster.wait_level()
    open_accounts(cluster, 10)
    cluster.wait_level()


@pytest.mark.torture
def test_damaged_follower_is_healed_without_an_operator(cluster: ServedCluster) -> None:
    """It was killed, and a byte of its log has changed meanwhile. What it had is in quarantine."""
    node = cluster.a_follower()
    cluster.kill(node)
    damage_log(cluster.folder / f"n{node}")
    open_accounts(cluster, 20)
    cluster.start(node)
    cluster.wait_level()
    assert "damaged" in cluster.run("cluster", "quarantine", "list", f"n{node}")


def test_copy_that_is_killed_is_resumed(cluster: ServedCluster) -> None:
    """By the next start, wherever it was."""
    node = cluster.a_follower()
    open_accounts(cluster, 20)
    cluster.kill(node)
    damage_log(cluster.folder / f"n{node}")
    record, kept = cluster.folder / f"n{node}" / "cluster" / "rejoin.json", len(quarantine(cluster, node))
    for _ in range(3):
        cluster.start(node)
        wait_for(lambda: record.exists() or len(quarantine(cluster, node)) > kept, why=cluster.logs)  # or it was too quick
        cluster.kill(node)
    cluster.start(node)
    cluster.wait_level()


def quarantine(cluster: ServedCluster, node: int) -> list[Path]:
    """What its directory keeps of former lives."""
    return list((cluster.folder / f"n{node}" / "quarantine").glob("*"))


def damage_log(directory: Path) -> None:
    """A byte in the middle of what the log's newest segment holds."""
    segment = max((directory / "log").glob("seg-*"))
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 0xFF
    segment.write_bytes(data)


def open_accounts(cluster: ServedCluster, count: int) -> None:
    """So many calls."""
    for number in range(count):
        cluster.new_account(number % 8)
