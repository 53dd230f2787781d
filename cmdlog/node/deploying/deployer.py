"""Deploys on a node alone: checked, in the log, at every site, then switched to between two calls.

One rule: until the log has the CATALOG record, nothing has changed; from then on the new code is what every start serves.

    check    a child process imports the bundle and repeats its workload; the node loads it
    plan     its tables against those of every state
    CATALOG  durable, in a block of its own; calls still run the former version
    CODE     to every site, before any batch that names the version
    SCHEMA   one entry per partition, all in one block; the former code runs on the grown tables as well
    switch   under the sequencer's lock: what waits keeps the former version, what comes is bound to the new one

The schema is applied before the switch, so a read of the new code, which overtakes what the log holds, finds its tables.

Migrations, and what rows may stand in the way of, pause calls between plan and switch: calls are refused with `migrating`, those
that were placed before are answered, every partition does its change and keeps it open. Only if all could, CATALOG and SCHEMA go
into the log, in one block where they fit, and the sites commit.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import orjson
import structlog

from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.background.running_work import RunningWork, Work
from cmdlog.node.deploying.bundle_check import check_bundle
from cmdlog.node.deploying.change_trial import Trial, TrialOrder, try_change
from cmdlog.node.deploying.deploy_answer import DeployAnswer
from cmdlog.node.deploying.deploy_errors import (
    BundleRefused,
    DeployNeedsMigration,
    DeployUnderWay,
    NoFormerCode,
    SwitchUnfinished,
    TablesRefused,
)
from cmdlog.node.deploying.deployed_code import replaced_by_deploy
from cmdlog.node.deploying.prepared_sites import Entries, PreparedSites
from cmdlog.node.deploying.table_plan import find_pausing, plan_tables
from cmdlog.node.outcome import CallOutcome, Done, LogFullRefusal, NotReady, Reply
from cmdlog.node.sequencing.flight import BATCH_OVERHEAD_BYTES
from cmdlog.node.sequencing.opening import size_of
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.prepared_changes import PreparedChanges
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, TxnId, txn_tick
from cmdlog.wal.log import Log
from cmdlog.work_progress import Followed
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.code.code_versions import CodeVersions
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value, check_rows, narrowed_column, partitions_of
from procedures.declaration.schema_plan import SchemaPlan
from procedures.errors import BundleError, DefinitionError, SchemaConflict
from procedures.execution.call_settings import standard_settings
from procedures.migration.stated_change import StatedChange

LOG_S_MAX: Final = 30.0  # for the log to take what a deploy states, and for the sites to apply it
DRAIN_S_MAX: Final = 30.0  # for calls that were placed before tables change
MIGRATION_S_MAX: Final = 6 * 3600.0  # for all partitions; a site that makes no progress is ended long before
LOOK_S: Final = 0.005

log = structlog.get_logger("cmdlog.node")


@dataclass(frozen=True, slots=True)
class DeployGround:
    """What a node gives. `bind` is called under the sequencer's lock: calls are bound to this code and version from now on."""

    directory: str
    partitions: int
    code: CodeVersions
    term: int
    next_index: int  # of the cluster group
    sequencer: Sequencer
    wal: Log
    sites: InlineSites | ProcessSites
    changes: PreparedChanges  # what the sites report of them
    bind: Callable[[Database, int], None]
    check_ready: Callable[[], None]  # raises NotReady
    work: RunningWork


