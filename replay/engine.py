"""The one path that applies log entries to a partition: live at a site, at restart, in `cmdlog recover` and in batch jobs.

One rule: an entry's meaning depends on the log and the code bundles alone; nothing here knows whether a caller is waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.operator_error import OperatorError
from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.control_record import SchemaChange, naming_record
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import txn_millis
from cmdlog.wal.skips import VOID
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import facts_of, partitions_of
from procedures.errors import BundleForged
from procedures.execution.executor import Applied, Executor, Invocations
from procedures.execution.failure_trace import FailureTracer
from procedures.execution.invocations import NO_FLOORS
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.idempotency.request_history import VersionFacts
from procedures.idempotency.session_calls import NumberedNames
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState

NO_FACTS: Final = VersionFacts()
NO_SKIPS: Final[Mapping[int, Collection[int]]] = {}
GROUP_CALLS_MAX: Final = 2000  # small batches replay half again as fast, and a kill costs a tenth of a second

LiveCode = Callable[[Mapping[str, Any]], Database | None]  # for a catalog record the program's own, if it is the same code


class CatalogMissing(OperatorError):
    """A batch names a catalog version that is in no catalog record at hand."""

    kind = "CodeMissing"
    exit_code = 13
    hint = "the log or snapshot that holds the code bundle is missing; restore it"


class Catalogs:
    """Catalog version -> the `Database` it names: the running program's for its own version, else loaded from the bundle.

    Code that was changed is an error where a call needs it, not where the log names it.
    """

    def __init__(self, live: LiveCode | None = None) -> None:
        self._live = live
        self.hashes: dict[int, str] = {}  # version -> hash of its bundle, as the log states it
        self._databases: dict[int, Database] = {}
        self._bundles: dict[int, Bundle] = {}
        self._facts: dict[int, VersionFacts] = {}
        self._broken: dict[int, BundleForged] = {}

    def add_live(self, version: int, db: Database, facts: VersionFacts = NO_FACTS) -> None:
        """`facts`: what the catalog record states (`facts_of`)."""
        self._databases[version], self._facts[version] = db, facts

    def add_bundle(self, version: int, bundle: Bundle, *, partitions: int | None = None, loaded: Database | None = None) -> None:
        """`partitions`: what the catalog record states (`partitions_of`). `loaded`: the bundle's `Database`.

        Code that was tried and not logged gives way to other code of the version.
        """
        if version in self._bundles and self._bundles[version].hash != bundle.hash:
            self._databases.pop(version, None)
        self._bundles[version], self._facts[version] = bundle, VersionFacts(partitions, bundle.requests)
        if loaded is not None:
            self._databases[version] = loaded

    def add_logged(self, version: int, value: Mapping[str, Any]) -> None:
        """The value of a catalog record; the log may state it again."""
        if version in self.hashes:
            return
        self.hashes[version] = str(value.get("hash", ""))
        if self._live is not None and (db := self._live(value)) is not None:
            self.add_live(version, db, facts_of(value))
            return
        try:
            self.add_bundle(version, bundle_of(version, value), partitions=partitions_of(value))
        except BundleForged as error:
            self._broken[version] = error

    def facts(self, version: int) -> VersionFacts:
        """What the version's record states in addition to the code."""
        return self._facts.get(version, NO_FACTS)

    def __call__(self, version: int) -> Database:
        """Raises: CatalogMissing when the log never named the version; BundleForged when its bundle was changed."""
        if version not in self._databases:
            if version in self._broken:
                raise self._broken[version]
            if version not in self._bundles:
                raise CatalogMissing(f"catalog version {version} is not in any catalog record of this log")
            self._databases[version] = load_bundle(self._bundles[version])
        return self._databases[version]


