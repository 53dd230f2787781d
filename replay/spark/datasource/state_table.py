"""The tables of the application as they were at a moment: `option("table", "state.accounts")`.

One rule: exactly the rows that `cmdlog recover --until` would produce, or an error. A plan comes from the replay engine, a task
carries it out as a rebuild does, digests compared, and decides nothing.

What a table looks like is known without its rows: the newest code that declares it decides. Where versions of the code declare
it differently and a moment is asked for, the SCHEMA entries up to that moment give its columns (`past_tables.py`). The newest
code that they suit gives their types. A table that no code at hand declares is looked up in the images of the snapshots. Before a
table was made, it has no rows.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from procedures.declaration.schema import create_table
from replay.errors import Incomplete, PlanOutdated, ReplayError, UntilBeyond
from replay.plan.node_plan import Plan
from replay.spark.base.filesystems import check_node
from replay.spark.base.options import LATEST_POINT, STATE, BadOption, ReadOptions
from replay.spark.base.scratch import local_folder
from replay.spark.base.version_check import check_versions, versions
from replay.spark.datasource.past_tables import tables_at
from replay.spark.jobs.fetched_inputs import FETCHED, Inputs, at_hand, input_names, inputs
from replay.spark.jobs.past_replay import MomentReplay, catalogs_at_end, find_history, plan_json
from replay.spark.jobs.rebuild_task import NoSuchTable, StateRebuild, make_target
from replay.state.trust import state_path
from snapshot.catalog import Snapshot, list_archived, list_snapshots
from snapshot.column_types import column_kinds
from snapshot.export import TableSource, column_types, declarations, read_table
from snapshot.manifest import IMAGE_NAME
from snapshot.recovery_points import list_points
from snapshot.table_digest import open_image

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final[Mapping[str, str]] = {"_partition_id": "int", "_txn_id": "bigint"}
_NAMES: Final = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 8) <> '_cmdlog_' ORDER BY name"
_HINTS: Final[Mapping[type[ReplayError], str]] = {  # in the words of the options
    UntilBeyond: "choose a moment in between, or omit asOfTxn and asOfTimestamp to get the newest state",
    Incomplete: "restore the missing files from a backup, or read what is left with failOnDataLoss=false",
}

Code = Mapping[int, Mapping[str, Any]]
"""Catalog version -> value of its record."""
NodePlace = tuple[Files, str]
"""A file system, and the path of a node directory in it."""


class TablesDiffer(ReplayError):
    """A moment within a change of tables: some partitions have changed."""

    exit_code = 2
    hint = "choose a moment before or after the change, such as the transaction of a call"


@dataclass(frozen=True, slots=True)
class StateTable:
    """The name and columns of a table, known before any row is read."""

    name: str  # as it was made
    columns: Mapping[str, str]  # name -> Spark's type
    code: Code  # the version that declares it; empty when none does
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class StateTask:
    """What one Spark task brings to the moment and reads."""

    partition: int
    legs: tuple[Plan, ...]
    fetched: Mapping[str, str]  # directory in the legs -> URI, of those that are copied first
    table: str
    columns: tuple[str, ...]  # of the table and of METADATA, in the order that is wanted
    code: Code
    cluster_id: str
    versions: Mapping[str, str]


# -- on the driver -------------------------------------------------------------------------------------------------------


def find_table(options: ReadOptions) -> StateTable:
    """Looks it up in the code that the logs and snapshots hold. Raises: NoSuchTable, BadOption; WalError of a refused log."""
    wanted, names = str(options.state_table), dict[str, str]()
    with inputs(input_names(options.paths)) as given:
        versions_of = list[StateTable]()
        for found in _known_tables(_places(options.paths, given)):
            if found.name.lower() == wanted.lower():
                if options.as_of is None:
                    return found
                versions_of.append(found)
            names.setdefault(found.name.lower(), found.name)
        if versions_of:
            return _table_at(versions_of, options, given)
    near = difflib.get_close_matches(wanted.lower(), names, n=1)
    hint = f"did you mean {STATE}{names[near[0]]}? " if near else ""
    raise NoSuchTable(f"there is no table {wanted}; {hint}There are: {', '.join(sorted(names.values())) or 'none'}")


def _table_at(known: Sequence[StateTable], options: ReadOptions, given: Inputs) -> StateTable:
    """The table at the moment that is asked for; `known` are its declarations, the newest first. Raises: as `plan_state`."""
    if all(table.columns == known[0].columns for table in known):
        return known[0]
    history = _find_moment(options, given)
    statement = tables_at(given.files, history.of(history.partitions[0])).get(known[0].name)
    if statement is None:
        return known[0]
    plain = _columns(statement, known[0].name, None)
    suited = [table for table in known if table.code and _kinds(table, statement) == plain]
    suiting = (suited or known)[0]
    declared = declarations(suiting.code).get(suiting.name)
    return replace(suiting, columns=_columns(statement, suiting.name, declared))


def _kinds(table: StateTable, statement: str) -> dict[str, str]:
    """The columns of the statement with the types that this version's code gives them in SQLite; others are left out."""
    declared = declarations(table.code)[table.name]
    stored = _columns(create_table(declared.table), table.name, None)
    return {name: stored[name] for name in _columns(statement, table.name, None) if name in stored}


