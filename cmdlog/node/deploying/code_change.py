"""The one way of new code and its tables into the log, and to the calls: a deploy, alone or in a cluster, and a take-over.

One rule: code first, then tables. Until the log has the CATALOG record nothing has changed. From then on the change is only
completed: a start or a leader that finds code whose tables the states lack rehearses and states them before the first call.

    hold       calls are refused, and what was placed before has run
    rehearse   every site does its partition's change and keeps it open; one that cannot: all take theirs back
    state      CATALOG, and one SCHEMA entry for each partition that changes, are in the log and applied here
    switch     calls are bound to the new code, and taken

A change that no row can stand in the way of skips the first two: calls run the former code on the grown tables.

Crash: before CATALOG is durable (alone) or committed, nothing has happened: what sites keep open is taken back. After it, the
next start or the next leader goes on at *rehearse*, with the same code.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.deploying.deploy_errors import MigrationRefused, SiteLost
from cmdlog.node.deploying.table_plan import find_pausing, plan_tables
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.wal.format.record import RecordKind
from procedures import Database
from procedures.code.procedure_versions import narrowed_column, partitions_of
from procedures.declaration.schema_plan import SchemaPlan
from procedures.migration.stated_change import StatedChange

T = TypeVar("T")
Entries = Mapping[int, dict[str, Any]]  # partition -> value of its SCHEMA entry


class ChangeWait(enum.Enum):
    """What a change waits for; a deploy gives it up after so many seconds, and names the problem."""

    CALLS = "calls that were placed before have not ended", 30.0
    REHEARSAL = "the sites have not done the migration", 6 * 3600.0  # a site that makes no progress is ended long before
    CODE = "the log has not confirmed the new code", 30.0
    TABLES = "the log has not confirmed the new tables", 30.0
    APPLIED = "the sites have not applied the new tables", 30.0

    @property
    def problem(self) -> str:
        return self.value[0]

    @property
    def timeout_s(self) -> float:
        return self.value[1]


Steps = Generator[ChangeWait, None, T]  # yields while it waits; to be closed where it is not run to its end


@dataclass(frozen=True, slots=True)
class NewCode:
    """A version of the code that states and calls are brought to."""

    db: Database
    value: Mapping[str, Any]  # of its CATALOG record
    is_logged: bool

    @property
    def version(self) -> int:
        return int(self.value["version"])


@dataclass(frozen=True, slots=True)
class TableChange:
    """What leads the states to the tables of some code."""

    plans: Mapping[int, SchemaPlan]  # by partition; none where nothing has to change
    pauses: str  # what has to be tried on the rows first, while no call runs; "" when nothing has

    @property
    def additions(self) -> Entries:
        """The entries, where nothing pauses calls."""
        return {partition: StatedChange(of.statements, marked=of.marked).to_json() for partition, of in self.plans.items()}


class CodeLog(Protocol):
    """How a node puts a change into its log. For one change."""

    def check_still(self) -> None:
        """Raises: SwitchUnfinished, where this node may not continue: another one leads by now."""
        ...

    def hold_calls(self) -> None:
        """Raises: CallRefused, if calls are refused for another reason."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether everything that was placed has run."""
        ...

    def check_fit(self, code: NewCode, entries: Entries) -> None:
        """Raises: BundleRefused, when the log could never take the change; LogFullRefusal, when it cannot now."""
        ...

    def state(self, code: NewCode, entries: Entries) -> Steps[None]:
        """Puts the change into the log, as durable as calls are before they are answered, and gives it to the sites.

        Code that is logged is not stated again. Raises: SwitchUnfinished.
        """
        ...

    def bind(self, code: NewCode) -> None:
        """Calls run this code from now on."""
        ...

    def accept_calls(self) -> None:
        """Ends `hold_calls`."""
        ...

    def give_up(self, *, stated: bool) -> None:
        """The change failed or was abandoned; `stated`: the log may have the code, so that it must be completed."""
        ...


