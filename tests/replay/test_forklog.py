"""Forks of logs made by hand: an archive in front of the ring, several versions, a skipped call, batches that the fork cuts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from replay.fork.fork import START, fork
from replay.log.source import open_source
from tests.replay.archiverig import ArchiveRig
from tests.replay.rig import DEPOSIT, TRIPLE, Rig, balances_of

pytestmark = pytest.mark.slow


def expected(rig: Rig, at: int, deposits: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Balances as of `at`, and every deposit behind it three times."""
    balances = next((dict(found) for txn, found in reversed(rig.history) if txn <= at), dict.fromkeys(rig.balances, 0))
    for txn, (account, amount) in deposits.items():
        if txn > at:
            balances[account] = balances.get(account, 0) + TRIPLE * amount
    return balances


def deposits_of(rig: Rig) -> dict[int, tuple[int, int]]:
    """Transaction -> account and amount, from two balances that follow each other."""
    found, before = {}, dict.fromkeys(rig.balances, 0)
    for txn, balances in rig.history:
        changed = [
            (account, value - before.get(account, 0)) for account, value in balances.items() if value != before.get(account, 0)
        ]
        for account, amount in changed:
            found[txn] = account, amount
        before = balances
    return found


def test_archived_segments_are_read_where_the_ring_does_not_reach_back(tripled: Database, tmp_path: Path) -> None:
    """The ring has turned several times; a fork from the start, and one from the middle, find everything."""
    rig = ArchiveRig(tmp_path)
    rig.rotate(4)
    rig.close()
    assert open_source(rig.files, rig.directory).first_blocks[0] > 1
    deposits = deposits_of(rig)
    for n, at in enumerate((START, rig.history[len(rig.history) // 3][0], rig.history[-2][0])):
        report = fork(rig.files, rig.directory, at=at, db=tripled, out=str(tmp_path / f"out{n}"))
        assert balances_of(str(tmp_path / f"out{n}")) == expected(rig, at, deposits)
        assert report.kept + report.calls >= len([txn for txn, _ in rig.history if txn > at])


def test_versions_skips_and_cut_batches(tripled: Database, tmp_path: Path) -> None:
    """Whatever version ran live, behind the fork one code runs; what was skipped stays so; every call can be the last of old."""
    rig = Rig(tmp_path)
    rig.deposits(2)
    amounts = deposits_of(rig)
    rig.add_catalog(5)
    index = rig.batch(0, [(DEPOSIT, [0, 10]), (DEPOSIT, [1, 20]), (DEPOSIT, [2, 30])], skips=frozenset({1}))
    amounts |= {txn: (account, amount // 5) for txn, (account, amount) in deposits_of(rig).items() if txn not in amounts}
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 1, "reason": "hung", "txn_id": rig.tick(1, 0)[0]})
    rig.batch(0, [(DEPOSIT, [0, 1])])
    amounts |= {txn: (account, amount // 5) for txn, (account, amount) in deposits_of(rig).items() if txn not in amounts}
    rig.close()
    for n, (at, _) in enumerate(rig.history[-5:]):
        report = fork(rig.files, rig.directory, at=at, db=tripled, out=str(tmp_path / f"out{n}"))
        assert balances_of(str(tmp_path / f"out{n}")) == expected(rig, at, amounts), n
        assert report.calls == 4 - n


def test_fork_of_a_node_with_learners_is_a_cluster_of_one(tripled: Database, tmp_path: Path) -> None:
    """Whoever learned from the log: the fork has one node, so that it can be served."""
    rig = Rig(tmp_path)
    rig.deposits(2)
    members = {"voters": [1], "learners": [4], "epoch": 2}
    for p in range(rig.partitions):
        rig.entry(p, RecordKind.CONFIGURATION, members)
    value = {**members, "partitions": rig.partitions, "key_policy": asdict(rig.policy)}
    rig.log(encode_json(RecordKind.CONFIGURATION, value, partition=CLUSTER_GROUP, term=1, index=rig.cluster_index + 1))
    rig.close()
    fork(rig.files, rig.directory, at=START, db=tripled, out=str(tmp_path / "out"))
    source, groups = open_source(rig.files, str(tmp_path / "out")), GroupStates()
    for lsn, record in source.read(from_block=source.first_blocks[0]):
        groups.observe(lsn, record)
    assert sorted(groups.by_partition) == [0, 1, CLUSTER_GROUP]
    for state in groups.by_partition.values():
        assert state.configuration is not None
        assert (state.configuration["voters"], state.configuration["learners"], state.vote) == ([1], [], 1)
    assert list(groups.state(CLUSTER_GROUP).catalogs) == [2]
    with cmdlog.open(tmp_path / "out", tripled) as opened:
        assert opened.call("deposit", account=0, amount=1) == balances_of(rig.directory)[0] * TRIPLE + TRIPLE
