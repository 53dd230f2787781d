"""Calls that this node places itself: bound to the code that runs, given to the router, and the log woken.

One rule: a call is either refused with nothing logged, or its `done` is called exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import Done, Durability
from cmdlog.node.placing.router import Encoded, Placed, Router
from cmdlog.node.readiness import Readiness
from cmdlog.node.sequencing.log_wakeup import LogWakeup
from cmdlog.node.slot_map import Route, make_routes
from cmdlog.node.telemetry.stage_timings import StageTimings
from procedures import Database


class BoundCode:
    """What calls are bound to now: the procedures of one version of the code. Any thread."""

    def __init__(self, db: Database, meter: StageTimings, *, catalog: int) -> None:
        """`catalog`: the version; 0 where the calls of every version run."""
        self.db, self._meter = db, meter
        self.routes: Mapping[str, Route] = make_routes(db, catalog)

    def bind(self, db: Database, catalog: int = 0) -> None:
        """Calls are bound to this code from now on."""
        self._meter.serve_procedures([procedure.name for procedure in db.procedure_list])
        self.db, self.routes = db, make_routes(db, catalog)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCalls:
    """Any thread."""

    readiness: Readiness
    bound: BoundCode
    clock: HybridClock
    router: Router
    waker: LogWakeup

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        """See `cmdlog.node.replicator.Replicator.call`."""
        self.readiness.check_ready()
        if txn is not None:
            self.clock.observe(txn)
        partition = self.router.place(route, params, key, done, durability)
        if not route.read_only:
            self.waker.wake()
        return partition

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """See `cmdlog.node.replicator.Replicator.call_many`."""
        self.readiness.check_ready()
        partitions = self.router.place_many(calls)
        self.waker.wake()
        return partitions

    def call_encoded(self, calls: Sequence[Encoded]) -> None:
        """See `cmdlog.node.replicator.Replicator.call_encoded`."""
        self.readiness.check_ready()
        self.router.place_encoded(calls)
        self.waker.wake()
