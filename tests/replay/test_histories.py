"""The writer of histories: what it leaves is what it says, and it is legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from replay.log.source import open_source
from replay.plan.planner import make_plan
from replay.recover.to_directory import rebuild
from replay.state.trust import state_path
from snapshot.catalog import check, list_snapshots
from tests.replay.histories import random_history
from tests.replay.historycheck import entries_of, held_by
from tests.replay.historymembers import History
from tests.replay.rig import balances_of, digests_of


@pytest.mark.parametrize("seed", range(12))
def test_directory_holds_what_was_replicated_to_it(tmp_path: Path, seed: int) -> None:
    """Read back from the files, every node's entries are those that the history says, and every log opens."""
    history = random_history(tmp_path / "h", seed, steps=25)
    for node in history.nodes.values():
        assert entries_of(node.directory) == held_by(node)
        Log.open(RealFiles(), node.directory).close()


@pytest.mark.parametrize("seed", range(3))
def test_one_node_recovers_to_the_models_state(tmp_path: Path, seed: int) -> None:
    """For a cluster of one, an ordinary recovery of its directory gives the balances and rows of the history."""
    history = History(tmp_path / "h", nodes=1, partitions=3, seed=seed)
    for step in range(30):
        history.deposits(step % 3, 4)
        history.spread(step % 3)
        if step == 12:
            history.snapshot(1, 0)
            history.change_code(5)
    digests = history.truth.digests()
    history.finish()
    rebuild(make_plan(RealFiles(), history.nodes[1].directory, use_state="never"), RealFiles(), str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out"), 3) == history.balances_at()
    assert {p: digests_of(state_path(str(tmp_path / "out"), p)) for p in range(3)} == digests


def test_balances_are_known_at_every_transaction(tmp_path: Path) -> None:
    """Recovered up to any TxnId, one node's balances are the history's at that TxnId."""
    history = History(tmp_path / "h", nodes=1, seed=5)
    for step in range(8):
        history.deposits(step % 2)
        history.spread(step % 2)
    history.finish()
    txn_ids = sorted(txn_id for _, _, txn_id in history.acknowledged)
    for at, until in enumerate(txn_ids[6::7]):
        out = str(tmp_path / f"out{at}")
        planned = make_plan(RealFiles(), history.nodes[1].directory, use_state="never", until=until)
        rebuild(planned, RealFiles(), out, workers=0)
        assert balances_of(out) == history.balances_at(until)


def test_superseded_entries_stay_in_the_file_and_are_void(tmp_path: Path) -> None:
    """What a cut-off leader appended stands in its log, and the entries of the next term replace it."""
    history = History(tmp_path / "h", seed=1)
    for _ in range(3):
        history.deposits(0)
    assert history.elect(0, 2, among=[2, 3])
    history.deposits(0)
    assert history.spread(0)
    directory = history.finish()[0]
    source = open_source(RealFiles(), directory)
    written = [r for _, r in source.read(from_block=1) if r.kind is RecordKind.BATCH and r.partition == 0]
    assert [r.term for r in written] == [1, 1, 1, 1, 2]
    assert [r.index for r in written] == [3, 4, 5, 6, 4]
    assert len(entries_of(directory)[0]) == 4


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


def test_filled_node_recovers_alone(tmp_path: Path) -> None:
    """Snapshot and tail that a node was filled with are enough for a recovery that trusts its log alone."""
    history = History(tmp_path / "h", seed=4)
    for _ in range(3):
        history.deposits(0)
        history.spread(0)
    assert history.add_node(4)
    history.deposits(1)
    history.spread(1)
    history.finish()
    planned = make_plan(RealFiles(), history.nodes[4].directory, use_state="never", voters="any")
    rebuild(planned, RealFiles(), str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == history.balances_at()


def test_same_seed_makes_the_same_history(tmp_path: Path) -> None:
    """A failing seed can be looked at again."""
    first, second = (random_history(tmp_path / name, 17, steps=30) for name in ("a", "b"))
    assert first.acknowledged == second.acknowledged
    assert [held_by(n) for n in first.nodes.values()] == [held_by(n) for n in second.nodes.values()]
    assert first.lineage == second.lineage


def test_long_history_is_written(tmp_path: Path) -> None:
    """Three nodes and 300 calls."""
    history = History(tmp_path / "h", seed=6)
    for step in range(100):
        history.deposits(step % 2)
        history.spread(step % 2)
    history.finish()
    assert len(history.acknowledged) >= 300
