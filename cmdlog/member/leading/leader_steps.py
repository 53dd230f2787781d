"""The steps of a take-over (`cmdlog.member.leading.takeover`) on the parts of a node.

One rule: whatever looks at the terms and acts on them does both under the driver's lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import structlog

from cmdlog.cluster.replication import Replication
from cmdlog.member.leading.cluster_code_log import ClusterCodeLog
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.deploying.deploy_errors import SiteLost, SwitchUnfinished
from cmdlog.node.outcome import Reply
from cmdlog.node.placing.key_owners import KeyOwners
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import txn_tick
from procedures.storage.state import open_reader
from replay.state.trust import state_path

SKIPPED_BEFORE: Final = "the leader before has skipped the call, and did not finish"

log = structlog.get_logger("cmdlog.cluster")


def _ignore(_reply: Reply) -> None:
    """Entries before the last of several: it is committed after them."""


class LeaderSteps:
    """Called by the take-over's thread."""

    def __init__(
        self,
        driver: Replication,
        machine: SequencedMachine,
        leadership: Leadership,
        sequencer: Sequencer,
        keys: KeyOwners,
        *,
        code_log: ClusterCodeLog,
        missing: Callable[[], Iterable[ClusterMember]],
    ) -> None:
        """`missing` gives the members that the log does not state."""
        self._driver, self._machine, self._leadership, self._sequencer = driver, machine, leadership, sequencer
        self._keys, self._code_log, self._code, self._missing = keys, code_log, code_log.code, missing

    def still(self, terms: tuple[int, ...]) -> bool:
        """Whether these terms are the present leadership's."""
        with self._driver.lock:
            return self._leadership.standing is not Standing.FOLLOWING and self._leadership.terms == terms

    def lift_clock(self, terms: tuple[int, ...]) -> bool:
        """Ticks are above every TxnId of the logs."""
        with self._driver.lock:
            self._sequencer.clock.lift(txn_tick(self._driver.last_txn))
            return self.still(terms)

    def give_places(self, terms: tuple[int, ...]) -> bool:
        """The sequencer numbers entries from the logs' ends on."""
        with self._driver.lock:
            if not self.still(terms):
                return False
            self._machine.lead(self._driver.ends(), catalog=self._code.versions.newest)
            return True

    def finish_skips(self, terms: tuple[int, ...]) -> bool:
        """States the skips of calls on all partitions where the leader before did not; False when the terms are over.

        Under one lock with the look at the terms: in later ones the same skip may be on its way.
        """
        with self._driver.lock:
            if not self.still(terms):
                return False
            entries: list[tuple[int, RecordKind, dict[str, Any]]] = [
                (p, RecordKind.SKIP, skip_value(half.everywhere[p], 0, SKIPPED_BEFORE, half.everywhere))
                for half in self._machine.half_skips()
                for p in half.missing
            ]
            self._sequencer.intake.add_entries(entries, _ignore)
            return True

    def skips_finished(self) -> bool:
        """Whether every skip of a call on all partitions is committed in all of them."""
        with self._driver.lock:
            return not self._machine.half_skips()

    def run_committed(self, terms: tuple[int, ...]) -> bool:
        """The sites get what is committed, and nothing waits for another leader; False when the terms are over."""
        with self._driver.lock:
            if not self.still(terms):
                return False
            self._machine.run_committed()
            return True

    def all_run(self) -> bool:
        """Whether everything committed is run."""
        with self._driver.lock:
            return self._machine.all_run

    def change_code(self, terms: tuple[int, ...]) -> Generator[str, None, bool]:
        """States this program, where the log lacks it, and the tables that the states lack of what calls run next. Yields the
        name of what it waits for; False when the terms are over. Raises: SchemaConflict, MigrationRefused, BundleError.
        """
        with self._driver.lock:
            if not self.still(terms):
                return False
            if (here := self._code.missing_environment()) is not None:
                self._machine.state(RecordKind.ENVIRONMENT, here, _ignore)
        self._driver.wake()
        while True:
            code = self._code.next_code()
            tables = self._code_log.changes.plan(code, self._code.versions.newest_value)
            try:
                for wait in self._code_log.changes.make(code, tables, self._code_log.in_terms(terms)):
                    yield wait.name.lower()
            except SiteLost as lost:  # its successor tries once more
                log.warning("change_tried_again", reason=str(lost))
            except SwitchUnfinished:
                return False
            else:
                return self.still(terms)

    def run_newest_code(self, terms: tuple[int, ...]) -> bool:
        """Calls are bound to the newest code and run it; False when the terms are over. Raises: BundleError."""
        self._code.run_newest()
        with self._driver.lock:
            if not self.still(terms):
                return False
            self._sequencer.replicated.run_catalog(self._code.versions.newest)
        return True

    def load_keys(self) -> None:
        """The states say which keys were used; blocking."""
        self._keys.clear()
        for partition in self._machine.partitions:
            connection, _ = open_reader(state_path(self._code_log.ground.directory, partition))
            with contextlib.closing(connection):
                self._keys.load(connection, partition)

    def take_calls(self, terms: tuple[int, ...]) -> bool:
        """Calls are taken; False when the terms are over."""
        with self._driver.lock:
            if not self._leadership.take_calls(terms):
                return False
            self._sequencer.replicated.accept_calls()
            for member in self._missing():
                self._machine.state(RecordKind.MEMBER, member.to_json(), _ignore)
        self._driver.wake()
        return True
