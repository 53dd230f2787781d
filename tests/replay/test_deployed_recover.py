"""Recovery of a node whose code and tables changed: every moment has the tables and rows of its time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from replay.log.source import open_source
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from snapshot.catalog import list_snapshots
from tests.replay.deployed import ITEMS, PARTITIONS, Deployed, Tables, application, copied, make_deployed, ordered, tables_of
from tests.replay.ledgers import SMALL, Versions

pytestmark = pytest.mark.slow
FILES = RealFiles()


@pytest.fixture(scope="module")
def past(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """See `make_deployed`."""
    return make_deployed(tmp_path_factory.mktemp("years") / "node", versions)


def recovered(directory: Path, out: Path, until: int | None = None) -> Tables:
    """The tables of a recovery into another directory."""
    rebuild(make_plan(FILES, str(directory), PAST, until=until), FILES, str(out), workers=0)
    return tables_of(out)


def changes_before(past: Deployed, step: int) -> list[int]:
    """TxnIds of the SCHEMA entries with which this code began, one per partition."""
    source = open_source(FILES, str(past.directory))
    records = [record for _, record in source.read(from_block=source.first_blocks[0]) if record.kind is RecordKind.SCHEMA]
    changes = [int(record.json()["txn_id"]) for record in records]
    found = [txn for txn in changes if past.last(step - 1).txn_id < txn < past.first(step).txn_id]
    assert len(found) == PARTITIONS
    return found


def test_state_of_the_node_is_that_of_the_model(past: Deployed) -> None:
    """The fixture is what it is meant to be."""
    assert tables_of(past.directory) == ordered(past.moments[-1].tables)


def test_every_moment_has_the_tables_of_its_time(past: Deployed, tmp_path: Path) -> None:
    """Before, between and after the changes: the same columns and rows as the model."""
    for n, moment in enumerate(past.moments):
        assert recovered(past.directory, tmp_path / f"out{n}", moment.txn_id) == ordered(moment.tables), n


@pytest.mark.parametrize("edges", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_moments_without_snapshots_have_the_tables_of_their_time(past: Deployed, tmp_path: Path, edges: bool) -> None:
    """From nothing: the first and the last moment of each version of the code, or every one."""
    bare = tmp_path / "bare"
    copied(past.directory, bare)
    shutil.rmtree(bare / "snapshots")
    (bare / "snapshots").mkdir()
    steps = range(1, past.moments[-1].step + 1)
    moments = [moment for step in steps for moment in (past.first(step), past.last(step))] if edges else past.moments
    for n, moment in enumerate(moments):
        assert recovered(bare, tmp_path / f"bare{n}", moment.txn_id) == ordered(moment.tables), n


def test_moment_of_the_change_itself_has_the_new_tables(past: Deployed, tmp_path: Path) -> None:
    """Up to the transaction of the last SCHEMA entry of a change, all partitions have changed and no call of the new code ran."""
    before, those = past.last(1), changes_before(past, 2)
    found = recovered(past.directory, tmp_path / "out", max(those))
    assert {name: len(rows) for name, rows in found.items()} == {"items": 6, "lines": 0, "rates": 1}
    assert all((row["mood"], row["score"]) == (None, 150) for row in found["items"])
    assert recovered(past.directory, tmp_path / "between", min(those) - 1) == ordered(before.tables)


def test_each_snapshot_leads_to_the_same_end(past: Deployed, tmp_path: Path) -> None:
    """With only the snapshots of one recovery point left, of every version of the tables."""
    identity = open_source(FILES, str(past.directory)).instance.identity
    kept = {snapshot.path for snapshot in list_snapshots(FILES, str(past.directory), identity)}
    assert len(kept) >= 4
    for n, path in enumerate(sorted(kept)):
        only = tmp_path / f"only{n}"
        copied(past.directory, only)
        for other in kept - {path}:
            shutil.rmtree(only / "snapshots" / Path(other).name)
        assert recovered(only, tmp_path / f"out{n}") == ordered(past.moments[-1].tables), path


def test_moment_within_a_change_is_served_by_the_new_code(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """One partition has changed and the other has not: a start of the new code brings both to the same tables."""
    moment = min(changes_before(past, 2))
    recovered(past.directory, tmp_path / "out", moment)
    with cmdlog.open(tmp_path / "out", application(versions, 2), **SMALL) as node:
        for number in range(ITEMS):
            assert node.call("cheer", id=number, mood="again") == 1
    assert {row["mood"] for row in tables_of(tmp_path / "out")["items"]} == {"again"}
