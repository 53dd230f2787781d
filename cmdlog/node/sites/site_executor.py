"""A site: the single-threaded executor of some partitions' streams.

One rule: what arrives is applied in order of arrival, and answered after it is committed to the state file. Between batches the
site copies pages, or changed rows, of a snapshot under way (`snapshot.capture.image`, `snapshot.capture.delta`), so a capture
never stops it.

`Site` is the executor; `cmdlog.node.sites.site_main` runs one over a socket, `cmdlog.node.sites.inline_sites` in the calling
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from cmdlog.node.sites.site_faults import FULL
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.skips import Skips, skip_call, skips_by_partition
from cmdlog.work_progress import count_progress
from procedures.code.bundle import Bundle
from procedures.errors import EnvironmentFault, ProceduresError
from procedures.execution.executor import Applied
from procedures.execution.failure_trace import FailureTrace, FailureTracer
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.storage.changed_keys import estimate_keys
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine
from replay.state.state_lock import ReaderGate
from snapshot.capture.capture import IDLE_PAUSE_S, Wish
from snapshot.capture.delta import DeltaCapture
from snapshot.capture.image import ImageCapture

Progress = Callable[[int], object]
Tick = Callable[[], bool]
CHANGE_STEPS: Final = 1_000_000  # of SQLite's machine, some 10 ms, between two signs of life
ROOM_SHARE: Final = 0.5  # of wal_bytes_max: from there on new readers wait, and those inside may end before they are cancelled
READERS_PAUSE_S: Final = 0.01  # between two looks of an idle site whether the readers are gone
TABLES_CHANGE: Final = "the tables of the partition change"  # why a capture ends


def go_on() -> bool:
    """A `Tick` of a site that nobody watches."""
    return False


@contextlib.contextmanager
def _ticking(engine: PartitionEngine, tick: Tick) -> Iterator[None]:
    """While tables change, which may write every row, SQLite calls `tick`."""

    def tick_and_count() -> bool:
        count_progress()
        return tick()

    engine.state.connection.set_progress_handler(tick_and_count, CHANGE_STEPS)
    try:
        yield
    finally:
        with contextlib.suppress(apsw.ConnectionClosedError):  # a change that could not be rolled back has closed it
            engine.state.connection.set_progress_handler(None)


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What a site serves."""

    catalogs: Catalogs
    catalog: int  # the version that reads run at first
    state_files: Mapping[int, str]  # partition -> path
    policy: KeyPolicy
    digest_rows: bool
    wal_bytes_max: int  # of the log of a state file
    skips: Mapping[int, Skips] = field(default_factory=dict)  # by partition
    deltas: bool = False  # whether the rows that change are noted, so that a snapshot may hold these alone
    traceback_locals: bool = False  # whether traces show values of locals
    inline: bool = False  # whether callers in this process get the exceptions themselves

    @classmethod
    def of(cls, hello: Mapping[str, Any], catalogs: Catalogs, *, inline: bool = False) -> SitePlan:
        """What `SiteEvents.hello` says, maybe as JSON."""
        return cls(
            catalogs,
            catalog=hello["catalog"],
            state_files={int(partition): path for partition, path in hello["state_files"].items()},
            policy=KeyPolicy(**hello["key_policy"]),
            digest_rows=hello["digest_rows"],
            wal_bytes_max=hello["wal_bytes_max"],
            skips=skips_by_partition(hello["skips"]),
            deltas=hello["deltas"],
            traceback_locals=hello["traceback_locals"],
            inline=inline,
        )


