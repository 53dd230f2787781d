"""`cmdlog fork`: the same calls, but with other code from one transaction on. What if this version had run since then?

One rule: up to the fork everything is as it was (state and code of that time, digests compared); after it only the code differs
(`replay.fork.rerun`). The log that is forked is read, never written.

The result is a complete node of one, which `cmdlog serve` takes with that code. Its history is not that of its origin, so it must
never pass for a copy of it: it has a cluster id of its own, and its instance file says from which cluster and transaction it was
forked. New transaction ids are above all that the old log knew.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson

from cmdlog.wal.directory.instance import Origin, load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.group_state import LoggedCatalog
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from procedures.code.bundle import capture_bundle
from procedures.errors import ProceduresError
from procedures.execution.executor import Applied, Invocations
from procedures.idempotency.known_outcome import KeyPolicy, Status
from procedures.storage.state import PartitionState, Position
from replay.engine import CatalogMissing, Catalogs, PartitionEngine
from replay.errors import BadUntil, Poison, ReplayError, UntilBeyond, UntilUnreachable
from replay.fork import unfinished
from replay.fork.new_node import check_database, first_groups, fresh_instance
from replay.fork.remaining_log import RemainingLog, find_remaining_log, naming_other_moments, partitions_of, read_after
from replay.fork.rerun import ForkPlace, Missing
from replay.fork.run import CallStuck, ForkCode, run_here, run_watched
from replay.fork.tally import Difference, ForkReport, RerunProgress, RerunTally
from replay.fork.unfinished import ForkMarker
from replay.log.scan import mark_void
from replay.log.source import LogSource, fold_end, open_source
from replay.plan.node_plan import PartitionPlan, Planned
from replay.plan.planner import PAST, make_plan
from replay.plan.sole_voter import check_alone
from replay.recover.execute import RecoveryProgress, ReplayTerms, Target, execute, replay_into
from replay.recover.new_directory import NewNodeDirectory
from replay.recover.to_directory import RESUMABLE, complete
from replay.results import PartitionResult
from replay.state.trust import Trust, read_position, state_path
from snapshot.errors import SnapshotError

START: Final = 0  # as a moment: before the first transaction
ReportProgress = Callable[[RecoveryProgress], None]


def fork(
    files: Files,
    directory: str,
    *,
    at: int,
    db: Database,
    out: str,
    until: int | None = None,
    target: str | None = None,
    missing: Missing = "refuse",
    progress: ReportProgress = lambda _progress: None,
    hang_after_s: float | None = None,
) -> ForkReport:
    """Makes the node directory `out`: state and code of `at` (its call included, START = none), then `db` up to `until`.

    `target` is `module:attribute` of `db`; None: it is found. With `hang_after_s`, `db` runs in a process of its own, and a call
    that runs longer is named; None: here, and a call may take as long as it likes. Durable on return; `directory` may be of a
    running node. The very same fork resumes a run that was interrupted.

    Raises: BadUntil, UntilUnreachable, CallUnfit, CallStuck, OtherDatabase, SchemaConflict, WrongDirectory, Interrupted; what
    `execute` raises.
    """
    if until is not None and until < at:
        raise BadUntil(f"the fork would end at transaction {until}, before it begins at {at}")
    began = time.monotonic()
    code = ForkCode(db, capture_bundle(db, target), missing)
    planned = _plan(files, directory, at) if at != START else None
    source = planned.source if planned is not None else _open_alone(files, directory)
    parts = planned.plan.partitions if planned is not None else ()
    places = {part.partition: ForkPlace.of_plan(part) for part in parts}
    request: dict[str, Any] = {"at": at, "until": until, "code": code.bundle.hash, "missing": missing}
    marker = ForkMarker.of(places, _skips(parts), source.instance.identity.incarnation, directory, **request)
    place = NewNodeDirectory(files, out, marker)  # three cases: this very fork is finished here, has begun here, or has not
    if (noted := place.finished()) is not None:
        return _made_before(files, out, _ForkRan.from_json(noted), code.bundle.hash)
    goes_on = place.can_resume()
    done = unfinished.all_done(Trust(files, out), out, partitions_of(source)) if goes_on else {}
    with naming_other_moments(files, directory, source):
        rest = find_remaining_log(files, directory, list(places.values()), until, {p: of.at for p, of in done.items()})
        mark_void(rest.scan.streams)
    check_database(rest.scan.groups, db)
    if not goes_on:
        place.create([directory])
    terms: ReplayTerms = {"progress": progress} if hang_after_s is None else {"progress": progress, "hang_after_s": hang_after_s}
    run = _ForkRun(target=Target(files, out), planned=planned, rest=rest, code=code, terms=terms, goes_on=goes_on)
    with place.owned((*RESUMABLE, CallStuck)) as owner:
        place.begin_request()
        ran = _ran_before(files, out, rest, place.replayed() if goes_on else None)
        if ran is None:
            kept = run.restore_states(done)
            ran = _ForkRan(*run.run_other_code(), kept, _skipped_calls(rest))
            place.note_replayed(ran.to_json())
        unfinished.forget(out, range(len(rest.places)))
        origin = Origin(source.instance.identity.cluster_id, at)
        instance = fresh_instance(source.instance, origin)
        groups, version = first_groups(rest.scan.groups, ran.results, db, code.bundle, node_id=instance.identity.node_id)
        complete(files, out, owner, instance, groups=groups, results=ran.results, begun_by=marker.by)
    seconds = time.monotonic() - began
    return ForkReport(ran.results, ran.kept, ran.tally, instance.identity, origin, version, code.bundle.hash, seconds)


def _open_alone(files: Files, directory: str) -> LogSource:
    """The log of a sole voter, for a fork that has no plan of what is before it. Raises: NotSoleVoter, WalError."""
    source = open_source(files, directory)
    check_alone(files, directory, source.instance.identity, fold_end(source))
    return source


def _skips(parts: Sequence[PartitionPlan]) -> dict[int, dict[int, Any]]:
    """Which calls before the fork the log skips, by partition and entry."""
    return {part.partition: {index: of for index, of in part.skips.items() if index <= part.to_index} for part in parts}


def _plan(files: Files, directory: str, at: int) -> Planned:
    """What is before the fork. Raises: as `make_plan`, with a hint for a moment that was named as `--at`."""
    try:
        return make_plan(files, directory, PAST, until=at)
    except (UntilBeyond, UntilUnreachable) as error:
        if error.hint == type(error).hint:  # no ranges are known that would say more
            error.hint = "choose another moment for the fork; `--at start` is before the first transaction"
        raise


@dataclass(frozen=True, slots=True)
class _ForkRan:
    """What the calls did, and where the partitions are after them."""

    results: list[PartitionResult]
    tally: RerunTally
    kept: int
    gone: list[Any]  # which of them the log skips, as `_skipped_calls` says it

    def to_json(self) -> dict[str, Any]:
        results = [asdict(result) for result in self.results]
        return {"results": results, "tally": self.tally.kept(), "kept": self.kept, "gone": self.gone}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> _ForkRan:
        results = [PartitionResult(**result) for result in value["results"]]
        return cls(results, RerunTally.of_kept(value["tally"]), value["kept"], value.get("gone", []))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForkRun:
    """The steps in the new directory."""

    target: Target
    planned: Planned | None
    rest: RemainingLog
    code: ForkCode
    terms: ReplayTerms
    goes_on: bool

    def restore_states(self, done: Mapping[int, RerunProgress]) -> int:
        """Brings every partition to the fork that is not past it; gives the calls before it, those of earlier runs included."""
        target, calls = self.target, 0
        fresh = [p for p in sorted(self.rest.places) if p not in done or not self._continues(p, done[p])]
        for p in fresh:
            if p in done or self.planned is None:
                target.trust.discard(p)
            if self.planned is None:
                PartitionState.open(state_path(target.directory, p), partition=p).close()
                target.trust.grant(p)
        if self.planned is not None:
            calls = self.planned.plan.calls
            planned = self.planned.with_parts(part for part in self.planned.plan.partitions if part.partition in fresh)
            try:
                execute(planned, target, go_on=self.goes_on, **self.terms)
            except Poison as poison:
                poison.hint = (
                    "before the fork point the logged code runs: fork the output of `cmdlog recover --quarantine --to` instead"
                )
                raise
        return calls

    def run_other_code(self) -> tuple[list[PartitionResult], RerunTally]:
        """Runs the other code."""
        target, rest, progress, hang_after_s = self.target, self.rest, self.terms["progress"], self.terms.get("hang_after_s")
        if hang_after_s is None:
            results, tally = run_here(rest, target, self.code, progress)
        else:
            results, tally = run_watched(rest, target, self.code, progress, hang_after_s=hang_after_s)
        if tally.first is not None and (batch := _batch_of(rest.source, tally.first)) is not None:
            tally.first = with_live_outcome(target.files, rest.source.directory, tally.first, batch, rest.scan.catalogs)
        return results, tally

    def _continues(self, partition: int, done: RerunProgress) -> bool:
        """Whether the state is at an entry that the log still holds there, and the log states the same of what was applied.

        It may have grown since: by the digest of a batch that could not be compared, or by a SKIP of a call that ran.
        """
        begin, skips = read_after(self.rest.places[partition]), self.rest.scan.streams[partition].skips
        if done.gone != [[index, list(of)] for index, of in skips.items() if begin < index <= done.at]:
            return False
        if done.open and self.rest.holds_digest(partition, frozenset(done.open)):
            return False
        found, position = (
            self.rest.scan.streams[partition],
            read_position(state_path(self.target.directory, partition), partition),
        )
        if isinstance(position, str) or done.at > found.to_index:
            return False
        return done.at in (found.base, self.rest.places[partition].index, self.rest.places[partition].index - 1) or (
            found.seen.get(done.at) == (position.term, position.checksum)
        )


def _skipped_calls(rest: RemainingLog, ends: Mapping[int, int] | None = None) -> list[Any]:
    """[[partition, end, [[index of a batch up to it, positions that the log skips], …]], …]; `ends` None: all of the log."""
    found = []
    for p, stream in sorted(rest.scan.streams.items()):
        if ends is None or p in ends:
            end = stream.to_index if ends is None else ends[p]
            found.append([p, end, [[at, list(of)] for at, of in stream.skips.items() if at <= end]])
    return found


def _ran_before(files: Files, out: str, rest: RemainingLog, value: Mapping[str, Any] | None) -> _ForkRan | None:
    """What an earlier run noted once all calls had run, if the states are still there and the log skips no others of them."""
    if value is None:
        return None
    ran, trust = _ForkRan.from_json(value), Trust(files, out)
    if ran.gone != _skipped_calls(rest, {p: end for p, end, _ in ran.gone}):
        for result in ran.results:  # nothing states any more how far these states are
            trust.discard(result.partition)
        return None
    for result in ran.results:
        found = read_position(state_path(out, result.partition), result.partition)
        there = Position(result.index, result.term, result.checksum, result.txn_id)
        if trust.doubt(result.partition) or found != there:
            return None
    return ran


def _made_before(files: Files, out: str, ran: _ForkRan, code: str) -> ForkReport:
    """What the run that finished this very fork reported."""
    instance = load_instance(files, out)
    assert instance.forked_from is not None, "what a fork has made says so"
    version = max(fold_end(open_source(files, out)).state(CLUSTER_GROUP).catalogs)
    origin, identity = instance.forked_from, instance.identity
    return ForkReport(ran.results, ran.kept, ran.tally, identity, origin, version, code, 0.0, already=True)


def _batch_of(source: LogSource, found: Difference) -> Batch | None:
    """The batch of the call that differs."""
    for lsn, record in source.read(from_block=found.block):
        if (record.kind, record.partition, record.index) == (RecordKind.BATCH, found.partition, found.index):
            return decode_batch(record)
        if lsn.block > found.block:
            break
    return None


CALLS_MAX: Final = 100_000  # before the call: some seconds


def with_live_outcome(
    files: Files, directory: str, found: Difference, batch: Batch, catalogs: Mapping[int, LoggedCatalog]
) -> Difference:
    """The difference with the live outcome, if it can be had and has the hash that the log holds."""
    try:
        applied = _run_again(files, directory, found, batch, catalogs)
    except (ReplayError, CatalogMissing, ProceduresError, SnapshotError, WalError):
        return found  # the fork is made all the same
    if applied is None or applied.result_hashes[0] != found.live_hash:
        return found
    return replace(found, live_status=Status(applied.statuses[0]).name, live_outcome=orjson.loads(applied.bodies[0]))


def _run_again(
    files: Files, directory: str, found: Difference, batch: Batch, catalogs: Mapping[int, LoggedCatalog]
) -> Applied | None:
    planned = make_plan(files, directory, PAST, until=found.txn_id - 1).only(found.partition)
    if planned.plan.calls > CALLS_MAX:
        return None
    with tempfile.TemporaryDirectory(prefix="cmdlog-call-") as scratch:
        paths = replay_into(files, scratch, planned)
        known = Catalogs()
        known.add_logged(batch.catalog, catalogs[batch.catalog].value)
        state = PartitionState.open(paths[found.partition], partition=found.partition)
        engine = PartitionEngine(state, known, digest_rows=False, policy=KeyPolicy(**planned.scan.groups.cluster.key_policy))
        try:
            return engine.executor.apply(_alone(found, batch, state.position.index + 1))
        finally:
            engine.close()


def _alone(found: Difference, batch: Batch, index: int) -> Invocations:
    """The call as a batch of its own."""
    at, keys = found.position, batch.key_list()
    return Invocations(
        index=index,
        term=batch.record.term,
        checksum=0,
        catalog=batch.catalog,
        txn_ids=[found.txn_id],
        procedures=[batch.procedures[at]],
        params=[batch.params()[at]],
        keys=None if keys is None else [keys[at]],
        floors=batch.floors,
        sent=batch.sent and [batch.sent[at]],
    )
