"""What is between a node's sequencer and its log: nothing for a node alone, consensus for one of several.

One rule: a node asks its replicator where a call goes, what confirms a read, who states code, and how leadership is handed over;
it never asks whether it is alone.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.deploying.code_change import CodeChanges
from cmdlog.node.deploying.deployer import Deployer
from cmdlog.node.deploying.local_code_log import LocalCodeLog
from cmdlog.node.migrating.table_changes import NewTables, table_changes
from cmdlog.node.outcome import Done, Durability
from cmdlog.node.placing.local_calls import StaleReads
from cmdlog.node.placing.router import Encoded, Placed
from cmdlog.node.slot_map import Route
from cmdlog.node.unconfirmed_tail import catch_up
from cmdlog.wal.format.record import Record
from cmdlog.wal.writing.watermarks import Sync

if TYPE_CHECKING:
    from cmdlog.cluster.membership.operator_desk import OperatorDesk
    from cmdlog.node.telemetry.cluster_metrics import MemberLook

OPENING_LOOK_S: Final = 0.02  # at whether the log has room for what the start adds

log = structlog.get_logger("cmdlog.node")


class Replicator(Protocol):
    """Complete when it is made; `start_log` and `attach` begin, in this order."""

    @property
    def durabilities(self) -> Sequence[Durability]:
        """That calls may ask for."""
        ...

    @property
    def deployer(self) -> Deployer:
        """Who states code."""
        ...

    @property
    def stale(self) -> StaleReads:
        """Reads that nothing confirms."""
        ...

    @property
    def cluster(self) -> MemberLook | None:
        """What is shown of the cluster; None: the node is alone."""
        ...

    @property
    def operators(self) -> OperatorDesk | None: ...

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        """Where a call goes: one with bound parameters (wire form). Returns its partition, None for all of them.

        `key`: an idempotency fingerprint, or what a session's call brings (`session_calls.sent_name`); `txn` comes before it.
        `durability`: "async" answers once it is executed, "sync" once durable too. Raises: Refused (nothing logged), ClockAhead.
        """
        ...

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """Calls (route, params, key, done, durability) in order, as `call` does. Raises: CallRefused, for all of them."""
        ...

    def call_encoded(self, calls: Sequence[Encoded]) -> None:
        """`call_many`, of calls whose parameters are encoded already. Raises: CallRefused, for all of them."""
        ...

    def confirm_query(self) -> None:
        """What confirms a read: returns when a query sees every call that was answered before. Raises: CallRefused."""
        ...

    def check_point(self) -> None:
        """Raises: PointRefused, where the log states no moment of all partitions."""
        ...

    def start_log(self) -> None:
        """The log runs, and has what this start adds. Raises: WalError."""
        ...

    def attach(self, loop: AbstractEventLoop | None) -> None:
        """The node accepts calls: begins to speak with others."""
        ...

    def hand_over(self) -> bool:
        """An orderly stop begins: whether another node takes the calls from now on. Blocking."""
        ...

    def stop(self, hurried: Callable[[], bool]) -> None:
        """The node closes, and its sequencer still answers calls that were placed. Once, also of one that was not attached."""
        ...

    def finish(self) -> None:
        """Everything else of the node is closed."""
        ...


class Alone:
    """Of a node whose log is the only one: what is durable is committed, and every call is placed here."""

    durabilities: Sequence[Durability] = ("sync", "async")
    cluster: MemberLook | None = None
    operators: OperatorDesk | None = None

    def __init__(
        self,
        ground: NodeGround,
        parts: NodeParts,
        *,
        log_sync: Sync,
        left: Mapping[int, Sequence[Record]],
        recovery: Sequence[dict[str, Any]],
    ) -> None:
        """`left`: entries that the start leaves to watched sites; `recovery` gets what the start states of tables."""
        self._ground, self._parts, self._log_sync, self._left, self._recovery = ground, parts, log_sync, left, recovery
        calls = parts.calls
        self.call, self.call_many, self.call_encoded = calls.call, calls.call_many, calls.call_encoded
        self.stale = StaleReads(ground.directory, ground.settings, calls.router, calls.readiness.check_ready)
        code_log = LocalCodeLog(ground, parts)
        self.deployer = Deployer(ground, parts, CodeChanges(ground, parts), lambda: code_log)
        self._opened = threading.Event()  # the log has what the start adds, or it failed
        calls.readiness.watch_failure(lambda _error: self._opened.set())

    def confirm_query(self) -> None:
        """The only log has every call."""

    def check_point(self) -> None:
        """A point is a moment of the only log."""

    def start_log(self) -> None:
        """Returns when the log has what this start changes, or has no room for it: then calls are refused until it has.

        Raises: WalError, when the log has failed; RuntimeError, when sites do not start.
        """
        ground, settings, feed = self._ground, self._ground.settings, self._parts.sequencer.log_feed
        ground.wal.start(
            feed, threads=settings.log_threads, sync=self._log_sync, async_window_s=settings.async_window_ms / 1000,
            early=True, timed=self._parts.sequencer.meter.synced.append, whole_ring=settings.preallocate == "ring",
        )  # fmt: skip
        if self._left:
            catch_up(self._parts.desk, self._left, settings)
        self._open_log()

    def _open_log(self) -> None:
        ground, parts, boot, s = self._ground, self._parts, self._ground.boot, self._ground.settings
        tick = parts.calls.clock.reserve(1)
        migrates = s.migrate or not boot.adds_code  # who stated the code was asked, and did not come to its migrations
        new = NewTables(ground.db, boot.catalog, s.partitions, tick, migrates, boot.facts, boot.adds_code)
        entries = table_changes(new, ground.directory, parts.keys.load)
        for partition, _, value in entries:
            self._recovery[partition]["tables"] = value
        if not boot.records and not entries:
            parts.facts.note_logged()
            return
        opening = parts.sequencer.opening
        opening.add(boot.records, entries, done=self._log_opened)
        while not self._opened.wait(OPENING_LOOK_S):
            if opening.waits_for_room:
                log.warning("log_full", reason=parts.sequencer.admission.why_full(), waiting=boot.changes)
                return
        if (error := parts.calls.readiness.error) is not None:
            raise error

    def _log_opened(self) -> None:
        for change in self._ground.boot.changes:
            log.info("changed_since_last_start", what=change)
        self._parts.facts.note_logged()
        self._opened.set()

    def attach(self, loop: AbstractEventLoop | None) -> None:
        """There is nobody to speak with."""

    def hand_over(self) -> bool:
        """No other node could take the calls."""
        return False

    def stop(self, hurried: Callable[[], bool]) -> None:
        """Nothing runs here."""

    def finish(self) -> None:
        """The same."""
