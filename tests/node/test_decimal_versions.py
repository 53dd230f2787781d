"""The decimal context of calls over the versions of a program: a module that sets it when it is imported, and early records."""

from __future__ import annotations

import decimal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from procedures import Database
from procedures.code.bundle import Bundle
from tests.node.deployed import RENAMED, make_version
from tests.node.rig import ask, open_node

DIVIDES = """
import decimal

@db.procedure(partition_by="id")
def third(tx: Transaction, id: int) -> str:
    return str(decimal.Decimal(1) / 3)


@db.procedure(partition_by="id", read_only=True)
def read_third(tx: Transaction, id: int) -> str:
    return str(decimal.Decimal(1) / 3)
"""
MIGRATES = """
@db.migration("0001_third")
def note_third(tx, op):
    op.add_column("tally", Column("note", Text, nullable=False, server_default=""))
    tx.execute(update(tally).values(note=str(decimal.Decimal(1) / 3)))
"""
SETS = "import decimal\ndecimal.getcontext().prec = 50"
THIRD = "0." + 28 * "3"
LONGER = "0." + 50 * "3"


@pytest.fixture(autouse=True)
def fixture_context() -> Iterator[None]:
    """The imports of a test set what ends with it."""
    with decimal.localcontext():
        yield


def version(folder: Path, number: int, tables: str = "") -> tuple[Database, Bundle]:
    """The application with a procedure that divides; `tables` is run when it is imported."""
    return make_version(folder, number, tables=tables, last=DIVIDES)


def opened(folder: Path, db: Database, *, inline: bool, **settings: Any) -> Node:
    """A node of the code that was imported last."""
    sites = 0 if inline else 1
    return open_node(folder / "data", app=db, inline=inline, partitions=1, sites=sites, call_timeout_s=20.0, **settings)


def recover(folder: Path) -> int:
    """Exit code of a replay of the whole log, which compares every result."""
    command = [sys.executable, "-m", "cmdlog", "recover", str(folder / "data"), "--to", str(folder / "out")]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])
def test_precision_that_a_version_sets_is_in_no_call(tmp_path: Path, *, inline: bool) -> None:
    """Before it, while it runs and after the rollback; the caller's thread has its own context, and the log replays."""
    node = opened(tmp_path, version(tmp_path, 1)[0], inline=inline)
    sets = version(tmp_path, 2, SETS)[1]
    decimal.getcontext().prec = 7
    answers = [ask(node, "third", id=1)]
    node.deployer.deploy(sets)
    answers.append(ask(node, "third", id=1))
    node.deployer.roll_back()
    answers.append(ask(node, "third", id=1))
    node.close()
    assert answers == [THIRD] * 3
    assert decimal.getcontext().prec == 7
    assert recover(tmp_path) == 0


@pytest.mark.slow
def test_start_with_replaced_code_leaves_the_thread_its_context(tmp_path: Path) -> None:
    """The deployed code is loaded in the thread that starts the node."""
    node = opened(tmp_path, version(tmp_path, 1)[0], inline=True)
    node.deployer.deploy(version(tmp_path, 2, SETS)[1])
    node.close()
    replaced = version(tmp_path, 1)[0]
    decimal.getcontext().prec = 7
    again = opened(tmp_path, replaced, inline=True)
    assert (ask(again, "hit", id=1), ask(again, "third", id=1), decimal.getcontext().prec) == (2, THIRD, 7)
    again.close()


@pytest.mark.slow
def test_migration_of_a_start_is_tried_out_in_the_context_of_its_replay(tmp_path: Path) -> None:
    """What it writes does not depend on the thread that starts the node."""
    node = opened(tmp_path, version(tmp_path, 1)[0], inline=True)
    ask(node, "hit", id=1)
    node.close()
    migrating = make_version(tmp_path, 2, columns=RENAMED, last=DIVIDES + MIGRATES)[0]
    decimal.getcontext().prec = 7
    again = opened(tmp_path, migrating, inline=True, migrate=True)
    assert ask(again, "third", id=1) == THIRD  # the change comes before it
    assert [tuple(row) for row in again.query("SELECT note FROM tally").rows] == [(THIRD,)]
    again.close()
    assert recover(tmp_path) == 0
