"""Calls on all partitions that a change of leader took out, or a SKIP: every reader of a log tells what the live nodes ran."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind
from replay.history.history import history
from replay.plan.cluster_planner import make_joint_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.state.trust import state_path
from snapshot.table_digest import TableDigest, open_image, table_digests
from tests.replay.historycluster import Cluster
from tests.spark.reading import read, txns

STEPS: Final = 12


def lose_call(cluster: Cluster) -> None:
    """One partition has it; the other's next leader never got it."""
    old = cluster.leader(0)
    kept = cluster.rng.randrange(cluster.partitions)
    assert cluster.everywhere()
    cluster.spread(kept)
    successor = cluster.rng.choice([node for node in cluster.nodes if node != old])
    cluster.spread(kept, marks=False)
    assert cluster.take_over(successor)


def skip_call(cluster: Cluster) -> None:
    """It hangs, and is skipped on all partitions before anybody runs it."""
    txn_id = cluster.everywhere()
    assert txn_id
    cluster.truth.skipped.add(txn_id)
    places = [place.index for place in cluster.places[txn_id]]
    for partition, index in enumerate(places):
        cluster.control(partition, RecordKind.SKIP, skip_value(index, 0, "hung", places))
    for partition in range(cluster.partitions):
        cluster.spread(partition)


def played(folder: Path, seed: int) -> Cluster:
    """A cluster in whose logs calls of all kinds follow each other."""
    cluster = Cluster(folder, seed=seed)
    for step in range(STEPS):
        choice = step if step < 3 else cluster.rng.randrange(8)
        if choice == 0:
            lose_call(cluster)
        elif choice == 1:
            skip_call(cluster)
        elif choice == 2:
            cluster.everywhere()
        for partition in range(cluster.partitions):
            cluster.deposits(partition)
            assert cluster.spread(partition)
    assert not cluster.truth.waits
    return cluster


def tables_of(directory: str, partitions: int) -> dict[int, dict[str, TableDigest]]:
    """Of a recovered node."""
    found = {}
    for partition in range(partitions):
        connection = open_image(state_path(directory, partition))
        found[partition] = table_digests(connection)
        connection.close()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_readers_of_a_log_agree_with_the_live_nodes(tmp_path: Path, seed: int) -> None:
    """The history, a job's source and recoveries from any majority: none has void calls, skipped ones change nothing."""
    cluster = played(tmp_path / "c", seed)
    live, answered = cluster.truth.digests(), sorted(txn for _, _, txn in cluster.acknowledged)
    assert {*cluster.calls_everywhere} - {*answered} - cluster.truth.skipped, "no call was void"
    directories = cluster.finish()
    files = RealFiles()
    assert [int(call["txn_id"]) for call in history(files, directories).calls] == answered
    assert sorted(txns(read(*directories))) == answered
    for number, majority in enumerate([directories, *itertools.combinations(directories, 2)]):
        out = str(tmp_path / f"out{number}")
        rebuild_jointly(make_joint_plan(files, majority), files, out, workers=0)
        assert tables_of(out, cluster.partitions) == live
