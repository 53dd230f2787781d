"""Migrations at a start: asked for, all or nothing, and gone through by every way back to the state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.errors import MigrationFailed, MigrationNeeded, SchemaConflict
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.node.apps import migrating
from tests.node.rig import ask, open_node

pytestmark = pytest.mark.slow
ROWS = 12


def rows(node: Node) -> list[Any]:
    """Of all partitions, by id, as the code that runs declares the table."""
    found = [row for of in ask(node, "show") for row in of]
    return sorted(found, key=lambda row: int(row[-2]))


def opened(data: Path, app: Database, **more: Any) -> Node:
    """On two partitions, in this process."""
    return open_node(data, app=app, inline=True, partitions=2, **more)


def filled(data: Path) -> None:
    """A node of the first code with rows in both partitions."""
    node = opened(data, migrating.first)
    for number in range(ROWS):
        ask(node, "put", id=number, name=f"n{number}-family")
    node.close()


def wanted(step: int) -> list[list[str]]:
    """The rows after `step` - 1 migrations."""
    money = "1.2500" if step > 2 else "1.25"
    names = [[f"n{number}-family"] if step == 1 else [f"n{number}-family"[:2], f"n{number}-family"[2:]] for number in range(ROWS)]
    return [[*name, str(number), money] for number, name in enumerate(names)]


def test_new_directory_has_been_through_all(tmp_path: Path) -> None:
    """Its tables are made as they are declared: no migration runs, then or later."""
    node = opened(tmp_path, migrating.third)
    ask(node, "put", id=1, name="ab")
    node.close()
    node = opened(tmp_path, migrating.third)
    assert rows(node) == [["ab", "", "1", "1.2500"]]
    node.close()


def test_start_does_not_migrate_unasked(tmp_path: Path) -> None:
    """It says which migrations and how; nothing changes, and the former code still runs."""
    filled(tmp_path)
    with pytest.raises(MigrationNeeded, match="0001_split_name, 0002_finer_money") as needed:
        opened(tmp_path, migrating.third)
    assert needed.value.names == ["0001_split_name", "0002_finer_money"]
    node = opened(tmp_path, migrating.first)
    assert rows(node) == wanted(1)
    node.close()


@pytest.mark.parametrize("steps", [[2], [3], [2, 3]], ids=str)
def test_migrated_rows_are_there(tmp_path: Path, steps: list[int]) -> None:
    """After one, both at once, or one after the other; later calls and starts see them, and former code is refused."""
    filled(tmp_path)
    for step in steps:
        node = opened(tmp_path, getattr(migrating, {2: "second", 3: "third"}[step]), migrate=True)
        assert rows(node) == wanted(step)
        node.close()
    last = getattr(migrating, {2: "second", 3: "third"}[steps[-1]])
    node = opened(tmp_path, last)
    ask(node, "put", id=ROWS, name="zz")
    assert rows(node)[-1][:3] == ["zz", "", str(ROWS)]
    node.close()
    with pytest.raises(SchemaConflict, match="column 'given' is gone"):
        opened(tmp_path, migrating.first)


def test_migration_that_raises_on_one_partition_changes_none(tmp_path: Path) -> None:
    """It is named with its partition, and the former code runs as if nothing had been."""
    filled(tmp_path)
    with pytest.raises(MigrationFailed, match=r"0001_split_name.*partition 1.*not on partition 1"):
        opened(tmp_path, migrating.raising, migrate=True)
    node = opened(tmp_path, migrating.first)
    assert rows(node) == wanted(1)
    node.close()


@pytest.mark.parametrize("lost", ["states", "newest snapshots", "all snapshots"])
def test_every_way_back_goes_through_migrations(tmp_path: Path, lost: str) -> None:
    """From a snapshot on either side of the change, and from the start; without Alembic, as in any replay."""
    filled(tmp_path)
    node = opened(tmp_path, migrating.first)
    node.take_snapshot(None)
    node.close()
    node = opened(tmp_path, migrating.third, migrate=True)
    old = sorted((tmp_path / "snapshots").iterdir())
    node.take_snapshot(None)
    ask(node, "put", id=ROWS, name="zz")
    held = rows(node)
    node.close()
    shutil.rmtree(tmp_path / "state")
    if lost == "all snapshots":
        shutil.rmtree(tmp_path / "snapshots")
    elif lost == "newest snapshots":
        for path in (tmp_path / "snapshots").iterdir():
            if path not in old:
                shutil.rmtree(path)
    node = opened(tmp_path, migrating.third)
    assert rows(node) == held
    node.close()


def test_recovery_into_another_directory_has_either_tables(tmp_path: Path) -> None:
    """Up to a moment before the change, and up to the end: the code that the log names there runs on what comes out."""
    data = tmp_path / "data"
    filled(data)
    node = opened(data, migrating.third, migrate=True)
    before = node.clock.closed()
    ask(node, "put", id=ROWS, name="zz")
    held = rows(node)
    node.close()
    for until, app, rows_then in ((None, migrating.third, held), (before, migrating.third, held[:-1])):
        out = tmp_path / f"out-{until}"
        rebuild(make_plan(RealFiles(), str(data), PAST, until=until), RealFiles(), str(out))
        node = opened(out, app)
        assert rows(node) == rows_then
        node.close()
