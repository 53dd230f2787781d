"""Calls that this node places itself: given to the router, and the log woken; and reads of what it has run so far.

One rule: a call is either refused with nothing logged, or its `done` is called exactly once.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import Done, Durability, NotReady
from cmdlog.node.placing.router import BoundCode, Encoded, Placed, Router
from cmdlog.node.queries.query import RunQuery, limits_of
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import Route
from cmdlog.operator_error import full_text
from cmdlog.procedure_calls import QueryParameters
from cmdlog.wal.errors import WalError
from replay.state.trust import state_path

log = structlog.get_logger("cmdlog.node")
T = TypeVar("T")


class Readiness:
    """Whether the node takes part in anything: it starts, serves, is closed, or has failed, and then stays so. Any thread.

    The parts of the node know this object, and not the node.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None  # why the node is wedged
        self.ready = False  # calls are accepted
        self._closes = self._ended = False
        self._watchers: list[Callable[[BaseException], None]] = []

    def accept_calls(self) -> None:
        """The node serves."""
        self.ready = True

    def begin_close(self) -> bool:
        """The node closes, and serves what comes meanwhile; False when it has begun to before."""
        before, self._closes = self._closes, True
        return not before

    def refuse_calls(self) -> None:
        """No call is accepted any more."""
        self.ready, self._ended = False, True

    def check_ready(self) -> None:
        """Raises: NotReady."""
        if not self.ready:
            raise NotReady("the node is closed" if self._ended else "the node is still starting")

    def check_serving(self) -> None:
        """Raises: NotReady, also when the node has failed."""
        self.check_ready()
        if self.error is not None:
            raise NotReady(f"the node must be restarted: {full_text(self.error)}")

    def watch_failure(self, watch: Callable[[BaseException], None]) -> None:
        """`watch` is called when the node fails, in any thread; `error` says whether it has failed before."""
        self._watchers.append(watch)

    def fail(self, error: BaseException) -> None:
        """The log, a site or consensus has failed for good."""
        self.error = error
        log.error("node_failed", reason=full_text(error), kind=type(error).__name__)
        for watch in self._watchers:
            watch(error)


class LogWakeup:
    """Wakes the log for calls that were placed: in an event loop's thread once per turn of the loop, elsewhere at once.

    Calls whose requests arrived together then share a block, and the log's thread does not take the interpreter's lock from the
    loop for each of them: with 32 callers that was a third of all CPU time per call. Reads wake no log. Thread-safe.
    """

    def __init__(self, kick: Callable[[], None]) -> None:
        self._kick = kick
        self._loop: AbstractEventLoop | None = None
        self._thread = 0  # of the loop
        self._planned = False  # the loop's thread alone

    def attach(self, loop: AbstractEventLoop) -> None:
        """Calls are placed in this loop's thread, mostly."""
        self._loop = loop
        loop.call_soon_threadsafe(self._enter_loop)

    def wake(self) -> None:
        """The log takes what was placed, soon."""
        if self._loop is None or threading.get_ident() != self._thread:
            self._wake_now()
        elif not self._planned:
            self._planned = True
            self._loop.call_soon(self._wake_now)

    def _enter_loop(self) -> None:
        self._thread = threading.get_ident()

    def _wake_now(self) -> None:
        self._planned = False  # also where another thread wakes the log meanwhile: then it is woken twice
        try:
            self._kick()
        except WalError:  # the log has failed: calls already placed are answered by `failed`
            return


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
        if not self.readiness.ready:
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


class StaleReads:
    """Reads of what this node has run so far, leader or not: `consistency=stale`. Any thread.

    Such a read waits for nobody, neither for other nodes nor for the disk, and says as of what it read. Of every partition it saw
    a state that holds everything up to `as_of` and nothing after it; a partition's transaction ids only grow, so nothing up to
    there can still come. Each partition is read at its own place: a call on all of them may be seen on some.

    The state of a node alone is the only one: it holds whatever a caller has seen.
    """

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
