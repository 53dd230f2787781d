"""A file of one JSON object that proves itself intact: `instance.json`, the book of peers, manifests, promises, points, records.

One rule: such a file is replaced as a whole, durably, and believed only if its checksum fits. The member `checksum` is the
CRC-32C (eight hexadecimal digits) of the other members as JSON, sorted by name and without white space: the file's layout is no
part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import google_crc32c
import orjson

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files, parent
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX, BadJson, read_document

CHECKSUM: Final = "checksum"
MANIFEST_BYTES_MAX: Final = 128 << 20  # the code's bundles are by far the largest part, and an entry has at most 8 MiB


def crc32c_of(value: Mapping[str, Any]) -> int:
    """Of the members, without the checksum."""
    return int(google_crc32c.value(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))


def encode_checked(value: Mapping[str, Any], *, key: str = CHECKSUM) -> bytes:
    """The file's bytes, which people can read. `key`: another name, where a member has this one."""
    stated = {**value, key: f"{crc32c_of(value):08x}"}
    return orjson.dumps(stated, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode_checked(data: bytes, *, bytes_max: int = DOCUMENT_BYTES_MAX, key: str = CHECKSUM) -> dict[str, Any]:
    """The inverse; what the members hold is not checked. Raises: BadJson."""
    value = read_document(data, bytes_max=bytes_max)
    if value.pop(key, None) != f"{crc32c_of(value):08x}":
        raise BadJson("JSON that does not match its checksum")
    return value


def read_checked(files: Files, path: str, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> dict[str, Any] | None:
    """The object; None where there is no such file. Raises: Corrupt."""
    if not files.exists(path):
        return None
    try:
        return decode_checked(files.read_file(path, bytes_max=bytes_max), bytes_max=bytes_max)
    except BadJson as error:
        raise Corrupt(f"the file does not hold what was written: {error}", path=path) from error


def write_checked(files: Files, path: str, value: Mapping[str, Any]) -> None:
    """Durable on return, the folder's name too. Raises: DiskFull, WriteFailed."""
    folder = parent(path)
    if not files.exists(folder):
        files.mkdir(folder)
        files.fsync_dir(parent(folder))
    files.write_file_atomic(path, encode_checked(value))


def remove_checked(files: Files, path: str) -> None:
    """Durable on return; nothing happens where there is no such file."""
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(parent(path))
