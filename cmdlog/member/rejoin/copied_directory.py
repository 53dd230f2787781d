"""Making a node's directory of a copy that is here whole and verified.

One rule: the directory is a node only from the last step on, when `instance.json` is written. What an interrupted run has made is
removed and made again; only the copied snapshots are moved, once, as a whole folder.

    snapshots  the copied ones, under this node's name
    faults     the failure sets of the cluster, as the source knew them
    state      restored from the snapshots
    peers      what the source and this node's old directory had met of the other nodes
    log        fresh; it begins with a CHECKPOINT of every group, with the votes that this node's old directory still showed
    instance   the directory is a node

A vote is never forgotten while a file of the old directory shows it. The cluster does not rely on that, since the copied node
begins a new life that votes only after it was admitted again; but what costs nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import structlog

from cmdlog.cluster.copying.copy_values import CopyManifest
from cmdlog.cluster.transport.peer_book import PeerRecord, begin_book, newer_records, read_peers
from cmdlog.member.rejoin.copied_files import CopiedFiles, newest_of, take_over_snapshots
from cmdlog.member.rejoin.quarantine_folder import QUARANTINE_FOLDER
from cmdlog.member.rejoin.rejoin_record import Vote, Votes
from cmdlog.operator_error import full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.directory.instance import FOLDERS, INSTANCE_NAME, LOG_FOLDER, Identity, load_instance, write_marker
from cmdlog.wal.directory.lock import DirectoryLock
from cmdlog.wal.errors import Foreign, WalError
from cmdlog.wal.fault_log import FAULTS_FOLDER, FaultLog, FaultRecord
from cmdlog.wal.fault_record import BadFaultLog, decode_fault
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.group_state import GroupState, GroupStates, LoggedCatalog
from cmdlog.wal.hard_state import read_hardstate
from cmdlog.wal.log import Log
from replay.log.known_failures import carried_fault
from replay.log.source import fold_end, open_source
from replay.recover.to_directory import FIRST_RECORDS_BLOCK, end_at
from replay.results import PartitionResult
from replay.state.trust import STATE_FOLDER, Trust, state_path
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import Snapshot, restore

MADE_BY: Final = "copy"  # in `creating.json`
NO_VOTE: Final[Vote] = (0, None)

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class CopyToMake:
    """What is made, of what."""

    identity: Identity  # of the new life
    manifest: CopyManifest
    votes: Votes  # that the old directory showed
    quarantine: str = ""  # name of the folder that has the old directory


def begin_directory(files: Files, directory: str) -> None:
    """Before anything of the old node leaves: what is here is a node in the making. Durable on return."""
    write_marker(files, directory, MADE_BY)


def is_complete(files: Files, directory: str, identity: Identity) -> bool:
    """Whether the directory is the node that the copy makes."""
    return files.exists(os.path.join(directory, INSTANCE_NAME)) and load_instance(files, directory).identity == identity


def make_directory(files: Files, directory: str, owner: DirectoryLock, made: CopyToMake, copied: CopiedFiles) -> None:
    """Makes the node. Durable on return. Raises: SnapshotDamaged, DiskFull, WriteFailed."""
    identity, manifest = made.identity, made.manifest
    records = decode_lineage(identity.cluster_id, manifest.faults)
    _sweep_unfinished(files, directory)
    theirs, ours = os.path.join(copied.folder, SNAPSHOTS), os.path.join(directory, SNAPSHOTS)
    if files.exists(theirs):
        take_over_snapshots(files, copied.folder, identity, carried_fault(identity.cluster_id, records[-1] if records else None))
        shutil.rmtree(ours, ignore_errors=True)
        files.rename(theirs, ours)
        files.fsync_dir(copied.folder)
        files.fsync_dir(directory)
    _continue_faults(files, directory, identity, records)
    indexes = {partition: place.index for partition, place in manifest.partitions.items()}
    snapshots = newest_of(files, directory, identity, indexes)
    _restore_states(files, directory, snapshots)
    bring_peers(files, directory, identity, manifest, quarantine=made.quarantine)
    Log.create(
        files,
        directory,
        identity,
        segment_bytes=manifest.log.segment_bytes,
        segments=manifest.log.segments,
        reserve_bytes=manifest.log.reserve_bytes,
        initial=first_records(manifest, made.votes, snapshots),
        owner=owner,
        begun_by=MADE_BY,
    )


def first_records(manifest: CopyManifest, votes: Votes, snapshots: dict[int, Snapshot]) -> list[bytes]:
    """The CHECKPOINT of every group: it ends where its state does, and a vote is this node's own or none."""
    groups = GroupStates()
    for group, state in manifest.groups.items():
        groups.by_partition[group] = GroupState.from_json(state.to_json())
    for partition, place in manifest.partitions.items():
        end_at(groups, PartitionResult(partition, **asdict(place)))
    for group, state in groups.by_partition.items():
        term, vote = newer_vote((state.term, None), votes.get(group, NO_VOTE))
        groups.by_partition[group] = replace(
            state, term=term, vote=vote, commit=state.last_index, commit_term=state.last_term,
            snapshots=[_mark(manifest, group, snapshots[group])] if group in snapshots else [],
            catalogs={version: _stated_here(catalog) for version, catalog in state.catalogs.items()},
        )  # fmt: skip
    return groups.checkpoints(oldest_block=1)


