"""The catalog: which snapshots a node has, which of them can be relied on, how one is restored and removed.

One rule: a name decides only where to look. Only folders of the strict pattern are read; a snapshot counts after its
manifest, its owner and its checksums were compared, and one that fails is reported and its predecessor is used instead.

Removal is a rename to a temporary name first: what a crash leaves of it is never taken for a snapshot.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files, parent
from procedures.storage.state import Position
from snapshot.archive_layout import ARCHIVE, archived_snapshot
from snapshot.background_io import remove_tree
from snapshot.capture.delta import apply_deltas
from snapshot.errors import SnapshotDamaged, SnapshotError, SnapshotForeign
from snapshot.manifest import (
    DATA_NAME,
    Base,
    Manifest,
    parse_name,
    read_manifest,
    size_and_crc,
    snapshot_name,
    verify,
)
from snapshot.restore_speed import note_speed

FOLDER: Final = "snapshots"
TEMPORARY: Final = re.compile(r"tmp-p\d{4}-[0-9a-f]{16}")
STATE_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot folder. `manifest` is None when it, or what it depends on, cannot be relied on, and `problem` says why."""

    path: str
    partition: int
    index: int
    copy: int
    manifest: Manifest | None
    problem: str = ""
    bases: tuple[Snapshot, ...] = ()  # of a delta: what it depends on, down to a whole image
    name: str = field(kw_only=True)  # the same in snapshots/ and in the archive

    @property
    def chain(self) -> tuple[Snapshot, ...]:
        """All that a restore needs: itself, its base, and so on; the whole image is the last."""
        return self, *self.bases

    @property
    def chain_bytes(self) -> int:
        """Of the image, and of all deltas on it: what a restore reads."""
        return sum(file.bytes for link in self.chain if link.manifest is not None for file in link.manifest.files)

    @property
    def archived(self) -> bool:
        """It is in the archive: it no longer counts, but a promised window or a recovery point needs it."""
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


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as the interfaces show it."""
    shown: dict[str, Any] = {"name": snapshot.name, "partition": snapshot.partition, "index": snapshot.index}
    if snapshot.manifest is None:
        return {**shown, "problem": snapshot.problem}
    manifest = snapshot.manifest
    return {
        **shown,
        "term": manifest.term,
        "txn_id": str(manifest.txn_id),
        "bytes": manifest.bytes,
        "rows": sum(table.rows for table in manifest.tables if not table.name.startswith("_cmdlog_")),
        "kind": manifest.kind,
        "base": manifest.base.name if manifest.base is not None else None,
        "created": manifest.created,
        "log_block": manifest.log_block,
    }


def list_snapshots(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    """Every snapshot of the node directory by (partition, age), newest last. Manifests are checked, images are not read."""
    return _linked(_look_all(files, directory, identity), lambda: _look_archived(files, directory, identity))


def list_archived(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    """Every snapshot in the archive, in the order of `list_snapshots`."""
    return _linked(_look_archived(files, directory, identity), lambda: _look_all(files, directory, identity))


def _look_all(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    folder = os.path.join(directory, FOLDER)
    return _read_folders(files, identity, {os.path.join(folder, name): name for name in _names_in(files, folder)})


def _look_archived(files: Files, directory: str, identity: Identity) -> list[Snapshot]:
    folder = os.path.join(directory, ARCHIVE)
    own = {os.path.join(folder, name): archived_snapshot(name) or "" for name in _names_in(files, folder)}
    return _read_folders(files, identity, own)


def _names_in(files: Files, folder: str) -> Sequence[str]:
    return files.listdir(folder) if files.exists(folder) else ()


def _read_folders(files: Files, identity: Identity, names: Mapping[str, str]) -> list[Snapshot]:
    """The snapshots among these folders: path -> the snapshot's own name."""
    read = [_read_folder(files, path, name, identity) for path, name in names.items()]
    snapshots = [snapshot for snapshot in read if snapshot is not None]
    return sorted(snapshots, key=lambda snapshot: (snapshot.partition, *snapshot.order))


def _linked(found: list[Snapshot], elsewhere: Callable[[], list[Snapshot]]) -> list[Snapshot]:
    """The snapshots with their bases, which lie among them, or else among those `elsewhere`."""
    if all(s.manifest is None or s.manifest.base is None for s in found):
        return found
    here: dict[tuple[int, str], list[Snapshot]] = {}
    for snapshot in [*elsewhere(), *found]:
        here.setdefault((snapshot.partition, snapshot.name), []).append(snapshot)
    links = _Links(here)
    return [links.resolve(snapshot) for snapshot in found]


