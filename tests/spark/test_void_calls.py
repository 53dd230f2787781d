"""Calls on all partitions that a change of leader took out, or a SKIP: every reader of a log shows what the live nodes ran."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Final

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind
from replay.diff.diff import diff
from replay.diff.state_reader import open_sides
from replay.drill.drill import drill
from replay.fork.fork import START, fork
from replay.history.history import history
from replay.plan.cluster_planner import make_joint_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.state.trust import state_path
from snapshot.table_digest import TableDigest, open_image, table_digests
from tests.replay import damage
from tests.replay.historyapp import history_bundle
from tests.replay.historymembers import History
from tests.replay.ledgers import Versions
from tests.spark.reading import read, txns
from tests.spark.test_several_nodes import what_if

STEPS: Final = 12
OPENING: Final = (0, 1, 2, 7, 0)  # what every cluster begins with: a call that is lost before the first snapshots, and after them
SEALED_AFTER: Final = (1, 6)  # steps of some clusters: readers begin with snapshots of all partitions, or of one
BLOCK_BYTES: Final = 4096  # blocks begin at multiples of this
FILES: Final = RealFiles()


def lose_call(cluster: History, kept: int) -> None:
    """This partition has it; the other's next leader never got it."""
    old = cluster.leader(0)
    assert cluster.everywhere()
    cluster.spread(kept)
    successor = cluster.rng.choice([node for node in cluster.nodes if node != old])
    cluster.spread(kept, marks=False)
    assert cluster.take_over(successor)


def skip_call(cluster: History) -> None:
    """It hangs, and is skipped on all partitions before anybody runs it."""
    txn_id = cluster.everywhere()
    assert txn_id
    cluster.truth.skipped.add(txn_id)
    places = [place.index for place in cluster.places[txn_id]]
    for partition, index in enumerate(places):
        cluster.control(partition, RecordKind.SKIP, skip_value(index, 0, "hung", places))
    for partition in range(cluster.partitions):
        cluster.spread(partition)


def played(folder: Path, seed: int) -> History:
    """A cluster in whose logs calls of all kinds follow each other."""
    cluster = History(folder, seed=seed, segment_bytes=32 << 10)
    for step in range(STEPS):
        choice = OPENING[step] if step < len(OPENING) else cluster.rng.randrange(8)
        if choice == 0:
            lose_call(cluster, 0 if step < len(OPENING) else cluster.rng.randrange(cluster.partitions))
        elif choice == 1:
            skip_call(cluster)
        elif choice == 2:
            cluster.everywhere()
        for partition in range(cluster.partitions):
            cluster.deposits(partition)
            assert cluster.spread(partition)
        for node in cluster.nodes.values():
            node.flush()
        sealed = range((0, cluster.partitions, 0, 1)[seed % 4]) if step in SEALED_AFTER else ()
        assert all(cluster.snapshot(node, partition) for node in cluster.nodes for partition in sealed)
    assert not cluster.truth.waits
    return cluster


def tables_of(directory: str, partitions: int) -> dict[int, dict[str, TableDigest]]:
    """Of a recovered node, or of a fork."""
    found = {}
    for partition in range(partitions):
        connection = open_image(state_path(directory, partition))
        found[partition] = without_place(table_digests(connection))
        connection.close()
    return found


def without_place(tables: dict[str, TableDigest]) -> dict[str, TableDigest]:
    """A fork's state says where it stands in a log of its own."""
    return {name: digest for name, digest in tables.items() if name != "_cmdlog_meta"}


def live_tables(cluster: History) -> dict[int, dict[str, TableDigest]]:
    """Of the nodes that ran the calls."""
    return {partition: without_place(tables) for partition, tables in cluster.truth.digests().items()}


