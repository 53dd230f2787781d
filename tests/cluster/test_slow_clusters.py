"""Real nodes on slow disks and long ways: calls are taken again soon after the leader is gone, and few terms are spent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.nemesis import NemesisCluster
from tests.cluster.proxy import Rule
from tests.waiting import ask_for

pytestmark = pytest.mark.slow
TERMS_MAX = 5
SLACK_S = 20.0  # of a machine that does something else
SLOWEST = ((600, 200), (600, 0), (50, 200), (150, 0), (300, 0))


class SlowCluster(NemesisCluster):
    """Each sync of a node's log takes long, and so does what nodes say to each other."""

    def __init__(self, folder: Path, *, sync_ms: int, way_ms: int) -> None:
        self.sync_ms = sync_ms
        super().__init__(folder)
        for way in self.ways.values():
            way.set_rules(there=Rule(delay_s=way_ms / 1000), back=Rule(delay_s=way_ms / 1000))

    def command(self, *arguments: str) -> list[str]:
        if arguments[0] != "serve":
            return super().command(*arguments)
        return [sys.executable, "-m", "tests.cluster.slow_disk", str(self.sync_ms), *arguments]

    def leads_any(self, nodes: Sequence[int]) -> bool:
        """Whether one of them takes calls."""
        return any(self.status(node).get("cluster", {}).get("standing") == "leading" for node in nodes)

    def term(self, nodes: Sequence[int]) -> int:
        """The highest one of any group."""
        return max(
            group["term"] for node in nodes for group in self.status(node).get("cluster", {"groups": {}})["groups"].values()
        )


@pytest.mark.parametrize(
    ("sync_ms", "way_ms"), [(300, 130), *(pytest.param(*each, marks=pytest.mark.torture) for each in SLOWEST)]
)
def test_another_node_takes_calls_soon(tmp_path: Path, sync_ms: int, way_ms: int) -> None:
    """Within five syncs and three time-outs, as the leader before said how long these are; and no more than five terms later."""
    cluster = SlowCluster(tmp_path, sync_ms=sync_ms, way_ms=way_ms)
    try:
        cluster.start()
        gone = cluster.leader()
        before = cluster.term(cluster.nodes)
        election = cluster.status(gone)["cluster"]["election"]
        assert election["slowest_sync_ms"] >= sync_ms - 100
        time_out_s = (election["timeout_ms"] + election["campaign_extra_ms"]) / 1000
        others = [node for node in cluster.nodes if node != gone]
        cluster.kill(gone)
        ask_for(lambda: cluster.leads_any(others), 5 * sync_ms / 1000 + 3 * time_out_s + SLACK_S, cluster.logs)
        assert cluster.term(others) - before <= TERMS_MAX, cluster.logs()
    finally:
        cluster.close()