class Site:
    """Engines of this site's partitions. Owned by one thread.

    Attributes:
        captures: partition -> ident and capture of each snapshot under way; others only look whether there is one.
        gates: partition -> gate of its state, whose log is too long; `empty_logs` is to be called until there is none.
    """

    def __init__(self, plan: SitePlan, progress: Progress | None = None) -> None:
        self._plan = plan
        self._skips = {partition: dict(of_partition) for partition, of_partition in plan.skips.items()}
        self._engines: dict[int, PartitionEngine] = {}
        self.captures: dict[int, tuple[int, ImageCapture | DeltaCapture]] = {}
        self._keep: dict[int, tuple[int, ...]] = {}  # partition -> `Wish.keep` of its capture
        self._log_bytes_max = int(plan.wal_bytes_max * ROOM_SHARE)
        self.gates: dict[int, ReaderGate] = {}
        self._tracer = FailureTracer(show_locals=plan.traceback_locals, keep_errors=plan.inline)
        self._catalog = plan.catalog  # that reads run
        plan.catalogs(plan.catalog)  # code that cannot be loaded fails here, not in the middle of a batch
        for partition, path in plan.state_files.items():
            state = PartitionState.open(path, partition=partition)
            self._engines[partition] = PartitionEngine(
                state,
                plan.catalogs,
                digest_rows=plan.digest_rows,
                policy=plan.policy,
                progress=progress,
                tracer=self._tracer,
            )

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> index of the last entry that its state file holds."""
        return {partition: engine.state.position.index for partition, engine in self._engines.items()}

    @property
    def idle_pause_s(self) -> float | None:
        """After so long without an order `idle` has something to do; None: there is nothing."""
        if self.gates:
            return READERS_PAUSE_S
        return IDLE_PAUSE_S if self.captures else None

    def apply(self, record: Record, tick: Tick = go_on) -> Applied | None:
        """`tick`: as in `prepare`, of a change of tables. Raises: EnvironmentFault; the site must then be closed and opened
        again.
        """
        engine = self._engines[record.partition]
        if record.kind is RecordKind.SCHEMA:
            with _ticking(engine, tick):
                return engine.apply(record)
        applied = engine.apply(record, self._skips.get(record.partition, {}))
        if engine.state.log.bytes > self._log_bytes_max:
            self._empty_log(record.partition)
        return applied

    def empty_logs(self) -> None:
        """Empties the logs that are too long, of partitions without readers."""
        for partition in list(self.gates):
            self._empty_log(partition)

    def _empty_log(self, partition: int) -> None:
        """Or keeps new readers out until it can be emptied; not while a change of tables is prepared, which commits nothing."""
        state = self._engines[partition].state
        gate = self.gates.setdefault(partition, ReaderGate(str(state.path)))
        if state.empty_log():
            del self.gates[partition]
            gate.open()
        elif state.connection.in_transaction:
            gate.open()
        else:
            gate.shut()

    def leave_out(self, partition: int, index: int, position: int) -> None:
        """The log has a skip of this call, which was not applied yet."""
        skip_call(self._skips.setdefault(partition, {}), index, position)

    def run_code(self, version: int, bundle: Bundle, *, partitions: int | None) -> None:
        """Batches may name this version from now on, and reads run it. Loads it. Raises: BundleError and what it derives."""
        self._plan.catalogs.add_bundle(version, bundle, partitions=partitions)
        self._plan.catalogs(version)
        self._catalog = max(self._catalog, version)

    def read(self, partition: int, call: tuple[int, list[Any], int]) -> tuple[int, list[tuple[int, bytes]]]:
        """(TxnId as of which was read, [(status, body)]) of a read-only call: procedure, parameters, version of its code.

        Version 0 is the newest.
        """
        procedure, params, catalog = call
        return self._engines[partition].executor.read([(procedure, params)], catalog=catalog or self._catalog)

    def read_traces(self) -> Sequence[FailureTrace]:
        """Of the calls that raised in the last `read`."""
        return self._tracer.take_traces()

    def prepare(self, partition: int, order: Mapping[str, Any], tick: Tick = go_on) -> dict[str, Any]:
        """Does what leads to the tables of a version of the code, and keeps it open until its entry comes; the report.

        `order`: `catalog` and `bundle` of that version, which the log may not have yet, and for how many `partitions` it is;
        `at`, which the report repeats. `tick` is called now and then while SQLite works, which it ends if that returns True.

        Raises: EnvironmentFault, but for a full volume, which is reported.
        """
        engine, bundle = self._engines[partition], Bundle.from_bytes(order["bundle"].encode())
        try:
            self._plan.catalogs.add_bundle(order["catalog"], bundle, partitions=order["partitions"])
            with _ticking(engine, tick):
                found = engine.executor.rehearse_change(catalog=order["catalog"], at=order["at"], keep=True)
        except ProceduresError as error:
            if isinstance(error, EnvironmentFault) and error.kind != FULL:
                raise
            return {"at": order["at"], "error": str(error), "hint": error.hint}
        return {"at": order["at"], "change": None if found is None else found.change.to_json()}

    def drop_prepared(self, partition: int) -> None:
        """Takes back what `prepare` keeps."""
        self._engines[partition].executor.drop_rehearsal()

    def capture(self, partition: int, ident: int, path: str, wish: Wish | None = None) -> None:
        """Begins a delta as wished, or else a whole image at `path`; `step_captures` continues it.

        What is prepared is taken back, since an image would show it; its entry does it again.
        """
        self.drop_prepared(partition)
        capture = self._delta(partition, wish) if wish is not None else None
        self._keep[partition] = wish.keep if wish is not None else ()
        self.captures[partition] = (ident, capture or ImageCapture(self._engines[partition].state, path))

    def _delta(self, partition: int, wish: Wish) -> DeltaCapture | None:
        """None when it is not known what changed since the base, or so much did that a whole image is cheaper."""
        engine = self._engines[partition]
        changes = engine.executor.changes
        parts = changes.since(wish.base) if changes is not None and wish.base is not None else None
        if changes is None or parts is None or estimate_keys(parts) > wish.keys_max:
            return None
        changes.cut(engine.state.position, keep=wish.keep)
        return DeltaCapture(engine.state, changes, parts, wish.path)

    def pace(self, partition: int, share: float) -> None:
        """The share of its time that the site may give to the capture under way, if there is one."""
        if partition in self.captures:
            self.captures[partition][1].pace.set_share(share)

    def step_captures(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Copies some pages or rows; returns (partition, ident, report) of those that completed."""
        done = []
        for partition, (ident, capture) in list(self.captures.items()):
            count_progress()
            if capture.step():
                del self.captures[partition]
                done.append((partition, ident, capture.report()))
                self._cut_behind(partition, done[-1][2])
        return done

    def _cut_behind(self, partition: int, report: Mapping[str, Any]) -> None:
        """A whole image has the position of the site at this moment: what changes from here on may become a delta on it."""
        engine = self._engines[partition]
        if self._plan.deltas and report.get("kind") == "full" and (changes := engine.executor.gather_changes()) is not None:
            changes.cut(engine.state.position, keep=self._keep[partition])

    def abort_captures(self, why: str, partition: int | None = None) -> list[tuple[int, int, dict[str, Any]]]:
        """Ends every capture under way, or the partition's; returns (partition, ident, report) of each, for its waiter."""
        ended = []
        for captured in list(self.captures) if partition is None else [partition] if partition in self.captures else []:
            ident, capture = self.captures.pop(captured)
            capture.abort()
            ended.append((captured, ident, {"partition": captured, "error": why}))
        return ended

    def close(self) -> None:
        for gate in self.gates.values():
            gate.open()
        for engine in self._engines.values():
            engine.close()
