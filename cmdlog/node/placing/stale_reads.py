"""Reads of what this node has run so far, leader or not: `consistency=stale`.

One rule: such a read waits for nobody, neither for other nodes nor for the disk, and says as of what it read. Of every partition
it saw a state that holds everything up to `as_of` and nothing after it; a partition's transaction ids only grow, so nothing up to
there can still come. Each partition is read at its own place: a call on all of them may be seen on some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from cmdlog.node.outcome import Done
from cmdlog.node.placing.router import Router
from cmdlog.node.queries.query import RunQuery, limits_of
from cmdlog.node.slot_map import Route
from cmdlog.procedure_calls import QueryParameters
from replay.state.trust import state_path

if TYPE_CHECKING:
    from cmdlog.node.settings import Settings

T = TypeVar("T")


class StaleReads:
    """Of a node alone, whose state is the only one: it holds whatever a caller has seen. Any thread."""

    def __init__(self, directory: str, settings: Settings, router: Router, check_ready: Callable[[], None]) -> None:
        """`check_ready` raises NotReady while the node is closed."""
        self.directory, self.settings, self.router, self.check_ready = directory, settings, router, check_ready

    def call(self, route: Route, params: list[Any], *, done: Done, txn: int | None = None) -> int | None:
        """Places a read-only call; its partition, None for all of them. `done` gets an outcome with `as_of`.

        `txn` is a transaction that the caller has seen: what is read holds it. Raises: CallRefused.
        """
        self.check_ready()
        return self.router.place_stale(route, params, done)

    def query(self, run: RunQuery[T], sql: str, params: QueryParameters, partition: int | None, *, txn: int | None = None) -> T:
        """A SELECT on the state of one partition or of all; blocking. `txn` as in `call`. Raises: as `run`; NotReady."""
        self.check_ready()
        return self.read_states(run, sql, params, partition)

    def read_states(self, run: RunQuery[T], sql: str, params: QueryParameters, partition: int | None) -> T:
        """What `run` makes of the state files."""
        partitions = range(self.settings.partitions) if partition is None else (partition,)
        return run({p: state_path(self.directory, p) for p in partitions}, sql, params, limits_of(self.settings))
