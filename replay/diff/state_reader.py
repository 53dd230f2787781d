"""The states of a node directory, or of one snapshot, open for reading only.

One rule: what is read is where the log ends. State files that this boot of the machine wrote and that are at the log's end are
read as they are, each in one read transaction, also while the node runs and continues. In every other case (after
a crash or power loss, of a copied directory, of a busy node) they are restored from snapshots and log into a temporary folder.

A member of a cluster is read as it is, always: its log may end with what the cluster never committed, and what it did differently
from the other nodes is in its state files alone; a replay would do it right. Members stop at different places, so the one that is
ahead gets the state of the other one's place, from its own snapshots and log.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files, parent
from procedures.storage.state import Position, open_reader, rows_of
from replay.errors import Incomplete, NotSoleVoter, ReplayError, UntilBeyond, UntilUnreachable
from replay.log.source import fold_end, open_source, partitions_of
from replay.plan.node_plan import Planned
from replay.plan.planner import MEMBER_PAST, PAST, RECOVER, make_plan
from replay.plan.sole_voter import check_whole_member, other_members
from replay.recover.execute import replay_into
from replay.state.trust import state_path
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import Snapshot, check, list_snapshots, restore
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME

STATES: Final = "states"
MEMBER: Final = "a member's states as they are"


Code = Literal["run", "refuse"]
"""Whether calls are replayed where the rows are not in any file, which runs the code in the log."""


class CodeNeeded(ReplayError):
    """Rows are known only after calls have been replayed."""

    exit_code = 2
    hint = "omit --no-code if you trust the code in the log, or compare folders in snapshots/"


class StateGone(ReplayError):
    """A node took over the state file while it was being opened."""

    hint = "the node was started or recovered in the meantime; try again"


@dataclass(frozen=True, slots=True)
class States:
    """Open states of some partitions, each as of one position."""

    path: str
    how: str
    connections: Mapping[int, apsw.Connection]  # in a read transaction
    positions: Mapping[int, Position]


@contextmanager
def open_states(files: Files, path: str, *, code: Code = "run") -> Iterator[States]:
    """All partitions of a node directory, or the one of a snapshot folder.

    Raises: CodeNeeded, WrongDirectory, SnapshotDamaged, what `make_plan` and `execute` raise.
    """
    with ExitStack() as stack:
        if files.exists(os.path.join(path, MANIFEST_NAME)):
            yield _from_snapshot(stack, files, path)
            return
        try:
            plan = make_plan(files, path, RECOVER).plan
        except NotSoleVoter:
            yield _of_member(stack, files, path)
            return
        if all(part.source == "state" and not part.entries for part in plan.partitions):
            yield _open(stack, path, STATES, {part.partition: part.name for part in plan.partitions})
            return
        yield _from_log(stack, files, path, code)


@contextmanager
def open_sides(files: Files, left: str, right: str, *, code: Code = "run") -> Iterator[tuple[States, States]]:
    """Two directories or snapshots; of two members of one cluster, each partition as of the place that both have reached.

    Raises: as `open_states`.
    """
    with open_states(files, left, code=code) as one, open_states(files, right, code=code) as other, ExitStack() as stack:
        yield _brought_back(stack, files, one, other, code), _brought_back(stack, files, other, one, code)


def _brought_back(stack: ExitStack, files: Files, side: States, to: States, code: Code) -> States:
    """A member with its partitions that are ahead of the other member replayed up to there, as far as its log reaches back."""
    if not side.how == to.how == MEMBER or _cluster_of(files, side) != _cluster_of(files, to):
        return side
    for partition, position in to.positions.items():
        if partition in side.positions and side.positions[partition].index > position.index:
            with suppress(Incomplete, UntilBeyond, UntilUnreachable):  # the positions then say that there is more to differ
                side = _with_earlier(stack, files, side, partition, position, code=code)
    return side


def _with_earlier(stack: ExitStack, files: Files, side: States, partition: int, to: Position, *, code: Code) -> States:
    """Both have executed the transaction, so it is committed, and whatever precedes it."""
    planned = make_plan(files, side.path, MEMBER_PAST, until=to.txn_id).only(partition)
    _check_code(side.path, planned, code)
    found = _open(stack, side.path, side.how, replay_into(files, _scratch(stack), planned))
    how = f"{side.how}, partition {partition} as of transaction {to.txn_id} from snapshots and log"
    return States(side.path, how, {**side.connections, **found.connections}, {**side.positions, **found.positions})


def _cluster_of(files: Files, side: States) -> str:
    return load_instance(files, side.path).identity.as_text()["cluster_id"]


def _of_member(stack: ExitStack, files: Files, path: str) -> States:
    """Raises: NotSoleVoter, unless it is a whole member among others that has states; then nothing else was wrong with it."""
    check_whole_member(files, path)
    source = open_source(files, path)
    node = source.instance.identity.node_id
    groups = fold_end(source)
    names = {partition: state_path(path, partition) for partition in partitions_of(source)}
    voters = {int(voter) for state in groups.by_partition.values() for voter in (state.configuration or {}).get("voters", ())}
    if not (other_members(groups, node) | voters) - {node} or not all(map(files.exists, names.values())):
        make_plan(files, path, RECOVER)  # says why
    return _open(stack, path, MEMBER, names)


def _open(stack: ExitStack, path: str, how: str, names: Mapping[int, str]) -> States:
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


def _check_code(path: str, planned: Planned, code: Code) -> None:
    """Raises: CodeNeeded."""
    if code == "refuse" and (entries := planned.plan.entries):
        raise CodeNeeded(f"the rows of {path} are known after {entries} entries of its log have been replayed")


def _from_log(stack: ExitStack, files: Files, path: str, code: Code) -> States:
    planned = make_plan(files, path, PAST)
    _check_code(path, planned, code)
    return _open(stack, path, "snapshots and log", replay_into(files, _scratch(stack), planned))


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
