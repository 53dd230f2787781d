"""Recovery points of the running node: which transaction id a set of fresh snapshots makes restorable, and how many are kept.

One rule: a point is written last, when every id up to its own is in a block that is durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from cmdlog.wal.files import Files
from snapshot.errors import SnapshotFailed
from snapshot.recovery_points import Point, describe_points, keep_points, list_points, write_point

LOOK_EVERY_S: Final = 0.5  # whether it has become impossible

log = structlog.get_logger("cmdlog.snapshots")


class PointMaker:
    """For the snapshot thread; `listed` from any."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        kept: int,
        when_all_durable: Callable[[Callable[[], None]], None],
        log_end: Callable[[], int],
        given_up: Callable[[], bool],
    ) -> None:
        """`when_all_durable` calls when every block that the log has taken is durable; `given_up`: it may never be."""
        self._files, self._directory, self._kept = files, directory, kept
        self._when_all_durable, self._log_end, self._given_up = when_all_durable, log_end, given_up

    def listed(self) -> list[dict[str, Any]]:
        """Every recovery point, by transaction id."""
        return describe_points(*list_points(self._files, self._directory))

    def make_point(self, txn_id: int, made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The point at `txn_id` of these snapshots, described; durable on return. Raises: SnapshotFailed, WalError."""
        self._await_all_durable()
        point = Point(
            txn_id,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            {snapshot["partition"]: snapshot["name"] for snapshot in made},
            from_block=min(snapshot["log_block"] for snapshot in made),
            to_block=self._log_end(),
        )
        write_point(self._files, self._directory, point)
        gone = keep_points(self._files, self._directory, kept=self._kept)
        for old in gone:
            log.warning("recovery_point_dropped", txn_id=str(old.txn_id), created=old.created, points_kept=self._kept)
        log.info("recovery_point_created", txn_id=str(txn_id), removed=[str(old.txn_id) for old in gone])
        return describe_points([point], ())[0]

    def _await_all_durable(self) -> None:
        durable = threading.Event()
        self._when_all_durable(durable.set)
        while not durable.wait(LOOK_EVERY_S):
            if self._given_up():
                raise SnapshotFailed("the log has no room for the record of the recovery point; its snapshots remain valid")
