"""Seal: makes a captured image or delta a snapshot. `python -m snapshot.background_process
snapshot.capture.seal TEMP FINAL POLICY`, the facts as JSON on standard input.

One rule: a folder has a snapshot's name only when everything in it is durable and was read back. So whatever a crash leaves is
either a complete snapshot or a folder with a temporary name, which the next start removes:

    file captured, nothing else  temporary name                 -> removed
    manifest written             temporary name                 -> removed
    files and folder synced      temporary name                 -> removed
    renamed, folder not synced   either name, content whole     -> removed, or a snapshot that nothing relies on yet
    parent folder synced         a snapshot                     -> used; the log's mark and anchor come after it

It is a process of its own, of low priority, because checksums of a large image would hold up the node's threads (the driver keeps
the interpreter lock between rows). It rests often: low priority alone does not let others run (`snapshot.background_io`). Its
last line of output is the manifest's summary as JSON, or `{"error": …}`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import google_crc32c
import orjson

from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.errors import DiskFull, WalError
from cmdlog.wal.files import Files, RealFiles, parent, sync_file
from cmdlog.whole_line_stdout import answer
from snapshot.background_io import Breath, forget_cache, make_way, on_and_on, write_out
from snapshot.errors import SnapshotDamaged, SnapshotError
from snapshot.manifest import (
    DATA_NAME,
    IMAGE_NAME,
    MANIFEST_NAME,
    Base,
    FileEntry,
    Manifest,
    TableEntry,
    decode_manifest,
    encode_manifest,
)
from snapshot.table_digest import open_image, schema_of, table_digests

CHUNK_BYTES: Final = 256 << 10  # 1 ms of checksums
STEPS_BETWEEN_RESTS: Final = 100  # of SQLite, which counts pages and cells in a check: 1 ms at most
_HERE: Final = RealFiles()
_POSITION: Final = "SELECT partition, idx, term, checksum, txn_id FROM _cmdlog_meta"


def seal(files: Files, temporary: str, final: str, facts: Mapping[str, Any]) -> Manifest:
    """Checks, describes, syncs and names what is in `temporary`; on return the snapshot `final` is durable and verified.

    `facts` are the manifest's fields that the file does not hold; `kind` and `base` may be omitted for a whole image. Raises:
    SnapshotDamaged when the file is not what the facts say, or a delta's base is missing; DiskFull, WriteFailed.
    """
    name = DATA_NAME[facts.get("kind", "full")]
    data = os.path.join(temporary, name)
    rest = Breath()
    write_out(data)
    sync_file(files, data)
    manifest = describe(data, facts, rest) if name == IMAGE_NAME else _describe_delta(files, data, facts, parent(final), rest)
    files.write_file_atomic(os.path.join(temporary, MANIFEST_NAME), encode_manifest(manifest))
    files.fsync_dir(temporary)
    files.rename(temporary, final)
    files.fsync_dir(parent(final))
    forget_cache(os.path.join(final, name), rest)
    verify(files, final, rest)
    return manifest


def describe(image: str, facts: Mapping[str, Any], rest: Callable[[], bool] = on_and_on) -> Manifest:
    """The manifest of an image file. Raises: SnapshotDamaged."""
    entry = file_entry(image, rest)
    try:
        connection = open_image(image)
        try:
            connection.set_progress_handler(rest, STEPS_BETWEEN_RESTS)
            check = connection.execute("PRAGMA quick_check(1)").fetchall()
            found = connection.execute(_POSITION).fetchall()
            tables = tuple(TableEntry(name, d.rows, d.sha256) for name, d in table_digests(connection).items())
            schema = tuple(schema_of(connection))
        finally:
            connection.close()
    except apsw.Error as error:
        raise SnapshotDamaged(f"{image} is not an image of a state: {error}") from error
    if check != [("ok",)]:
        raise SnapshotDamaged(f"{image} is damaged: {check[0][0]}")
    stated = tuple(facts[name] for name in ("partition", "index", "term", "checksum", "txn_id"))
    if found != [stated]:
        raise SnapshotDamaged(f"{image} is at {found}, the capture said {stated}")
    return Manifest(**{"schema": schema, **facts}, tables=tables, files=(entry,))


def _describe_delta(files: Files, delta: str, facts: Mapping[str, Any], folder: str, rest: Callable[[], bool]) -> Manifest:
    """The manifest of a delta file, whose base lies in `folder` and is still the one that the facts name."""
    stated = Base(**facts["base"])
    base = read_manifest(files, os.path.join(folder, stated.name))
    if base.as_base(stated.name) != stated or base.partition != facts["partition"]:
        raise SnapshotDamaged(f"{delta} is a delta on {stated}; the snapshot of that name is a different one")
    return describe(delta, {**facts, "base": stated, "schema": base.schema}, rest)  # any change of tables forbids a delta


def verify(files: Files, path: str, rest: Callable[[], bool] = on_and_on) -> Manifest:
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
        manifest = decode_manifest(files.read_file(name), path=name)
    except (OSError, WalError) as error:
        raise SnapshotDamaged(f"{name} cannot be read: {error}") from error
    return manifest


def file_entry(path: str, rest: Callable[[], bool] = on_and_on, *, files: Files = _HERE) -> FileEntry:
    """Size and checksums of a file. Raises: SnapshotDamaged when it cannot be read."""
    crc, sha, size = 0, hashlib.sha256(), 0
    try:
        file = files.open(path, read_only=True)
        try:
            while chunk := file.pread(CHUNK_BYTES, size):
                crc = google_crc32c.extend(crc, chunk)
                sha.update(chunk)
                size += len(chunk)
                rest()
        finally:
            file.close()
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


def content_of(path: str, rest: Callable[[], object] = on_and_on) -> tuple[int, int]:
    """Size and CRC-32C of a file, in bounded memory; `rest` is called after each piece. Raises: OSError, what `rest` raises."""
    crc = size = 0
    with Path(path).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = google_crc32c.extend(crc, chunk)
            size += len(chunk)
            rest()
    return size, crc


def _difference(wanted: FileEntry, found: FileEntry) -> str:
    if wanted.bytes != found.bytes:
        return f"{found.bytes} bytes instead of {wanted.bytes}"
    return f"CRC-32C {found.crc32c:08x} instead of {wanted.crc32c:08x}"


def main() -> int:
    """Entry point of the process."""
    temporary, final, policy = sys.argv[1:4]
    make_way(int(policy))
    facts = orjson.loads(sys.stdin.buffer.read())
    try:
        manifest = seal(RealFiles(), temporary, final, facts)
    except (SnapshotError, WalError, OSError, apsw.Error) as error:
        kind = "disk_full" if isinstance(error, DiskFull | apsw.FullError) else type(error).__name__
        answer(orjson.dumps({"error": full_text(error), "kind": kind}, option=orjson.OPT_APPEND_NEWLINE))
        return error.exit_code if isinstance(error, OperatorError) else 1
    summary = {"bytes": manifest.bytes, "rows": sum(table.rows for table in manifest.tables), "index": manifest.index}
    answer(orjson.dumps(summary, option=orjson.OPT_APPEND_NEWLINE))
    return 0
