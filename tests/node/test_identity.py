"""Who a node is after a recovery: a start changes neither node, voters, epoch nor failure set, and shows them as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.settings import Settings
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.fault_log import FaultLog, FaultRecord, read_faults
from cmdlog.wal.files import RealFiles
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures import Database
from replay.errors import NotSoleVoter
from replay.fork.fork import fork
from replay.log.known_failures import known_faults
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.planner import PAST, make_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.recover.to_directory import rebuild
from snapshot.catalog import list_snapshots
from tests.node.rig import ask, open_node
from tests.replay.historymembers import History
from tests.replay.ledgers import importable
from tests.replay.rig import APP

FILES = RealFiles()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Database]:
    """The application of the histories."""
    with importable(tmp_path) as versions:
        yield versions.load("ledger", f"FACTOR = 1\n{APP}")


@pytest.fixture
def recovered(tmp_path: Path) -> str:
    """What a recovery makes of two of three nodes after node 1, the first leader, was declared failed."""
    history = History(tmp_path / "h", seed=5, segment_bytes=1 << 20)
    rng = random.Random(5)
    for _ in range(20):
        history.deposits(rng.randrange(2), 3)
    for group in (0, 1, CLUSTER_GROUP):
        assert history.spread(group)
        assert history.elect(group, 2)
    for group in history.groups:
        assert history.spread(group)
    assert history.declare_failed(1)
    history.finish()
    out = str(tmp_path / "out")
    plan = make_joint_plan(FILES, history.directories[1:])
    rebuild_jointly(plan, FILES, out, workers=0)
    return out


def groups_of(directory: str) -> dict[int, GroupState]:
    """What the log of a stopped node says of every group."""
    wal = Log.open(FILES, directory)
    wal.close()
    return wal.recovered.groups.by_partition


def serve_once(directory: str, db: Database, **settings: Any) -> dict[str, Any]:
    """Opens and closes the node; its status."""
    node = Node.open(directory, db, Settings(**settings), inline=True)
    node.attach(None)
    status = node.status()
    node.close()
    return status


@pytest.mark.slow
def test_first_start_keeps_who_the_recovered_node_is(recovered: str, ledger: Database) -> None:
    """Voters, epoch and the forced mark of every group are those of the recovery, and every vote is this node's own."""
    node = load_instance(FILES, recovered).identity.node_id
    assert node == 2
    before = {group: state.configuration for group, state in groups_of(recovered).items()}
    assert all(value is not None and (value["voters"], value["forced"]) == ([node], True) for value in before.values())
    serve_once(recovered, ledger)
    after = groups_of(recovered)
    assert {state.vote for state in after.values()} == {node}
    for group, state in after.items():
        members = {name: value for name, value in (before[group] or {}).items() if name not in ("key_policy", "slots")}
        assert state.configuration is not None
        assert {name: state.configuration[name] for name in members} == members, f"group {group}"


@pytest.mark.slow
def test_changed_policy_is_a_configuration_of_the_same_members(recovered: str, ledger: Database) -> None:
    """Another key window makes one new record, which keeps membership and epoch; the same window makes none."""
    serve_once(recovered, ledger)
    first = groups_of(recovered)[CLUSTER_GROUP].configurations[-1]
    status = serve_once(recovered, ledger, key_window_s=7200)
    assert status["start"]["changes"] == ["configuration: key_policy"]
    second = groups_of(recovered)[CLUSTER_GROUP].configurations[-1]
    assert second.index > first.index
    assert {**second.value, "key_policy": 0} == {**first.value, "key_policy": 0}
    assert second.value["key_policy"]["window_ms"] == 7200 * 1000
    assert serve_once(recovered, ledger, key_window_s=7200)["start"]["changes"] == []


@pytest.mark.slow
def test_status_and_snapshots_say_who_the_node_is(recovered: str, ledger: Database) -> None:
    """Node, role, epoch, members and failure set are the directory's own, in the status and in a snapshot's manifest."""
    newest = read_faults(FILES, recovered)[-1]
    assert newest.failed == {1}
    epoch = (groups_of(recovered)[CLUSTER_GROUP].configuration or {})["epoch"]
    assert epoch > 1
    node = Node.open(recovered, ledger, Settings(), inline=True)
    node.attach(None)
    status = node.status()
    node.take_snapshot()
    node.close()
    assert status["node_id"] == 2
    assert {of["role"] for of in status["partitions"].values()} == {"leader"}
    assert status["membership"] == {"epoch": epoch, "voters": [2], "learners": [], "forced": True}
    assert status["failure_set"] == {"sequence": newest.sequence, "nodes": [1]}
    identity = load_instance(FILES, recovered).identity
    for snapshot in list_snapshots(FILES, recovered, identity):
        assert snapshot.manifest is not None, snapshot.problem
        assert (snapshot.manifest.node_id, snapshot.manifest.epoch) == (2, epoch)
        assert (snapshot.manifest.configuration or {})["voters"] == [2]
        assert snapshot.manifest.fault_record is not None


