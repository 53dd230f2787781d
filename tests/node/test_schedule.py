"""When which partition is snapshotted."""

from __future__ import annotations

import pytest

from cmdlog.node.schedule import LogView, due
from snapshot.catalog import Snapshot
from snapshot.manifest import Manifest


def taken(partition: int, *blocks: int) -> list[Snapshot]:
    """Snapshots whose entries behind begin at these blocks, oldest first."""
    return [Snapshot(f"s{n}", partition, n, 1, _manifest(block)) for n, block in enumerate(blocks)]


def _manifest(block: int) -> Manifest:
    return Manifest(
        cluster_id="", node_id=1, incarnation="", partition=0, index=1, term=1, checksum=0, txn_id=0, log_block=block, epoch=1,
        configuration=None, catalogs={}, environment=None, key_policy=None, schema=(), tables=(), files=(), created="",
    )  # fmt: skip


RING = LogView((1, 101, 201, 301, 401, 501, 601, 701), 16)  # half full; one segment is 100 blocks

DUE = {
    "nothing was taken yet and the log is short": (LogView((1, 101), 16), {}, None),
    "nothing was taken yet": (RING, {}, 0),
    "all are fresh": (RING, {0: taken(0, 650, 750), 1: taken(1, 650, 750)}, None),
    "one is old": (RING, {0: taken(0, 650, 750), 1: taken(1, 10, 20)}, 1),
    "both are old, one has the older anchor": (RING, {0: taken(0, 150, 160), 1: taken(1, 10, 20)}, 1),
    "the anchor is old but the newest is not": (RING, {0: taken(0, 10, 750), 1: taken(1, 10, 750)}, None),
    "the ring is crowded": (LogView(tuple(range(1, 1500, 100)), 16), {0: taken(0, 10, 1350), 1: taken(1, 1440, 1450)}, 0),
    "the ring is crowded and nothing would help": (
        LogView(tuple(range(1, 1500, 100)), 16), {0: taken(0, 1440, 1450), 1: taken(1, 1440, 1450)}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DUE)
def test_due(case: str) -> None:
    """Which partition is next, from the ring and the snapshots alone."""
    view, snapshots, expected = DUE[case]
    assert due(view, snapshots, (0, 1), fraction=0.5) == expected
