"""How the node that leads a cluster states code and tables: a majority commits CATALOG, then the SCHEMA entries.

One rule: for the terms it began in. When these are over, the next leader completes what is committed of the change, and a leader
that cannot complete what it has stated, as where the majority stalls, resigns: who takes over does it, however long it takes.

CATALOG is committed before a SCHEMA entry is placed: each group commits by itself, and a SCHEMA entry with migrations waits at
each node for its code (`cmdlog.cluster.entry_gate`), which would never come.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from cmdlog.cluster.group_transfer import resign_groups
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.member.member_code import MemberCode
from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.deploying.code_change import ChangeWait, CodeChanges, Entries, NewCode, Steps, await_applied, schema_entries
from cmdlog.node.deploying.deploy_errors import SwitchUnfinished
from cmdlog.node.deploying.local_code_log import check_fit
from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class ClusterCodeLog:
    """The `CodeLog` of one change; the node's own is of none."""

    ground: NodeGround
    parts: NodeParts
    changes: CodeChanges
    consensus: Consensus
    code: MemberCode
    leadership: Leadership
    terms: tuple[int, ...] = ()  # that the change is made in

    def begin_deploy(self) -> ClusterCodeLog:
        """States a change in the present terms. Raises: CallRefused, where another node leads, or none."""
        with self.consensus.driver.lock:
            self.parts.sequencer.admission.raise_refusal()
            return self.in_terms(self.leadership.terms)

    def in_terms(self, terms: tuple[int, ...]) -> ClusterCodeLog:
        """States a change in these terms."""
        return replace(self, terms=terms)

    @property
    def is_still(self) -> bool:
        """Whether this node leads in the terms of the change; under the driver's lock it stays so."""
        return self.leadership.standing is not Standing.FOLLOWING and self.leadership.terms == self.terms

    def check_still(self) -> None:
        with self.consensus.driver.lock:
            if not self.is_still:
                raise SwitchUnfinished(
                    "this node led no more before the change was made", hint="ask the node that leads which version it runs"
                )

    def hold_calls(self) -> None:
        """A node that takes over takes none yet."""
        if self.leadership.standing is Standing.LEADING:
            self.parts.sequencer.intake.hold_calls()

    @property
    def is_drained(self) -> bool:
        """Whether everything that is committed has run, and nothing waits to be."""
        with self.consensus.driver.lock:
            return self.parts.sequencer.idle and self.consensus.machine.all_run

    def check_fit(self, code: NewCode, entries: Entries) -> None:
        """A node that takes over looked at its start, and waits for room if it has to."""
        if self.leadership.standing is Standing.TAKING_OVER:
            return
        record = encode_json(RecordKind.CATALOG, code.value, partition=CLUSTER_GROUP, term=self.ground.boot.term, index=1)
        check_fit(self.ground.wal, self.parts.sequencer, record, entries)

    def state(self, code: NewCode, entries: Entries) -> Steps[None]:
        """Every node gives the code to its sites when CATALOG is committed, and binds calls to it when its states suit."""
        machine, intake = self.consensus.machine, self.parts.sequencer.intake
        if not code.is_logged:
            log.info("code_proposed", catalog_version=code.version)
            yield from self._commit(lambda done: machine.state(RecordKind.CATALOG, code.value, done), ChangeWait.CODE)
        if entries:
            yield from self._commit(lambda done: intake.add_entries(schema_entries(entries), done), ChangeWait.TABLES)
            yield from await_applied(self.parts.sequencer, entries, self)

    def _commit(self, place: Callable[[Done], None], wait: ChangeWait) -> Steps[None]:
        """Places under one lock with the look at the terms: calls may have run since they were over."""
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with self.consensus.driver.lock:
            self.check_still()
            place(replies.put)
        self.consensus.driver.wake()
        while replies.empty():
            yield wait
        if not isinstance(reply := replies.get(), CallOutcome):
            raise SwitchUnfinished(f"{wait.problem}: {reply}", hint="deploy the same code again")

    def bind(self, code: NewCode) -> None:
        self.code.run_newest()

    def accept_calls(self) -> None:
        self.parts.sequencer.intake.accept_calls()

    def give_up(self, *, stated: bool) -> None:
        """A change that is stated is the next leader's, which may be this node again; calls are refused from here to its
        take-over."""
        driver = self.consensus.driver
        with driver.lock:
            if stated and self.is_still and driver.failure is None:
                log.warning("leadership_resigned", reason="a change of tables is not finished", remedy="the next leader does it")
                driver.ask_groups(resign_groups)
        self.accept_calls()
