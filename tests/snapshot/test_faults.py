"""A disk that breaks under a snapshot, with a real node: its site and the process that seals are loaded with `shim.c`.

Rows D2 to D4 of the fault list for snapshots: the node goes on and loses nothing, the snapshot does not count, nothing of it
stays, the status names the fault, and the next one works when the disk does again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.node.node import Node
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from snapshot.catalog import check, list_snapshots
from snapshot.errors import SnapshotFailed
from tests.node.rig import ask, counters, open_node
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]
SOURCE = Path(__file__).parent / "shim.c"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=PATIENCE_S)
    return library


class Disk:
    """The node's directory, and what is wrong with the disk under its unfinished snapshots."""

    def __init__(self, directory: Path, fault: Path) -> None:
        self.directory, self._fault = directory, fault
        self.breaks("none")

    def breaks(self, fault: str, first: int = 1) -> None:
        self._fault.write_text(f"{fault} {first}")

    def names(self) -> list[str]:
        """What lies in snapshots/, without what is always there."""
        return sorted(path.name for path in (self.directory / "snapshots").iterdir() if path.name not in ("reserve", "points"))


@pytest.fixture(scope="module")
def disk(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """From here on processes that are started meet it."""
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHIM_UNDER", "/snapshots")
        patch.setenv("SHIM_FAULT", str(folder / "fault"))
        patch.setenv("LD_PRELOAD", str(shim))
        yield Disk(folder / "node", folder / "fault")


@pytest.fixture(scope="module")
def node(disk: Disk) -> Iterator[Node]:
    """A running node with one whole snapshot."""
    node = open_node(disk.directory, partitions=1)
    for row in range(200):
        ask(node, "bump", id=row, amount=1)
    node.take_snapshot(0)
    yield node
    before = counters(node)
    node.close()
    shutil.rmtree(disk.directory / "state")
    again = open_node(disk.directory, partitions=1)
    assert counters(again) == before, "whatever happened to snapshots, nothing that was acknowledged is lost"
    again.close()


FAULTS = [("enospc", 1), ("eio", 5), ("short", 1), ("sync", 1), ("sync", 5), ("rot", 1)]


@pytest.mark.parametrize(("fault", "first"), FAULTS)
def test_broken_disk_costs_the_snapshot_and_nothing_else(node: Node, disk: Disk, fault: str, first: int) -> None:
    """Writes that fail, take half or are lost, syncs that fail, from the first on or later: named, cleaned up, and over some day.

    The fifth sync is that of the folder, when the snapshot has its name already; so it has when it is read back.
    """
    before, taken = disk.names(), len(node.snapshots())
    ask(node, "bump", id=1, amount=1)
    disk.breaks(fault, first)
    try:
        with pytest.raises(SnapshotFailed) as failed:
            node.take_snapshot(0)
        known = node.snapshots()
        counted = ask(node, "bump", id=1, amount=1)
    finally:
        disk.breaks("none")
    assert str(failed.value)
    assert node.status()["snapshot_error"] == str(failed.value)
    assert disk.names() == before
    assert len(known) == taken
    assert ask(node, "bump", id=1, amount=1) == counted + 1
    made = node.take_snapshot(0)[0]
    identity = load_instance(RealFiles(), str(disk.directory)).identity
    listed = {s.name: s for s in list_snapshots(RealFiles(), str(disk.directory), identity)}
    assert check(RealFiles(), listed[made["name"]]) == ""
    assert node.status()["snapshot_error"] is None
