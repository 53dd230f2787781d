"""Deploys on the node that leads a cluster: the same steps, but what it states is committed by a majority.

One rule: a change that calls can run beside is additions first, then the code. Every node binds calls to a version as soon as its
CATALOG entry is committed, so the tables must have grown by then; the former code runs on grown tables. A new leader that finds
the tables without the code continues with the former code, whose declaration lets additions be.

A change that pauses calls is made as a take-over makes it, by the leader of now: calls are refused, what was placed is run, each
partition's change is tried out on its state; then the code is stated, and after it the tables. From the code on, every later
leader adds what tables are missing before its first call (`cmdlog.member.leading.takeover`). So nothing is kept open. A leader
that does not finish in time, as where the majority stalls, resigns: who takes over completes the change, however long it takes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from cmdlog.cluster.group_transfer import resign_groups
from cmdlog.cluster.replication import Replication
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.member.member_code import MemberCode
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.deploying.deploy_answer import DeployAnswer
from cmdlog.node.deploying.deploy_errors import MigrationRefused, SwitchUnfinished
from cmdlog.node.deploying.deployer import DRAIN_S_MAX, Deployer, DeployGround
from cmdlog.node.deploying.prepared_sites import Entries
from cmdlog.node.migrating.table_changes import NewTables, table_changes
from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import TxnId, txn_tick
from procedures import Database
from procedures.code.procedure_versions import facts_of
from procedures.errors import ProceduresError

log = structlog.get_logger("cmdlog.cluster")


class ClusterDeployer(Deployer):
    """See the module."""

    def __init__(
        self, ground: DeployGround, driver: Replication, machine: SequencedMachine, *, code: MemberCode, leadership: Leadership
    ) -> None:
        super().__init__(ground)
        self._driver, self._machine, self._code, self._leadership = driver, machine, code, leadership
        self._terms: tuple[int, ...] = ()  # that the change under way is made in

    def check_serving(self) -> None:
        """Raises: CallRefused, where another node leads, or none."""
        super().check_serving()
        self._ground.sequencer.admission.raise_refusal()

    def _grow(self, db: Database, value: Mapping[str, Any], entries: Mapping[int, Any], *, logged: bool) -> None:
        self._terms = self._leadership.terms
        self._add_tables(entries)
        if not logged:
            self._propose_code(value)
        self._await(lambda: self._runs(int(value["version"])), "this node has not loaded the new code")

    def _place_entries(self, changes: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        with self._driver.lock:
            self._check_leads()
            super()._place_entries(changes, done)
        self._driver.wake()

    def _migrate(self, db: Database, value: Mapping[str, Any], *, logged: bool) -> DeployAnswer:
        """Calls are taken again when the change is made, when nothing of it is stated, and after the next take-over."""
        began, intake, stated = time.monotonic(), self._ground.sequencer.intake, logged
        self._terms = self._leadership.terms
        intake.hold_calls()
        try:
            self._await(self._is_drained, "calls that were placed before have not ended", DRAIN_S_MAX)
            entries = self._rehearse(db, value, is_new=not logged)
            self._check_fit(self._record(value), entries)
            stated = True
            if not logged:
                self._propose_code(value)
            self._add_tables(entries)
            self._await(lambda: self._runs(int(value["version"])), "this node has not loaded the new code")
        except BaseException:
            if stated:
                self._resign()
            raise
        finally:
            intake.accept_calls()
        pause_ms = round((time.monotonic() - began) * 1000, 3)
        log.info("code_deployed", catalog_version=int(value["version"]), bundle=str(value["hash"])[:12], pause_ms=pause_ms)
        return DeployAnswer.of_entries(int(value["version"]), entries, pause_ms)

    def _is_drained(self) -> bool:
        """Everything that is committed is run, and nothing waits to be."""
        with self._driver.lock:
            return self._ground.sequencer.idle and self._machine.all_run

    def _leads(self) -> bool:
        """Whether this node leads as it did when the change began; under the driver's lock."""
        return self._leadership.standing is Standing.LEADING and self._leadership.terms == self._terms

    def _check_leads(self) -> None:
        """Under the driver's lock. Raises: SwitchUnfinished, where this leadership is over: calls may have run since."""
        if not self._leads():
            raise SwitchUnfinished(
                "this node led no more before the change was made", hint="ask the node that leads which version it runs"
            )

    def _resign(self) -> None:
        """The change is the next leader's, which may be this node again; calls are refused from here to its take-over."""
        with self._driver.lock:
            if self._leads() and self._driver.failure is None:
                log.warning("leadership_resigned", reason="a change of tables is not finished", remedy="the next leader does it")
                self._driver.ask_groups(resign_groups)

    def _rehearse(self, db: Database, value: Mapping[str, Any], *, is_new: bool) -> Entries:
        """What the change is on every partition, tried out on its state, which stays as it is. Raises: MigrationRefused."""
        ground, facts = self._ground, facts_of(value)
        tick = txn_tick(TxnId(ground.sequencer.intake.reserve_txn()))
        new = NewTables(db, int(value["version"]), ground.partitions, tick, migrates=True, facts=facts, is_new=is_new)
        try:
            return {partition: entry for partition, _, entry in table_changes(new, ground.directory)}
        except ProceduresError as error:
            raise MigrationRefused(str(error)) from error

    def _propose_code(self, value: Mapping[str, Any]) -> None:
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with self._driver.lock:
            self._check_leads()
            self._machine.state(RecordKind.CATALOG, value, replies.put)
        self._driver.wake()
        self._await(lambda: not replies.empty(), "the new code is not committed")
        if not isinstance(reply := replies.get(), CallOutcome):
            raise SwitchUnfinished(f"the new code may not be committed: {reply}", hint="deploy the same code again")

    def _runs(self, version: int) -> bool:
        return self._code.is_bound and self._ground.sequencer.intake.code_version >= version

    def _switch(
        self, db: Database, value: Mapping[str, Any], entries: Mapping[int, Mapping[str, Any]], began: float
    ) -> DeployAnswer:
        """The node that committed the code has bound calls to it already."""
        return DeployAnswer.of_entries(int(value["version"]), entries, 0.0)
