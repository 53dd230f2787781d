"""What an executor does for a what-if: one partition's history next to a fork of it, the fork's tables, and what differs.

One rule: the code of the fork comes as a bundle and is loaded under a name of its own (`procedures.code`), so a Python worker
that has run another version before never runs that one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any, Final

import apsw
import pyarrow
from pyarrow import parquet

from cmdlog.wal.files import Files
from procedures import Database
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import BundleForged
from procedures.storage.state import PartitionState
from replay.diff.diff import KINDS, DiffReport, RowChange, TableDiff, diff
from replay.diff.parquet import ParquetField, parquet_files
from replay.diff.state_reader import States
from replay.fork.bind_calls import CallBinding
from replay.fork.rerun import ForkPlace, OtherCode
from replay.fork.side_by_side import FirstDifferences, SideBySide
from replay.fork.tally import LeftOut
from replay.log.scan import ScannedStream
from replay.plan.node_plan import Plan
from replay.results import PartitionResult
from replay.spark.base.version_check import check_hash_seed
from replay.spark.jobs.fetched_inputs import at_hand
from replay.spark.jobs.past_replay import read_legs
from replay.spark.jobs.rebuild_task import StateRebuild, before_last, check_tables, make_target
from replay.spark.jobs.task_attempt import Attempt
from replay.state.trust import read_position, state_path
from snapshot.column_types import column_type
from snapshot.export import TableSource, declarations, write_tables
from snapshot.table_digest import open_image, table_digest

LEFT: Final = "left"
RIGHT: Final = "right"
_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 8) <> '_cmdlog_'"


def backfill_partition(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Does the work of one order. Raises: Divergence of the history as it was, CallUnfit, SchemaConflict, WalError, …"""
    with at_hand(order, attempt.scratch) as (here, files):
        return _backfill(here, attempt, files)


def _backfill(order: Mapping[str, Any], attempt: Attempt, source_files: Files) -> dict[str, Any]:
    bundle = Bundle.from_bytes(str(order["bundle"]).encode())
    if bundle.hash != order["code"]:
        raise BundleForged(f"the order is for code {order['code'][:12]}, and holds {bundle.hash[:12]}")
    check_hash_seed(f"the executor of {attempt.key}")
    db = load_bundle(bundle)
    base = [Plan.from_value(leg) for leg in order["base"]]
    calls = _fork(int(order["partition"]), base, attempt, source_files)
    firsts = FirstDifferences(os.path.join(attempt.scratch, "firsts.sqlite"))
    try:
        result, left_out, outcomes = _run(order, attempt, source_files, db=db, bundle_hash=bundle.hash, firsts=firsts)
        files = _write_state(order, attempt, db, result)
        changes, diffs = _write_diff(order, attempt, db, firsts)
    finally:
        firsts.close()
    return {
        "partition": order["partition"],
        "kept": calls,
        "calls": result.calls,
        "stands": asdict(result),
        "outcomes": outcomes(left_out),
        "files": [*files, *diffs],
        "changes": changes,
    }


def _folder(attempt: Attempt, side: str) -> str:
    return os.path.join(attempt.scratch, side)


def _fork(partition: int, base: Sequence[Plan], attempt: Attempt, files: Files) -> int:
    """Makes both states: the left one at the fork point, or before the batch that it cuts; the right one at the fork point."""
    left = StateRebuild(partition, make_target(_folder(attempt, LEFT), files), lambda _calls: None)
    right = StateRebuild(partition, make_target(_folder(attempt, RIGHT), files), lambda _calls: None)
    if not base:
        return 0
    cut = base[-1].partitions[0].to_calls >= 0
    left.to([*base[:-1], before_last(base[-1])] if cut else base)
    state = state_path(left.target.directory, partition)
    if os.path.exists(state):
        shutil.copyfile(state, state_path(right.target.directory, partition))
        right.target.trust.grant(partition)
    right.to(base)
    return left.calls + right.calls


def _run(
    order: Mapping[str, Any], attempt: Attempt, files: Files, *, db: Database, bundle_hash: str, firsts: FirstDifferences
) -> tuple[PartitionResult, list[LeftOut], Callable[[list[LeftOut]], dict[str, Any]]]:
    partition = int(order["partition"])
    catalogs = {int(version): value for version, value in order["catalogs"].items()}
    fitting = CallBinding(db, bundle_hash, catalogs, order["slots"])
    with ExitStack() as stack:
        states = []
        for side in (LEFT, RIGHT):
            states.append(PartitionState.open(state_path(_folder(attempt, side), partition), partition=partition))
            stack.callback(states[-1].close)
        both = SideBySide(
            stream=ScannedStream.from_json(order["stream"]),
            place=ForkPlace(**order["place"]),
            left=states[0],
            right=states[1],
            catalogs=catalogs,
            row_digests=order["row_digests"],
            code=OtherCode(db, fitting, order["missing"]),
            firsts=firsts,
            progress=attempt.count_calls,
        )
        result, left_out = both.run(read_legs(files, [Plan.from_value(leg) for leg in order["legs"]]))
        return result, left_out, both.outcomes.to_json


