"""The states of a node directory, or of one snapshot, open for reading only.

One rule: what is read is where the log ends. State files that this boot of the machine wrote and that are at the log's end are
read as they are, each in one read transaction, also beside a running node, which continues meanwhile. In every other case (after
a crash or power loss, of a copied directory, of a busy node) they are restored from snapshots and log into a temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files, parent
from procedures.storage.state import Position, open_reader, rows_of
from replay.errors import ReplayError
from replay.plan.node_plan import Plan
from replay.plan.planner import make_plan
from replay.recover.execute import Target, execute
from replay.state.trust import STATE_FOLDER, state_path
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import Snapshot, check, list_snapshots, restore
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME

How = Literal["states", "snapshots and log", "snapshot"]


class StateGone(ReplayError):
    """A node took over the state file while it was being opened."""

    hint = "the node was started or recovered in the meantime; try again"


@dataclass(frozen=True, slots=True)
class States:
    """Open states of some partitions, each as of one position."""

    path: str
    how: How
    connections: Mapping[int, apsw.Connection]  # in a read transaction
    positions: Mapping[int, Position]


@contextmanager
def open_states(files: Files, path: str) -> Iterator[States]:
    """All partitions of a node directory, or the one of a snapshot folder.

    Raises: WrongDirectory, SnapshotDamaged, what `make_plan` and `execute` raise.
    """
    with ExitStack() as stack:
        if files.exists(os.path.join(path, MANIFEST_NAME)):
            yield _from_snapshot(stack, files, path)
            return
        plan = make_plan(files, path, use_state="trusted").plan
        if all(part.source == "state" and not part.entries for part in plan.partitions):
            yield _open(stack, path, "states", {part.partition: part.name for part in plan.partitions})
            return
        yield _from_log(stack, files, path)


def _open(stack: ExitStack, path: str, how: How, names: Mapping[int, str]) -> States:
    connections, positions = {}, {}
    for partition, name in sorted(names.items()):
        try:
            connection, _ = open_reader(name)
        except apsw.CantOpenError as error:
            raise StateGone(f"{name} cannot be opened: {error}") from error
        stack.callback(connection.close)
        connection.execute("BEGIN")
        row = rows_of(connection, "SELECT idx, term, checksum, txn_id FROM _cmdlog_meta")[0]
        connections[partition], positions[partition] = connection, Position(*row)
    return States(path, how, connections, positions)


def _scratch(stack: ExitStack) -> str:
    """A folder that is removed at the end; `TMPDIR` says where."""
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="cmdlog-states-"))


def _from_log(stack: ExitStack, files: Files, path: str) -> States:
    planned = make_plan(files, path, use_state="never")
    plan: Plan = planned.plan
    scratch = _scratch(stack)
    os.mkdir(os.path.join(scratch, STATE_FOLDER))
    execute(planned, Target(files, scratch))
    names = {part.partition: state_path(scratch, part.partition) for part in plan.partitions}
    return _open(stack, path, "snapshots and log", names)


def _from_snapshot(stack: ExitStack, files: Files, path: str) -> States:
    found = _find_snapshot(files, path)
    if problem := found.problem or check(files, found):
        raise SnapshotDamaged(problem)
    scratch = _scratch(stack)
    name = state_path(scratch, found.partition)
    os.mkdir(parent(name))
    restore(found, name)
    return _open(stack, path, "snapshot", {found.partition: name})


def _find_snapshot(files: Files, path: str) -> Snapshot:
    path = os.path.realpath(path)
    node = parent(parent(path))
    if os.path.basename(parent(path)) == SNAPSHOTS:
        for snapshot in list_snapshots(files, node, load_instance(files, node).identity):
            if os.path.realpath(snapshot.path) == path:
                return snapshot
    raise SnapshotDamaged(f"{path} is not a snapshot in the folder {SNAPSHOTS}/ of a node")
