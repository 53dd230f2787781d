"""The desk between the sites and the node: what sites report, and what they must know to serve.

One rule: nothing is decided here. Answers go to the sequencer, images to the snapshot thread; a skip is durable before anybody
acts on it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Protocol

import structlog

from cmdlog.node.boot import Boot, applied_index
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.sites.prepared_changes import PreparedChanges
from cmdlog.node.sites.site_executor import SitePlan
from cmdlog.node.sites.site_faults import DIVERGED, SiteFault
from cmdlog.node.sites.supervisor import SiteOwner
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.skips import VOID
from procedures import Database
from procedures.code.bundle import bundle_of
from procedures.code.procedure_versions import facts_of, partitions_of
from procedures.execution.failure_trace import FailureTrace
from procedures.execution.outcome_bodies import failure_body
from procedures.idempotency.known_outcome import Status
from replay.engine import Catalogs
from replay.state.trust import read_position, state_path

TRACES_KEPT: Final = 1024  # at most 8 MB, as a text has at most 8,000 characters
SITE_ENDED: Final = "SiteEnded"  # the kind of error of a read that ended its site
LEFT_OUT: Final = "the call was skipped"  # it raised nothing; the hint beside it says why
VOIDED: Final = "a change of leader left it on some partitions alone: it is run on none, and its caller may repeat it"
SKIP_TIMEOUT_S: Final = 30.0  # for the log to take a skip; after that the next start finds the call again

log = structlog.get_logger("cmdlog.node")


class RecentFailures:
    """Traces of procedures that raised, for as long as somebody may ask: by the transaction that decided, the newest ones.

    What is kept here is for people. An outcome is complete without it, and after a restart it is gone. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: dict[int, FailureTrace] = {}  # by transaction, the oldest first

    def add(self, traces: Sequence[FailureTrace]) -> None:
        """A site has run these calls."""
        with self._lock:
            self._traces.update((trace.txn_id, trace) for trace in traces)
            while len(self._traces) > TRACES_KEPT:
                del self._traces[next(iter(self._traces))]

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        """The trace of a call that raised, also when its outcome is repeated under its key; None when there is none (any more).

        An exception of this process is in it the first time alone: its caller gets it, and nobody else keeps it alive.
        """
        if outcome.status != Status.FAILED:
            return None
        if outcome.trace is not None:
            return outcome.trace
        with self._lock:
            found = self._traces.get(outcome.txn_id)
            if found is not None and found.raised is not None:
                self._traces[outcome.txn_id] = replace(found, raised=None)
        return found