def _known_tables(places: Sequence[NodePlace]) -> Iterator[StateTable]:
    """Tables of the newest code first; more expensive sources come later."""
    newest = _catalogs_of_logs(places)
    yield from _declared(newest)
    snapshots = _snapshots(places)
    older = {int(v): of for one in snapshots if one.manifest is not None for v, of in one.manifest.catalogs.items()}
    yield from _declared({version: value for version, value in older.items() if version not in newest})
    for name, statement in _of_images(snapshots):
        yield StateTable(name, _columns(statement, name, None), {})


def _declared(catalogs: Code) -> Iterator[StateTable]:
    for version in sorted(catalogs, reverse=True):
        code = {version: {name: catalogs[version][name] for name in ("bundle", "hash")}}
        for name, declared in declarations(code).items():
            yield StateTable(name, _columns(create_table(declared.table), name, declared), code, declared.replicated)


def columns_of(table: StateTable, *, include_metadata: bool) -> dict[str, str]:
    """Name -> Spark's type. Raises: BadOption."""
    if not include_metadata:
        return dict(table.columns)
    taken = {name.lower() for name in table.columns}
    for name in METADATA:
        if name in taken:
            raise BadOption(f"includeMetadata would add {name}, and the table {table.name} has a column of that name")
    return {**table.columns, **METADATA}


def plan_state(options: ReadOptions, table: StateTable, columns: Sequence[str]) -> list[StateTask]:
    """One task for each partition of the log, the longest first.

    Raises: what `find_history` raises; BadOption; OSError of a store.
    """
    with inputs(input_names(options.paths)) as given:
        history = _find_moment(options, given)
    known = history.partitions
    if unknown := sorted((options.partitions or set()) - set(known)):
        raise BadOption(f"partitions: there is no {unknown[0]}; the log has {', '.join(map(str, known))}")
    partitions = [partition for partition in known if options.partitions is None or partition in options.partitions]
    if table.replicated:  # every partition holds all of its rows
        partitions = partitions[:1]
    about = (given.fetched, table.name, tuple(columns), table.code, history.cluster_id, versions())
    tasks = [StateTask(partition, tuple(history.of(partition)), *about) for partition in partitions]
    return sorted(tasks, key=lambda task: -sum(leg.log_bytes for leg in task.legs))


def _find_moment(options: ReadOptions, given: Inputs) -> MomentReplay:
    until = _latest_point(given.files, given.directories) if options.as_of == LATEST_POINT else options.as_of
    assert not isinstance(until, str)
    try:
        return find_history(given.files, given.directories, until, accept_data_loss=not options.fail_on_data_loss)
    except ReplayError as error:
        error.hint = _HINTS.get(type(error), error.hint)
        raise


def _places(paths: Sequence[str], given: Inputs) -> list[NodePlace]:
    """Raises: BadOption for one that does not exist, or is given twice."""
    for path, directory in zip(paths, given.directories, strict=True):
        check_node(path, given.files, directory)
    if len(set(given.directories)) != len(given.directories):
        raise BadOption("a node directory is given twice")
    return [(given.files, directory) for directory in given.directories]


def _snapshots(places: Sequence[NodePlace]) -> list[Snapshot]:
    """Of these nodes, the newest first."""
    found = []
    for files, directory in places:
        with contextlib.suppress(WalError):  # the replay reports what is wrong with it
            identity = load_instance(files, directory).identity
            found += [*list_snapshots(files, directory, identity), *list_archived(files, directory, identity)]
    return sorted(found, key=lambda one: -one.index)


