"""The writer of histories: what it leaves is what it says, and it is legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from snapshot.catalog import check, list_snapshots
from tests.replay.histories import random_history
from tests.replay.historycheck import entries_of, held_by
from tests.replay.historymembers import History


@pytest.mark.parametrize("seed", range(12))
def test_directory_holds_what_was_replicated_to_it(tmp_path: Path, seed: int) -> None:
    """Read back from the files, every node's entries are those that the history says, and every log opens."""
    history = random_history(tmp_path / "h", seed, steps=25)
    for node in history.nodes.values():
        assert entries_of(node.directory) == held_by(node)
        Log.open(RealFiles(), node.directory).close()


def test_acknowledged_calls_are_held_by_a_quorum_of_their_configuration(tmp_path: Path) -> None:
    """A batch that only the leader holds is acknowledged by nobody; with a second voter it is."""
    history = History(tmp_path / "h", seed=2)
    before = len(history.acknowledged)
    history.deposits(0, 3)
    assert history.advance(0) == 0
    history.replicate(0, 3)
    assert (history.advance(0), len(history.acknowledged)) == (1, before + 3)
    history.finish()


def test_failed_node_comes_back_through_learner_to_voter(tmp_path: Path) -> None:
    """Fault logs end with the same chain; the node begins at a snapshot; its copy counts from the promotion on."""
    history = History(tmp_path / "h", seed=3)
    history.deposits(0)
    history.spread(0)
    history.nodes[3].stop(orderly=False)
    assert history.declare_failed(3)
    history.deposits(0)
    history.spread(0)
    assert history.rejoin(3)
    history.deposits(0)
    history.spread(0)
    directories = history.finish()
    chains = [read_faults(RealFiles(), directory) for directory in directories]
    assert [sorted(record.failed) for record in chains[0]] == [[3], [3], []]
    assert chains[0] == chains[1] == chains[2]
    assert [len(demotions) for demotions in (r.demotions for r in chains[0])] == [3, 0, 3]
    snapshots = list_snapshots(RealFiles(), directories[2], history.nodes[3].identity)
    assert [check(RealFiles(), snapshot) for snapshot in snapshots] == ["", ""]
    for p in (0, 1, CLUSTER_GROUP):
        assert history.nodes[3].held[p].last_checksum == history.nodes[1].held[p].last_checksum
        assert history.nodes[3].held[p].configuration()[2]["voters"] == [1, 2, 3]