@pytest.mark.slow
def test_fork_begins_a_cluster_of_its_own(recovered: str, ledger: Database, tmp_path: Path) -> None:
    """One voter, no forced recovery, no failure set: a fork is another cluster, whose chain of records begins with its first."""
    newest = max(state.last_txn for state in groups_of(recovered).values())
    fork(FILES, recovered, at=newest, db=ledger, out=str(tmp_path / "fork"))
    status = serve_once(str(tmp_path / "fork"), ledger)
    assert status["membership"] == {"epoch": 0, "voters": [1], "learners": [], "forced": False}
    assert status["failure_set"] == {"sequence": 0, "nodes": []}
    assert {state.vote for state in groups_of(str(tmp_path / "fork")).values()} == {1}


# -- the fault log ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def declared(tmp_path: Path) -> tuple[str, tuple[FaultRecord, ...]]:
    """A recovered node with some calls, and its fault log of two records."""
    node = open_node(tmp_path / "data", inline=True, partitions=2)
    for n in range(20):
        ask(node, "bump", id=n, amount=1)
    node.close()
    out = str(tmp_path / "alone")
    rebuild_jointly(make_joint_plan(FILES, [str(tmp_path / "data")]), FILES, out, workers=0)
    log = FaultLog.open(FILES, out, load_instance(FILES, out).identity)
    log.append(failed=[2], epoch=2, term=3, demotions=((0, 4, 3),), reason="node 2 does not answer")
    log.append(failed=[2, 3], epoch=3, term=3, demotions=((0, 5, 3),), reason="node 3 does not answer")
    return out, log.records


@pytest.mark.slow
@pytest.mark.parametrize("how", ["to", "until", "partitions", "quarantine", "twice"])
def test_recovered_node_continues_the_fault_log(tmp_path: Path, declared: tuple[str, tuple[FaultRecord, ...]], how: str) -> None:
    """Whatever a recovery makes of a directory, the next record follows the last one of the chain."""
    source, records = declared
    out = str(tmp_path / "out")
    whole = make_plan(FILES, source, PAST)
    until = max(part.to_txn for part in whole.plan.partitions) if how == "until" else None
    planned = make_plan(FILES, source, PAST, until=until)
    rebuild(planned, FILES, out, workers=0, partitions=3 if how == "partitions" else None, quarantine=how == "quarantine")
    if how == "twice":
        source, out = out, str(tmp_path / "again")
        rebuild(make_plan(FILES, source, PAST), FILES, out, workers=0)
    log = FaultLog.open(FILES, out, load_instance(FILES, out).identity)
    assert log.records == records
    after = log.append(failed=[3], epoch=4, term=4, demotions=((0, 9, 4),))
    assert (after.sequence, after.previous_checksum) == (3, records[-1].checksum)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["removed", "damaged"])
def test_snapshot_carries_the_sequence_of_a_lost_fault_log(
    tmp_path: Path, declared: tuple[str, tuple[FaultRecord, ...]], lost: str
) -> None:
    """With both copies gone or unreadable, a recovery continues after the newest record that a snapshot carries."""
    source, records = declared
    node = open_node(Path(source), inline=True)
    node.take_snapshot()
    node.close()
    lose_fault_log(source, lost)
    assert known_faults(FILES, source, load_instance(FILES, source).identity) == records[-1:]
    out = str(tmp_path / "out")
    rebuild_jointly(make_joint_plan(FILES, [source], accept_data_loss=True), FILES, out, workers=0, accept_data_loss=True)
    assert read_faults(FILES, out) == records[-1:]


@pytest.mark.slow
def test_node_with_an_unreadable_fault_log_does_not_start(declared: tuple[str, tuple[FaultRecord, ...]]) -> None:
    """It might list the node itself, whose log would then not decide alone: the file is named, and the ways out."""
    source, _ = declared
    lose_fault_log(source, "damaged")
    with pytest.raises(NotSoleVoter, match="faults/copy-"):
        open_node(Path(source), inline=True)


@pytest.mark.slow
def test_recovered_member_of_the_failure_set_leaves_it(tmp_path: Path, declared: tuple[str, tuple[FaultRecord, ...]]) -> None:
    """A node that was marked failed and is recovered whole is removed from the set by the next record, not by a new chain."""
    source, _ = declared
    log = FaultLog.open(FILES, source, load_instance(FILES, source).identity)
    marked = log.append(failed=[1, 2, 3], epoch=4, term=4)
    out = str(tmp_path / "out")
    rebuild_jointly(make_joint_plan(FILES, [source], accept_data_loss=True), FILES, out, workers=0, accept_data_loss=True)
    newest = read_faults(FILES, out)[-1]
    assert (newest.sequence, newest.previous_checksum, newest.failed) == (4, marked.checksum, frozenset({2, 3}))


def lose_fault_log(directory: str, how: str) -> None:
    """Removes both copies, or makes them unreadable."""
    for copy in Path(directory, "faults").iterdir():
        if how == "removed":
            copy.unlink()
        else:
            copy.write_bytes(b"\0" * copy.stat().st_size)
