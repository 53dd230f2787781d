"""A cluster of real processes whose detector gives a stopped node up, and takes it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.files import RealFiles
from tests.cluster.served import ServedCluster
from tests.waiting import ask_for

pytestmark = pytest.mark.slow


class Watchful(ServedCluster):
    """A silent node soon loses its vote, but not one that a busy machine does not serve for a while."""

    def join_options(self, node: int) -> list[str]:
        return [*super().join_options(node), "--failure-after-s", "6"]

    def fault_logs(self) -> dict[int, list[tuple[int, list[int]]]]:
        """Of every node sequence and set of each record."""
        found = {}
        for node in self.nodes:
            records = read_faults(RealFiles(), str(self.folder / f"n{node}"))
            found[node] = [(record.sequence, sorted(record.failed)) for record in records]
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Watchful]:
    """Three nodes that are starting."""
    served = Watchful(tmp_path)
    served.start()
    yield served
    served.close()


@pytest.mark.torture
@pytest.mark.parametrize("followers", [1, 2])
def test_a_stopped_node_is_given_up_and_votes_again_once_it_continues(cluster: Watchful, followers: int) -> None:
    """Set 1 in the logs of the two that live, sets 1 and 2 in all three in the end; then the other follower likewise, 3 and 4."""
    leader = cluster.leader()
    stopped = [node for node in cluster.nodes if node != leader][:followers]
    account = {"branch": 1, "customer": 1}
    assert cluster.call("open_account", {**account, "savings": 0, "checking": 0}, "open")["status"] == 200
    expected: list[tuple[int, list[int]]] = []
    for number, away in enumerate(stopped):
        before, expected = expected, [*expected, (2 * number + 1, [away])]
        wanted = {node: before if node == away else expected for node in cluster.nodes}
        cluster.pause(away)
        ask_for(lambda wanted=wanted: cluster.fault_logs() == wanted, why=cluster.logs)  # type: ignore[misc]
        others = [node for node in cluster.nodes if node != away]
        failed = {"sequence": 2 * number + 1, "nodes": [away]}
        ask_for(lambda: cluster.status(others[0]).get("failure_set") == failed, why=cluster.logs)  # noqa: B023
        answer = cluster.call("deposit_checking", {**account, "amount": 1}, f"d{number}", only=others)
        assert answer["status"] == 200
        cluster.pause(away, over=True)
        expected = [*expected, (2 * number + 2, [])]
        ask_for(lambda: cluster.fault_logs() == dict.fromkeys(cluster.nodes, expected), why=cluster.logs)  # noqa: B023
    ask_for(lambda: len(set(cluster.positions().values())) == 1, why=cluster.logs)