class PartitionEngine:
    """Applies one partition's entries in index order. Owned by one thread."""

    def __init__(
        self,
        state: PartitionState,
        catalogs: Catalogs,
        *,
        digest_rows: bool,
        policy: KeyPolicy,
        progress: Callable[[int], object] | None = None,
        tracer: FailureTracer | None = None,
    ) -> None:
        self.state = state
        self.executor = Executor(
            state,
            catalogs,
            digest_rows=digest_rows,
            millis_of=txn_millis,
            progress=progress,
            key_policy=policy,
            facts=catalogs.facts,
            tracer=tracer,
        )

    def apply(self, record: Record, skips: Mapping[int, Collection[int]] = NO_SKIPS) -> Applied | None:
        """Applies the entry; None for one that has no calls. `skips` says which positions of which index are not run; one that
        is VOID has no calls.

        On return state and position are committed to the state file (page cache: the log is what is durable).
        Raises: EnvironmentFault, and then nothing of the entry was applied.
        """
        if record.kind is RecordKind.BATCH and VOID not in (skipped := skips.get(record.index, ())):
            return self.executor.apply(invocations(decode_batch(record), skipped))
        if record.kind is RecordKind.SCHEMA:
            change = SchemaChange.from_record(record)
            self.executor.apply_schema(
                index=record.index,
                term=record.term,
                checksum=record.checksum,
                txn_id=change.txn_id,
                change=stated_change(change, record),
            )
        else:
            self.executor.advance(index=record.index, term=record.term, checksum=record.checksum)
        return None

    def close(self) -> None:
        self.state.close()


def stated_change(change: SchemaChange, record: Record) -> StatedChange:
    """What a SCHEMA record does. Raises: BadRecord."""
    with naming_record(record):
        return StatedChange.from_json(change.value)


def invocations(batch: Batch, skips: Collection[int], count: int = -1) -> Invocations:
    """The batch as the executor takes it: its first `count` calls, -1 = all."""
    record, is_named = batch.record, batch.keys is not None or batch.sessions is not None
    columns = (
        record.index,
        record.term,
        record.checksum,
        batch.catalog,
        batch.txn_ids,
        batch.procedures,
        batch.params(),
        names_of(batch) if is_named else None,
        batch.floors if is_named else NO_FLOORS,
        frozenset(skips),
        batch.sent,
    )
    calls = tuple.__new__(Invocations, columns)  # half the time of the class's own
    return calls if not 0 <= count < batch.count else _first_calls(calls, count)


def names_of(batch: Batch) -> Sequence[bytes] | None:
    """`Batch.key_list`; where every call has a number in a session, a name is made when it is asked for."""
    of = batch.sessions
    if of is None or batch.keys is not None or 0 in of.ordinals:
        return batch.key_list()
    return NumberedNames([of.ids[ordinal - 1] for ordinal in of.ordinals], of.numbers)


def _first_calls(calls: Invocations, count: int) -> Invocations:
    return calls._replace(
        txn_ids=calls.txn_ids[:count],
        procedures=calls.procedures[:count],
        params=calls.params[:count],
        keys=calls.keys[:count] if calls.keys is not None else None,
        sent=calls.sent[:count],
    )


@dataclass(slots=True)
class SharedTransaction:
    """Batches of one partition that are committed together."""

    executor: Executor  # another one once the state was opened again
    is_open: bool = False
    _calls: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be committed."""
        return self._calls >= GROUP_CALLS_MAX

    def ensure_open(self) -> None:
        """Begins it, unless it is open."""
        if not self.is_open:
            self.executor.begin_group()
            self.is_open = True

    def count(self, calls: int) -> None:
        """So many calls were added to it."""
        self._calls += calls

    def commit(self) -> None:
        """Commits it, if it is open. Raises: EnvironmentFault, and then nothing of it is applied."""
        self.executor.end_group()
        self.is_open, self._calls = False, 0

    def abandon(self, executor: Executor) -> None:
        """The state was opened again, without what was not committed."""
        self.executor, self.is_open, self._calls = executor, False, 0
