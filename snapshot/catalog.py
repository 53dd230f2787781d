"""The catalog: which snapshots a node has, which of them can be relied on, how one is restored and removed.

One rule: a name decides nothing but where to look. Only folders of the strict pattern are looked at; a snapshot counts after its
manifest, its owner and its checksums were compared, and one that fails is named and passed over for its predecessor.

Removal is a rename to a temporary name first: what a crash leaves of it is never taken for a snapshot.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.files import Files, parent
from cmdlog.wal.instance import Identity
from snapshot.archived import ARCHIVE, archived_snapshot
from snapshot.errors import SnapshotDamaged, SnapshotError, SnapshotForeign
from snapshot.gentle import remove_tree
from snapshot.manifest import IMAGE_NAME, Manifest, parse_name, snapshot_name
from snapshot.seal import file_entry, read_manifest, verify

FOLDER: Final = "snapshots"
TEMPORARY: Final = re.compile(r"tmp-p\d{4}-[0-9a-f]{16}")
STATE_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot folder. `manifest` is None when it cannot be relied on, and `problem` says why."""

    path: str
    partition: int
    index: int
    copy: int
    manifest: Manifest | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The same in snapshots/ and in the archive."""
        own = os.path.basename(self.path)
        return archived_snapshot(own) or own

    @property
    def archived(self) -> bool:
        """It lies in the archive: it does not count any more, and a promised window or a recovery point needs it."""
        return os.path.basename(parent(self.path)) == ARCHIVE

    @property
    def order(self) -> tuple[int, int]:
        """Ascending with age: the newest has the highest."""
        return self.index, self.copy


@dataclass(frozen=True, slots=True)
class Passed:
    """A snapshot that was not used."""

    name: str
    why: str


def list_snapshots(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    """Every snapshot of the node directory by (partition, age), newest last. Manifests are checked, images are not read."""
    folder = os.path.join(directory, FOLDER)
    found = []
    for name in files.listdir(folder) if files.exists(folder) else ():
        if (parsed := parse_name(name)) is not None:
            found.append(_look(files, os.path.join(folder, name), parsed, identity))
    return sorted(found, key=lambda snapshot: (snapshot.partition, *snapshot.order))


def list_archived(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    """Every snapshot in the archive, in the order of `list_snapshots`."""
    folder = os.path.join(directory, ARCHIVE)
    found = []
    for name in files.listdir(folder) if files.exists(folder) else ():
        own = archived_snapshot(name)
        if own is not None and (parsed := parse_name(own)) is not None:
            found.append(_look(files, os.path.join(folder, name), parsed, identity))
    return sorted(found, key=lambda snapshot: (snapshot.partition, *snapshot.order))


def check(files: Files, snapshot: Snapshot) -> str:
    """Reads the whole snapshot; why it cannot be relied on, "" when it can."""
    if snapshot.manifest is None:
        return snapshot.problem
    try:
        verify(files, snapshot.path)
    except SnapshotError as error:
        return str(error)
    return ""


def restore(snapshot: Snapshot, target: str) -> None:
    """Puts a copy of the image in the place of a state file.

    A crash on the way leaves no state file at `target`, so it is done again. Not durable: the snapshot and the log are. Raises:
    SnapshotDamaged when the copy is not what the manifest says; OSError.
    """
    remove_state(target)
    temporary = f"{target}.restore"
    image = os.path.join(snapshot.path, IMAGE_NAME)
    try:
        shutil.copyfile(image, temporary)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    copy, manifest = file_entry(temporary), snapshot.manifest
    if manifest is None or (copy.bytes, copy.sha256) != (manifest.files[0].bytes, manifest.files[0].sha256):
        os.unlink(temporary)
        raise SnapshotDamaged(f"{image} changed while it was copied")
    os.rename(temporary, target)


def remove_state(target: str) -> None:
    """Removes a state file and what SQLite keeps beside it. The file itself goes first, so that no half of it looks whole."""
    for path in (target, *(target + suffix for suffix in STATE_SIDE_FILES)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def temporary_path(directory: str, partition: int) -> str:
    """A new name for a snapshot that is being made."""
    return os.path.join(directory, FOLDER, f"tmp-p{partition:04d}-{os.urandom(8).hex()}")


def free_path(files: Files, directory: str, *, partition: int, index: int) -> str:
    """The folder that the next snapshot of this position gets.

    Behind all that are there: an idle partition's newest must sort as the newest, or retention would take it for the oldest.
    """
    parsed = [parse_name(name) for name in files.listdir(os.path.join(directory, FOLDER))]
    copies = [name[2] for name in parsed if name is not None and name[:2] == (partition, index)]
    return os.path.join(directory, FOLDER, snapshot_name(partition, index, max(copies, default=0) + 1))


def clean(files: Files, directory: str) -> list[str]:
    """Removes what broken-off captures, seals and removals left; returns the names."""
    folder = os.path.join(directory, FOLDER)
    names = [name for name in files.listdir(folder) if TEMPORARY.fullmatch(name)] if files.exists(folder) else []
    for name in names:
        shutil.rmtree(os.path.join(folder, name))
    return names


def remove(files: Files, snapshot: Snapshot) -> None:
    """Takes the snapshot's name away, durably, then its files."""
    folder = parent(snapshot.path)
    temporary = temporary_path(parent(folder), snapshot.partition)
    files.rename(snapshot.path, temporary)
    files.fsync_dir(folder)
    remove_tree(temporary)


def set_aside(files: Files, snapshot: Snapshot) -> str:
    """Takes a snapshot that must never be used out of the catalog, for whoever wants to look at it; durable on return."""
    folder = parent(snapshot.path)
    target = os.path.join(folder, f"void-{snapshot.name}")
    if files.exists(target):
        shutil.rmtree(target)
    files.rename(snapshot.path, target)
    files.fsync_dir(folder)
    return target


def _look(files: Files, path: str, parsed: tuple[int, int, int], identity: Identity) -> Snapshot:
    partition, index, copy = parsed
    try:
        manifest = read_manifest(files, path)
        _check_owner(manifest, path, parsed, identity)
        _check_size(path, manifest)
    except SnapshotError as error:
        return Snapshot(path, partition, index, copy, None, str(error))
    return Snapshot(path, partition, index, copy, manifest)


def _check_owner(manifest: Manifest, path: str, parsed: tuple[int, int, int], identity: Identity) -> None:
    ours = (identity.cluster_id.hex(), identity.node_id, identity.incarnation.hex())
    if (manifest.cluster_id, manifest.node_id, manifest.incarnation) != ours:
        whose = f"cluster {manifest.cluster_id}, node {manifest.node_id}, incarnation {manifest.incarnation}"
        raise SnapshotForeign(f"{path} is a snapshot of {whose}; this directory belongs to {identity}")
    if (manifest.partition, manifest.index) != parsed[:2]:
        raise SnapshotForeign(f"{path} holds partition {manifest.partition} at {manifest.index}: it was renamed")


def _check_size(path: str, manifest: Manifest) -> None:
    for entry in manifest.files:
        name = os.path.join(path, entry.name)
        try:
            size = os.stat(name).st_size
        except OSError as error:
            raise SnapshotDamaged(f"{name} cannot be read: {error.strerror}") from error
        if size != entry.bytes:
            raise SnapshotDamaged(f"{name} has {size} bytes instead of {entry.bytes}")
