"""Where the entries of a call on all partitions are: (term, index) in every partition. FORMAT.md "Places of a call".

One rule: the leader that proposes such a call puts it into all groups in one step, and each of its entries names them all. So a
reader of one of them knows what to look for in the other groups, and needs no guess from what a state holds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.struct_layout import Layout

PLACES: Final = Layout(
    "Places header",
    ("base_term", "Q"),
    ("base_index", "Q"),
    ("count", "H"),
    ("term_bytes", "B"),
    ("index_bytes", "B"),
    ("reserved", "4s"),
)
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_ZERO4: Final = bytes(4)


@dataclass(frozen=True, slots=True)
class CallPlace:
    """One entry of the call: what its group must hold, and where."""

    term: int
    index: int


CallPlaces = tuple[CallPlace, ...]
"""By partition, from 0 on; () of nodes that vote alone: there one block has the call, on all."""


def encode_places(places: Sequence[CallPlace]) -> bytes:
    """The section of these places; b"" of none."""
    if not places:
        return b""
    terms, indexes = [place.term for place in places], [place.index for place in places]
    columns = [[value - min(of) for value in of] for of in (terms, indexes)]
    widths = [_width(max(column)) for column in columns]
    head = PLACES.pack(min(terms), min(indexes), len(places), *widths, _ZERO4)
    codes = "".join(f"{len(places)}{_CODES[width]}" for width in widths if width)
    values = [value for width, column in zip(widths, columns, strict=True) if width for value in column]
    return head + struct.pack(f"<{codes}", *values)


def places_bytes_max(partitions: int) -> int:
    """At most what one entry of a call on so many partitions takes for their places: 4 bytes of distance between terms, 8 between
    indexes."""
    return PLACES.bytes + 12 * partitions


def decode_places(section: bytes) -> CallPlaces:
    """The places that a section names. Raises: BadRecord when it is not what its header says."""
    if not section:
        return ()
    if len(section) < PLACES.bytes:
        raise BadRecord("places of a call")
    base_term, base_index, count, term_bytes, index_bytes, reserved = PLACES.unpack_from(section)
    if not count or reserved != _ZERO4 or {term_bytes, index_bytes} - {0, *_CODES}:
        raise BadRecord("places of a call: header")
    if PLACES.bytes + count * (term_bytes + index_bytes) != len(section):
        raise BadRecord("places of a call: size")
    at = PLACES.bytes
    terms = _column(section, at, count, term_bytes)
    indexes = _column(section, at + count * term_bytes, count, index_bytes)
    return tuple(CallPlace(base_term + term, base_index + index) for term, index in zip(terms, indexes, strict=True))


def _width(highest: int) -> int:
    """Bytes of a column's values."""
    return next(width for width in (0, 1, 2, 4, 8) if highest < 1 << 8 * width)


def _column(section: bytes, at: int, count: int, width: int) -> Sequence[int]:
    return struct.unpack_from(f"<{count}{_CODES[width]}", section, at) if width else [0] * count
