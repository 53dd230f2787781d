"""`cmdlog fork`: the same calls, but from one transaction on with other code. What if this version had run since then?

One rule: up to the fork everything is as it was (state and code of that time, digests compared); behind it only the code is
another (`replay.rerun`). The log that is forked is read, never written.

The result is a complete node of one, which `cmdlog serve` takes with that code. It tells another history than its origin, so it
must never pass for a copy of it: it has a cluster id of its own, and its instance file says from which cluster and transaction it
was forked. Transaction ids go on above all that the old log knew.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from cmdlog.wal.files import Files
from cmdlog.wal.groups import Catalog, Groups, GroupState, Stated
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT
from cmdlog.wal.instance import Identity, Instance, Origin, write_marker
from cmdlog.wal.owner import take_ownership
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, environment
from procedures.outcomes import Status
from procedures.state import PartitionState
from procedures.versions import catalog_value
from replay.apply import Result
from replay.errors import BadUntil, ReplayError, UntilBeyond, UntilUnreachable
from replay.fitting import Fitting
from replay.livecall import with_live_outcome
from replay.plan import PartitionPlan, make_plan
from replay.rebuild import FIRST_RECORDS_BLOCK, begin, complete, end_at, give_up
from replay.recover import Progress, Target, execute
from replay.rerun import Missing, Place, Rerun, Tally
from replay.scan import Scan, scan, start_block
from replay.source import LogSource, in_front, open_source
from replay.trust import STATE_FOLDER, state_path
from snapshot.archived import list_segments, run_before
from snapshot.catalog import FOLDER as SNAPSHOTS

START: Final = 0  # as a moment: before the first transaction
NODE_ID: Final = 1  # of the only node
_MILLIS: Final = (1 << MILLIS_SHIFT) - 1
Tell = Callable[[Progress], None]


class OtherDatabase(ReplayError):
    """The code is of another application, by the name of its `Database`."""

    exit_code = 11
    hint = "fork with a version of the application that the directory was made for"


@dataclass(frozen=True, slots=True)
class ForkReport:
    """What a fork did."""

    results: Sequence[Result]  # by partition: calls behind the fork, and where the new node begins
    kept: int  # calls before the fork that were replayed with their own code
    tally: Tally
    identity: Identity
    origin: Origin
    catalog: int  # version of the code in the new node
    code: str  # hash of its bundle
    seconds: float

    @property
    def calls(self) -> int:
        return sum(result.calls for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        tally = self.tally
        return {
            "cluster_id": self.identity.cluster_id.hex(),
            "forked_from": {"cluster_id": self.origin.cluster_id.hex(), "txn_id": str(self.origin.txn_id)},
            "catalog": self.catalog,
            "code": self.code,
            "seconds": round(self.seconds, 3),
            "kept": self.kept,
            "calls": self.calls,
            "compared": tally.compared,
            "changed": tally.changed,
            "first": tally.first.to_json() if tally.first else None,
            "statuses": {Status(status).name: calls for status, calls in sorted(tally.statuses.items())},
            "left_out": [
                {"procedure": of.procedure, "why": of.why, "calls": of.calls, "first_txn_id": str(of.first_txn_id)}
                for _, of in sorted(tally.left_out.items())
            ],
            "partitions": [
                {"partition": r.partition, "calls": r.calls, "index": r.index, "txn_id": str(r.txn_id)} for r in self.results
            ],
        }


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
    workers: int | None = None,
    progress: Tell = lambda _progress: None,
) -> ForkReport:
    """Makes the node directory `out`: state and code of `at` (its call included, START = none), then `db` up to `until`.

    `target` is `module:attribute` of `db`; None: it is found. Durable on return; `directory` may be of a running node.
    Raises: BadUntil, UntilUnreachable, CallUnfit, OtherDatabase, SchemaConflict, WrongDirectory; what `execute` raises.
    """
    if until is not None and until < at:
        raise BadUntil(f"the fork would end at transaction {until}, before it begins at {at}")
    began = time.monotonic()
    bundle = capture_bundle(db, target)
    planned = make_plan(files, directory, use_state="never", until=at) if at != START else None
    rest = find_rest(files, directory, [_place(part) for part in planned.plan.partitions] if planned else [], until)
    check_database(rest.scan.groups, db)
    begin(files, directory, out)
    owner = take_ownership(files, out)
    try:
        write_marker(files, out, "fork")
        for folder in (STATE_FOLDER, SNAPSHOTS):
            files.mkdir(os.path.join(out, folder))
        before = execute(planned, Target(files, out), workers=workers, progress=progress) if planned else None
        fitting = _fitting(rest.scan, db, bundle)
        results, tally = _run(rest, Target(files, out), _Code(db, fitting, missing), _meter(rest, progress))
        if tally.first is not None and tally.first_batch is not None:
            tally.first = with_live_outcome(files, directory, tally.first, tally.first_batch, rest.scan.catalogs)
        groups, version = _groups(rest.scan.groups, results, db, bundle)
        origin = Origin(rest.source.instance.identity.cluster_id, at)
        instance = _one_node(rest.source.instance, origin)
        complete(files, out, owner, instance, groups=groups, results=results, begun_by="fork")
    except BaseException:
        owner.close()
        give_up(out)
        raise
    owner.close()
    kept = before.calls if before else 0
    return ForkReport(results, kept, tally, instance.identity, origin, version, bundle.hash, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Rest:
    """The log behind the fork."""

    source: LogSource
    scan: Scan
    places: Mapping[int, Place]


def _place(part: PartitionPlan) -> Place:
    return Place(part.partition, part.to_index, part.to_term, part.to_checksum, part.to_calls)


def find_rest(files: Files, directory: str, places: Sequence[Place], until: int | None) -> Rest:
    """The log that holds everything behind these places ([]: everything). Raises: UntilUnreachable, UntilBeyond."""
    for source in _sources(files, directory):
        those = {place.partition: place for place in places or map(Place, _partitions(source))}
        indexes = {p: place.index for p, place in those.items()}
        found = scan(source, start_block(source, indexes), indexes, {p: {index} for p, index in indexes.items()}, until=until)
        if not all(_joins(place, found) for place in those.values()):
            continue
        if until is not None and until > found.groups.txn_id_max | _MILLIS:
            raise UntilBeyond(f"transaction {until} was not reached: the newest one is {found.groups.txn_id_max}")
        return Rest(source, found, those)
    raise UntilUnreachable("log and archive do not hold everything behind the fork without a gap")


def _sources(files: Files, directory: str) -> Iterator[LogSource]:
    """The live log, then the live log with the archived segments before it."""
    source = open_source(files, directory)
    yield source
    if run := run_before(list_segments(files, directory, source.instance.identity), source.segments[0].header):
        yield in_front(files, source, run)


def _partitions(source: LogSource) -> range:
    """Those that the newest configuration in the log names."""
    groups = source.checkpoint(source.first_blocks[-1])
    if CLUSTER_GROUP not in groups.by_partition:  # a first segment: its head is empty
        for lsn, record in source.read(from_block=source.first_blocks[-1]):
            groups.observe(lsn, record)
    return range(int((groups.state(CLUSTER_GROUP).configuration or {}).get("partitions", 0)))


def _joins(place: Place, found: Scan) -> bool:
    """Whether the log holds every entry behind the place, and the very entry at it."""
    stream = found.streams[place.partition]
    if not stream.base <= place.index <= stream.last_index:
        return False
    return not place.term or stream.seen.get(place.index) == (place.term, place.checksum)


def check_database(groups: Groups, db: Database) -> None:
    catalogs = groups.state(CLUSTER_GROUP).catalogs
    made_for = catalogs[max(catalogs)].value.get("database", db.name) if catalogs else db.name
    if made_for != db.name:
        raise OtherDatabase(f"the directory belongs to database {made_for!r}, not to {db.name!r}")


@dataclass(frozen=True, slots=True)
class _Code:
    """The other code, and what the calls of the log are in it."""

    db: Database
    fitting: Fitting
    missing: Missing


def _fitting(found: Scan, db: Database, bundle: Bundle) -> Fitting:
    slots = (found.groups.state(CLUSTER_GROUP).configuration or {}).get("slots", ())
    return Fitting(db, bundle.hash, {version: catalog.value for version, catalog in found.catalogs.items()}, slots)


def _run(rest: Rest, target: Target, code: _Code, note: Callable[[int, int], None]) -> tuple[list[Result], Tally]:
    """Everything behind the fork."""
    found = rest.scan
    with ExitStack() as stack:
        states = {}
        for p in sorted(rest.places):
            states[p] = PartitionState.open(state_path(target.directory, p), partition=p)
            stack.callback(states[p].close)
            target.trust.grant(p)
        rerun = Rerun(states, found.streams, rest.places, db=code.db, fitting=code.fitting, missing=code.missing, progress=note)
        records = found.kept if found.kept is not None else rest.source.read(from_block=found.from_block)
        return rerun.run(records), rerun.tally


def _meter(rest: Rest, tell: Tell) -> Callable[[int, int], None]:
    calls: Counter[int] = Counter()
    total, began = sum(stream.calls for stream in rest.scan.streams.values()), time.monotonic()

    def note(partition: int, done: int) -> None:
        calls[partition] = done
        tell(Progress(calls.total(), total, time.monotonic() - began))

    return note


def _groups(groups: Groups, results: Sequence[Result], db: Database, bundle: Bundle) -> tuple[Groups, int]:
    """Every group as the new log begins, and the version of its only catalog."""
    for result in results:
        end_at(groups, result)
    cluster = groups.state(CLUSTER_GROUP)
    cluster.commit = cluster.last_index
    newest = max(cluster.catalogs, default=0)
    value = cluster.catalogs[newest].value if newest else None
    if value is None or value["hash"] != bundle.hash:
        newest += 1
        value = catalog_value(db, bundle, newest, value)
    index = cluster.last_index
    cluster.catalogs = {newest: Catalog(index, value, stated_block=FIRST_RECORDS_BLOCK, used_block=FIRST_RECORDS_BLOCK)}
    cluster.environment = Stated(index, cluster.term, environment())
    for state in groups.by_partition.values():
        _make_single(state)
    return groups, newest


def _make_single(state: GroupState) -> None:
    """One voter, whoever they were."""
    state.vote = NODE_ID
    if state.configurations and (newest := state.configurations[-1]).value.get("voters") != [NODE_ID]:
        state.configurations = [replace(newest, value={**newest.value, "voters": [NODE_ID], "learners": []})]


def _one_node(instance: Instance, origin: Origin) -> Instance:
    """The new node: a cluster of its own."""
    return replace(instance, identity=Identity.fresh(NODE_ID), forked_from=origin)
