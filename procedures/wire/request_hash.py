"""The hash of a request: whether a key comes back with the call that it was used for.

It is stored with each outcome, so it never changes.
"""

from __future__ import annotations

import zlib
from typing import Any

import google_crc32c
import orjson

_crc, _crc32, _dumps = google_crc32c.extend, zlib.crc32, orjson.dumps


def request_seed(procedure: str) -> int:
    """The part of `request_hash` that the procedure's name gives."""
    return int(google_crc32c.value(procedure.encode()))


def request_hash(seed: int, params: list[Any]) -> int:
    """64 bits of a request: two CRCs, against accidents; a client that forges a collision only fools itself."""
    data = _dumps(params)
    request: int = _crc(seed, data) << 32 | _crc32(data)
    return request