def _wanted(order: Mapping[str, Any], db: Database) -> Callable[[str], bool]:
    """The tables that this partition writes; a replicated one is written by the first partition."""
    replicated = {info.table.name for info in db.tables.values() if info.replicated}
    return lambda table: (
        (order["tables"] is None or table in order["tables"]) and (table not in replicated or order["writes_replicated"])
    )


def _write_state(order: Mapping[str, Any], attempt: Attempt, db: Database, result: PartitionResult) -> list[dict[str, Any]]:
    """The fork's tables."""
    folder = os.path.join(attempt.folder, "state")
    os.mkdir(folder, 0o750)
    wanted = _wanted(order, db)
    declared = {info.table.name: info for info in db.tables.values()}
    connection = open_image(state_path(_folder(attempt, RIGHT), result.partition))
    try:
        check_tables(connection, order["tables"])
        about = {"index": result.index, "txn_id": str(result.txn_id), "code": order["code"]}
        source = TableSource(result.partition, order["cluster_id"], about, connection)
        files = []
        for written in write_tables(source, folder, declared=declared, skip=lambda table: not wanted(table)):
            sealed = attempt.sealed(os.path.join(folder, written.file))
            digest = table_digest(connection, written.table).sha256
            about_file = {"kind": "state", "table": written.table, "rows": written.rows, "columns": dict(written.columns)}
            files.append({**about_file, **sealed, "digest": digest})
        return files
    finally:
        connection.close()


def _write_diff(
    order: Mapping[str, Any], attempt: Attempt, db: Database, firsts: FirstDifferences
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Writes the differences of the fork's tables, with the call that first made each row differ."""
    folder, partition = os.path.join(attempt.folder, "diff"), int(order["partition"])
    with _open(attempt, LEFT, partition) as left, _open(attempt, RIGHT, partition) as right:
        names = {str(row[0]) for side in (left, right) for row in side.connections[partition].execute(_TABLES)}
        tables = sorted(filter(_wanted(order, db), names))
        report = DiffReport([])
        declared = (_declared_then(order), {info.table.name: info for info in db.tables.values()})
        with parquet_files(folder, lambda table: _first_fields(table, firsts), declared=declared) as sink:
            if tables:
                report = diff(left, right, tables=tables, limit=0, sink=sink)
    changes = {table.name: {kind: table.counts[kind] for kind in KINDS} for table in report.tables}
    files = []
    for table in report.tables:
        path = os.path.join(folder, f"{table.name}.parquet")
        schema = parquet.read_schema(path)
        columns = {field.name: str(field.type) for field in schema}
        about = {"kind": "diff", "table": table.name, "rows": table.counts.total(), "columns": columns}
        files.append({**about, **attempt.sealed(path)})
    return changes, files


def _declared_then(order: Mapping[str, Any]) -> dict[str, Any]:
    """Table -> its declaration in the code of the log."""
    return declarations({int(version): value for version, value in order["catalogs"].items()})


def _first_fields(table: TableDiff, firsts: FirstDifferences) -> list[ParquetField]:
    """Columns that name the first differing call; null when rows have no identity."""
    width = len(table.key)
    asked: list[Any] = [None, None]  # both columns of a change ask for the same row

    def first(change: RowChange) -> Any:
        if asked[0] is not change:
            row = change.old or change.new or ()
            asked[:] = change, firsts.of(table.name, row[:width]) if width else None
        return asked[1]

    def txn_id(change: RowChange) -> int | None:
        found = first(change)
        return found.txn_id if found is not None else None

    def procedure(change: RowChange) -> str | None:
        found = first(change)
        return found.procedure if found is not None else None

    kinds = [column_type(pyarrow, kind, None) for kind in ("INTEGER", "TEXT")]
    return [ParquetField("first_txn_id", kinds[0], txn_id), ParquetField("first_procedure", kinds[1], procedure)]


@contextmanager
def _open(attempt: Attempt, side: str, partition: int) -> Iterator[States]:
    path = state_path(_folder(attempt, side), partition)
    connection: apsw.Connection = open_image(path)
    try:
        position = read_position(path, partition)
        assert not isinstance(position, str), "a state of this very attempt"
        yield States(path, "states", {partition: connection}, {partition: position})
    finally:
        connection.close()