def _catalogs_of_logs(places: Sequence[NodePlace]) -> dict[int, Mapping[str, Any]]:
    """Every version of the code that is known where the logs end. Raises: WalError when all of them are refused."""
    found: dict[int, Mapping[str, Any]] = {}
    refused: list[WalError] = []
    for files, directory in places:
        try:
            found |= catalogs_at_end(files, directory)
        except WalError as error:
            refused.append(error)
    if len(refused) == len(places):
        raise refused[0]
    return found


def _of_images(snapshots: Sequence[Snapshot]) -> Iterator[tuple[str, str]]:
    """(name, CREATE statement) of the tables in the images; a delta has those of its base."""
    whole = [one for one in snapshots if one.manifest is not None and one.manifest.kind == "full"]
    for path in (os.path.join(one.path, IMAGE_NAME) for one in whole):
        with contextlib.suppress(apsw.Error), contextlib.closing(open_image(path)) as image:
            yield from [(str(name), str(sql)) for name, sql in image.execute(_NAMES)]


def _columns(statement: str, name: str, declared: Any) -> dict[str, str]:
    """Name -> Spark's type, of the table that this statement makes."""
    with contextlib.closing(apsw.Connection(":memory:")) as empty:
        empty.execute(statement)
        return {column: kind.spark for column, kind in column_types(empty, name, declared=declared).items()}


def _latest_point(files: Files, directories: Sequence[str]) -> int:
    """The newest recovery point of any of the nodes. Raises: BadOption."""
    found = [point.txn_id for directory in directories for point in list_points(files, directory)[0]]
    if not found:
        raise BadOption(f"asOfTxn={LATEST_POINT}: there is no recovery point in {', '.join(directories)}")
    return max(found)


# -- on an executor ------------------------------------------------------------------------------------------------------


def read_state(task: StateTask) -> Iterator[pa.RecordBatch]:
    """The table's rows in the partition, in the order of its keys.

    Raises: Divergence, Poison, WalError and what else `execute` raises; OtherVersions, BadValue.
    """
    import pyarrow as pa  # noqa: PLC0415 - the driver plans without it

    check_versions(task.versions, f"the executor of partition {task.partition}")
    wanted = [name for name in task.columns if name not in METADATA]
    with _restored(task) as (connection, txn_id):
        declared = declarations(task.code).get(task.table)
        if task.table not in {str(name) for name, _ in connection.execute(_NAMES)}:
            return
        if lacking := [name for name in wanted if name not in column_kinds(connection, task.table)]:
            raise TablesDiffer(
                f"partition {task.partition} has no column {lacking[0]} in table {task.table} up to {_moment(task)}: "
                "the tables were being changed then"
            )
        source = TableSource(task.partition, task.cluster_id, {}, connection)
        stands = {"_partition_id": pa.scalar(task.partition, pa.int32()), "_txn_id": pa.scalar(txn_id, pa.int64())}
        for batch in read_table(source, task.table, declared=declared, wanted=wanted):
            columns = [pa.repeat(stands[n], batch.num_rows) if n in stands else batch.column(n) for n in task.columns]
            yield pa.RecordBatch.from_arrays(columns, names=task.columns)


@contextlib.contextmanager
def _restored(task: StateTask) -> Iterator[tuple[apsw.Connection, int]]:
    """The state at the moment, and the last transaction in it.

    Its folder is removed before the first row is read, since that may be impossible later: Spark ends a read early by killing
    the process. An open file stays readable.
    """
    folder = tempfile.mkdtemp(prefix=f"cmdlog-state-p{task.partition:04d}-", dir=local_folder())
    try:
        with at_hand({"legs": [plan_json(leg) for leg in task.legs], FETCHED: task.fetched}, folder) as (order, files):
            walk = StateRebuild(task.partition, make_target(os.path.join(folder, "walk"), files), lambda _calls: None)
            result = walk.to([Plan.from_value(leg) for leg in order["legs"]])
        connection = open_image(state_path(walk.target.directory, task.partition))
    except Exception as error:
        if isinstance(error, PlanOutdated):
            error.hint = "load the table again: files that its plan needs are gone"
        origin = task.fetched.get(task.legs[0].directory, task.legs[0].directory)
        error.add_note(f"partition {task.partition} of {origin} could not be rebuilt up to {_moment(task)}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield connection, result.txn_id
    finally:
        connection.close()


def _moment(task: StateTask) -> str:
    until = task.legs[-1].until
    return f"transaction {until}" if until is not None else "the end of the log"
