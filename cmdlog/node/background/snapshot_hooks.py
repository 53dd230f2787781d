"""What the node gives to its snapshots.

One rule: values and functions only; what is done with them, and in which order, is the snapshot thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.background.snapshot_schedule import LogView
from snapshot.catalog import Snapshot
from snapshot.lineage import Wish


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the node gives. All may be called from the snapshot thread, `applied_block` from the caller of `captured`."""

    capture: Callable[[int, int, str, Wish], None]  # partition, ident, path of a whole image, or rather a delta: begins
    applied_block: Callable[[int], int]  # a block such that no entry after the last applied one lies before it
    facts: Callable[[int], Mapping[str, Any]]  # partition -> epoch, configuration, catalogs, environment, key_policy
    note: Callable[[bytes, Callable[[], None]], None]  # a record for the log; the callback says that it is durable
    notes_fit: Callable[[], bool]  # whether the log has room for one
    when_durable: Callable[[int, Callable[[], None]], None]  # calls when what the partition's site was given is durable
    when_all_durable: Callable[[Callable[[], None]], None]  # calls when every block that the log has taken so far is durable
    anchor: Callable[[str, int], None]  # name, first block that is needed
    view: Callable[[], LogView]
    log_end: Callable[[], int]  # the newest durable block
    closed: Callable[[], int]  # no id given from now on is less than or equal to this one
    pace: Callable[[int, float], None]  # partition, share of its site's time that the capture under way may take
    state_bytes: Callable[[int], int]  # size of a partition's state file
    progress: Callable[[int], int] = lambda _partition: 0  # changes as the partition's site gets on with a capture
    work: RunningWork = field(default_factory=RunningWork)
    let_go: Callable[[Snapshot], None] | None = None  # what becomes of a snapshot that does not count any more; None: removed


@dataclass(frozen=True, slots=True)
class Kept:
    """How many snapshots of each partition, and how many recovery points, are kept."""

    snapshots: int
    points: int = 1