@pytest.mark.parametrize("seed", range(4))
def test_readers_of_a_log_agree_with_the_live_nodes(tmp_path: Path, seed: int) -> None:
    """The history, a job's source and recoveries from any majority: none has void calls, skipped ones change nothing."""
    cluster = played(tmp_path / "c", seed)
    live, answered = live_tables(cluster), sorted(txn for _, _, txn in cluster.acknowledged)
    assert {*cluster.calls_everywhere} - {*answered} - cluster.truth.skipped, "no call was void"
    directories = cluster.finish()
    assert [int(call["txn_id"]) for call in history(FILES, directories).calls] == answered
    assert sorted(txns(read(*directories))) == answered
    for number, majority in enumerate([directories, *itertools.combinations(directories, 2)]):
        out = str(tmp_path / f"out{number}")
        rebuild_jointly(make_joint_plan(FILES, majority), FILES, out, workers=0)
        assert tables_of(out, cluster.partitions) == live


def survivor(cluster: History) -> str:
    """The others were removed: one node votes for all, and its log has the calls of its former cluster. Everything stops."""
    leader = cluster.leader(0)
    assert cluster.take_over(leader)
    for group in cluster.groups:
        if cluster.leader(group) != leader:
            assert cluster.elect(group, leader)
            cluster._renew(group)
        assert cluster.configure(group, [leader])
        assert cluster.spread(group)
    return cluster.finish()[leader - 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_fork_diff_and_drill_agree_with_the_live_nodes(versions: Versions, tmp_path: Path, seed: int) -> None:
    """With the same code a fork changes nothing, whether such calls are before it or after; the diff shows none."""
    cluster = played(tmp_path / "c", seed)
    live, answered = live_tables(cluster), sorted({txn for _, _, txn in cluster.acknowledged})
    db = versions.load("void_ledger", history_bundle(1).modules["ledger"])
    directory = survivor(cluster)
    for number, at in enumerate((START, answered[len(answered) // 2], answered[-2])):
        out = str(tmp_path / f"fork{number}")
        forked = fork(FILES, directory, at=at, db=db, out=out)
        assert (forked.tally.changed, forked.tally.first) == (0, None)
        assert tables_of(out, cluster.partitions) == live
        with open_sides(FILES, directory, out) as sides:
            report = diff(*sides, limit=3)
        assert report.equal, report
    for drilled in (directory, *played(tmp_path / "d", seed).finish()):  # the survivor, and members of the cluster before
        report_of_drill = drill(FILES, drilled, seed=seed)
        assert (report_of_drill.error, report_of_drill.verdict) == (None, "proven")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_back_fill_agrees_with_the_live_nodes(tmp_path: Path, seed: int) -> None:
    """With the same code, from one log, several, or legs of several, from the start and from within: the same rows, no diff."""
    cluster = played(tmp_path / "c", seed)
    answered = sorted({txn for _, _, txn in cluster.acknowledged})
    accounts, notes = cluster.balances_at(), cluster.truth.notes
    whole = cluster.finish()
    pierced = [shutil.copytree(directory, str(tmp_path / f"pierced{n}")) for n, directory in enumerate(whole)]
    for share, directory in enumerate(pierced, start=1):
        segment = damage.segments(directory)[1]
        damage.flip(segment, BLOCK_BYTES * 2 * share + BLOCK_BYTES // 64)
    alone = survivor(played(tmp_path / "d", seed))  # the same cluster once more
    for number, at in enumerate((START, answered[len(answered) // 2])):
        for kind, nodes in {"several": whole, "pierced": pierced, "one": [alone]}.items():
            rows = what_if(nodes, tmp_path / f"{kind}{number}", at=at, until=None, bundle=history_bundle(1))
            assert any(rows["legs"].values()) or (kind, at) != ("pierced", START)
            filled = [row for _, rows_of_partition in rows["state accounts"] for row in rows_of_partition]
            assert {row["id"]: row["balance"] for row in filled} == accounts
            assert [row["number"] for _, part in rows["state notes"] for row in part] == notes, kind
            assert [row for name in ("diff accounts", "diff notes") for _, part in rows.get(name, []) for row in part] == []