class _Links:
    """Finds the base of each delta: by the name that it states, and by the checksum of the manifest."""

    def __init__(self, by_name: Mapping[tuple[int, str], Sequence[Snapshot]]) -> None:
        self._by_name = by_name
        self._resolved: dict[str, Snapshot] = {}  # path -> with its bases

    def resolve(self, snapshot: Snapshot) -> Snapshot:
        """Of a delta whose base cannot be relied on, `problem` says so."""
        base = snapshot.manifest.base if snapshot.manifest is not None else None
        if base is None:
            return snapshot
        if snapshot.path not in self._resolved:
            # Whatever refers to it meanwhile would be a ring: no such thing can be written, but it could be forged.
            self._resolved[snapshot.path] = _without_base(snapshot, base.name, "which in turn depends on it")
            self._resolved[snapshot.path] = self._on_base(snapshot, base)
        return self._resolved[snapshot.path]

    def _on_base(self, snapshot: Snapshot, stated: Base) -> Snapshot:
        named = self._by_name.get((snapshot.partition, stated.name), ())
        if not named:
            return _without_base(snapshot, stated.name, "which is missing")
        for candidate in named:
            if candidate.manifest is not None and candidate.manifest.as_base(stated.name) == stated:
                base = self.resolve(candidate)
                if base.manifest is None:
                    return _without_base(snapshot, stated.name, f"which cannot be relied on: {base.problem}")
                return replace(snapshot, bases=base.chain)
        problems = [candidate.problem for candidate in named if candidate.manifest is None]
        why = f"which cannot be relied on: {problems[0]}" if problems else "and a different snapshot has that name now"
        return _without_base(snapshot, stated.name, why)


def _without_base(snapshot: Snapshot, name: str, why: str) -> Snapshot:
    return replace(snapshot, manifest=None, problem=f"{snapshot.path} holds the changes since {name}, {why}")


def check(files: Files, snapshot: Snapshot) -> str:
    """Reads the whole snapshot with all that it depends on; why it cannot be relied on, "" when it can."""
    if snapshot.manifest is None:
        return snapshot.problem
    try:
        verify(files, snapshot.path)
        for base in snapshot.bases:
            verify(files, base.path)
    except SnapshotError as error:
        return str(error)
    return ""


@dataclass(slots=True)
class TimedChecks:
    """Checks snapshots, each once, and adds up what that took."""

    files: Files
    bytes: int = 0
    seconds: float = 0.0
    _problems: dict[str, str] = field(default_factory=dict)  # by path

    def problem_of(self, snapshot: Snapshot) -> str:
        """What `check` says."""
        if snapshot.path not in self._problems:
            began = time.monotonic()
            self.bytes += snapshot.chain_bytes
            self._problems[snapshot.path] = check(self.files, snapshot)
            self.seconds += time.monotonic() - began
        return self._problems[snapshot.path]


def restore(snapshot: Snapshot, target: str) -> None:
    """Restores the snapshot as a state file: a copy of the image, with its deltas applied.

    A crash in between leaves no state file at `target`, so it is done again. Not durable: the snapshot and the log are. Raises:
    SnapshotDamaged when a file is not what its manifest says; OSError, apsw.FullError, apsw.IOError.
    """
    if snapshot.manifest is None:
        raise SnapshotDamaged(snapshot.problem)
    *deltas, image = snapshot.chain
    began = time.monotonic()
    remove_state(target)
    temporary = f"{target}.restore"
    remove_state(temporary)  # with a log beside it that a crash may have left: it would be applied to the new copy
    try:
        _copy_image(image, temporary)
        if deltas:
            _apply_chain(snapshot, deltas, temporary)
    except BaseException:
        remove_state(temporary)
        raise
    os.rename(temporary, target)
    note_speed(os.path.dirname(target), "restore", size_bytes=snapshot.chain_bytes, seconds=time.monotonic() - began)


def _copy_image(snapshot: Snapshot, target: str) -> None:
    shutil.copyfile(data_path(snapshot), target)
    if not _is_stated(target, snapshot):
        raise SnapshotDamaged(f"{data_path(snapshot)} changed while it was copied")


