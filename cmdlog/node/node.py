"""The running node: one directory, one log, its sites, and everybody's way to call procedures.

One rule: a call is either refused with nothing logged, or its `done` is called exactly once.

Threads: callers and the log's pool threads meet in the sequencer's lock; sites answer in the event loop's thread (or a reader
thread, or the driving caller when inline); the watch thread brings sites back and flushes what an idle node still owes the log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import structlog

from cmdlog.node.assembly import MACHINE, NodeGround, NodeParts, Outside, SelfChecks, build_parts, closed_on_failure, make_checks
from cmdlog.node.background.page_checks import unsealed_states
from cmdlog.node.boot import adopt_fixed, check_fit, ensure_node, make_boot, reporter, tell_recovery
from cmdlog.node.deploying.code_trial import CodeTrial
from cmdlog.node.deploying.deployed_code import choose_program
from cmdlog.node.deploying.load_check import checked_code
from cmdlog.node.outcome import CallOutcome, Done, Durability, NotReady
from cmdlog.node.placing.housekeeping import Housekeeping
from cmdlog.node.queries.query import QueryResult, RunQuery, run_query
from cmdlog.node.replicator import Alone, Replicator
from cmdlog.node.reporting.status import Health, StatusOverview
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.settings import Settings
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.slot_map import Route, describe_routes
from cmdlog.node.telemetry.recent_history import RecentHistory
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.node.unconfirmed_tail import skips_behind
from cmdlog.procedure_calls import QueryParameters
from cmdlog.wal.errors import WalError
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from cmdlog.wal.writing.watermarks import Sync
from procedures import Database
from procedures.code.bundle import capture_bundle
from procedures.execution.failure_trace import FailureTrace
from replay.plan.planner import RECOVER, START
from replay.plan.sole_voter import check_served_alone
from replay.recover.in_place import bring_up, left_over
from replay.state.trust import Trust

SWITCH_INTERVAL_S: Final = 0.0005  # at Python's 5 ms a log thread beside a busy event loop waited 10 ms for its turn

T = TypeVar("T")

log = structlog.get_logger("cmdlog.node")


class Node:
    """See the module. `open` makes one that is alone; `attach` begins to accept calls."""

    def __init__(
        self, ground: NodeGround, parts: NodeParts, checks: SelfChecks, replicator: Replicator, recovery: list[dict[str, Any]]
    ) -> None:
        """`recovery`: per partition what its state was rebuilt from, and why."""
        directory, settings, calls = ground.directory, ground.settings, parts.calls
        self.directory, self.settings, self.recovery, self.replicator = directory, settings, recovery, replicator
        self._wal, self._boot, self._files = ground.wal, ground.boot, ground.outside.files
        self._parts, self.checks, self._readiness, self.bound = parts, checks, calls.readiness, calls.bound
        self._desk, self._sites, self._snapshots, self._keys = parts.desk, parts.sites, parts.snapshots, parts.keys
        self.clock, self.sequencer, self.meter = calls.clock, parts.sequencer, parts.sequencer.meter
        self.slots, self.end_session = calls.router.slots, calls.router.end_session
        self.watch_failure = calls.readiness.watch_failure
        self.stale, self.deployer, self.durabilities_offered = replicator.stale, replicator.deployer, replicator.durabilities
        self.call, self.call_many, self.call_encoded = replicator.call, replicator.call_many, replicator.call_encoded
        self.hand_over = replicator.hand_over
        self.front = RequestStats(slow_call_ms=settings.slow_call_ms)
        self.overview = StatusOverview(
            ground, parts, checks, RecentHistory(self.meter), time.time(), health=self._health, cluster=replicator.cluster,
            operator_desk=replicator.operators,
        )  # fmt: skip
        self._positions: dict[int, int] = {}  # of the sites, when they started
        self._housekeeping = Housekeeping(
            directory, self.sequencer, self._snapshots, self._keys, self.meter.speeds,
            failed=lambda: self.error is not None,
            each_round=(self.meter.drain, self.overview.sample, ground.work.report_stalled),
        )  # fmt: skip

    @classmethod
    def open(
        cls,
        directory: str,
        db: Database,
        settings: Settings,
        *,
        target: str | None = None,
        inline: bool = False,
        log_sync: Sync | None = None,
        progress: Callable[[Any], None] | None = None,
        outside: Outside = MACHINE,
    ) -> Node:
        """Creates the node if the directory is empty or missing, else recovers it: restart table, snapshot, replay.

        `progress` is called first when the directory is known to be a node's and ours, then during the replay.
        Returns when all states are at the log's end and sites run; `attach` accepts calls. `log_sync` "off" is for benchmarks.
        Raises: WalError and the errors of procedures and replay; the directory is then as it was, or further recovered.
        """
        files, directory = outside.files, os.path.abspath(directory)
        with CodeTrial(inline=inline) as trial:
            bundle = ensure_node(files, directory, settings, db, target=target, try_code=trial.load)
            wal = Log.open(files, directory)
            with closed_on_failure(wal):
                check_file_size(directory, wal.instance.segment_bytes)
                groups, identity = wal.recovered.groups.by_partition, wal.instance.identity
                check_served_alone(files, directory, identity, wal.recovered.groups)
                settings = adopt_fixed(settings, groups, wal.instance)
                if progress is not None:
                    progress({"step": "opened"})
                db, bundle = choose_program(groups, db, bundle or capture_bundle(db, target))
                boot = make_boot(groups, db, settings, node_id=identity.node_id, bundle=bundle, wall_s=outside.time.wall())
                check_fit(boot, wal)
                trial.load_added(boot.bundle, boot.before["catalogs"], settings)
                live = checked_code(db, boot) if inline else None
                # New code would have to run old batches: then, and without sites, the replay goes to the end by itself.
                purpose = RECOVER if inline or boot.changes else START
                unsealed = unsealed_states(files, directory, range(settings.partitions))
                plan, report = bring_up(files, wal, live=live, progress=reporter(progress), purpose=purpose)
                Trust(files, directory).unseal()  # from here on they are written to
                skips = skips_behind(plan)
                ground = NodeGround(directory, db, settings, wal, boot, outside)
                parts = build_parts(ground, first_site=trial.take_site, inline=inline, skips=skips)
                checks = make_checks(ground, parts)
                checks.pages.wish(unsealed, plan)
                recovery = tell_recovery(plan, report, parts.snapshots.newest, parts.sequencer.meter.speeds)
                alone = Alone(
                    ground, parts, log_sync=log_sync or settings.durability, left=left_over(wal, plan), recovery=recovery
                )
                node = cls(ground, parts, checks, alone, recovery)
                node.start()
        return node

    def start(self) -> None:
        """The log runs, and so do the sites. Raises: WalError; RuntimeError when sites do not start."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self.replicator.start_log()
        self._positions = self._parts.start_sites()

    def attach(self, loop: AbstractEventLoop | None = None) -> None:
        """Lets calls in. Sites are read by this event loop, whose thread then runs `done`; None: by threads of the node."""
        self._sites.attach(loop)
        if loop is not None:
            self._parts.calls.waker.attach(loop)
        for partition, position in self._positions.items():
            self.sequencer.site_feed.site_up(partition, position)
        self._housekeeping.start()
        self._snapshots.start()
        self.checks.start()
        self._readiness.accept_calls()
        self.replicator.attach(loop)

    def close(self, *, drain_s: float | None = None, hurried: Callable[[], bool] = lambda: False) -> None:
        """Orderly: no new calls, those under way are answered, states and log are sealed, sites end. Idempotent.

        They are waited for as long as `drain_s`, else the setting `drain_timeout_s`, says; what is in the log stays there.
        `hurried` ends the wait, and the sealing of the states, which reads them.
        """
        if not self._readiness.begin_close():
            return
        self.replicator.stop(hurried)
        self._readiness.refuse_calls()
        try:
            self._close(self.settings.drain_timeout_s if drain_s is None else drain_s, hurried)
        finally:
            self.replicator.finish()

    def _close(self, drain_s: float, hurried: Callable[[], bool]) -> None:
        self.sequencer.intake.refuse(Closed.NODE, NotReady("the node is stopping"))
        self._drain(drain_s, hurried)
        self.checks.stop()
        self._snapshots.stop()
        self._parts.copier.stop()
        self._parts.archiver.stop()
        self._parts.copier.close()
        self._housekeeping.stop()
        self._sites.close()
        with contextlib.suppress(WalError):
            self.sequencer.log_feed.flush_notes()  # the last batches' digests: what a replay is compared with
        self.sequencer.abandon(NotReady("the node has stopped"), "the node stopped before the call was answered")
        if self.error is None:
            Trust(self._files, self.directory).seal(range(self.settings.partitions), hurried)
        self._wal.close()

    def _drain(self, timeout_s: float, hurried: Callable[[], bool]) -> None:
        calls = self.sequencer
        left = calls.site_feed.drain_calls(timeout_s, lambda: calls.idle or hurried() or self.error is not None, self.help)
        if left is not None:
            why = {p: trouble.message for p, trouble in self.troubles.by_partition().items()}
            log.warning("stopped_with_calls_in_flight", waited_s=round(timeout_s, 1), calls=left, why=why)

    @property
    def troubles(self) -> PartitionHealth:
        """Which partitions cannot run, and why."""
        return self._desk.troubles

    @property
    def ready(self) -> bool:
        """Calls are accepted, to every partition."""
        return self._readiness.ready and self.error is None and not self.sequencer.site_feed.refusing

    @property
    def error(self) -> BaseException | None:
        """Why the node is wedged."""
        return self._readiness.error

    @property
    def db(self) -> Database:
        """The application that calls run."""
        return self.bound.db

    @property
    def routes(self) -> Mapping[str, Route]:
        """Of the code that calls are bound to now."""
        return self.bound.routes

    def _health(self) -> Health:
        return Health(self.ready, self.error, self._sites.pids(), self.recovery)

    def help(self) -> None:
        """Lets the calling thread do what would cost thread switches elsewhere: take the log's turn, drive inline sites."""
        sites = self._sites
        if not isinstance(sites, InlineSites):
            return
        sites.helped_by(threading.get_ident())
        self._wal.run_turn()
        sites.drive()

    def call_inline(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, durability: Durability | None = None
    ) -> int | None:
        """`call`, but the calling thread takes the log's turn if nobody has it (embedded use)."""
        sites = self._sites
        if not isinstance(sites, InlineSites) or durability == "async":  # this thread must not wait for the disk
            return self.call(route, params, key=key, done=done, durability=durability)
        if not self._readiness.ready:
            self._readiness.check_ready()
        partition = self._parts.calls.router.place(route, params, key, done, durability)
        sites.helped_by(threading.get_ident())
        try:
            if not self._wal.run_turn(sites.drive):
                self._wal.kick()
        except WalError:  # the log has failed: calls already placed are answered by `failed`
            pass
        sites.drive()
        return partition

    def query(self, sql: str, params: QueryParameters = (), partition: int | None = None) -> QueryResult:
        """Runs a SELECT on a frozen state of one partition or, concatenated, of all. Blocking; any thread."""
        return self.query_by(run_query, sql, params, partition)

    def query_by(self, run: RunQuery[T], sql: str, params: QueryParameters, partition: int | None) -> T:
        """`query`, run by somebody else, such as a process of its own."""
        self.replicator.confirm_query()
        self.sequencer.reads.wait_for_tables(partition, self.settings.query_timeout_s)
        result = self.stale.read_states(run, sql, params, partition)
        if self.settings.durability == "sync":
            self.sequencer.reads.wait_until_durable(partition)
        return result

    def listen_to(self, front: RequestStats) -> None:
        """The front that serves this node from now on: its errors and refusals are shown with the node's figures."""
        self.front = front
        self.overview.history.listen_to(front)

    def take_snapshot(self, partition: int | None = None) -> list[dict[str, Any]]:
        """Takes a snapshot of one partition or of all, now; blocking. Raises: SnapshotError."""
        wanted = range(self.settings.partitions) if partition is None else (partition,)
        made: list[dict[str, Any]] = self._snapshots.request_snapshots(wanted).result()["snapshots"]
        return made

    def take_point(self) -> dict[str, Any]:
        """Takes a recovery point: snapshots of all partitions, and a transaction id up to which all can be restored together.

        Blocking; durable on return. The `point` and the `snapshots`, described. Raises: SnapshotError.
        """
        self.replicator.check_point()
        return self._snapshots.request_snapshots(range(self.settings.partitions), point=True).result()

    def points(self) -> list[dict[str, Any]]:
        """Every recovery point, by transaction id."""
        return self._snapshots.points()

    def snapshots(self) -> list[dict[str, Any]]:
        """Every snapshot, by partition and age."""
        return self._snapshots.listed()

    def stalls(self) -> list[dict[str, Any]]:
        """Sites that make no progress: see `cmdlog.node.reporting.status.StatusOverview.stalls`."""
        return self.overview.stalls()

    def status(self) -> dict[str, Any]:
        """Node, partitions with watermarks, log fill, clock, the kinds of errors seen lately: plain data."""
        return {**self.overview.status(), "errors": self.front.errors()}

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        """Where the procedure raised, of an outcome that says so; see `RecentFailures`."""
        return self._desk.failures.trace_of(outcome)

    def stages_of(self, txn_id: int) -> dict[str, float]:
        """Where a slow call spent its time: `queue_ms`, `log_ms`, `commit_ms`, `execute_ms`; {} for others."""
        return self.meter.stages_of(txn_id)

    def telemetry(self, after: int = 0) -> dict[str, Any]:
        """The last minutes for a status page: see `cmdlog.node.reporting.status.StatusOverview.telemetry`."""
        return self.overview.telemetry(self.front, after)

    def catalog(self) -> list[dict[str, Any]]:
        """Every procedure with the schemas of its parameters and result."""
        return describe_routes(self.routes)
