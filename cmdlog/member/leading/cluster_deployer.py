"""Deploys on the node that leads a cluster: the same steps, but what it states is committed by a majority.

One rule: additions first, then the code. Every node binds calls to a version as soon as its CATALOG entry is committed, so the
tables must have grown by then; the former code runs on grown tables. A new leader that finds the tables without the code
continues with the former code, whose declaration lets additions be.

Changes that pause calls are left to a rolling restart: each node would have to keep its transactions open until a majority has
the entry.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Any

from cmdlog.cluster.replication import Replication
from cmdlog.member.member_code import MemberCode
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.deploying.deploy_answer import DeployAnswer
from cmdlog.node.deploying.deploy_errors import SwitchUnfinished
from cmdlog.node.deploying.deployer import Deployer, DeployGround
from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.wal.format.record import RecordKind
from procedures import Database


class ClusterDeployer(Deployer):
    """See the module."""

    instead_of_pause = (
        "a cluster deploys additions alone; stop and start one node after the other with the new program and `serve --migrate`, "
        "and the change is made when the first of them leads"
    )

    def __init__(self, ground: DeployGround, driver: Replication, machine: SequencedMachine, code: MemberCode) -> None:
        super().__init__(ground)
        self._driver, self._machine, self._code = driver, machine, code

    def check_serving(self) -> None:
        """Raises: CallRefused, where another node leads, or none."""
        super().check_serving()
        self._ground.sequencer.admission.raise_refusal()

    def _grow(self, db: Database, value: Mapping[str, Any], entries: Mapping[int, Any], *, logged: bool) -> None:
        self._add_tables(entries)
        if not logged:
            self._propose_code(value)
        self._await(lambda: self._runs(int(value["version"])), "this node has not loaded the new code")

    def _place_entries(self, changes: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        with self._driver.lock:
            super()._place_entries(changes, done)
        self._driver.wake()

    def _propose_code(self, value: Mapping[str, Any]) -> None:
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with self._driver.lock:
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
