"""Deploys: new code is checked, compared with the tables of the states, and made what calls run (`code_change`).

One rule: a deploy is refused before anything has changed, or it is completed: by this node, the next leader, or the next start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import structlog

from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.background.running_work import Work
from cmdlog.node.deploying.bundle_check import check_bundle
from cmdlog.node.deploying.change_trial import Trial, TrialOrder, try_change
from cmdlog.node.deploying.code_change import ChangeWait, CodeChanges, CodeLog, NewCode, Steps, T, TableChange
from cmdlog.node.deploying.deploy_errors import (
    BundleRefused,
    DeployNeedsMigration,
    DeployUnderWay,
    NoFormerCode,
    SwitchUnfinished,
    TablesRefused,
)
from cmdlog.node.deploying.deployed_code import replaced_by_deploy
from cmdlog.node.outcome import NotReady
from cmdlog.wal.ids import TxnId, txn_tick
from cmdlog.work_progress import Followed
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value, check_rows
from procedures.declaration.schema_plan import SchemaPlan
from procedures.errors import BundleError, DefinitionError, SchemaConflict
from procedures.execution.call_settings import standard_settings

LOOK_S: Final = 0.005

log = structlog.get_logger("cmdlog.node")


@dataclass(frozen=True, slots=True)
class DeployAnswer:
    """The version, what changes on each partition, and for how long no call could be placed."""

    version: int  # of the code that calls run from now on
    changed: bool = True  # False: that code runs already
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # partition -> SQL; unchanged ones are left out
    migrations: Sequence[str] = field(default_factory=list)  # that run
    pauses: str = ""  # of a plan: why calls have to pause
    former_cannot_run: str = ""  # of a plan: why the former code could not serve the new tables
    steps: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of a trial: partition -> [migration, SQL, rows, seconds]
    pause_ms: float = 0.0  # of a plan: as long as the slowest partition took

    @classmethod
    def of_plan(cls, version: int, tables: Mapping[int, SchemaPlan], pauses: str) -> Self:
        """What would be done."""
        names = dict.fromkeys(name for plan in tables.values() for name in plan.pending)
        return cls(version, True, {str(p): list(plan.statements) for p, plan in tables.items()}, list(names), pauses)

    def with_trial(self, trial: Mapping[str, Any]) -> DeployAnswer:
        """This plan, with what a trial on copies of the states has found."""
        tried = trial["partitions"]
        return replace(
            self,
            partitions={partition: [sql for _, sql, _, _ in found["steps"] if sql] for partition, found in tried.items()},
            steps={partition: found["steps"] for partition, found in tried.items()},
            former_cannot_run=trial["former_cannot_run"],
            pause_ms=round(max((found["seconds"] for found in tried.values()), default=0.0) * 1000, 3),
        )

    @classmethod
    def of_entries(cls, version: int, entries: Mapping[int, Mapping[str, Any]], pause_ms: float) -> Self:
        """What was done, by the values of the SCHEMA entries."""
        names = dict.fromkeys(run["name"] for entry in entries.values() for run in entry.get("migrations", ()))
        statements = {str(partition): statements_of(entry) for partition, entry in entries.items()}
        return cls(version, True, statements, list(names), pause_ms=pause_ms)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def statements_of(entry: Mapping[str, Any]) -> list[str]:
    """All SQL of a SCHEMA entry's value, in order."""
    of_migrations = [sql for run in entry.get("migrations", ()) for step in run["steps"] for sql in step]
    return [*of_migrations, *entry["statements"]]


