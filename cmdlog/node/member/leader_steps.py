"""The steps of a take-over on the parts of a node: `cmdlog.node.member.takeover.TakeoverSteps`.

One rule: whatever looks at the terms and acts on them does both under the driver's lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from cmdlog.cluster.replication import Replication
from cmdlog.node.member.leadership import Leadership, Standing
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import Reply
from cmdlog.node.placing.key_owners import KeyOwners
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.wal.format.control_record import ClusterMember
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import txn_tick
from procedures.storage.state import open_reader


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
        catalog: int,
        states: Mapping[int, str],
        missing: Callable[[], Iterable[ClusterMember]],
    ) -> None:
        """`catalog` is the version of the code that calls run; `states` the path of every partition's state; `missing` gives
        the members that the log does not state."""
        self._driver, self._machine, self._leadership, self._sequencer = driver, machine, leadership, sequencer
        self._keys, self._catalog, self._states, self._missing = keys, catalog, states, missing

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
            self._machine.lead(self._driver.ends(), catalog=self._catalog)
            return True

    def skip_parted(self, terms: tuple[int, ...], done: Callable[[Reply], None]) -> int:
        """Skips the calls that some partition lacks; how many entries that takes. `done` is called when they are committed.

        Under one lock with the look at the terms: in later ones the same call may be on its way to all partitions.
        """
        value = {"position": 0, "reason": "a change of leader left the call on some partitions alone"}
        with self._driver.lock:
            if not self.still(terms):
                return 0
            places = [place for call in self._machine.parted() for place in call.places]
            if places:
                self._sequencer.add_entries([(p, RecordKind.SKIP, {**value, "index": index}) for p, index in places], done)
        return len(places)

    def all_run(self) -> bool:
        """Whether everything committed is run."""
        with self._driver.lock:
            return self._machine.all_run

    def load_keys(self) -> None:
        """The states say which keys were used; blocking."""
        self._keys.clear()
        for partition, path in self._states.items():
            connection, _ = open_reader(path)
            with contextlib.closing(connection):
                self._keys.load(connection, partition)

    def take_calls(self, terms: tuple[int, ...]) -> bool:
        """Calls are taken; False when the terms are over."""
        with self._driver.lock:
            if not self._leadership.take_calls(terms):
                return False
            self._sequencer.replicated.accept_calls()
            for member in self._missing():
                self._machine.state(RecordKind.MEMBER, member.to_json(), lambda _reply: None)
        self._driver.wake()
        return True
