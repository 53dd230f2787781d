"""Real nodes whose directories are emptied or damaged, or that join: they are copied, and level with the others."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import ask_for, wait_for

pytestmark = pytest.mark.slow  # processes


CUSTOMERS = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes that run. A test leaves them so."""
    made = ServedCluster(tmp_path_factory.mktemp("copied"))
    try:
        made.start()
        made.leader()
        yield made
    finally:
        made.close()


def open_accounts(cluster: ServedCluster, count: int) -> None:
    """So many calls."""
    for number in itertools.islice(CUSTOMERS, count):
        account = {"branch": number % 8, "customer": number, "savings": number, "checking": 0}
        assert cluster.call("open_account", account, f"k{number}")["status"] == 200


def is_level(cluster: ServedCluster) -> bool:
    """Every node answers, and has run what every other one has."""
    found = cluster.positions()
    return len(found) == len(cluster.nodes) and len(set(found.values())) == 1


def a_follower(cluster: ServedCluster) -> int:
    """A node that does not lead."""
    leader = cluster.leader()
    return next(node for node in cluster.nodes if node != leader)


def url_of_leader(cluster: ServedCluster) -> str:
    """Where it takes requests."""
    return cluster.urls[cluster.leader()]


@pytest.mark.torture
def test_emptied_follower_is_replaced_copied_and_level_again(cluster: ServedCluster) -> None:
    """Its disk is lost; an operator says that another one takes its place."""
    node = a_follower(cluster)
    cluster.kill(node)
    shutil.rmtree(cluster.folder / f"n{node}")
    open_accounts(cluster, 20)
    cluster.run("cluster", "replace", str(node), "--url", url_of_leader(cluster))
    cluster.start(node)
    ask_for(lambda: is_level(cluster), why=cluster.logs)
    open_accounts(cluster, 10)
    ask_for(lambda: is_level(cluster), why=cluster.logs)


@pytest.mark.torture
def test_damaged_follower_is_healed_without_an_operator(cluster: ServedCluster) -> None:
    """It was killed, and a byte of its log has changed meanwhile. What it had is in quarantine."""
    node = a_follower(cluster)
    cluster.kill(node)
    damage_log(cluster.folder / f"n{node}")
    open_accounts(cluster, 20)
    cluster.start(node)
    ask_for(lambda: is_level(cluster), why=cluster.logs)
    assert "damaged" in cluster.run("cluster", "quarantine", "list", f"n{node}")


def test_copy_that_is_killed_is_resumed(cluster: ServedCluster) -> None:
    """By the next start, wherever it was."""
    node = a_follower(cluster)
    open_accounts(cluster, 20)
    cluster.kill(node)
    damage_log(cluster.folder / f"n{node}")
    record, kept = cluster.folder / f"n{node}" / "cluster" / "rejoin.json", len(quarantine(cluster, node))
    for _ in range(3):
        cluster.start(node)
        wait_for(lambda: record.exists() or len(quarantine(cluster, node)) > kept, why=cluster.logs)  # or it was too quick
        cluster.kill(node)
    cluster.start(node)
    ask_for(lambda: is_level(cluster), why=cluster.logs)


def quarantine(cluster: ServedCluster, node: int) -> list[Path]:
    """What its directory keeps of former lives."""
    return list((cluster.folder / f"n{node}" / "quarantine").glob("*"))


def damage_log(directory: Path) -> None:
    """A byte in the middle of what the log's newest segment holds."""
    segment = max((directory / "log").glob("seg-*"))
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 0xFF
    segment.write_bytes(data)