class Deployer:
    """Any thread; one deploy at a time."""

    def __init__(self, ground: NodeGround, parts: NodeParts, changes: CodeChanges, begin_change: Callable[[], CodeLog]) -> None:
        """`begin_change` gives who states the next change. Raises: CallRefused, where this node may not state any."""
        self.code = ground.boot.code
        self._directory, self._partitions, self._work_list = ground.directory, ground.settings.partitions, ground.work
        self._intake, self._sites, self._readiness = parts.sequencer.intake, parts.sites, parts.calls.readiness
        self._changes, self._begin_change = changes, begin_change
        self._turn = threading.Lock()
        self._work = Work("deploy", "", time.monotonic)  # the one under way

    def deploy(self, bundle: Bundle, *, migrate: bool = False, plan: bool = False) -> dict[str, Any]:
        """Serves this code from now on, or says what that would change. Blocking; durable on return.

        `migrate`: also where calls have to pause. Raises: BundleRefused, TablesRefused, DeployNeedsMigration, MigrationRefused,
        DeployUnderWay, SwitchUnfinished; CallRefused.
        """
        with self._alone() as code_log:
            return self._deploy(bundle, code_log, migrate=migrate, plan=plan).to_json()

    def roll_back(self, version: int | None = None, *, migrate: bool = False, plan: bool = False) -> dict[str, Any]:
        """Serves the code of a former version, as a new version; None: of the one before. Raises: as `deploy`; NoFormerCode."""
        with self._alone() as code_log:
            code = self.code
            former = [known for known, value in code.by_version.items() if value["hash"] != code.newest_hash]
            wanted = max(former, default=0) if version is None else version
            if wanted not in former:
                known = ", ".join(map(str, sorted(former))) or "none"
                raise NoFormerCode(f"version {version or 'before the newest'} is no former code; the log has: {known}")
            return self._deploy(bundle_of(wanted, code.by_version[wanted]), code_log, migrate=migrate, plan=plan).to_json()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[CodeLog]:
        self._readiness.check_serving()
        code_log = self._begin_change()
        if not self._turn.acquire(blocking=False):
            raise DeployUnderWay("another deploy is under way")
        try:
            with self._work_list.track("deploy", "deploy") as self._work:
                yield code_log
        finally:
            self._turn.release()

    def _deploy(self, bundle: Bundle, code_log: CodeLog, *, migrate: bool, plan: bool) -> DeployAnswer:
        known = self.code
        same = known.newest_hash == bundle.hash
        if same and self._intake.code_version == known.newest:
            return DeployAnswer(known.newest, changed=False)
        self._work.enter("checking the code")
        check_bundle(bundle, database=str(known.newest_value["database"]))
        code = self._load(bundle, known.newest if same else known.newest + 1, is_logged=same)
        self._work.enter("comparing the tables")
        tables = self._plan(code)
        if not same:
            code_log.check_fit(code, {})
        if plan:
            answer = DeployAnswer.of_plan(code.version, tables.plans, tables.pauses)
            return answer.with_trial(self._try_change(code)) if tables.pauses else answer
        if tables.pauses and not migrate:
            raise DeployNeedsMigration(f"the code has {tables.pauses}")
        entries, paused_s = self._run(self._changes.make(code, tables, code_log))
        pause_ms = round(paused_s * 1000, 3)
        log.info("code_deployed", catalog_version=code.version, bundle=bundle.hash[:12], pause_ms=pause_ms)
        return DeployAnswer.of_entries(code.version, entries, pause_ms)

    def _load(self, bundle: Bundle, version: int, *, is_logged: bool) -> NewCode:
        try:
            with standard_settings():  # a thread of the program may be the one that deploys
                db: Database = load_bundle(bundle)
        except BundleError as error:
            raise BundleRefused(str(error)) from error
        before, at = self.code.newest_value, self._intake.reserve_txn()
        try:
            check_rows(db, before)
        except (SchemaConflict, DefinitionError) as error:
            raise TablesRefused(str(error)) from error
        if is_logged:
            return NewCode(db, before, is_logged=True)
        value = catalog_value(db, bundle, version, before, partitions=self._partitions, stated_at=at)
        return NewCode(db, value | replaced_by_deploy(self.code, bundle), is_logged=False)

    def _plan(self, code: NewCode) -> TableChange:
        try:
            return self._changes.plan(code, self.code.newest_value)
        except (SchemaConflict, DefinitionError) as error:
            raise TablesRefused(str(error)) from error

    def _try_change(self, code: NewCode) -> Trial:
        former, tick = str(self.code.newest_value["bundle"]), txn_tick(TxnId(self._intake.reserve_txn()))
        self._work.enter("trying the migrations")
        return try_change(TrialOrder(str(code.value["bundle"]), former, self._directory, self._partitions, code.version, tick))

    def _run(self, steps: Steps[T]) -> T:
        """Raises: SwitchUnfinished, when a step takes too long, or the node has failed."""
        followed = Followed(lambda: sum(map(self._sites.progress, range(self._partitions))))
        waits_for, deadline, look = None, 0.0, threading.Event()
        with contextlib.closing(steps):
            while True:
                try:
                    wait: ChangeWait = next(steps)
                except StopIteration as ended:
                    made: T = ended.value
                    return made
                if wait is not waits_for:
                    waits_for, deadline = wait, time.monotonic() + wait.timeout_s
                    self._work.enter(wait.problem)
                followed.follow()
                self._check_goes_on(wait, deadline)
                look.wait(LOOK_S)

    def _check_goes_on(self, wait: ChangeWait, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise SwitchUnfinished(f"{wait.problem} within {wait.timeout_s:g} s")
        try:
            self._readiness.check_serving()
        except NotReady as error:
            raise SwitchUnfinished(f"{wait.problem}: {error}") from None