def _apply_chain(snapshot: Snapshot, deltas: Sequence[Snapshot], target: str) -> None:
    for delta in deltas:
        if not _is_stated(data_path(delta), delta):
            raise SnapshotDamaged(f"{data_path(delta)} has changed")
    m = snapshot.manifest
    assert m is not None
    apply_deltas(target, [data_path(d) for d in reversed(deltas)], Position(m.index, m.term, m.checksum, m.txn_id))


def data_path(snapshot: Snapshot) -> str:
    """Path of the image, or of the changes of a delta."""
    return os.path.join(snapshot.path, DATA_NAME[snapshot.manifest.kind if snapshot.manifest is not None else "full"])


def _is_stated(path: str, snapshot: Snapshot) -> bool:
    """Against a bad copy or bad memory, not a forger: SHA-256, which `check` compares, would take three times the copy."""
    stated = snapshot.manifest.files[0] if snapshot.manifest is not None else None
    return stated is not None and size_and_crc(path) == (stated.bytes, stated.crc32c)


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

    It sorts after all existing ones: an idle partition's newest must sort as the newest, or retention would take it for the
    oldest.
    """
    parsed = [parse_name(name) for name in files.listdir(os.path.join(directory, FOLDER))]
    copies = [name[2] for name in parsed if name is not None and name[:2] == (partition, index)]
    return os.path.join(directory, FOLDER, snapshot_name(partition, index, max(copies, default=0) + 1))


def clean(files: Files, directory: str) -> list[str]:
    """Removes what interrupted captures, seals and removals left; returns the names."""
    folder = os.path.join(directory, FOLDER)
    names = [name for name in files.listdir(folder) if TEMPORARY.fullmatch(name)] if files.exists(folder) else []
    for name in names:
        shutil.rmtree(os.path.join(folder, name))
    return names


def remove(files: Files, snapshot: Snapshot) -> None:
    """Removes the snapshot's name, durably, then its files."""
    folder = parent(snapshot.path)
    temporary = temporary_path(parent(folder), snapshot.partition)
    files.rename(snapshot.path, temporary)
    files.fsync_dir(folder)
    remove_tree(temporary)


def set_aside(files: Files, snapshot: Snapshot) -> str:
    """Moves a snapshot that must never be used out of the catalog, but keeps it for inspection; durable on return."""
    folder = parent(snapshot.path)
    target = os.path.join(folder, f"void-{snapshot.name}")
    if files.exists(target):
        shutil.rmtree(target)
    files.rename(snapshot.path, target)
    files.fsync_dir(folder)
    return target


def _read_folder(files: Files, path: str, name: str, identity: Identity) -> Snapshot | None:
    """None for a folder whose name is not a snapshot's."""
    if (parsed := parse_name(name)) is None:
        return None
    partition, index, copy = parsed
    try:
        manifest = read_manifest(files, path)
        _check_owner(manifest, path, parsed, identity)
        _check_size(files, path, manifest)
    except SnapshotError as error:
        return Snapshot(path, partition, index, copy, None, str(error), name=name)
    return Snapshot(path, partition, index, copy, manifest, name=name)


def _check_owner(manifest: Manifest, path: str, parsed: tuple[int, int, int], identity: Identity) -> None:
    if not identity.owns(_owner(manifest)):
        whose = f"cluster {manifest.cluster_id}, node {manifest.node_id}, incarnation {manifest.incarnation}"
        raise SnapshotForeign(f"{path} is a snapshot of {whose}; this directory belongs to {identity}")
    if (manifest.partition, manifest.index) != parsed[:2]:
        raise SnapshotForeign(f"{path} holds partition {manifest.partition} at {manifest.index}: it was renamed")


def _owner(manifest: Manifest) -> Identity:
    return Identity(bytes.fromhex(manifest.cluster_id), manifest.node_id, bytes.fromhex(manifest.incarnation))


def _check_size(files: Files, path: str, manifest: Manifest) -> None:
    for entry in manifest.files:
        name = os.path.join(path, entry.name)
        try:
            with contextlib.closing(files.open(name, read_only=True)) as file:
                size = file.size()
        except (OSError, WalError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SnapshotDamaged(f"{name} cannot be read: {why}") from error
        if size != entry.bytes:
            raise SnapshotDamaged(f"{name} has {size} bytes instead of {entry.bytes}")