def bring_peers(files: Files, directory: str, identity: Identity, manifest: CopyManifest, *, quarantine: str) -> None:
    """The book of peers begins with what the source had met, and with what this node's old directory had. Durable on return."""
    before = _peers_before(files, os.path.join(directory, QUARANTINE_FOLDER, quarantine), identity) if quarantine else {}
    begin_book(files, directory, identity, newer_records(manifest.peers, before))


def _peers_before(files: Files, folder: str, identity: Identity) -> dict[NodeId, PeerRecord]:
    """What the old directory had met; nothing where it was not this node's, or cannot be read."""
    if not files.exists(os.path.join(folder, INSTANCE_NAME)):
        return {}
    try:
        former = load_instance(files, folder).identity
        if (former.cluster_id, former.node_id) != (identity.cluster_id, identity.node_id):
            return {}
        return read_peers(files, folder, former)
    except WalError as error:
        log.warning("old_book_unreadable", why=full_text(error))
        return {}


def _mark(manifest: CopyManifest, partition: int, snapshot: Snapshot) -> dict[str, Any]:
    """Of a snapshot, as the log states it."""
    return {"name": snapshot.name, **asdict(manifest.partitions[partition]), "log_block": FIRST_RECORDS_BLOCK}


def _stated_here(catalog: LoggedCatalog) -> LoggedCatalog:
    used = min(catalog.used_block, FIRST_RECORDS_BLOCK)
    return replace(catalog, stated_block=FIRST_RECORDS_BLOCK, used_block=used)


def decode_lineage(cluster_id: bytes, faults: tuple[bytes, ...]) -> list[FaultRecord]:
    """The failure sets as the source sent them. Raises: Foreign."""
    try:
        return [decode_fault(cluster_id, record)[0] for record in faults]
    except BadFaultLog as error:
        raise Foreign(f"the fault records of the copy are of another cluster, or have changed: {error}") from error


def _continue_faults(files: Files, directory: str, identity: Identity, records: list[FaultRecord]) -> None:
    """Sequence numbers never start again. The node stays in a set that lists it until the cluster has decided one without it."""
    if records:
        FaultLog.open(files, directory, identity).adopt(records)


def _restore_states(files: Files, directory: str, snapshots: dict[int, Snapshot]) -> None:
    files.mkdir(os.path.join(directory, STATE_FOLDER))
    trust = Trust(files, directory)
    for partition, snapshot in sorted(snapshots.items()):
        restore(snapshot, state_path(directory, partition))
        trust.grant(partition)


def _sweep_unfinished(files: Files, directory: str) -> None:
    """Removes what an interrupted run has made, but for the snapshots: they may have been moved here."""
    for name in FOLDERS:
        if name != SNAPSHOTS:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    if not files.exists(os.path.join(directory, FAULTS_FOLDER)):
        files.mkdir(os.path.join(directory, FAULTS_FOLDER))
    files.fsync_dir(directory)


def read_votes(files: Files, directory: str) -> Votes:
    """Term and vote of every group, from the hard state file and from the log. {}: neither can be read."""
    noted, logged = _noted_votes(files, directory), _logged_votes(files, directory)
    return {group: newer_vote(noted.get(group, NO_VOTE), logged.get(group, NO_VOTE)) for group in sorted({*noted, *logged})}


def newer_vote(known: Vote, other: Vote) -> Vote:
    """The higher term holds, with its vote; in the same term a vote holds against none."""
    return other if other[0] > known[0] or (other[0] == known[0] and known[1] is None) else known


def _noted_votes(files: Files, directory: str) -> Votes:
    with contextlib.suppress(WalError, OSError, ValueError, KeyError):
        return dict(read_hardstate(files, os.path.join(directory, LOG_FOLDER))[0].votes)
    return {}


def _logged_votes(files: Files, directory: str) -> Votes:
    with contextlib.suppress(WalError, OSError, BadRecord):
        return dict(fold_end(open_source(files, directory, accept_data_loss=True)).votes)
    return {}
