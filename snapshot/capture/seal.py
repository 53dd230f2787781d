"""Seal: makes a captured image or delta a snapshot. `python -m snapshot.background_io
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

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw
import orjson

from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.errors import DiskFull, WalError
from cmdlog.wal.files import Files, RealFiles, parent, sync_file
from cmdlog.whole_line_stdout import answer
from snapshot.background_io import Breath, forget_cache, make_way, write_out
from snapshot.errors import SnapshotDamaged, SnapshotError
from snapshot.manifest import (
    DATA_NAME,
    IMAGE_NAME,
    MANIFEST_NAME,
    Base,
    Manifest,
    TableEntry,
    encode_manifest,
    file_entry,
    read_manifest,
    verify,
)
from snapshot.table_digest import open_image, schema_of, table_digests

STEPS_BETWEEN_RESTS: Final = 100  # of SQLite, which counts pages and cells in a check: 1 ms at most
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


def describe(image: str, facts: Mapping[str, Any], rest: Callable[[], bool] = lambda: False) -> Manifest:
    """The manifest of an image file. Raises: SnapshotDamaged."""
    entry = file_entry(image, rest)
    try:
        with contextlib.closing(open_image(image)) as connection:
            connection.set_progress_handler(rest, STEPS_BETWEEN_RESTS)
            check = connection.execute("PRAGMA quick_check(1)").fetchall()
            found = connection.execute(_POSITION).fetchall()
            tables = tuple(TableEntry(name, d.rows, d.sha256) for name, d in table_digests(connection).items())
            schema = tuple(schema_of(connection))
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
