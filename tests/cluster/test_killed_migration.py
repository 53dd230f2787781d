"""Leaders that are killed while a migration runs on a partition: each state of the cluster goes through it once all the same."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from replay.state.trust import state_path
from snapshot.table_digest import open_image, table_digests
from tests.cluster.served import ServedCluster
from tests.node.apps import held_migration
from tests.node.migrating.migration_gate import Gate
from tests.node.rig import rows
from tests.waiting import ask_for, wait_for

pytestmark = pytest.mark.slow
APP = "tests.node.apps.held_migration:"
ROWS = 6
TRIALS = 4  # runs of a start, and of a take-over: two on each of two partitions


class MigratingCluster(ServedCluster):
    """Three nodes of two partitions. Each has a gate of its own."""

    def __init__(self, folder: Path) -> None:
        self._started = 0
        super().__init__(folder, app=APP + "before")
        self.gates = {node: Gate(folder / f"gate{node}") for node in self.nodes}

    def environment(self) -> dict[str, str]:
        return {**super().environment(), held_migration.GATE: str(self.folder / f"gate{self._started}")}

    def join_options(self, node: int) -> list[str]:
        return [*super().join_options(node), "--migrate"]

    def start(self, *nodes: int) -> None:
        for node in nodes or self.nodes:
            self._started = node
            super().start(node)

    def held(self, number: int, *nodes: int) -> int:
        """The node, of these, whose run of this number is held, once there is one."""
        (found,) = wait_for(lambda: [node for node in nodes if self.gates[node].process_at(number)][:1], why=self.logs)
        return found

    def stop(self) -> None:
        """All nodes, in order."""
        for node in self.nodes:
            self.signal(node, signal.SIGTERM)
        for node in self.nodes:
            self.kill(node, signal.SIGTERM)

    def tables(self, node: int, partition: int) -> dict[str, str]:
        """The digests of a stopped node's tables, but for its position: the stop may have begun another term at some."""
        with contextlib.closing(open_image(state_path(str(self.folder / f"n{node}"), partition))) as connection:
            return {table: digest.sha256 for table, digest in table_digests(connection).items() if table != "_cmdlog_meta"}


@pytest.mark.torture
def test_leaders_that_die_in_a_migration(tmp_path: Path) -> None:
    """The first while it tries the change out to lead, the second when the log has it and the third runs it: acknowledged rows
    were changed once, on all nodes alike, and later ones are answered."""
    cluster = MigratingCluster(tmp_path)
    try:
        cluster.start()
        for number in range(ROWS):
            assert cluster.call("put", {"id": number}, f"k{number}")["status"] == 200
        cluster.stop()
        cluster.app = APP + "after"
        for gate in cluster.gates.values():
            gate.hold(TRIALS + 3)  # of the take-over, on the second partition
        cluster.start()
        first = cluster.held(TRIALS + 3, *cluster.nodes)
        others = [node for node in cluster.nodes if node != first]
        for node in others:
            cluster.gates[node].hold(TRIALS + 1)
        cluster.kill(first)
        second = cluster.held(TRIALS + 1, *others)  # of its take-over
        cluster.gates[second].hold()
        (third,) = (node for node in others if node != second)
        cluster.held(TRIALS + 1, third)  # of the entry
        cluster.kill(second)
        for gate in cluster.gates.values():
            gate.hold()
        os.kill(cluster.gates[third].process_at(TRIALS + 1), signal.SIGKILL)  # what is held never returns
        cluster.start(first, second)
        assert cluster.call("put", {"id": ROWS}, "later")["status"] == 200
        assert cluster.call("put", {"id": 0}, "k0")["result"] == 0, "a retry gets the outcome of before"
        ask_for(lambda: len(positions := cluster.positions()) == 3 and len(set(positions.values())) == 1, why=cluster.logs)
        cluster.stop()
        for node in cluster.nodes:
            found = [row for partition in range(2) for row in rows(tmp_path / f"n{node}", partition, "SELECT * FROM tally")]
            assert sorted(found) == [*((number, 2, "doubled") for number in range(ROWS)), (ROWS, 1, "")]
        for partition in range(2):
            assert cluster.tables(1, partition) == cluster.tables(2, partition) == cluster.tables(3, partition)
    finally:
        cluster.close()