class Replica(Protocol):
    """What the desk asks of a node that is one of several."""

    def executed(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """A site has applied an entry."""
        ...

    def may_skip(self, partition: int, index: int) -> bool:
        """Whether this node proposed the call, and still leads: nobody else has executed it."""
        ...


class SkipNotLogged(WalError):
    """A call that cannot run has to be skipped, and the log does not take the skip."""

    hint = "make room for the log and start again, or create a node without the call: `cmdlog recover DIR --to OUT --quarantine`"


class SiteEvents(SiteOwner):
    """Called by site readers, the watch thread and inline drivers.

    `leave_out` sends a logged skip to the partition's site: partition, index, position.
    """

    def __init__(
        self,
        directory: str,
        db: Database,
        settings: Settings,
        boot: Boot,
        *,
        sequencer: Sequencer,
        snapshots: Snapshotter,
        leave_out: Callable[[int, int, int], None],
        skips: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._replica: Replica | None = None
        self._directory, self._db, self._settings, self._boot = directory, db, settings, boot
        self._sequencer, self._snapshots, self._leave_out = sequencer, snapshots, leave_out
        self._first_catalog = boot.code.newest  # that this run began with; deploys add others
        self.troubles = PartitionHealth(directory)
        self.failures = RecentFailures()
        self.changes = PreparedChanges()
        self._skips = list(skips)  # partition, index, position; of this run, and of entries that a start left to the sites

    def serve_replica(self, replica: Replica) -> None:
        """The node is one of several."""
        self._replica = replica

    def applied(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """A site has applied an entry."""
        if self._replica is not None:
            self._replica.executed(partition, index, answer)
        if answer is None:
            self._sequencer.site_feed.answered(partition, index, (), b"")
            return
        if answer.traces:
            self.failures.add(answer.traces)
        digest = answer.rows_digest, self._boot.code.newest, answer.result_hashes
        self._sequencer.site_feed.answered(partition, index, answer.outcomes, answer.statuses, digest)

    def read_done(
        self, partition: int, ident: int, *, as_of: int, status: int, body: bytes, traces: Sequence[FailureTrace]
    ) -> None:
        """A site has served a read."""
        self._sequencer.reads.answered(ident, CallOutcome(status, as_of, body, traces[0] if traces else None))

    def captured(self, ident: int, report: dict[str, Any]) -> None:
        """A site has completed an image."""
        self._snapshots.captured(ident, report)

    def prepared(self, partition: int, report: dict[str, Any]) -> None:
        """A site has prepared a change of its tables, or says why it cannot."""
        self.changes.add_report(partition, report)

    def site_down(self, partitions: Sequence[int], fault: SiteFault) -> None:
        """Their site has ended: a read that ended it fails, since each repetition would end its successor, too."""
        self.changes.lose(partitions, fault.message)
        number = self._sequencer.reads.find_culprit(fault) if fault.read else None
        for partition in partitions:
            self._sequencer.site_feed.site_down(partition, culprit=0 if number is None else fault.read)
        self._snapshots.lost(partitions)
        if number is not None and fault.partition is not None:
            self._fail_read(fault.partition, number, fault)

    def _fail_read(self, partition: int, number: int, fault: SiteFault) -> None:
        """Answers the read that ended its site. No replay repeats it: nothing is logged."""
        name = self._sequencer.meter.names[number]
        why = fault.why_failed(name)
        at = read_position(state_path(self._directory, partition), partition)  # the site ran nothing after the read
        as_of = 0 if isinstance(at, str) else at.txn_id
        trace = FailureTrace(as_of, name, file="", line=0, function="", error=f"{SITE_ENDED}: {why}", text=why, hint=why)
        self._sequencer.reads.answered(fault.read, CallOutcome(Status.FAILED, as_of, failure_body(SITE_ENDED, why), trace))
        log.warning("read_failed", partition=partition, procedure=name, reason=fault.message)

    def site_up(self, positions: dict[int, int]) -> None:
        self._snapshots.lost(list(positions))  # what was asked for in the meantime went to the dead site
        self.changes.lose(positions, "it was started again")
        for partition, position in positions.items():
            self._sequencer.site_feed.site_up(partition, position)

    def refuse_calls(self, partitions: Sequence[int], fault: SiteFault | None) -> None:
        """Calls to these partitions are refused while their sites cannot run; None accepts them again."""
        troubles = self.troubles
        if fault is None:
            troubles.end(partitions)
        else:
            troubles.begin_trouble(partitions, fault.kind, fault.message)
        self._sequencer.site_feed.turn_away({p: troubles.refusal(p) for p in range(self._settings.partitions)})

    def begin_divergence(self, partition: int, message: str) -> None:
        """The partition's state is another one than other nodes have: it takes no calls here."""
        self.troubles.begin_trouble([partition], DIVERGED, message)
        self._sequencer.site_feed.turn_away({partition: self.troubles.refusal(partition)})

    def end_divergence(self, partition: int) -> None:
        """A majority agrees with this node after all."""
        self.troubles.end_divergence(partition)
        self._sequencer.site_feed.turn_away({partition: self.troubles.refusal(partition)})

    def hold(self, partitions: Sequence[int]) -> None:
        """Their sites are given no batch before `let_go`: they could not run it."""
        for partition in partitions:
            self._sequencer.site_feed.hold(partition)

    def let_go(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._sequencer.site_feed.let_go(partition)

    def give_up(self, partitions: Sequence[int], fault: SiteFault) -> None:
        """Callers whose calls are logged, and wait for these partitions, have waited long enough."""
        told = self._sequencer.site_feed.give_up(partitions, f"logged, and not executed yet: {fault.message}")
        if told:
            log.warning("outcome_unknown", calls=told, partitions=list(partitions), reason=fault.message)

    def free_bytes(self) -> int:
        return self.troubles.free_bytes()

    def hello(self, partitions: Sequence[int]) -> dict[str, Any]:
        """What a site process must know to serve."""
        code = self._boot.code
        first = 0 if self._replica is not None else self._first_catalog
        wanted = {version: text for version, text in code.texts().items() if version >= first}
        return {
            "bundles": wanted,
            "catalog": code.newest,
            "partitions": partitions_of(code.newest_value),
            "key_policy": asdict(self._boot.policy),
            "state_files": {str(p): state_path(self._directory, p) for p in partitions},
            "digest_rows": self._settings.digest_rows,
            "wal_bytes_max": self._settings.wal_bytes_max,
            "deltas": self._settings.snapshot_deltas,
            "traceback_locals": self._settings.traceback_locals,
            "skips": self._skips,
        }

    def skip(self, fault: SiteFault, places: Sequence[tuple[int, int]] | None = None) -> None:
        """Logs that one call is not to be run. Durable on return: no replay will run it either.

        `places` are (partition, index) of the call, [] if it must not be skipped; None: the sequencer knows.
        Raises: SkipNotLogged when that cannot be had; the call must not be left out then.
        """
        if fault.partition is None:
            raise RuntimeError("a skip names its partition")
        if self.has_applied(fault.partition, fault.index):
            return  # it came to its end after all: its outcome is in the state, and may have been answered
        if places is None:
            places = self._sequencer.site_feed.places_of(fault.partition, fault.index)
        if not places:
            log.error("multi_partition_call_retried", reason=fault.message)
            return
        if self._replica is not None and not self._replica.may_skip(fault.partition, fault.index):
            log.error("call_retried", partition=fault.partition, index=fault.index, reason=fault.message)
            return
        call = self._sequencer.site_feed.call_at(fault.partition, fault.index, fault.position)
        told: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        everywhere = [index for _, index in places] if self._replica is not None and len(places) > 1 else []
        entries = [(p, RecordKind.SKIP, skip_value(at, fault.position, fault.message, everywhere)) for p, at in places]
        self._sequencer.intake.add_entries(entries, told.put)
        if not _heard(told):
            # A successor that left the call out would write a state that no replay of this log reaches.
            where = f"call {fault.position} of batch {fault.index} of partition {fault.partition}"
            raise SkipNotLogged(f"{where} must be skipped ({fault.message}), but the skip could not be logged")
        known = {} if call is None else self._explain_skip(fault, *call)
        for partition, index in places:
            self.leave_out(partition, index, fault.position)
        at = {"partition": fault.partition, "index": fault.index, "position": fault.position, "attempts": fault.attempts}
        log.warning("call_skipped", **at, **known, reason=fault.message)

    def _explain_skip(self, fault: SiteFault, number: int, txn_id: int) -> dict[str, str]:
        """Keeps for the call's caller why it is skipped, before it is answered; what the log says of it."""
        name = self._sequencer.meter.names[number]
        why = fault.why_skipped(name)
        self.failures.add([FailureTrace(txn_id, name, file="", line=0, function="", error=LEFT_OUT, text=why, hint=why)])
        return {"procedure": name, "txn_id": str(txn_id)}

    def leave_out(self, partition: int, index: int, position: int) -> None:
        """The log has a skip of this call, or it is VOID: the site that would run it, and its successors, leave it out."""
        if position == VOID:
            log.warning("call_voided", partition=partition, index=index, reason=VOIDED)
        self._skips.append((partition, index, position))
        self._leave_out(partition, index, position)

    def has_applied(self, partition: int, index: int) -> bool:
        """Whether the state file, whose site has ended, holds the entry."""
        return applied_index(self._directory, partition) >= index

    def broken(self, error: BaseException) -> None:
        """The node cannot continue: calls under way are answered `outcome_unknown`, and none is accepted any more."""
        self._sequencer.failed(error)

    def plan(self) -> SitePlan:
        """The same for a site in this process, which runs the application's own code."""
        catalogs, versions = Catalogs(), self._boot.code.by_version
        catalogs.add_live(self._first_catalog, self._db, facts_of(versions[self._first_catalog]))
        for version, value in versions.items():
            if version > self._first_catalog:
                catalogs.add_bundle(version, bundle_of(version, value), partitions=partitions_of(value))
        return SitePlan.of(self.hello(range(self._settings.partitions)), catalogs, inline=True)


def _heard(told: queue.SimpleQueue[Reply]) -> bool:
    """Whether the log reports in time that it has the skip; a log that fails reports that, too."""
    try:
        return isinstance(told.get(timeout=SKIP_TIMEOUT_S), CallOutcome)
    except queue.Empty:
        return False
