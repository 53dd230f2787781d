"""Code whose columns take less than those of the code before: rows are looked at before it gets into the log, on every way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.deploying.deploy_errors import DeployNeedsMigration, MigrationRefused
from cmdlog.node.migrating.offline_plan import plan_offline
from cmdlog.node.node import Node
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.code.bundle import Bundle
from procedures.errors import MigrationFailed, SchemaConflict
from tests.node.deployed import import_version
from tests.node.rig import ask, open_node

pytestmark = pytest.mark.slow
SOURCE = """
from sqlalchemy import *
from procedures import Database, Transaction

db = Database("paints")
paint = db.table("paint", Column("id", Integer, primary_key=True), Column("colour", {kind}), partition_by="id")

@db.procedure(partition_by="id")
def put(tx: Transaction, id: int, colour: str) -> str:
    tx.execute(paint.insert(), id=id, colour=colour)
    return colour

@db.procedure(partition_by="id", read_only=True)
def get(tx: Transaction, id: int) -> str:
    return tx.scalar(select(paint.c.colour).where(paint.c.id == id))
{more}
"""
THREE, TWO, FOUR = "Enum('red', 'blue', 'green')", "Enum('red', 'blue')", "Enum('red', 'blue', 'green', 'grey')"
MIGRATION = """
@db.migration("0001")
def narrow(tx, op):
    {first}
    op.alter_column("paint", "colour", type_={kind})
"""
REPAIR = (
    'tx.execute(update(table("paint", column("id"), column("colour"))).where(text("colour = \'green\'")).values(colour="blue"))'
)
WHERE = r"1 row of paint holds a colour that is no Enum.*none of those of Enum .*: red, blue\)(?!.*green)"
WHICH = r"; the first is id = 2, with colour = 'green'"


def version(folder: Path, kind: str, *, migrates: bool = False, first: str = "pass") -> tuple[Database, Bundle]:
    """The application with a column of this type."""
    more = MIGRATION.format(kind=kind, first=first) if migrates else ""
    return import_version(folder, SOURCE.format(kind=kind, more=more))


def opened(folder: Path, db: Database, **more: Any) -> Node:
    """On two partitions, in this process."""
    return open_node(folder / "data", app=db, inline=True, partitions=2, **more)


def painted(folder: Path, *colours: str) -> None:
    """A node of three colours with these rows, closed."""
    node = opened(folder, version(folder, THREE)[0])
    for number, colour in enumerate(colours, 1):
        ask(node, "put", id=number, colour=colour)
    node.close()


@pytest.mark.parametrize("migrates", [False, True], ids=["declared", "migrated"])
def test_start_with_rows_that_cannot_be_read_is_refused(tmp_path: Path, *, migrates: bool) -> None:
    """With table, column and count; the code of before serves its rows as ever."""
    painted(tmp_path, "red", "green")
    narrow, _ = version(tmp_path, TWO, migrates=migrates)
    with pytest.raises(MigrationFailed if migrates else SchemaConflict, match=WHERE):
        opened(tmp_path, narrow, migrate=migrates)
    node = opened(tmp_path, version(tmp_path, THREE)[0])
    assert ask(node, "get", id=2) == "green"
    node.close()


@pytest.mark.parametrize("migrates", [False, True], ids=["declared", "migrated"])
def test_start_with_rows_that_fit_is_served(tmp_path: Path, *, migrates: bool) -> None:
    """They are looked at once, when the code is new; later starts read no row for it."""
    painted(tmp_path, "red", "blue")
    narrow, _ = version(tmp_path, TWO, migrates=migrates)
    for _ in range(2):
        node = opened(tmp_path, narrow, migrate=migrates)
        assert ask(node, "get", id=2) == "blue"
        node.close()


def test_row_that_the_migration_writes_is_judged_as_it_is_then(tmp_path: Path) -> None:
    """The one at fault is repaired before the column changes."""
    painted(tmp_path, "red", "green")
    node = opened(tmp_path, version(tmp_path, TWO, migrates=True, first=REPAIR)[0], migrate=True)
    assert ask(node, "get", id=2) == "blue"
    node.close()


def test_row_that_the_migration_spoils_is_found(tmp_path: Path) -> None:
    """By SQL text, which no type sees, in a column that stays as it is."""
    painted(tmp_path, "red", "blue")
    spoiling = """
@db.migration("0001")
def spoil(tx, op):
    tx.execute(text("UPDATE paint SET colour = 'green' WHERE id = 2"))
"""
    opened(tmp_path, version(tmp_path, TWO)[0]).close()
    db, _ = import_version(tmp_path, SOURCE.format(kind=TWO, more=spoiling))
    with pytest.raises(MigrationFailed, match=WHERE):
        opened(tmp_path, db, migrate=True)
    node = opened(tmp_path, version(tmp_path, TWO)[0])
    assert ask(node, "get", id=2) == "blue"
    node.close()


@pytest.mark.parametrize("migrates", [False, True], ids=["declared", "migrated"])
def test_offline_plan_finds_the_rows(tmp_path: Path, *, migrates: bool) -> None:
    """By key and value, without an entry in the log; where they fit, the plan says how many were read."""
    painted(tmp_path, "red", "green", "blue")

    def plan(kind: str) -> list[int]:
        db, bundle = version(tmp_path, kind, migrates=migrates)
        found = plan_offline(
            RealFiles(), str(tmp_path / "data"), db, bundle, recovering=lambda _: None, rehearsing=lambda _at, _of: None
        )
        return [step.rows for part in found.by_partition.values() for step in part.steps if step.sql.startswith("SELECT")]

    with pytest.raises(MigrationFailed if migrates else SchemaConflict, match=WHICH):
        plan(TWO)
    assert sum(plan("String(5)")) == 3 * migrates


def test_live_deploy_pauses_for_the_rows(tmp_path: Path) -> None:
    """It is not done unasked; asked, it is refused while a row stands in its way, and calls are served as before."""
    painted(tmp_path, "red", "green")
    node = opened(tmp_path, version(tmp_path, THREE)[0])
    narrow = version(tmp_path, TWO)[1]
    with pytest.raises(DeployNeedsMigration, match=r"column paint\.colour, whose type may not take what rows hold"):
        node.deployer.deploy(narrow)
    for plan in (True, False):
        with pytest.raises(MigrationRefused, match=WHERE):
            node.deployer.deploy(narrow, migrate=True, plan=plan)
    assert ask(node, "put", id=3, colour="green") == "green"
    wide = version(tmp_path, FOUR)[1]
    assert node.deployer.deploy(wide)["version"] > 1
    assert ask(node, "put", id=4, colour="grey") == "grey"
    node.close()


def test_live_deploy_over_rows_that_fit_is_done(tmp_path: Path) -> None:
    """And the next start serves the same."""
    painted(tmp_path, "red", "blue")
    node = opened(tmp_path, version(tmp_path, THREE)[0])
    narrow, bundle = version(tmp_path, TWO)
    assert node.deployer.deploy(bundle, migrate=True)["partitions"] == {}
    assert ask(node, "get", id=1) == "red"
    node.close()
    node = opened(tmp_path, narrow)
    assert ask(node, "get", id=2) == "blue"
    node.close()
