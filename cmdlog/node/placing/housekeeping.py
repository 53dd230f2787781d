"""What a node does beside its calls, again and again, in one thread: nothing of it is on the path of a call.

One rule: each step is short and costs nothing when nothing is due. Where calls have paused, it wakes four times a second: an
application with a node in it must not keep its machine awake. A member of a cluster never rests: others wait for its marks.

    flush     digests and commit marks wait for a block that calls pay for, at most IDLE_FLUSH_S
    timings   what the stages measured is added up
    speeds    what is known of procedures' times is saved, for the next start's forecast
    keys      a step of the look-up of idempotency keys that may be forgotten
    history   a row per second for the status page
    work      the log says when work in the background makes no progress
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.placing.key_owners import KeyOwners, look_up
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.wal.errors import WalError
from procedures.idempotency.key_table import Figures, KeyRow
from replay.state.trust import state_path

SPEEDS_EVERY_S: Final = 5.0  # as much of what is known of procedures' times may be lost with the process
IDLE_FLUSH_S: Final = 0.02  # how long digests and commit marks may wait for a block that calls pay for
REST_S: Final = 0.25  # between two looks, after so many rounds without a block; the first flush after it waits as long
REST_AFTER_ROUNDS: Final = 50


class Housekeeping:
    """`start`, then `stop` before the sites end."""

    def __init__(
        self, directory: str, sequencer: Sequencer, snapshots: Snapshotter, keys: KeyOwners, speeds: RecoverySpeeds, *,
        failed: Callable[[], bool], each_round: Sequence[Callable[[], None]],
    ) -> None:  # fmt: skip
        """`failed`: the log takes nothing more. `each_round`: steps of others, who know whether one is due."""
        self._directory, self._sequencer, self._snapshots = directory, sequencer, snapshots
        self._keys, self._speeds = keys, speeds
        self._failed, self._each_round = failed, each_round
        self._stop = threading.Event()
        self._speeds_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="node-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. What is known of procedures' times is saved on return."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._save_speeds()

    def _run(self) -> None:
        seen = quiet = 0
        while not self._stop.wait(REST_S if quiet > REST_AFTER_ROUNDS and self._sequencer.log_feed.votes_alone else IDLE_FLUSH_S):
            quiet = quiet + 1 if self._sequencer.log_feed.blocks == seen else 0
            if quiet and not self._failed():
                with contextlib.suppress(WalError):
                    self._sequencer.log_feed.flush_notes()
            seen = self._sequencer.log_feed.blocks
            if time.monotonic() > self._speeds_at + SPEEDS_EVERY_S:
                self._save_speeds()
            self._keys.tidy(self._look_up)
            for step in self._each_round:
                step()

    def _save_speeds(self) -> None:
        self._speeds_at = time.monotonic()
        self._speeds.save({partition: newest.name for partition, newest in self._snapshots.newest_of_each().items()})

    def _look_up(self, partition: int, after: int) -> tuple[Figures, list[KeyRow]] | None:
        """See `cmdlog.node.placing.key_owners.Look`."""
        answered = self._sequencer.watermarks()[partition]["applied"]
        return look_up(state_path(self._directory, partition), after=after, answered=answered)
