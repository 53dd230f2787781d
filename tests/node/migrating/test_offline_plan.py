"""A plan of migrations over a directory that nobody serves: what would be done, without a trace in log or states."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.node.boot import OtherApplication
from cmdlog.node.migrating.offline_plan import OfflinePlan, plan_offline
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.code.bundle import capture_bundle
from procedures.errors import MigrationFailed
from replay.state.trust import state_path
from tests.node.apps import faulty, migrating
from tests.node.migrating.test_table_changes import filled, opened, rows, wanted

pytestmark = pytest.mark.slow


def plan(data: Path, app: Database) -> OfflinePlan:
    """As the command makes it."""
    done = list[int]()
    found = plan_offline(
        RealFiles(),
        str(data),
        app,
        capture_bundle(app),
        recovering=lambda _progress: None,
        rehearsing=lambda at, of: done.append(at * 10 + of),
    )
    assert done == [2, 12, 22]
    return found


def test_steps_and_rows_are_stated_and_nothing_changes(tmp_path: Path) -> None:
    """Twice the same; the log gets no block, and the code of before still runs on its rows."""
    filled(tmp_path)
    log_before = [path.read_bytes() for path in sorted((tmp_path / "log").iterdir())]
    first, second = plan(tmp_path, migrating.third), plan(tmp_path, migrating.third)
    assert [path.read_bytes() for path in sorted((tmp_path / "log").iterdir())] == log_before
    assert {p: r.change for p, r in first.by_partition.items()} == {p: r.change for p, r in second.by_partition.items()}
    assert (first.former, first.version, first.partitions, sorted(first.by_partition)) == (1, 2, 2, [0, 1])
    assert [run.name for run in first.by_partition[1].change.migrations] == ["0001_split_name", "0002_finer_money"]
    copied = [step.rows for part in first.by_partition.values() for step in part.steps if step.sql.startswith("INSERT")]
    assert sum(copied) == 12
    assert "column 'given' is gone" in first.former_cannot_run
    node = opened(tmp_path, migrating.first)
    assert rows(node) == wanted(1)
    node.close()


def test_former_code_with_migrations_of_its_own_is_judged_by_its_tables(tmp_path: Path) -> None:
    """Those have run: what counts is whether the tables that come are still its own."""
    filled(tmp_path)
    opened(tmp_path, migrating.second, migrate=True).close()
    assert "column 'money' is another one" in plan(tmp_path, migrating.third).former_cannot_run


def test_lost_states_are_rebuilt_first(tmp_path: Path) -> None:
    """A plan is of the log's end, whatever lay in the state folder."""
    filled(tmp_path)
    for partition in (0, 1):
        Path(state_path(str(tmp_path), partition)).unlink()
    assert sorted(plan(tmp_path, migrating.second).by_partition) == [0, 1]


def test_same_tables_need_nothing(tmp_path: Path) -> None:
    """No step, and no reason why the former code could not run."""
    filled(tmp_path)
    found = plan(tmp_path, migrating.first)
    assert (found.by_partition, found.version, found.former_cannot_run) == ({}, 1, "")


def test_failing_migration_is_named(tmp_path: Path) -> None:
    """With its partition; other applications are refused."""
    filled(tmp_path)
    with pytest.raises(MigrationFailed, match=r"0001_split_name.*partition 1"):
        plan(tmp_path, migrating.raising)
    with pytest.raises(OtherApplication, match="belongs to database 'migrating'"):
        plan(tmp_path, faulty.db)