class CodeChanges:
    """The changes of one node, one at a time, but for one whose leadership is over: its log refuses the rest."""

    def __init__(self, ground: NodeGround, parts: NodeParts) -> None:
        self._directory, self._partitions = ground.directory, range(ground.settings.partitions)
        self._sequencer, self._sites, self._changes = parts.sequencer, parts.sites, parts.desk.changes

    def plan(self, code: NewCode, former: Mapping[str, Any]) -> TableChange:
        """`former`: value of the CATALOG record before. Read only. Raises: SchemaConflict, DefinitionError."""
        plans = plan_tables(code.db, self._directory, len(self._partitions))
        return TableChange(plans, find_pausing(plans, "" if code.is_logged else narrowed_column(code.db, former)))

    def make(self, code: NewCode, tables: TableChange, code_log: CodeLog) -> Steps[tuple[Entries, float]]:
        """Takes the steps. Returns the entries that were stated, and for how many seconds no call could be placed.

        Raises: MigrationRefused, SiteLost, and nothing changed; BundleRefused, CallRefused, SwitchUnfinished.
        """
        # Additions are stated as they were planned; anything else as the sites have done it.
        entries, began, stated = tables.additions, time.monotonic(), False
        if tables.pauses:
            code_log.hold_calls()
        try:
            if tables.pauses:
                while not code_log.is_drained:
                    code_log.check_still()
                    yield ChangeWait.CALLS
                entries = yield from self._rehearse(code, tables.plans if code.is_logged else self._partitions, code_log)
            if entries or not code.is_logged:
                self._check_fit(code, entries, code_log)
            stated = True
            yield from code_log.state(code, entries)
            began = began if tables.pauses else time.monotonic()
            code_log.bind(code)
        except BaseException:
            code_log.give_up(stated=stated)
            raise
        code_log.accept_calls()
        return entries, time.monotonic() - began

    def _rehearse(self, code: NewCode, wanted: Iterable[int], code_log: CodeLog) -> Steps[Entries]:
        """The change of each of these partitions, done and kept open. Raises: MigrationRefused, and nothing is kept."""
        partitions, at = list(wanted), self._sequencer.intake.reserve_txn()
        bundle, of = str(code.value["bundle"]), partitions_of(code.value)
        self._changes.await_partitions(partitions, at)
        try:
            for partition in partitions:
                self._sites.prepare(partition, {"catalog": code.version, "at": at, "bundle": bundle, "partitions": of})
            while (reports := self._changes.reports(at)) is None:
                code_log.check_still()
                yield ChangeWait.REHEARSAL
            for partition, report in reports.items():
                if "error" in report:
                    hint = f"nothing changed; {report['hint']}" if report["hint"] else ""
                    kind = SiteLost if "lost" in report else MigrationRefused
                    raise kind(f"partition {partition}: {report['error']}", hint=hint)
        except BaseException:
            self._drop(partitions)
            raise
        return {partition: report["change"] for partition, report in reports.items() if report["change"] is not None}

    def _check_fit(self, code: NewCode, entries: Entries, code_log: CodeLog) -> None:
        try:
            code_log.check_fit(code, entries)
        except BaseException:
            self._drop(entries)
            raise

    def _drop(self, partitions: Iterable[int]) -> None:
        """They are as before; no-op where nothing is kept."""
        for partition in partitions:
            self._sites.drop_prepared(partition)


def schema_entries(entries: Entries) -> list[tuple[int, RecordKind, dict[str, Any]]]:
    """The entries as the sequencer places them."""
    return [(partition, RecordKind.SCHEMA, dict(entry)) for partition, entry in entries.items()]


def await_applied(sequencer: Sequencer, partitions: Collection[int], code_log: CodeLog) -> Steps[None]:
    """What is durable of these partitions now is applied at the end."""
    ends = {partition: marks["durable"] for partition, marks in sequencer.watermarks().items() if partition in partitions}

    def is_applied() -> bool:
        marks = sequencer.watermarks()
        return all(marks[partition]["applied"] >= index for partition, index in ends.items())

    while not is_applied():
        code_log.check_still()
        yield ChangeWait.APPLIED
