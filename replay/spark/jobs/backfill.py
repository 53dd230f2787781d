"""`backfill`: what if this code had run? Runs the same calls again on Spark, next to the history as it was, and compares the
results.

One rule: up to the fork point everything is as it was, after it only the code differs (`replay.fork.rerun`); rows are compared
with the history run again by its own code, whose digests are compared with the live run's.

    OUT/state/accounts/p0000.parquet   the tables as this code leaves them
    OUT/diff/accounts/p0000.parquet    key columns, change (added, removed, changed), old_C, new_C, first_txn_id, first_procedure:
                                       the first call after which the row differed
    OUT/manifest.json                  counts, and how the calls ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.skips import VOID
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle
from replay.diff.diff import KINDS
from replay.errors import BadUntil, Incomplete, UntilUnreachable
from replay.fork.fork import START
from replay.fork.new_node import check_database
from replay.fork.remaining_log import RemainingLog, find_remaining_log, read_after
from replay.fork.rerun import ForkPlace, Missing
from replay.log.scan import ScannedStream, mark_void
from replay.log.spans import BEGINNING
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.progress import RecoveryProgress
from replay.spark.base.version_check import versions
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.fetched_inputs import input_names
from replay.spark.jobs.job import FinishedJob, Sessions, run_job
from replay.spark.jobs.past_replay import (
    Moment,
    MomentReplay,
    Stitched,
    find_history,
    parse_moment,
    plan_json,
    start_of,
    stitch,
    stream_of,
)
from replay.spark.jobs.staging import FORMAT, tables_of

JOB: Final = "backfill"


@dataclass(frozen=True, slots=True)
class Backfilled(FinishedJob):
    """A finished back-fill."""

    @property
    def changes(self) -> Mapping[str, Mapping[str, int]]:
        """Table -> added, removed, changed."""
        found: Mapping[str, Mapping[str, int]] = self.manifest["changes"]
        return found


def backfill(
    spark: Sessions,
    paths: str | Sequence[str],
    app: Database,
    *,
    to: str,
    at: Moment = START,
    until: Moment = None,
    target: str | None = None,
    tables: Sequence[str] | None = None,
    missing: Missing = "refuse",
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
) -> Backfilled:
    """Runs the calls after `at` (START: all of them) with `app`; writes its tables and their diff into the new folder `to`.

    Args:
        spark: the session, or what starts it; that is used after planning, so that bad input is reported at once.
        paths: node directories of one cluster, as for `rebuild`.
        target: `module:attribute` of `app`; None: it is found.
        missing: how to treat calls that `app` has no matching procedure for; "skip" skips and counts them.

    Durable on return. An interrupted run is resumed by the same call, with the log's end of the first run. A finished one
    returns its manifest, even if the log has changed since; nothing is written.

    Raises: NotEmpty, OtherJob, Locked, CallUnfit, OtherDatabase, SchemaConflict; Divergence of the history; Interrupted,
    SparkFailed, TaskError; what the plan raises.
    """
    bundle = capture_bundle(app, target)
    fork, end = parse_moment(at), parse_moment(until)
    if fork is None or (end is not None and end < fork):
        raise BadUntil(f"the fork would end at transaction {end}, before it begins at {fork}")
    request: dict[str, Any] = {
        "job": JOB,
        "paths": input_names(paths),
        "code": bundle.hash,
        "at": str(fork),
        "until": str(end) if end is not None else "",
        "tables": sorted(tables) if tables is not None else None,
        "missing": missing,
    }
    return run_job(
        Backfilled,
        spark,
        to,
        request,
        lambda files, told: _orders(files, told, app, bundle, fork=fork, end=end),
        work=backfill_partition,
        manifest_of=lambda _, rows: _manifest(request, rows),
        moves_of=_moves,
        tell=progress,
    )


def _orders(
    files: Files, request: Mapping[str, Any], app: Database, bundle: Bundle, *, fork: int, end: int | None
) -> Iterator[dict[str, Any]]:
    """One for each partition."""
    base = find_history(files, request["paths"], fork, accept_data_loss=False) if fork != START else None
    places = {p: ForkPlace.of_plan(base.of(p)[-1].partitions[0]) for p in base.partitions} if base is not None else {}
    logs, apart = _logs(files, request["paths"], end)
    whole: dict[str, RemainingLog] = {}
    for directory, ends in logs.items():
        try:
            rest = find_remaining_log(files, directory, [places.get(p, ForkPlace(p)) for p in sorted(ends)], end)
            for partition, wanted in ends.items():
                _check_end(rest, partition, wanted)
        except (WalError, Incomplete, UntilUnreachable):
            if len(request["paths"]) == 1:
                raise
            apart += ends  # another node may have what this one has not
            continue
        check_database(rest.scan.groups, app)
        whole[directory] = rest
    stitched = None
    if apart:
        partitions = sorted({*apart, *(p for ends in logs.values() for p in ends)})
        starts = {p: start_of(base.of(p)) if base is not None else BEGINNING for p in partitions}
        stitched = stitch(files, request["paths"], starts, end)
        check_database(stitched.groups, app)
    _leave_out({p: rest.scan.streams[p] for directory, rest in whole.items() for p in logs[directory]}, logs, stitched)
    known: dict[int, Mapping[str, Any]] = {}
    for directory, rest in whole.items():
        known |= {version: of.value for version, of in rest.scan.catalogs.items()}
        for p in sorted(logs[directory]):
            stream, place = rest.scan.streams[p], rest.places[p]
            stream.calls -= min(stream.calls, max(0, place.calls))  # of the batch that the fork cuts, those before it
            lines = _Lines([_leg(rest, p)], stream, place, rest.scan.groups.cluster.slots, known)
            yield _order(request, bundle, lines, base)
    for p in sorted(apart):
        assert stitched is not None
        legs = stitched.of(p)
        stream = stream_of(legs)
        stream.calls = max(0, stream.calls - sum(leg.calls for leg in base.of(p)) if base is not None else stream.calls)
        lines = _Lines(legs, stream, places.get(p, ForkPlace(p)), stitched.groups.cluster.slots, stitched.catalogs)
        yield _order(request, bundle, lines, base)


def _leave_out(
    streams: Mapping[int, ScannedStream], logs: Mapping[str, Mapping[int, PartitionPlan]], stitched: Stitched | None
) -> None:
    """Notes which calls on all partitions are run nowhere: the lines that count decide, from where the fork begins on, which may
    be before the snapshots that the plan of the history begins with."""
    mark_void(streams)
    plans = [(p, part) for ends in logs.values() for p, part in ends.items()]
    plans += [(part.partition, part) for leg in (stitched.legs if stitched else ()) for part in leg.partitions]
    for partition, part in plans:
        if partition in streams:
            streams[partition].skipped.add(*(Skip(0, index, VOID) for index in part.dropped))


@dataclass(frozen=True, slots=True)
class _Lines:
    """What a partition's calls after the fork are read from."""

    legs: Sequence[Plan]
    stream: ScannedStream
    place: ForkPlace
    slots: Any
    catalogs: Mapping[int, Mapping[str, Any]]  # version -> value of its record


