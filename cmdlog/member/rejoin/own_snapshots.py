"""Copied snapshots become this node's own: their manifests are written again under its new incarnation.

One rule: what a snapshot holds stays byte for byte, and only its manifest changes: whose it is, where later entries are in the
new log, and, of a delta, the checksum of its base's new manifest. So nothing is read or made a second time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import Files
from replay.recover.to_directory import FIRST_RECORDS_BLOCK
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import Snapshot, list_snapshots
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME, Manifest, encode_manifest, read_manifest


def check_chains(files: Files, folder: str, indexes: Mapping[int, int]) -> None:
    """Whether `folder` holds of each partition a snapshot at that index with all that it depends on. Raises: SnapshotDamaged."""
    manifests = _manifests(files, folder).values()
    lives = sorted({bytes.fromhex(manifest.incarnation) for manifest in manifests})
    nodes = {(manifest.cluster_id, manifest.node_id) for manifest in manifests}
    if len(nodes) != 1:
        raise SnapshotDamaged(f"{folder} holds snapshots of {len(nodes)} nodes")
    ((cluster, node),) = nodes
    newest_of(files, folder, Identity(bytes.fromhex(cluster), node, lives[0], tuple(lives[1:])), indexes)


def newest_of(files: Files, folder: str, identity: Identity, indexes: Mapping[int, int]) -> dict[int, Snapshot]:
    """Of each partition the snapshot at that index. Raises: SnapshotDamaged."""
    found: dict[int, Snapshot] = {}
    for snapshot in list_snapshots(files, folder, identity):
        if snapshot.index == indexes.get(snapshot.partition):
            found[snapshot.partition] = snapshot
            if snapshot.manifest is None:
                raise SnapshotDamaged(snapshot.problem)
    if missing := sorted(indexes.keys() - found.keys()):
        raise SnapshotDamaged(f"{folder} holds no snapshot of partition {missing[0]} at {indexes[missing[0]]}")
    return found


def take_over_snapshots(files: Files, folder: str, identity: Identity, fault_record: str | None) -> None:
    """Rewrites every manifest below `folder`; durable on return. May be repeated after an interruption."""
    found = _manifests(files, folder)
    done: dict[str, Manifest] = {}

    def rewrite(name: str) -> Manifest:
        if name not in done:
            theirs = found[name]
            base = None if theirs.base is None else rewrite(theirs.base.name).as_base(theirs.base.name)
            done[name] = replace(
                theirs, node_id=identity.node_id, incarnation=identity.incarnation.hex(), log_block=FIRST_RECORDS_BLOCK,
                base=base, fault_record=fault_record,
            )  # fmt: skip
            path = os.path.join(folder, SNAPSHOTS, name, MANIFEST_NAME)
            files.write_file_atomic(path, encode_manifest(done[name]))
        return done[name]

    for name in sorted(found):
        rewrite(name)


def _manifests(files: Files, folder: str) -> dict[str, Manifest]:
    """By the snapshot's name. Raises: SnapshotDamaged."""
    snapshots = os.path.join(folder, SNAPSHOTS)
    return {name: read_manifest(files, os.path.join(snapshots, name)) for name in files.listdir(snapshots)}
