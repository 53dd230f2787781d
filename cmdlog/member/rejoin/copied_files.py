"""The files of a copy as they arrive in `copying/`.

One rule: a file has its name only when all of it is durable and has the checksum that the manifest states. Before that it lies in
`copying/parts/`, and what is there is read again when the copy is resumed: nobody synced it.

    copying/parts/<crc32c>-<size>            the first bytes of a file
    copying/snapshots/<snapshot>/<file>      a whole file, under the name that it has in a node's directory
    copying/manifest.json                    all of the copy is here: what the source said of it

Copied snapshots become this node's own: what they hold stays byte for byte, and only their manifests are written again: whose a
snapshot is, where later entries are in the new log, and, of a delta, the checksum of its base's new manifest. So nothing is read
or made a second time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import google_crc32c

from cmdlog.cluster.copying.copy_client import ChunkDamaged
from cmdlog.cluster.copying.copy_values import CopyFile, CopyManifest
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, DiskFull
from cmdlog.wal.files import File, Files, parent
from cmdlog.wal.format.checked_json import MANIFEST_BYTES_MAX, read_checked, write_checked
from cmdlog.wal.format.record import BadRecord
from replay.recover.to_directory import FIRST_RECORDS_BLOCK
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import Snapshot, list_snapshots
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME, Manifest, encode_manifest, read_manifest

COPYING_FOLDER: Final = "copying"
PARTS_FOLDER: Final = "parts"
READ_BYTES: Final = 1 << 20

ReadFrom = Callable[[int], Iterator[bytes]]
"""The bytes of a file from an offset on."""


class CopiedFiles:
    """Of one directory. One thread."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files, self._directory = files, directory
        self.folder = os.path.join(directory, COPYING_FOLDER)
        self._parts = os.path.join(self.folder, PARTS_FOLDER)
        self._snapshots = os.path.join(self.folder, SNAPSHOTS)
        self._whole: set[CopyFile] = set()  # that were checked by this process; without their numbers

    def begin_copy(self) -> None:
        """Makes the folders. Raises: DiskFull, WriteFailed."""
        for folder in (self.folder, self._parts, self._snapshots):
            if not self._files.exists(folder):
                self._files.mkdir(folder)
            self._files.fsync_dir(parent(folder))

    def check_room(self, manifest: CopyManifest) -> None:
        """Whether the volume can take what is missing, and the states that are made of it. Raises: DiskFull."""
        arrived = sum(file.size for file in manifest.files if self._files.exists(self._path(file)))
        needed = 2 * manifest.size - arrived
        volume = os.statvfs(self.folder)
        if (free := volume.f_bavail * volume.f_frsize) < needed:
            raise DiskFull(
                f"the copy needs {needed} bytes in {self._directory} and its volume has {free}",
                hint="free space on that volume, then start again: what was copied stays, and the copy is resumed",
            )

    def is_whole(self, file: CopyFile) -> bool:
        """Whether the file is here: with this name, size and checksum. Reads it once."""
        key = _without_number(file)
        if key in self._whole:
            return True
        path = self._path(file)
        if not self._files.exists(path):
            return False
        opened = self._files.open(path, read_only=True)
        try:
            matches = opened.size() == file.size and _crc_of(opened, file.size) == file.crc32c
        finally:
            opened.close()
        if matches:
            self._whole.add(key)
        return matches

    def fetch_file(self, file: CopyFile, read_from: ReadFrom, arrived: Callable[[int], None]) -> None:
        """Brings the file here, from where an earlier run was interrupted; durable on return with its name.

        `arrived` gets the number of bytes after each piece, those of the earlier run first.
        Raises: ChunkDamaged when the whole has another checksum, and then nothing of it is kept; DiskFull, WriteFailed, and then
        what has arrived is kept; what `read_from` and `arrived` raise.
        """
        part = os.path.join(self._parts, f"{file.crc32c:08x}-{file.size}")
        opened = self._files.open(part, create=True)
        try:
            done = min(opened.size(), file.size)
            crc = _crc_of(opened, done)
            arrived(done)
            if done < file.size:
                for piece in read_from(done):
                    opened.pwrite(piece, done)
                    crc, done = int(google_crc32c.extend(crc, piece)), done + len(piece)
                    arrived(len(piece))
            if (done, crc) == (file.size, file.crc32c):
                opened.truncate(file.size)
                self._sync_part(opened)
        finally:
            opened.close()
        # Three ends: it arrived as stated, and gets its name; it did not, and goes; it was interrupted, and what is there stays.
        if (done, crc) != (file.size, file.crc32c):
            self._files.unlink(part)
            raise ChunkDamaged(
                f"{file.name} arrived with {done} bytes and CRC-32C {crc:08x}, not {file.size} and {file.crc32c:08x}"
            )
        self._name_file(part, file)

    def _sync_part(self, opened: File) -> None:
        try:
            opened.fsync()
        except BaseException:  # a second sync would succeed and prove nothing
            self._files.unlink(opened.path)
            raise

    def _name_file(self, part: str, file: CopyFile) -> None:
        path = self._path(file)
        if not self._files.exists(folder := parent(path)):
            self._files.mkdir(folder)
            self._files.fsync_dir(parent(folder))
        self._files.rename(part, path)
        self._files.fsync_dir(self._parts)
        self._files.fsync_dir(folder)
        self._whole.add(_without_number(file))

    def end_copy(self, manifest: CopyManifest) -> None:
        """All of the copy is here: what belongs to another one goes, and the manifest is written. Durable on return."""
        self._keep_only(manifest.files)
        write_checked(self._files, os.path.join(self.folder, MANIFEST_NAME), manifest.to_json())

    def read_manifest(self) -> CopyManifest:
        """Of the copy that is here whole. Raises: Corrupt."""
        path = os.path.join(self.folder, MANIFEST_NAME)
        value = read_checked(self._files, path, bytes_max=MANIFEST_BYTES_MAX)
        if value is None:
            raise Corrupt("the manifest of the copy is missing", path=path)
        try:
            return CopyManifest.from_json(value)
        except (ValueError, KeyError, TypeError, BadRecord) as error:
            raise Corrupt(f"the manifest of the copy cannot be read ({error!r})", path=path) from error

    def remove_copy(self) -> None:
        """Removes the folder with all that is left in it."""
        self._whole.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._files.fsync_dir(self._directory)

    def _keep_only(self, wanted: Iterable[CopyFile]) -> None:
        """Removes snapshots of another copy, and parts."""
        names = {file.name for file in wanted}
        shutil.rmtree(self._parts, ignore_errors=True)
        for snapshot in self._files.listdir(self._snapshots):
            folder = os.path.join(self._snapshots, snapshot)
            for name in self._files.listdir(folder):
                if f"{snapshot}/{name}" not in names:
                    self._files.unlink(os.path.join(folder, name))
            if not self._files.listdir(folder):
                os.rmdir(folder)
        self._files.fsync_dir(self._snapshots)

    def _path(self, file: CopyFile) -> str:
        return os.path.join(self._snapshots, *file.name.split("/"))


def _without_number(file: CopyFile) -> CopyFile:
    return CopyFile(0, file.partition, file.name, file.size, file.crc32c)


def _crc_of(file: File, size: int) -> int:
    """Of the first `size` bytes."""
    crc = offset = 0
    while offset < size and (piece := file.pread(min(READ_BYTES, size - offset), offset)):
        crc, offset = int(google_crc32c.extend(crc, piece)), offset + len(piece)
    return crc


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
