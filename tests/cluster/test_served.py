"""A cluster of real processes: the leader is killed, everything is killed, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    """Three nodes that are starting."""
    served = ServedCluster(tmp_path)
    served.start()
    yield served
    served.close()


def level(cluster: ServedCluster, nodes: int = 3) -> object:
    """All nodes have committed and run the same."""
    found = cluster.positions()
    return found if len(found) == nodes and len(set(found.values())) == 1 and all(a == b for a, b in found[1]) else None


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_when_leaders_are_killed(cluster: ServedCluster) -> None:
    """Deposits under keys; each key twice. The leader is killed twice, then all nodes at once."""
    cluster.leader()
    account = {"branch": 1, "customer": 1}
    assert cluster.call("open_account", {**account, "savings": 0, "checking": 0}, "open")["status"] == 200
    first: dict[int, str] = {}
    gone = 0
    for number in range(30):
        if number in (8, 16):
            gone = cluster.leader()
            cluster.kill(gone)
        answer = cluster.call("deposit_checking", {**account, "amount": 1}, f"d{number}")
        assert answer["status"] == 200, answer
        first[number] = answer["txn_id"]
        if number in (12, 20):
            cluster.start(gone)
    assert cluster.call("set_rate", {"name": "base", "basis_points": 7}, "rate")["status"] == 200
    wait_for(lambda: level(cluster), 90, cluster.logs)
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.start()
    cluster.leader()
    for number, txn_id in first.items():
        assert cluster.call("deposit_checking", {**account, "amount": 1}, f"d{number}")["txn_id"] == txn_id
    assert cluster.call("balance", account, "")["result"] in (30, {"checking": 30}, 30.0)
    wait_for(lambda: level(cluster), 90, cluster.logs)
