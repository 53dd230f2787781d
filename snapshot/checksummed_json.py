"""JSON that carries the checksum of its own fields, so that a file itself proves that it is intact.

One rule: the checksum is of the fields sorted by name, without white space and without itself; how the file is laid out is not
part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import google_crc32c
import orjson

from cmdlog.wal.format.json_reader import BadJson, read_document
from snapshot.errors import SnapshotDamaged

MANIFEST_BYTES_MAX: Final = 128 << 20  # the code's bundles are by far the largest part, and an entry has at most 8 MiB
KEY: Final = "manifest_crc32c"  # of a manifest's own checksum


def checksum(value: Mapping[str, Any]) -> int:
    """CRC-32C of the fields."""
    return int(google_crc32c.value(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))


def encode_manifest_fields(value: Mapping[str, Any]) -> bytes:
    """A manifest's bytes, readable for people, too."""
    return orjson.dumps({**value, KEY: checksum(value)}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode_manifest_fields(data: bytes, *, path: str) -> dict[str, Any]:
    """The inverse; the content of the fields is not checked. Raises: SnapshotDamaged."""
    try:
        value = read_document(data, bytes_max=MANIFEST_BYTES_MAX)
    except BadJson as error:
        raise SnapshotDamaged(f"{path} cannot be read: {error}") from error
    if value.pop(KEY, None) != checksum(value):
        raise SnapshotDamaged(f"{path} does not match its own checksum")
    return value
