"""The failure sets that a node directory knows, and how a recovered node continues them.

One rule: sequence numbers never start again. A recovered node's fault log continues the chain of the directories that it is made
from. Where no copy of a fault log can be read, the newest record that a snapshot carries takes its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from cmdlog.wal.directory.instance import Identity, load_instance
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.fault_log import FAULTS_FOLDER, FaultLog, FaultRecord, read_faults
from cmdlog.wal.fault_record import BadFaultLog, decode_fault, encode_fault
from cmdlog.wal.files import Files
from snapshot.catalog import list_archived, list_snapshots
from snapshot.manifest import Manifest


def known_faults(files: Files, directory: str, identity: Identity) -> tuple[FaultRecord, ...]:
    """The node's records, ascending and without gaps; none: its cluster never declared a failure.

    Raises: Corrupt when neither the fault log nor a snapshot can say; Foreign, NewerFormat.
    """
    carried = _newest_carried(files, directory, identity)
    try:
        records = read_faults(files, directory, identity)
    except Corrupt:
        if carried is None:
            raise
        return (carried,)
    return _with_carried(records, carried)


def known_to_all(files: Files, directories: Sequence[str], records: Sequence[FaultRecord]) -> tuple[FaultRecord, ...]:
    """The common records of several nodes' fault logs, or the newest record of their snapshots where that is newer."""
    lineage = tuple(records)
    for directory in directories:
        with contextlib.suppress(WalError):  # a directory that cannot be read is named by the plan
            lineage = _with_carried(lineage, _newest_carried(files, directory, load_instance(files, directory).identity))
    return lineage


def continue_faults(files: Files, directory: str, identity: Identity, lineage: Sequence[FaultRecord]) -> None:
    """The fault log of the new node begins with these records; the node itself is whole, so it is no longer in the set.

    Durable on return.
    """
    if not lineage:
        return
    if not files.exists(folder := os.path.join(directory, FAULTS_FOLDER)):
        files.mkdir(folder)
    log = FaultLog.open(files, directory, identity)
    log.adopt(lineage)
    if identity.node_id in log.failed:
        last = lineage[-1]
        log.append(
            failed=log.failed - {identity.node_id}, epoch=last.epoch, term=last.term, reason="recovered from what was left"
        )


def carried_fault(cluster_id: bytes, record: FaultRecord | None) -> str | None:
    """The record as a snapshot's manifest carries it."""
    return None if record is None else encode_fault(cluster_id, record).hex()


def _with_carried(records: tuple[FaultRecord, ...], carried: FaultRecord | None) -> tuple[FaultRecord, ...]:
    """A chain may begin anywhere: the record names its predecessor's checksum."""
    return records if carried is None or (records and records[-1].sequence >= carried.sequence) else (carried,)


def _newest_carried(files: Files, directory: str, identity: Identity) -> FaultRecord | None:
    """The record with the highest sequence number in any snapshot's manifest."""
    snapshots = [*list_snapshots(files, directory, identity), *list_archived(files, directory, identity)]
    records = [_decoded(snapshot.manifest) for snapshot in snapshots if snapshot.manifest is not None]
    return max((record for record in records if record is not None), key=lambda record: record.sequence, default=None)


def _decoded(manifest: Manifest) -> FaultRecord | None:
    if manifest.fault_record is None:
        return None
    try:
        return decode_fault(bytes.fromhex(manifest.cluster_id), bytes.fromhex(manifest.fault_record))[0]
    except (BadFaultLog, ValueError):
        return None
