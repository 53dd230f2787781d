"""`cmdlog snapshot verify` beside a node that removes snapshots meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cmdlog
from procedures.samples import bank
from snapshot import catalog
from snapshot.catalog import Snapshot
from tests.commands import Command

pytestmark = pytest.mark.slow

RING = {"segments": 4, "segment_bytes": 4 << 20}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node directory with three snapshots of its only partition."""
    with cmdlog.open(tmp_path / "node", bank.db, partitions=1, snapshots_kept=3, **RING) as opened:
        opened.call("open_accounts", branch=1, first=0, count=100, savings=5, checking=5)
        for customer in range(3):
            opened.call("deposit_checking", branch=1, customer=customer, amount=7)
            opened.node.take_snapshot()
    return tmp_path / "node"


def remove_at(monkeypatch: pytest.MonkeyPatch, node: Path, *, before: int) -> str:
    """Removes the oldest snapshot before the `before`th look at one, as retention does; its name."""
    oldest = min(node.glob("snapshots/p*"))
    looks, real = [0], catalog._read_folder

    def look(*arguments: object) -> Snapshot | None:
        looks[0] += 1
        if looks[0] == before:
            shutil.rmtree(oldest)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "_read_folder", look)
    return oldest.name


def test_snapshot_removed_after_the_list_was_made_is_no_damage(
    node: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are checked; the one that is gone is reported as removed, with exit code 0."""
    gone, real = min(node.glob("snapshots/p*")), catalog.check

    def check(files: object, snapshot: Snapshot) -> str:
        if snapshot.path == str(gone) and gone.exists():
            shutil.rmtree(gone)
        return real(files, snapshot)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "check", check)
    code, (rows,) = command.values("snapshot", "verify", node)
    assert code == 0
    assert [row["name"] for row in rows if row.get("removed")] == [gone.name]
    assert len(rows) == 3
    assert not any("problem" in row for row in rows)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_snapshot_removed_while_the_list_is_made_is_no_damage(
    node: Path, command: Command, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Its name was read from the folder, and its manifest was not there any more, or just still was."""
    name = remove_at(monkeypatch, node, before=before)
    code, text = command.text("snapshot", "verify", node)
    assert code == 0, text
    assert name not in [path.name for path in node.glob("snapshots/p*")]
    assert "removed meanwhile" in " ".join(text.split())


def test_snapshot_without_its_manifest_is_damage(node: Path, command: Command) -> None:
    """Its folder is still there: nobody removed it."""
    (min(node.glob("snapshots/p*")) / "manifest.json").unlink()
    code, lines = command.values("snapshot", "verify", node)
    assert code == 10
    assert "1 of 3 snapshots" in lines[-1]["error"]["message"]
