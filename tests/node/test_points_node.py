"""Recovery points of a real node: what `recover --until` makes of one, under load and long after."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome
from cmdlog.wal.files import RealFiles
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.node.rig import open_node, rows, send, when_there_is_room
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

RING: dict[str, Any] = {
    "partitions": 3, "segment_bytes": 256 << 10, "segments": 8, "log_reserve_bytes": 128 << 10, "call_bytes_max": 30_000,
    "batch_bytes_max": 30_000, "snapshots_kept": 2, "points_kept": 2,
}  # fmt: skip
IDS = 60


class Callers:
    """Threads that add to counters until they are told to end; every answer with its transaction."""

    def __init__(self, node: Node, threads: int = 3) -> None:
        self._node, self._stop = node, threading.Event()
        self.told: list[tuple[int, int, int]] = []  # transaction, counter, amount
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            batch = []
            for _ in range(20):
                counter, amount = chance.randrange(IDS), chance.randrange(1, 100)
                call = partial(send, self._node, "bump", id=counter, amount=amount)
                batch.append((counter, amount, when_there_is_room(call)))
            for counter, amount, pending in batch:
                reply = pending.wait()
                assert isinstance(reply, CallOutcome)
                self.told.append((reply.txn_id, counter, amount))

    def end(self) -> None:
        """Every call was answered when it returns."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def sums(self, until: int) -> dict[int, int]:
        """Counters after the transaction `until`."""
        found: dict[int, int] = {}
        for txn_id, counter, amount in self.told:
            if txn_id <= until:
                found[counter] = found.get(counter, 0) + amount
        return found


def restored(directory: Path, out: Path, until: int) -> dict[int, int]:
    """Counters that a recovery to the transaction finds."""
    rebuild(make_plan(RealFiles(), str(directory), PAST, until=until), RealFiles(), str(out), workers=0)
    return {int(key): int(n) for p in range(3) for key, n in rows(out, p, "SELECT id, n FROM counters")}


def test_points_taken_under_load_restore_all_partitions_at_one_transaction(tmp_path: Path) -> None:
    """Also when the ring has been used several times over since: what a point names stays, without any window."""
    directory = tmp_path / "node"
    node = open_node(directory, **RING)
    callers = Callers(node)
    points = []
    for _ in range(2):
        seen = len(callers.told)
        wait_for(lambda seen=seen: len(callers.told) >= seen + 300)  # type: ignore[misc]
        points.append(node.take_point()["point"])
    ring_bytes = RING["segments"] * RING["segment_bytes"]
    last = int(points[-1]["to_block"])
    big = 0
    while int(node.status()["log"]["first_block"]) <= last:
        when_there_is_room(partial(send, node, "store", id=big % IDS, seq=big, data="eHl6" * 7_000)).wait()
        big += 1
        assert big * 28_000 < 20 * ring_bytes, "the ring does not turn"
    callers.end()
    node.close()
    for n, point in enumerate(points):
        until = int(point["txn_id"])
        assert 0 < len([t for t in callers.told if t[0] <= until]) < len(callers.told)
        assert restored(directory, tmp_path / f"out{n}", until) == callers.sums(until)
