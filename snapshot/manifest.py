"""The manifest: what a snapshot holds, its position, and checksums that show a change of it.

One rule: it is checked once, here, and trusted inside. It carries its own checksum, the checksums of every file beside it, and
everything that is needed to continue from the image without the log before it: configuration, catalog with the code bundles,
schema, environment and key policy.

A snapshot is the folder `snapshots/p<partition>-<index>` (a further image of the same position: `-2`, `-3`, …) with
`manifest.json` and one SQLite file: `image.sqlite`, the whole state, or `delta.sqlite`, the rows that changed since another
snapshot, its *base* (`snapshot.capture.delta`). A delta names its base by the checksum of the base's manifest: another snapshot
of the same name is not it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import google_crc32c

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.format.checked_json import MANIFEST_BYTES_MAX, crc32c_of, decode_checked, encode_checked
from cmdlog.wal.format.json_reader import BadJson
from cmdlog.work_progress import count_progress
from snapshot.errors import SnapshotDamaged, SnapshotForeign

CRC_KEY: Final = "manifest_crc32c"  # `checksum` is the last entry's
FORMAT: Final = 1
MANIFEST_NAME: Final = "manifest.json"
IMAGE_NAME: Final = "image.sqlite"
DELTA_NAME: Final = "delta.sqlite"
CHUNK_BYTES: Final = 256 << 10  # of a file, read in one piece: 1 ms of checksums
SnapshotKind = Literal["full", "delta"]
DATA_NAME: Final[Mapping[SnapshotKind, str]] = {"full": IMAGE_NAME, "delta": DELTA_NAME}
_HERE: Final = RealFiles()
_NAME: Final = re.compile(r"p(\d{4})-(\d{16})(?:-([2-9]|[1-9]\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the snapshot."""

    name: str
    bytes: int
    crc32c: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table of the snapshot's file: see `snapshot.table_digest`."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot that a delta is applied to."""

    name: str
    index: int
    term: int
    checksum: int
    manifest_crc32c: int  # distinguishes it from any other snapshot that may ever have this name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One snapshot. `values` that the node states are JSON objects as in the log's records."""

    cluster_id: str  # hex
    node_id: int
    incarnation: str  # hex: of the life of the disk that it was taken on
    partition: int
    index: int  # the last entry that the snapshot holds
    term: int
    checksum: int  # of that entry's record
    txn_id: int  # the last transaction that the snapshot holds
    log_block: int  # every later entry of the partition is in this block of this node's log, or after it
    epoch: int  # of the configuration in force
    configuration: dict[str, Any] | None
    catalogs: dict[str, Any]  # catalog version -> the catalog record's value, with its bundle
    environment: dict[str, Any] | None
    key_policy: dict[str, Any] | None
    schema: tuple[str, ...]  # SQL of the application's tables and indexes
    tables: tuple[TableEntry, ...]  # of the image, or of the delta's own file
    files: tuple[FileEntry, ...]
    created: str  # RFC 3339; for the reader, decides nothing
    kind: SnapshotKind = "full"
    base: Base | None = None  # of a delta
    fault_record: str | None = None  # hex of the newest record of the node's fault log; None: there never was one

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        """Rows that the file holds: of a whole state, or put and taken by a delta."""
        return sum(table.rows for table in self.tables)

    @property
    def crc32c(self) -> int:
        """The checksum that the manifest's file carries, if this version wrote it."""
        return crc32c_of(_fields(self))

    def as_base(self, name: str) -> Base:
        """What a delta on this snapshot says about it."""
        return Base(name, self.index, self.term, self.checksum, self.crc32c)


def parse_created(created: str) -> float | None:
    """Seconds since 1970; None for an invalid time. The clock that wrote it may have been anything."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return None


def snapshot_name(partition: int, index: int, copy: int = 1) -> str:
    """The folder's name; `copy` counts images of one position from 1."""
    return f"p{partition:04d}-{index:016d}" + (f"-{copy}" if copy > 1 else "")


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(partition, index, copy) that a folder's name states; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3] or 1)) if match else None


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's bytes."""
    return encode_checked(_fields(manifest), key=CRC_KEY)


def _fields(manifest: Manifest) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(manifest)}