def _leg(rest: RemainingLog, partition: int) -> Plan:
    """The entries after the fork of a partition that one log has completely."""
    found, stream, source = rest.scan, rest.scan.streams[partition], rest.source
    part = PartitionPlan(
        partition=partition,
        source="state",
        from_index=read_after(rest.places[partition]),
        to_index=stream.to_index,
        to_calls=stream.to_calls,
        to_txn=stream.to_txn,
        entries=stream.entries,
        calls=stream.calls,
        bytes=stream.bytes,
        voids=tuple(stream.voids),
    )
    return Plan(
        directory=source.directory,
        **source.instance.identity.as_text(),
        verdict=source.verdict,
        from_block=found.from_block,
        last_block=found.last_block,
        until=None,
        row_digests=found.row_digests,
        partitions=(part,),
    )


def _order(request: Mapping[str, Any], bundle: Bundle, lines: _Lines, base: MomentReplay | None) -> dict[str, Any]:
    partition, legs, stream = lines.place.partition, lines.legs, lines.stream
    return {
        "key": f"p{partition:04d}",
        "partition": partition,
        "cluster_id": legs[0].cluster_id,
        "writes_replicated": partition == 0,
        "calls": stream.calls,
        "bytes": stream.bytes,
        "tables": request["tables"],
        "missing": request["missing"],
        "code": bundle.hash,
        "bundle": bundle.to_bytes().decode(),
        "base": [plan_json(leg) for leg in base.of(partition)] if base is not None else [],
        "legs": [plan_json(leg) for leg in legs],
        "row_digests": any(leg.row_digests for leg in legs),
        "slots": lines.slots,
        "catalogs": {str(version): value for version, value in lines.catalogs.items()},
        "place": asdict(lines.place),
        "stream": stream.to_json(),
    }


def _logs(files: Files, paths: Sequence[str], end: int | None) -> tuple[dict[str, dict[int, PartitionPlan]], list[int]]:
    """Directory -> partitions whose history is read there, with their ends; and those that no single log holds completely."""
    history = find_history(files, paths, end, accept_data_loss=False)
    found: dict[str, dict[int, PartitionPlan]] = {}
    apart = []
    for partition in history.partitions:
        legs = history.of(partition)
        if len(legs) > 1 or legs[0].salvaged:
            apart.append(partition)
        else:
            found.setdefault(legs[0].directory, {})[partition] = legs[0].partitions[0]
    return found, apart


def _check_end(rest: RemainingLog, partition: int, wanted: PartitionPlan) -> None:
    """A log's end may advance while it is read; what was decided over all logs counts. Raises: Incomplete."""
    stream = rest.scan.streams[partition]
    if stream.to_index < wanted.to_index:
        raise Incomplete(f"partition {partition} ends at index {stream.to_index} there, not at {wanted.to_index}")
    if stream.to_index > wanted.to_index:
        stream.to_index, stream.to_calls = wanted.to_index, wanted.to_calls
        stream.to_term, stream.to_checksum = wanted.to_term, wanted.to_checksum


def _manifest(request: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def tables(kind: str) -> dict[str, Any]:
        found = tables_of([(row, file) for row in rows for file in row["files"] if file["kind"] == kind], "")
        for table in found.values():
            for file in table["files"]:
                file["path"] = f"{kind}/{file['path']}"
        return found

    changes: dict[str, Counter[str]] = {}
    for row in rows:
        for table, counts in row["changes"].items():
            changes.setdefault(table, Counter()).update(counts)
    return {
        "format": FORMAT,
        **request,
        "request": request,
        "calls": sum(row["calls"] for row in rows),
        "kept": sum(row["kept"] for row in rows),
        "versions": versions(),
        "changes": {table: {kind: counts[kind] for kind in KINDS} for table, counts in sorted(changes.items())},
        "partitions": {str(row["partition"]): row["stands"] for row in rows},
        "outcomes": {str(row["partition"]): row["outcomes"] for row in rows},
        "state": tables("state"),
        "diff": tables("diff"),
    }


def _moves(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in ("state", "diff"):
        for table in manifest[kind].values():
            for file in table["files"]:
                yield file["from"], file["path"]
