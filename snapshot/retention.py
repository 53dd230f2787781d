"""Retention: which snapshots may go, and from where on recovery may still need the log.

One rule: what a recovery may fall back to stays. The log is needed from the second-newest usable snapshot on, so that a damaged
newest one costs a longer replay and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from cmdlog.wal.files import Files
from snapshot.catalog import Snapshot, remove


def retain(files: Files, snapshots: Iterable[Snapshot], *, kept: int) -> list[str]:
    """Removes all but the newest `kept` usable snapshots of each partition; returns the names of those that went.

    Damaged ones go once `kept` usable ones are newer; until then they stay for whoever wants to know what happened.
    """
    if kept < 2:
        raise ValueError("at least two snapshots are kept: the log is cut at the second-newest")
    by_partition: dict[int, list[Snapshot]] = {}
    for snapshot in snapshots:
        by_partition.setdefault(snapshot.partition, []).append(snapshot)
    gone = []
    for of_partition in by_partition.values():
        usable = 0
        for snapshot in sorted(of_partition, key=lambda snapshot: snapshot.order, reverse=True):
            if usable >= kept:
                remove(files, snapshot)
                gone.append(snapshot.name)
            elif snapshot.manifest is not None:
                usable += 1
    return gone


def anchor_block(snapshots: Iterable[Snapshot]) -> int | None:
    """The first block that recovery of one partition may need: that of its second-newest usable snapshot; None = every block."""
    usable = [s.manifest for s in sorted(snapshots, key=lambda s: s.order, reverse=True) if s.manifest is not None]
    return usable[1].log_block if len(usable) > 1 else None
