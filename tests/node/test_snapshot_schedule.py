"""When which partition is snapshotted."""

from __future__ import annotations

import pytest

from cmdlog.node.background.snapshot_schedule import Due, Forecast, LogView, SnapshotPolicy, due, urgency
from snapshot.catalog import Snapshot
from snapshot.manifest import Manifest


def taken(partition: int, *blocks: int) -> list[Snapshot]:
    """Snapshots whose entries behind begin at these blocks, oldest first."""
    return [Snapshot(f"s{n}", partition, n, 1, _manifest(block), name=f"s{n}") for n, block in enumerate(blocks)]


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
    assert due(SnapshotPolicy(0.5), view, snapshots, (0, 1)) == (None if expected is None else Due(expected, "log"))


FRESH = {0: taken(0, 650, 750), 1: taken(1, 650, 750)}
BUDGET = {
    "the replay would take more than its share of the budget": (Forecast({0: 4.0, 1: 7.0}, {}, 1), Due(1, "budget")),
    "workers share it": (Forecast({0: 4.0, 1: 4.5}, {}, 2), None),
    "restoring leaves less of the budget": (Forecast({0: 4.0, 1: 4.5}, {0: 12.0, 1: 12.0}, 2), Due(1, "budget")),
    "the budget cannot be held, and a snapshot would gain nothing": (Forecast({0: 0.5, 1: 0.1}, {0: 90.0, 1: 9.0}, 2), None),
}


@pytest.mark.parametrize("case", BUDGET)
def test_due_by_the_recovery_budget(case: str) -> None:
    """A budget of 20 s: the partition whose replay takes longest is next, as long as that helps."""
    forecast, expected = BUDGET[case]
    assert due(SnapshotPolicy(0.5, budget_s=20.0), RING, FRESH, (0, 1), forecast=forecast) == expected
    assert due(SnapshotPolicy(0.5), RING, FRESH, (0, 1), forecast=forecast) is None


def test_due_by_age() -> None:
    """The oldest first; what has executed nothing since is not among them, and a clock set back makes nobody old."""
    policy = SnapshotPolicy(0.5, age_max_s=60.0)
    assert due(policy, RING, FRESH, (0, 1), ages_s={0: 61.0, 1: 62.0}) == Due(1, "age")
    assert due(policy, RING, FRESH, (0, 1), ages_s={0: 61.0}) == Due(0, "age")
    assert due(policy, RING, FRESH, (0, 1), ages_s={0: -3600.0, 1: 59.0}) is None
    assert due(SnapshotPolicy(0.5), RING, FRESH, (0, 1), ages_s={0: 61.0}) is None


def test_urgency_is_one_at_the_soft_limit_or_the_budget() -> None:
    """Whichever is nearer."""
    assert urgency(SnapshotPolicy(0.5), RING, Forecast()) == 1.0
    assert urgency(SnapshotPolicy(0.8, budget_s=10.0), RING, Forecast({0: 15.0}, {0: 5.0}, 2)) == 2.0
    assert urgency(SnapshotPolicy(0.8), RING, Forecast({0: 15.0}, {}, 1)) == pytest.approx(0.625)
