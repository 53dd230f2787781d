"""A small file of one JSON object that proves itself intact: `rejoin.json`, `tombstone.json`, the manifest of a copy.

One rule: it is replaced as a whole, durably, and read only if its checksum fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files, parent
from snapshot.checksummed_json import decode_manifest_fields, encode_manifest_fields
from snapshot.errors import SnapshotDamaged


def read_checked_json(files: Files, path: str) -> dict[str, Any] | None:
    """The object; None where there is no such file. Raises: Corrupt."""
    if not files.exists(path):
        return None
    try:
        return decode_manifest_fields(files.read_file(path), path=path)
    except SnapshotDamaged as error:
        raise Corrupt(f"the file does not hold what was written ({error})", path=path) from error


def write_checked_json(files: Files, path: str, value: Mapping[str, Any]) -> None:
    """Durable on return, the folder's name too. Raises: DiskFull, WriteFailed."""
    folder = parent(path)
    if not files.exists(folder):
        files.mkdir(folder)
        files.fsync_dir(parent(folder))
    files.write_file_atomic(path, encode_manifest_fields(value))


def remove_checked_json(files: Files, path: str) -> None:
    """Durable on return; nothing happens where there is no such file."""
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(parent(path))