class Deployer:
    """Any thread; one deploy at a time."""

    def __init__(self, ground: DeployGround) -> None:
        self._ground, self._next_index = ground, ground.next_index
        self._turn = threading.Lock()
        self._work = Work("deploy", "", time.monotonic)  # the one under way
        self._tried = ground.code.newest  # the highest version that any site was given

    def deploy(self, bundle: Bundle, *, migrate: bool = False, plan: bool = False) -> dict[str, Any]:
        """Serves this code from now on, or says what that would change. Blocking; durable on return.

        `migrate`: also where calls have to pause. Raises: BundleRefused, TablesRefused, DeployNeedsMigration, MigrationRefused,
        DeployUnderWay, SwitchUnfinished; CallRefused.
        """
        with self._alone():
            return self._deploy(bundle, migrate=migrate, plan=plan)

    def roll_back(self, version: int | None = None, *, migrate: bool = False, plan: bool = False) -> dict[str, Any]:
        """Serves the code of a former version, as a new version; None: of the one before. Raises: as `deploy`; NoFormerCode."""
        with self._alone():
            code = self._ground.code
            former = [known for known, value in code.by_version.items() if value["hash"] != code.newest_hash]
            wanted = max(former, default=0) if version is None else version
            if wanted not in former:
                known = ", ".join(map(str, sorted(former))) or "none"
                raise NoFormerCode(f"version {version or 'before the newest'} is no former code; the log has: {known}")
            return self._deploy(bundle_of(wanted, code.by_version[wanted]), migrate=migrate, plan=plan)

    @property
    def ground(self) -> DeployGround:
        """What the node gives."""
        return self._ground

    def check_serving(self) -> None:
        """Raises: CallRefused, while the node cannot deploy."""
        self._ground.check_ready()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.check_serving()
        if not self._turn.acquire(blocking=False):
            raise DeployUnderWay("another deploy is under way")
        try:
            with self._ground.work.track("deploy", "deploy") as self._work:
                yield
        finally:
            self._turn.release()

    def _deploy(self, bundle: Bundle, *, migrate: bool, plan: bool) -> dict[str, Any]:
        ground, code = self._ground, self._ground.code
        same = code.newest_hash == bundle.hash
        if same and ground.sequencer.intake.code_version == code.newest:
            return DeployAnswer(code.newest, changed=False).to_json()
        version = code.newest if same else max(self._tried, code.newest) + 1
        self._work.enter("checking the code")
        check_bundle(bundle, database=str(code.newest_value["database"]))
        db = self._load(bundle)
        self._work.enter("comparing the tables")
        tables = self._plan(db)
        at = ground.sequencer.intake.reserve_txn()
        value = catalog_value(db, bundle, version, code.newest_value, partitions=ground.partitions, stated_at=at)
        value |= replaced_by_deploy(code, bundle)
        if not same:
            self._check_fit(self._record(value))
        pausing = find_pausing(tables, narrowed_column(db, code.newest_value))
        if plan:
            found = DeployAnswer.of_plan(version, tables, pausing)
            return (found.with_trial(self._try_change(value)) if pausing else found).to_json()
        if pausing and not migrate:
            raise DeployNeedsMigration(f"the code has {pausing}")
        if pausing:
            return self._migrate(db, value, logged=same).to_json()
        entries = {partition: StatedChange(of.statements, marked=of.marked).to_json() for partition, of in tables.items()}
        self._grow(db, value, entries, logged=same)
        return self._switch(db, value, entries, time.monotonic()).to_json()

    def _load(self, bundle: Bundle) -> Database:
        try:
            with standard_settings():  # a thread of the program may be the one that deploys
                return load_bundle(bundle)
        except BundleError as error:
            raise BundleRefused(str(error)) from error

    def _plan(self, db: Database) -> dict[int, SchemaPlan]:
        ground = self._ground
        try:
            check_rows(db, ground.code.newest_value)
            return plan_tables(db, ground.directory, ground.partitions)
        except (SchemaConflict, DefinitionError) as error:
            raise TablesRefused(str(error)) from error

    def _grow(self, db: Database, value: Mapping[str, Any], entries: Mapping[int, Any], *, logged: bool) -> None:
        """While calls run the former code: everybody has the new one, and its tables. `logged`: the log has the code already."""
        if not logged:
            self._state_code(value, {})
        self._add_tables(entries)

    def _migrate(self, db: Database, value: Mapping[str, Any], *, logged: bool) -> DeployAnswer:
        """With calls paused. `logged`: the log has the code already."""
        began = time.monotonic()
        self._ground.sequencer.intake.hold_calls()
        try:
            entries = self._prepare(value, logged=logged)
        except BaseException:
            self._ground.sequencer.intake.accept_calls()
            raise
        if logged:  # from here on calls stay refused if something fails: the former code does not suit the tables
            self._add_tables(entries)
        else:
            self._state_code(value, entries)
        return self._switch(db, value, entries, began)

    def _prepare(self, value: Mapping[str, Any], *, logged: bool) -> Entries:
        """Every partition's change, done and kept open. Raises: MigrationRefused, SwitchUnfinished; nothing is kept then."""
        ground, version = self._ground, int(value["version"])
        self._await(lambda: ground.sequencer.idle, "calls that were placed before have not ended", DRAIN_S_MAX)
        if not logged:
            self._tried = version  # from here on the sites know it, whether it comes into the log or not
            ground.sites.add_code(version, str(value["bundle"]), partitions=partitions_of(value))
        sites = PreparedSites(ground.sites, ground.changes, ground.partitions)
        at = ground.sequencer.intake.reserve_txn()
        entries = sites.prepare(version, at, lambda done, problem: self._await(done, problem, MIGRATION_S_MAX))
        try:
            self._check_fit(self._record(value), entries)
        except BaseException:
            sites.drop_all()
            raise
        return entries

    def _try_change(self, value: Mapping[str, Any]) -> Trial:
        ground = self._ground
        former, tick = str(ground.code.newest_value["bundle"]), txn_tick(TxnId(ground.sequencer.intake.reserve_txn()))
        version = int(value["version"])
        self._work.enter("trying the migrations")
        return try_change(TrialOrder(str(value["bundle"]), former, ground.directory, ground.partitions, version, tick))

    # -- the log -----------------------------------------------------------------------------------------------------------

    def _record(self, value: Mapping[str, Any]) -> bytes:
        return encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=self._ground.term, index=self._next_index)

    def _check_fit(self, record: bytes, entries: Mapping[int, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """Raises: BundleRefused, when the log could never take it; LogFullRefusal, when it cannot now."""
        wal, sequencer = self._ground.wal, self._ground.sequencer
        segment_bytes = wal.instance.segment_bytes
        head_bytes = wal.head_bytes + len(record)
        longest = len(record) + sum(map(_entry_bytes, entries.values()))  # one block: a start finds both, or neither
        if block_bytes([bytes(longest)]) > wal.block_bytes_max or head_bytes > segment_bytes // 2:
            sizes = f"its record takes {len(record)} bytes, with its changes of tables {longest}"
            raise BundleRefused(
                f"the code is too much for segments of {segment_bytes} bytes: {sizes}, the head of a segment {wal.head_bytes}",
                hint="nothing changed; snapshots let former versions go, or make a directory of larger segments",
            )
        opening = sequencer.opening
        wanted = size_of([record]) + sum(map(_entry_bytes, entries.values())) + opening.bytes
        if opening.waits or wal.room_bytes < wanted:
            raise LogFullRefusal(sequencer.admission.why_full())

    def _state_code(self, value: Mapping[str, Any], entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Durable on return, and at every site before any batch that names it; with the changes of tables, which are applied."""
        ground, durable = self._ground, threading.Event()
        changes = [(partition, RecordKind.SCHEMA, dict(entry)) for partition, entry in entries.items()]
        ground.sequencer.opening.add([self._record(value)], changes, done=durable.set)
        self._next_index += 1
        self._await(durable.is_set, "the log has not confirmed the new code")
        ground.code.add(value)
        ground.sites.add_code(int(value["version"]), str(value["bundle"]), partitions=partitions_of(value))
        self._await_applied(entries)

    def _add_tables(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Applied by every site on return."""
        if not entries:
            return
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        changes = [(partition, RecordKind.SCHEMA, dict(entry)) for partition, entry in entries.items()]
        self._place_entries(changes, replies.put)
        self._await(lambda: not replies.empty(), "the log has not confirmed the new tables")
        if not isinstance(reply := replies.get(), CallOutcome):
            raise SwitchUnfinished(f"the tables were not logged: {reply}")
        self._await_applied(entries)

    def _place_entries(self, changes: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        self._ground.sequencer.intake.add_entries(changes, done)

    def _await_applied(self, partitions: Collection[int]) -> None:
        """What is durable of these partitions now is applied on return."""
        sequencer = self._ground.sequencer
        ends = {partition: marks["durable"] for partition, marks in sequencer.watermarks().items() if partition in partitions}

        def applied() -> bool:
            marks = sequencer.watermarks()
            return all(marks[partition]["applied"] >= index for partition, index in ends.items())

        self._await(applied, "the sites have not applied the new tables")

    def _await(self, done: Callable[[], bool], problem: str, timeout_s: float = LOG_S_MAX) -> None:
        """Raises: SwitchUnfinished, when it takes too long, or the node has failed."""
        deadline, look = time.monotonic() + timeout_s, threading.Event()
        self._work.enter(problem)
        sites, partitions = self._ground.sites, range(self._ground.partitions)
        followed = Followed(lambda: sum(map(sites.progress, partitions)))
        while not done():
            followed.follow()
            if time.monotonic() > deadline:
                raise SwitchUnfinished(f"{problem} within {timeout_s:g} s")
            try:
                self._ground.check_ready()
            except NotReady as error:
                raise SwitchUnfinished(f"{problem}: {error}") from None
            look.wait(LOOK_S)

    def _switch(
        self, db: Database, value: Mapping[str, Any], entries: Mapping[int, Mapping[str, Any]], began: float
    ) -> DeployAnswer:
        """`began`: since when no call could be placed, or just now."""
        version = int(value["version"])
        self._ground.sequencer.intake.switch_code(version, lambda: self._ground.bind(db, version))
        self._ground.sequencer.intake.accept_calls()
        pause_ms = round((time.monotonic() - began) * 1000, 3)
        log.info("code_deployed", catalog_version=version, bundle=str(value["hash"])[:12], pause_ms=pause_ms)
        return DeployAnswer.of_entries(version, entries, pause_ms)


def _entry_bytes(entry: Mapping[str, Any]) -> int:
    """At most what it takes in a block."""
    return len(orjson.dumps(entry)) + BATCH_OVERHEAD_BYTES


def deploy_ground(ground: NodeGround, parts: NodeParts, bind: Callable[[Database, int], None]) -> DeployGround:
    """Of a node whose log has not begun to write. `bind` as in `DeployGround`."""
    boot = ground.boot
    stated = ground.wal.recovered.groups.state(CLUSTER_GROUP).last_index + len(boot.records)
    return DeployGround(
        ground.directory,
        ground.settings.partitions,
        boot.code,
        boot.term,
        stated + 1,
        parts.sequencer,
        ground.wal,
        parts.sites,
        parts.desk.changes,
        bind,
        parts.calls.readiness.check_serving,
        ground.work,
    )
