"""JSON that others wrote: files of a directory, an archive or a copy, and what peers say in frames.

One rule: size, values and depth are compared with a limit before anything is made of them. So a document costs a small multiple
of its bytes, and what walks through it ends. (`cmdlog.api.gate.strict_json` reads what clients send.)

orjson reads 1,024 levels and writes 254, Python recurses a thousand times: a document that is read here has few enough for all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from cmdlog.wal.files import Files

DOCUMENT_BYTES_MAX: Final = 4 << 20  # of most: they name members, sizes and snapshots
DEPTH_MAX: Final = 64  # levels: a checkpoint's catalogs and schemas have about ten
VALUES_MAX: Final = 1 << 20  # each takes 64 bytes or so, and two or three in the text
_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_CONTAINERS: Final = (dict, list)


class BadJson(ValueError):
    """It is no JSON object, or one beyond a limit. `str()` shows nothing of what it holds."""


def read_document(text: bytes, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> dict[str, Any]:
    """The object. Raises: BadJson."""
    if len(text) > bytes_max:
        raise BadJson(f"{len(text)} bytes of JSON, at most {bytes_max}")
    # Texts hold commas and brackets too, as programs do, so they are left out where there are many: that takes a second look.
    if _values(text) > VALUES_MAX and _values(_STRINGS.sub(b"", text)) > VALUES_MAX:
        raise BadJson(f"JSON of more than {VALUES_MAX} values")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadJson(f"not JSON: {error}") from None
    if type(value) is not dict:
        raise BadJson("JSON that is no object")
    if _is_deeper(value, DEPTH_MAX):
        raise BadJson(f"JSON of more than {DEPTH_MAX} levels")
    return value


def load_document(files: Files, path: str, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> dict[str, Any]:
    """The object that a file holds. Raises: BadJson; FileNotFoundError, Corrupt."""
    return read_document(files.read_file(path, bytes_max=bytes_max), bytes_max=bytes_max)


def whole_number(value: Any, *, highest: int = (1 << 63) - 1) -> int:
    """A number from 0 on. Raises: ValueError."""
    if type(value) is not int or not 0 <= value <= highest:
        raise ValueError(f"not a whole number from 0 to {highest}")
    return value


def fixed_bytes(value: Any, size: int) -> bytes:
    """Bytes in hexadecimal. Raises: ValueError, TypeError."""
    found = bytes.fromhex(value)
    if len(found) != size:
        raise ValueError(f"{len(found)} bytes, not {size}")
    return found


def _values(text: bytes) -> int:
    """How many there are at most."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner for outer in layer for inner in (outer.values() if type(outer) is dict else outer) if type(inner) in _CONTAINERS
        ]
        if not layer:
            return False
    return True