def decode_manifest_fields(data: bytes, *, path: str) -> dict[str, Any]:
    """The fields of a manifest, whose content is not checked. Raises: SnapshotDamaged."""
    try:
        return decode_checked(data, bytes_max=MANIFEST_BYTES_MAX, key=CRC_KEY)
    except BadJson as error:
        raise SnapshotDamaged(f"{path} cannot be read: {error}") from error


def decode_manifest(data: bytes, *, path: str) -> Manifest:
    """Checks the file's bytes. Raises: SnapshotDamaged, SnapshotForeign (a newer format)."""
    value = decode_manifest_fields(data, path=path)
    if value.pop("format", None) != FORMAT:
        raise SnapshotForeign(f"{path} has another format than {FORMAT}; use the newer cmdlog that wrote it")
    try:
        value["tables"] = tuple(TableEntry(**entry) for entry in value["tables"])
        value["files"] = tuple(FileEntry(**entry) for entry in value["files"])
        value["schema"] = tuple(value["schema"])
        value["base"] = Base(**value["base"]) if value["base"] is not None else None
        manifest = Manifest(**value)
    except (TypeError, KeyError) as error:
        raise SnapshotDamaged(f"{path} lacks a field: {error}") from error
    if manifest.kind not in DATA_NAME or (manifest.kind == "delta") != (manifest.base is not None):
        raise SnapshotDamaged(f"{path} is of kind {manifest.kind!r} with base {manifest.base}")
    if [entry.name for entry in manifest.files] != [DATA_NAME[manifest.kind]]:
        raise SnapshotDamaged(f"{path} lists other files than {DATA_NAME[manifest.kind]}")
    return manifest


def verify(files: Files, path: str, rest: Callable[[], bool] = lambda: False) -> Manifest:
    """Reads the whole snapshot and compares every checksum. Raises: SnapshotDamaged, SnapshotForeign."""
    manifest = read_manifest(files, path)
    for entry in manifest.files:
        found = file_entry(os.path.join(path, entry.name), rest, files=files)
        if found != entry:
            raise SnapshotDamaged(f"{os.path.join(path, entry.name)} has changed: {_difference(entry, found)}")
    return manifest


def read_manifest(files: Files, path: str) -> Manifest:
    """The manifest of the snapshot folder, checked. Raises: SnapshotDamaged, SnapshotForeign."""
    name = os.path.join(path, MANIFEST_NAME)
    try:
        manifest = decode_manifest(files.read_file(name, bytes_max=MANIFEST_BYTES_MAX), path=name)
    except (OSError, WalError) as error:
        raise SnapshotDamaged(f"{name} cannot be read: {error}") from error
    return manifest


def file_entry(path: str, rest: Callable[[], bool] = lambda: False, *, files: Files = _HERE) -> FileEntry:
    """Size and checksums of a file. Raises: SnapshotDamaged when it cannot be read."""
    crc, sha, size = 0, hashlib.sha256(), 0
    try:
        with contextlib.closing(files.open(path, read_only=True)) as file:
            while chunk := file.pread(CHUNK_BYTES, size):
                crc = google_crc32c.extend(crc, chunk)
                sha.update(chunk)
                size += len(chunk)
                count_progress()
                rest()
    except (OSError, WalError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SnapshotDamaged(f"{path} cannot be read: {why}") from error
    return FileEntry(os.path.basename(path), size, crc, sha.hexdigest())


def size_and_crc(path: str) -> tuple[int, int]:
    """Size and CRC-32C of a file. Raises: SnapshotDamaged when it cannot be read."""
    try:
        return content_of(path)
    except OSError as error:
        raise SnapshotDamaged(f"{path} cannot be read: {error.strerror}") from error


class Hurried(Exception):
    """The caller asked to stop early."""


def content_of(path: str, hurried: Callable[[], bool] = lambda: False) -> tuple[int, int]:
    """Size and CRC-32C of a file, in bounded memory. Raises: OSError; Hurried once `hurried`, asked after each piece, is True."""
    crc = size = 0
    with Path(path).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = google_crc32c.extend(crc, chunk)
            size += len(chunk)
            count_progress()
            if hurried():
                raise Hurried
    return size, crc


def _difference(wanted: FileEntry, found: FileEntry) -> str:
    if wanted.bytes != found.bytes:
        return f"{found.bytes} bytes instead of {wanted.bytes}"
    return f"CRC-32C {found.crc32c:08x} instead of {wanted.crc32c:08x}"
